"""Opening a finished run, and the wiring of the verbs that start from one.

Each function here takes the config apart and hands every component its own part; no component sees the whole.
Results go to stdout, remarks to stderr.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt import distributed, runtime
from nmt.attention_views.maps import SentenceMaps, attend, maps_of_nothing
from nmt.attention_views.views import require_maps, write_views
from nmt.config.roots import (
    AttentionVerbConfig,
    EvaluateConfig,
    GenerateConfig,
    Task,
    TrainConfig,
    TranslateConfig,
    require_checkpoint,
)
from nmt.config.stored import load_config
from nmt.data import sources
from nmt.data.lines import decoded
from nmt.data.mixture import tagged
from nmt.data.pairs import one_line
from nmt.data.sources import DataConfig, ParallelText, Split
from nmt.data.tokenizer import Tokenizer
from nmt.decoding import DecodingConfig, SamplingConfig
from nmt.decoding.evaluate import Scores
from nmt.decoding.translate import Translation, in_precision, translate_stream
from nmt.errors import UserError, suggest, warn
from nmt.files import write_lines
from nmt.models import TranslationModel, build_model
from nmt.runs.directory import RunDirectory
from nmt.runs.language_model import continued
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import TASKS, Evaluation
from nmt.training.checkpoint import AVERAGE
from nmt.training.train_state import TrainState


def initial_model(cfg: TrainConfig, tokenizer: Tokenizer) -> TranslationModel:
    """The model before its first update: a function of the config and the seed alone."""
    runtime.seed_everything(cfg.seed, "model")
    return build_model(
        cfg.model, src_vocab_size=tokenizer.src_vocab_size, tgt_vocab_size=tokenizer.tgt_vocab_size
    )


@dataclass
class Run(TrainedModel):
    """A trained model and the directory that it was opened from."""

    directory: RunDirectory
    _copies: dict[runtime.Precision, TranslationModel] = field(default_factory=dict, init=False, repr=False)

    def searched(self, decoding: DecodingConfig) -> TranslationModel:
        """The model in `decoding.precision`, made at the first call."""
        if decoding.precision not in self._copies:
            self._copies[decoding.precision] = in_precision(self.model, decoding, self.device)
        return self._copies[decoding.precision]

    def translate(
        self, lines: Iterable[str], decoding: DecodingConfig | None = None, tgt: str | None = None
    ) -> Iterator[Translation]:
        """Translate line by line, in order, with the search of the run or another; see `asking_for`."""
        self.require_task(Task.translation)
        search, sources = decoding or self.cfg.decoding, self.asking_for(tgt, lines)
        return translate_stream(sources, self.searched(search), self.tokenizer, search, device=self.device)

    def attend(
        self, lines: Iterable[str], decoding: DecodingConfig | None = None, tgt: str | None = None
    ) -> Iterator[SentenceMaps]:
        """What the model attends to for lines SOURCE, which are translated, or SOURCE, TAB, TARGET."""
        self.require_task(Task.translation)
        search, sources = decoding or self.cfg.decoding, self.asking_for(tgt, lines)
        return attend(sources, self.model, self.tokenizer, search, device=self.device)

    def asking_for(self, tgt: str | None, lines: Iterable[str]) -> Iterable[str]:
        """The lines, with the tag of the language `tgt` where the model wants tags.

        Raises:
            UserError: the model does not translate into `tgt`, or into several languages and `tgt` is None.
        """
        tags = self.cfg.data.tags
        known = list(dict.fromkeys(language for _, language in self.cfg.data.languages))
        if tgt is None and tags and len(known) > 1:
            raise UserError(f"the run translates into {', '.join(known)}; say which one with tgt=...")
        if tgt is not None and tgt not in known:
            raise UserError(f"tgt={tgt}: the run translates into {', '.join(known)}{suggest(tgt, known)}")
        return tagged(lines, tags[tgt or known[0]]) if tags else lines

    def generate(self, prompt: str, max_tokens: int = 200, sampling: SamplingConfig | None = None) -> str:
        """The prompt and `max_tokens` tokens that a language model adds to it."""
        self.require_task(Task.language_model)
        prompt = prompt.rstrip(" ")  # a space belongs to the word after it
        return prompt + continued(self, prompt, sampling or SamplingConfig(), max_tokens)

    def require_task(self, task: Task) -> None:
        """Raise `UserError` for a model that was trained for another task."""
        run = self.directory.path
        if self.cfg.task is task:
            return
        if task is Task.translation:
            raise UserError(
                f"{run} is a language model and translates nothing; nmt generate run={run} continues a text"
            )
        raise UserError(f"{run} is no language model, but translates: nmt translate run={run}")


def open_run(
    path: str | Path, checkpoint: str = "final", runtime_cfg: runtime.RuntimeConfig | None = None
) -> Run:
    """Load the model of a run directory.

    Args:
        path: the run directory.
        checkpoint: final (what training scored at its end), best, last, average or the number of a step.
        runtime_cfg: the device to use; by default CUDA when there is one.

    Raises:
        UserError: the directory holds no run, or the checkpoint is missing or damaged.
    """
    directory = RunDirectory(Path(path))
    cfg = load_config(directory.config_file)
    device = runtime.prepare(runtime_cfg or runtime.RuntimeConfig())
    tokenizer = directory.tokenizer(cfg.tokenizer)
    model = initial_model(cfg, tokenizer)
    load_weights(model, directory, cfg, checkpoint)
    return Run(cfg, tokenizer, model.to(device).eval(), device, directory)


def load_weights(model: TranslationModel, run: RunDirectory, cfg: TrainConfig, name: str) -> None:
    """Put the weights of the checkpoint `name` into `model`; the names are those of `open_run`."""
    store, found = run.checkpoints, _resolved(name, run, cfg)
    weights = store.load_average().model if found == AVERAGE else store.load_model(int(found))
    model.load_state_dict(weights)


def identify_checkpoint(path: str | Path, name: str = "final") -> tuple[str, str]:
    """What the checkpoint `name` of a run stands for now, average or a step, and a SHA-256 of its content.

    Raises:
        UserError: the directory holds no run, or the checkpoint is missing.
    """
    run = RunDirectory(Path(path))
    found = _resolved(name, run, load_config(run.config_file))
    store = run.checkpoints
    return found, store.digest(store.directory / AVERAGE if found == AVERAGE else store.folder(int(found)))


def _resolved(name: str, run: RunDirectory, cfg: TrainConfig) -> str:
    """average or the number of a step, for any name of a checkpoint."""
    require_checkpoint(name)
    store = run.checkpoints
    if not store.steps():
        raise UserError(f"{run.path} has no checkpoint yet; train it with `nmt train run={run.path} ...`")
    if name == "final":
        name = AVERAGE if store.has_average() and cfg.trainer.average else "best"
    return name if name == AVERAGE else str(_step_of(name, run))


def _step_of(name: str, run: RunDirectory) -> int:
    store = run.checkpoints
    steps = store.steps()
    if name == "best":
        scored = TrainState(**store.load(steps[-1]).state["progress"]).best_steps(among=steps)
        return scored[0] if scored else steps[-1]
    step = steps[-1] if name == "last" else int(name)
    if step not in steps:
        raise UserError(
            f"checkpoint={name} is not in {run.path}; there are the steps {', '.join(map(str, steps))}"
        )
    return step


def evaluation_text(run: RunDirectory, cfg: TrainConfig, data: DataConfig, split: Split) -> ParallelText:
    """The pairs of `split`: the copy kept in the run as long as `data` is what the run was trained with."""
    if dataclasses.replace(data, scored_split=cfg.data.scored_split) == cfg.data and split is not Split.train:
        kept = run.kept_text(split, data)
        if kept is not None:
            return kept
    return TASKS[cfg.task].examples(cfg).view(sources.load(data, split))


def evaluate(cfg: EvaluateConfig) -> dict[str, Any]:
    """Score a trained model on one split, print and return the scores; several processes share the work."""
    opened = open_run(cfg.run, cfg.checkpoint, cfg.runtime)
    _require_languages(opened.cfg, cfg.data)
    split = cfg.data.scored_split
    with distributed.joined() as world:
        with world.main_first():  # which may download
            text = evaluation_text(opened.directory, opened.cfg, cfg.data, split)
        if opened.cfg.data.tags and not cfg.data.tags:  # a corpus of its own, read as it is
            text = ParallelText(list(opened.asking_for(cfg.data.tgt, text.src)), text.tgt)
        tested = dataclasses.replace(opened, cfg=dataclasses.replace(opened.cfg, data=cfg.data), world=world)
        scores = Evaluation(tested, text, warn).scores(cfg.decoding, cfg.metrics)
        if world.is_main:
            print(report(split, scores), flush=True)
            file = opened.directory.hypotheses / hypothesis_name(cfg, opened.cfg)
            write_lines(file, scores.hypotheses)
            print(f"written     {file}")
    return {split.value: scores.values, "signatures": scores.signatures}


def _require_languages(trained: TrainConfig, data: DataConfig) -> None:
    own = trained.data
    if trained.task is Task.language_model and data.tgt != own.tgt:
        raise UserError(f"the run models {own.tgt}, but data.tgt is {data.tgt}; add data.tgt={own.tgt}")
    wrong = [pair for pair in data.languages if pair not in own.languages]
    if trained.task is Task.translation and wrong:
        (src, tgt), known = wrong[0], " and ".join(f"{a} to {b}" for a, b in dict.fromkeys(own.languages))
        first = own.languages[0]
        raise UserError(
            f"the run translates {known}, "
            f"but data is {src} to {tgt}; add data.src={first[0]} data.tgt={first[1]}"
        )


def hypothesis_name(cfg: EvaluateConfig, trained: TrainConfig) -> str:
    """test.de for the settings of the run; other settings get a name of their own and overwrite nothing."""
    same_data = dataclasses.replace(cfg.data, scored_split=trained.data.scored_split) == trained.data
    if same_data and cfg.decoding == trained.decoding and cfg.checkpoint == "final":
        return f"{cfg.data.scored_split.value}.{cfg.data.tgt}"
    settings = repr((cfg.data, cfg.decoding, cfg.checkpoint))
    return f"{cfg.data.scored_split.value}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.{cfg.data.tgt}"


def score_line(name: str, values: dict[str, float]) -> str:
    """One line with the scores of one split."""
    labels = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "perplexity": "perplexity"}
    shown = (f"{label} {values[score]:.2f}" for score, label in labels.items() if score in values)
    return f"{name:<12}{'  '.join(shown)}"


def report(split: Split, scores: Scores) -> str:
    """What a user reads after an evaluation."""
    signatures = [f"signature   {name}|{signature}" for name, signature in scores.signatures.items()]
    return "\n".join([score_line(split.value, scores.values), *signatures])


def translate(cfg: TranslateConfig) -> None:
    """Translate standard input line by line to standard output, in order."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    opened = open_run(cfg.run, cfg.checkpoint, cfg.runtime)
    for number, translation in enumerate(opened.translate(decoded(source), cfg.decoding, cfg.tgt)):
        target.write(
            "".join(f"{line}\n" for line in output_lines(number, translation, cfg.decoding.n_best)).encode()
        )
        target.flush()


