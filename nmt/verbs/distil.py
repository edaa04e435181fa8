"""The wiring of `nmt distil`: teachers translate, the best of it joins the training pairs, a student learns.

    STAGES/text-HASH             the text to translate
    STAGES/translations-HASH     its translations by one teacher, or by an ensemble, with their scores
    STAGES/pairs-HASH            the pairs that are kept of the translations of one text
    STAGES/scored-HASH           the pairs to score on, for a student that sees no original pairs

The student is an ordinary run, whose data is a mixture of the original and the synthetic pairs. All stages
are named before anything is translated, so that a config that cannot be trained is refused at once.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config import small_data
from nmt.config.composed import Composed
from nmt.config.misfits import check
from nmt.config.roots import Task, TrainConfig, TranslateConfig, keys_below
from nmt.config.spelling import spelled
from nmt.config.stored import load_config, load_run, refuse_difference, to_plain
from nmt.data.batches.training_split import evaluation_split, scan, scored_text
from nmt.data.cleaning.filtering import chains
from nmt.data.cleaning.filters import FilterReport, filter_pairs
from nmt.data.configs import DataConfig, directions
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.lines import read_lines
from nmt.data.reading.sources import MixtureData
from nmt.decoding.configs import SPLITTING, LineSplitting
from nmt.disk_cache import cache_dir
from nmt.errors import UserError, tell
from nmt.files import another, digest, require_place
from nmt.runs import synthetic
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runs.configs import Side
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_runs
from nmt.runs.scorers import RunScorers
from nmt.runs.stages import Fill, StageFolder
from nmt.runs.synthetic import Selection
from nmt.runs.train import train
from nmt.runtime_config import RuntimeConfig, num_processes
from nmt.signals import StopRequest
from nmt.translation.allowed import AllowedTokens
from nmt.verbs.configs import Combine, DistilConfig
from nmt.verbs.translate import search_settings, translate_file

_keys_of_teachers = functools.partial(keys_below, "distil", ("checkpoint", "decoding", "ensemble"))

ORIGINAL = "original"
"""Name of the original pairs in the mixture, where they are no mixture themselves."""


def run(trial: Composed) -> dict[str, Any]:
    """Make the stages that are missing, train the student and return its results."""
    trial = _with_rules(trial)
    cfg = trial.to_config(DistilConfig)
    with StopRequest(cfg.runtime.grace_seconds):
        corpora = list(planned(cfg))
        student = student_config(cfg, corpora)
        check(student)
        run_dir = dataclasses.replace(trial, choices=trial.choices | {"data": "distil"}).run_dir(student)
        require_same_student(run_dir, student)
        for corpus in corpora:
            corpus.require_teachers(cfg)
    for corpus in corpora:
        corpus.make(cfg)
    if not cfg.distil.train:
        print(shlex.join(["nmt", "train", "data=mixture", *as_overrides(student.data)]))
        return {}
    return train(student, run_dir)


def _with_rules(trial: Composed) -> Composed:
    """Return the config with what the rules for small data choose, by the number of original pairs."""
    settings = trial.chosen()
    return dataclasses.replace(trial, cfg=small_data.filled(trial.cfg, settings)) if settings else trial


def as_overrides(data: DataConfig) -> list[str]:
    """Return what a mixture does not have by default, as arguments of `nmt train`."""
    by_default = to_plain(MixtureData)
    return [
        f"data.{key}={spelled(value)}" for key, value in to_plain(data).items() if value != by_default[key]
    ]


def require_same_student(run_dir: Path, student: TrainConfig) -> None:
    """Raise `UserError`, before anything is translated, when the directory cannot be that of the student."""
    require_place(run_dir, another("run"))
    directory = RunDirectory(run_dir)
    if directory.config_file.is_file() and (steps := directory.checkpoints.steps()):
        stored = load_config(directory.config_file)
        refuse_difference(stored, directory.with_found(student), run_dir, steps[-1])


@dataclass
class SyntheticCorpus:
    """A corpus of the student that is to be made, or is there: one text, translated in one direction."""

    name: str
    part: str
    """The corpus of the original pairs."""
    languages: tuple[str, str]
    text: StageFolder
    write_text: Fill
    groups: list[TranslateConfig]
    """Teachers that translate together, for each of `selection.translated`."""
    selection: Selection
    splits: Mapping[Split, ParallelText]
    """Pairs to score on, where no original pairs bring them."""

    def pairs(self, cfg: DistilConfig) -> StageFolder:
        """Return the stage of the pairs that the student sees."""
        return self.selection.stage(Path(cfg.distil.folder))

    def scored(self, cfg: DistilConfig) -> StageFolder:
        """Return the stage of the pairs to score on."""
        return synthetic.stage_of_splits(Path(cfg.distil.folder), self.splits, self.languages)

    def entry(self, cfg: DistilConfig) -> dict[str, Any]:
        """Return the entry of the mixture that the student learns from."""
        entry = {"name": "files", "src": self.languages[0], "tgt": self.languages[1]}
        entry |= {"train": str(self.pairs(cfg).folder / "pairs")}
        entry |= {split.value: str(self.scored(cfg).folder / split.value) for split in self.splits}
        tagged = self.selection.side is Side.tgt and cfg.distil.backward_tag is not None
        own = {"tag": cfg.distil.backward_tag if tagged else None, "domain": cfg.data.domains.get(self.part)}
        return entry | {key: value for key, value in own.items() if value is not None}

    def require_teachers(self, cfg: DistilConfig) -> None:
        """Open the teachers whose translations are missing, and the files of their search.

        What is wrong with one is known at once.
        """
        for together, stage in zip(self.groups, self.selection.translated, strict=True):
            if not (self.pairs(cfg).exists or stage.exists):
                with _keys_of_teachers():
                    run = open_runs(dataclasses.replace(together, runtime=RuntimeConfig(device="cpu")))
                    AllowedTokens(together.decoding, run.tokenizer, tell)

    def make(self, cfg: DistilConfig) -> None:
        """Make what is missing, and report on all of it."""
        pairs = self.pairs(cfg)
        if not pairs.exists:
            _require_one_process()
            with StopRequest(cfg.runtime.grace_seconds):
                found = self.text.made(self.write_text)
                report = FilterReport(found["read"], found["dropped"])
            for together, stage in zip(self.groups, self.selection.translated, strict=True):
                tell(f"{self.name}: {report.kept:,} lines by {' and '.join(together.runs)}: {stage.folder}")
                stage.made(functools.partial(self._translate, cfg, together, stage))
            with StopRequest(cfg.runtime.grace_seconds):
                pairs.made(self.selection.write)
        if self.splits:
            self.scored(cfg).made(synthetic.write_splits(self.splits, self.languages))
        tell(f"{self.name}: {synthetic.account(pairs.report())}: {pairs.folder}")

    def _translate(
        self, cfg: DistilConfig, together: TranslateConfig, stage: StageFolder, folder: Path
    ) -> dict[str, Any]:
        """Translate the text to `folder`, or go on with it."""
        source, output = self.text.folder / self.selection.side.name, folder / synthetic.TRANSLATIONS
        if not output.exists():
            files: dict[str, Any] = {
                "input": str(source),
                "output": str(output),
                "workers": cfg.distil.workers,
            }
            with _keys_of_teachers():
                translate_file(dataclasses.replace(together, **files))
            if stage.inputs | with_fixed_checkpoints(together)[1] != stage.inputs:
                output.unlink()
                raise UserError(
                    f"a checkpoint of {' and '.join(together.runs)} has changed while it was translating; "
                    "the same command begins anew, with the new one"
                )
        num_lines = sum(1 for _ in read_lines(source, "text"))
        return {"translations": sum(map(len, synthetic.n_best_lists(output, num_lines)))}


def _require_one_process() -> None:
    if num_processes() > 1:
        raise UserError(
            "the translations are made by one process, whose workers use all devices; make them first: "
            "nmt distil ... distil.train=false"
        )


# What is to be made


def planned(cfg: DistilConfig) -> Iterator[SyntheticCorpus]:
    """Yield the synthetic corpora: each corpus of `cfg.data` in each direction that a teacher has.

    Raises:
        UserError: a teacher is no run, or of no direction of the data; or the text cannot be read.
    """
    teachers = {run: load_run(run, "teacher") for run in cfg.teachers}
    parts = cfg.data.parts(Split.train)
    if not cfg.data.is_mixture:
        parts = {ORIGINAL: cfg.data}
    _require_use(cfg, teachers, parts)
    for name, part in parts.items():
        splits = {} if cfg.distil.original_weight else _splits(cfg.data, name, part)
        for side in Side:
            languages = (part.src, part.tgt) if side is Side.src else (part.tgt, part.src)
            fitting = [run for run, trained in teachers.items() if languages in trained.data.languages]
            if fitting:
                full_name = side.value if name == ORIGINAL else f"{name}_{side.value}"
                if full_name in parts:
                    raise UserError(f"data.corpora.{full_name}: name it otherwise, as nmt distil adds one")
                yield _corpus(cfg, full_name, (name, part), side, fitting, splits)
                splits = {}  # the first corpus has them


def _splits(data: DataConfig, name: str, part: DataConfig) -> dict[Split, ParallelText]:
    """Return the pairs of a corpus of `data` that are scored."""
    known = [split for split in Split if split is not Split.train and sources.has_split(part, split)]
    scored = [split for split in known if not data.is_mixture or name in data.parts(split)]
    return {split: evaluation_split(sources.stream(part, split), cache_dir()) for split in scored}


def _require_use(
    cfg: DistilConfig, teachers: Mapping[str, TrainConfig], parts: Mapping[str, DataConfig]
) -> None:
    """Raise `UserError` for a teacher, or a text, that nothing could be done with."""
    forward = [(part.src, part.tgt) for part in parts.values()]
    known = {Side.src: forward, Side.tgt: [(tgt, src) for src, tgt in forward]}
    for run, trained in teachers.items():
        if trained.task is not Task.translation:
            raise UserError(f"teacher={run} has task={trained.task.value} and translates nothing")
        if not {*trained.data.languages} & {*known[Side.src], *known[Side.tgt]}:
            raise UserError(
                f"teacher={run} translates {directions(trained.data.languages)}, but the data is "
                f"{directions(forward)}; name another teacher, or other data=..."
            )
    for side in Side:
        if not cfg.distil.text(side):
            continue
        key = f"distil.{side.name}_text"
        if len(parts) > 1:
            raise UserError(
                f"{key} needs data of one corpus, but data={cfg.data.name} has {', '.join(parts)}"
            )
        if not any({*trained.data.languages} & {*known[side]} for trained in teachers.values()):
            raise UserError(f"{key} needs a teacher that translates {directions(known[side])}")
    sides = [s for s in Side if any({*t.data.languages} & {*known[s]} for t in teachers.values())]
    if cfg.distil.backward_tag is not None and Side.tgt not in sides:
        raise UserError(
            f"distil.backward_tag={cfg.distil.backward_tag} is for back-translated pairs, but no teacher "
            f"translates {directions(known[Side.tgt])}; leave it out"
        )
    if cfg.distil.needs_references and all(cfg.distil.text(side) for side in sides):
        raise UserError(
            "distil.candidates=closest and distil.min_chrf compare translations with references, which a "
            "text in one language does not have; use distil.min_score or distil.best_share"
        )


def _corpus(
    cfg: DistilConfig,
    name: str,
    part: tuple[str, DataConfig],
    side: Side,
    teachers: list[str],
    splits: Mapping[Split, ParallelText],
) -> SyntheticCorpus:
    root, files, data = Path(cfg.distil.folder), cfg.distil.text(side), part[1]
    if files:
        text = synthetic.stage_of_text(root, files, side, cfg.data.max_chars)
        write = synthetic.write_text(text, files, side, cfg.data.max_chars)
    else:
        of_part = data.name if data is cfg.data else part[0]
        known = [one for one in (Split.validation, Split.test) if sources.has_split(cfg.data, one)]
        scored_on = scored_text(cfg.data, known)
        chain = chains(cfg.data, scored_on, RunScorers(cfg.runtime))[of_part]
        pairs = scan(sources.stream(data, Split.train), cfg.data, filter_pairs, chain, cache_dir())
        text, write = synthetic.stage_of_pairs(root, pairs), synthetic.write_pairs(pairs)
    groups = [teachers] if cfg.distil.combine is Combine.ensemble else [[run] for run in teachers]
    languages = data.src, data.tgt
    tgt = data.tgt if side is Side.src else data.src
    domain = cfg.data.domains.get(part[0])
    with _keys_of_teachers():
        teaching = [_translations(cfg, text, side, tgt, group, domain) for group in groups]
    selection = Selection(text, [stage for _, stage in teaching], side, cfg.distil, languages)
    return SyntheticCorpus(name, part[0], languages, text, write, [t for t, _ in teaching], selection, splits)


def _translations(
    cfg: DistilConfig, text: StageFolder, side: Side, tgt: str, runs: Sequence[str], domain: str | None
) -> tuple[TranslateConfig, StageFolder]:
    """Return how teachers translate one side of `text` together, and the stage of their translations.

    They are told its `domain` if all of them know that.
    """
    known = all(domain in load_run(run, "teacher").data.domains.values() for run in runs)
    decoding = cfg.distil.decoding
    if decoding.split_lines is LineSplitting.long:  # a pair of two sentences teaches two sentences
        decoding = dataclasses.replace(decoding, split_lines=LineSplitting.none)
    together, weights = with_fixed_checkpoints(
        TranslateConfig(
            run=list(runs) if len(runs) > 1 else runs[0],
            checkpoint=cfg.distil.checkpoint,
            ensemble=cfg.ensemble_of(runs),
            runtime=cfg.runtime,
            decoding=decoding,
            tgt=tgt,
            domain=domain if known else None,
            scores=True,
        )
    )
    passed = () if decoding.split_lines is LineSplitting.all else SPLITTING
    settings = {key.removeprefix("decoding."): value for key, value in search_settings(decoding).items()}
    search = {key: value for key, value in settings.items() if key not in passed}
    tokenizers = [[digest(file) for file in sorted(Path(run).glob("tokenizer*.model"))] for run in runs]
    own = {"text": text.folder.name, "translated": side.name, "tgt": tgt, "tokenizers": tokenizers}
    inputs = own | weights | {"decoding": search} | ({"domain": domain} if domain and known else {})
    return together, StageFolder(Path(cfg.distil.folder), "translations", inputs, [synthetic.TRANSLATIONS])


# The student


def student_config(cfg: DistilConfig, corpora: Sequence[SyntheticCorpus]) -> TrainConfig:
    """Return the config of the training: that of `cfg`, on the original and the synthetic pairs."""
    own = {known.name: getattr(cfg, known.name) for known in dataclasses.fields(TrainConfig)}
    return TrainConfig(**own | {"data": _student_data(cfg, corpora)})


def _student_data(cfg: DistilConfig, corpora: Sequence[SyntheticCorpus]) -> MixtureData:
    """Return the mixture of the original corpora, unless their weight is 0, and the synthetic ones."""
    data = cfg.data
    originals = {ORIGINAL: synthetic.entry_of(data)}
    if isinstance(data, MixtureData):
        originals = {
            name: data.corpora[name] | {"fixers": part.fixers, "filters": [*data.filters, *part.filters]}
            for name, part in data.parts(Split.train).items()
        }
    weights = {name: float(entry.get("weight", 1.0)) for name, entry in originals.items()}
    entries = originals | {corpus.name: corpus.entry(cfg) for corpus in corpora}
    mixed = _weights(cfg, corpora, weights)
    entries = {name: entries[name] | {"weight": own} for name, own in mixed.items()}
    stages = data.stages if isinstance(data, MixtureData) else []
    stages = [stage | {"weights": _weights(cfg, corpora, stage["weights"])} for stage in stages]
    if left := [name for name in weights if name not in {*entries, *(corpus.part for corpus in corpora)}]:
        raise UserError(f"distil.original_weight=0 leaves out {left[0]}, which no teacher translates")
    return synthetic.mixture_of(data, entries, stages)


def _weights(
    cfg: DistilConfig, corpora: Sequence[SyntheticCorpus], originals: Mapping[str, float]
) -> dict[str, float]:
    """Return the weights of original corpora, unless they are 0, and of what is made of these corpora."""
    weight = cfg.distil.original_weight
    found = {name: weight * own for name, own in originals.items() if weight}
    return found | {corpus.name: originals[corpus.part] for corpus in corpora if corpus.part in originals}