def attention(cfg: AttentionVerbConfig) -> None:
    """Write what the model attends to for the lines on standard input, and print the names of the files."""
    opened = open_run(cfg.run, cfg.checkpoint, cfg.runtime)
    opened.require_task(Task.translation)
    maps = maps_of_nothing(opened.model, opened.device)
    require_maps(maps, cfg, f"the model of {cfg.run} (model.name={opened.cfg.model.name})")
    lines = itertools.islice(decoded(sys.stdin.buffer), cfg.last_line)
    output = Path(cfg.output) if cfg.output is not None else opened.directory.path / "attention"
    title = one_line(f"Attention of {opened.directory.path}")
    for file in write_views(opened.attend(lines, cfg.decoding, cfg.tgt), cfg, output, title):
        print(f"written     {file}")


def output_lines(number: int, translation: Translation, n_best: int) -> Iterator[str]:
    """The translation alone, or all of an n-best list in the format of Moses, with lines counted from 0."""
    if n_best == 1:
        yield translation.text
        return
    for candidate in (translation, *translation.alternatives):
        yield f"{number} ||| {candidate.text} ||| {candidate.score:.4f}"


def generate(cfg: GenerateConfig) -> None:
    """Print the prompt and what the model adds to it."""
    if not isinstance(cfg.decoding, SamplingConfig):
        raise UserError(f"nmt generate needs decoding=sampling, but has {cfg.decoding.strategy}")
    opened = open_run(cfg.run, cfg.checkpoint, cfg.runtime)
    print(opened.generate(cfg.prompt, cfg.max_tokens, cfg.decoding))
