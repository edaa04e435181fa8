"""The start of a training from the model of another run: its tokenizer, its weights, its optimizer.

Once the first checkpoint of the new run is written, the other run is needed no more; init.json of the new one
says what it was. Rows of the vocabulary's matrices go with their pieces; see `nmt.data.tokens.adaptation`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nmt.config.misfits import way_to_tags
from nmt.config.roots import Task, TrainConfig
from nmt.config.starting import (
    OptimizerUse,
    VocabularyUse,
    kept,
    other_computation,
    other_shapes,
    refuse_contradictions,
)
from nmt.config.stored import load_config, to_plain
from nmt.data.configs import directions
from nmt.data.parallel_text import Split
from nmt.data.tokens.adaptation import Coverage, Inherited, Origins, coverage, origins
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import Log, UserError, first_of, warn
from nmt.files import read_json, write_json
from nmt.models.base import TranslationModel
from nmt.models.configs import TransformerConfig
from nmt.models.vocabulary import TokenEmbedding
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.embeddings import require_vectors
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runtime_config import Precision
from nmt.training.adapting.configs import FewWeightsConfig
from nmt.training.adapting.freezing import matching
from nmt.training.checkpoint import AVERAGE, Checkpoint, memory_of
from nmt.training.lengths import are_counted
from nmt.training.optimizers.schedule_configs import PlateauConfig
from nmt.training.parallel_model import OF_OBJECTIVE, OF_TRAINED
from nmt.training.train_state import TrainState

MOST_LISTED = 12
"""Weights that an error or a remark names, one by one."""
MUCH_UNKNOWN = 0.01
"""Share of unknown pieces in new text from which on a vocabulary does not suit it."""


@dataclass
class Start:
    """The model that a training starts from, and the part of the config that says how."""

    cfg: TrainConfig
    """The config of the training."""
    run: Run
    """The other run, opened."""
    checkpoint: str
    """average, or the number of a step."""
    sha256: str
    """A hash of the content of the checkpoint."""

    @property
    def inherited(self) -> Inherited | None:
        """The tokenizer to keep or to extend; None for a new one."""
        init = self.cfg.init
        if init.vocabulary is VocabularyUse.remap:
            return None
        extends = init.vocabulary is VocabularyUse.extend
        return Inherited(self.run.tokenizer, init.new_pieces if extends else None)

    def begin(
        self, model: TranslationModel, tokenizer: Tokenizer, run: RunDirectory | None, log: Log
    ) -> None:
        """Load the weights that `init.weights` chooses into `model`; say which, and record that in `run`.

        Raises:
            UserError: they do not fit the model.
        """
        rows = _Rows(model, self.run.tokenizer, tokenizer)
        log(f"starting from {self.run.directory.path}, {self.place} (sha256 {self.sha256[:16]})")
        new = _load(model, self._chosen(), rows, self._misfit)
        if others := self._other_computation():
            log(
                f"warning: layers of the run compute something else in this model: {'; '.join(others)}; set "
                "these keys as they are there unless that is meant"
            )
        sizes = {name: x.numel() for name, x in model.named_parameters()}
        fresh = [name for name in new if name in sizes]
        total = sum(sizes.values())
        log(f"weights: {total - sum(map(sizes.__getitem__, fresh)):,} of {total:,} are those of the run")
        if fresh:
            of_all_layers = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in fresh)
            log(f"weights that begin anew: {first_of(of_all_layers, 4)}")
        for line in rows.lines(self.cfg.init.vocabulary):
            log(line)
        if run is None:
            return
        covered = self._coverage(tokenizer, run)
        for line in _coverage_lines(covered, self.cfg):
            log(line)
        record = {
            "run": str(self.run.directory.path.absolute()),
            "checkpoint": self.checkpoint,
            "sha256": self.sha256,
            "new_weights": fresh,
            "pieces": rows.counts(),
            "coverage": {name: dataclasses.asdict(found) for name, found in covered.items()},
        }
        write_json(record_file(run), record)

    @property
    def place(self) -> str:
        """The checkpoint in words."""
        return "the average of its checkpoints" if self.checkpoint == AVERAGE else f"step {self.checkpoint}"

    def _misfit(self, wrong: Mapping[str, str]) -> UserError:
        """Return the error about weights that do not fit the model, each by its name with why."""
        listed = list(wrong.values())
        more = [f"and {len(listed) - MOST_LISTED:,} more"] if len(listed) > MOST_LISTED else []
        keys = other_shapes(to_plain(self.cfg), to_plain(self.run.cfg))
        what = f"the weights of init={self.run.directory.path} ({self.place}) do not fit:"
        lines = "\n  ".join([what, *listed[:MOST_LISTED], *more, *keys])
        ways = [*(["set these keys as they are there"] if keys else []), *self._fewer_layers()]
        tops = {name: name.partition(".")[0] for name in self._chosen()}
        unfit = {tops[name] for name in wrong}
        fit = ",".join(f"{top}.*" for top in dict.fromkeys(tops.values()) if top not in unfit)
        return UserError(f"{lines}\n{', or '.join([*ways, f'take what fits: init.weights=[{fit}]'])}")

    def _other_computation(self) -> list[str]:
        """Return a line for each key by which layers that are taken compute something else in the model."""
        tops = {name.partition(".")[0] for name in self._chosen()}
        stacks = {top for top in tops if not top.endswith(("embedding", "output"))}
        return other_computation(self.cfg.model, self.run.cfg.model, stacks)

    def _fewer_layers(self) -> Iterator[str]:
        """Yield how to take as many layers as the model has, for each stack in which the run has more."""
        if isinstance(self.run.cfg.model, TransformerConfig):
            for key in ("encoder_layers", "decoder_layers"):
                depth = getattr(self.cfg.model, key, None)
                if depth is not None and depth < getattr(self.run.cfg.model, key):
                    first = ",".join(map(str, range(1, depth + 1)))
                    yield f"take fewer layers, such as init.{key}=[{first}]"

    def _chosen(self) -> dict[str, Tensor]:
        weights = self.run.model.state_dict()
        return {name: weights[name] for name in matching(self.cfg.init.weights, weights, "init.weights")}

    def _coverage(self, tokenizer: Tokenizer, run: RunDirectory) -> dict[str, Coverage]:
        """Return how well the vocabularies cover the validation pairs of both runs, by side and run."""
        if self.cfg.task is not Task.translation:
            return {}
        old = self.run.directory.kept_text(Split.validation, self.run.cfg.data)
        new = run.kept_text(Split.validation, self.cfg.data)
        found = dict[str, Coverage]()
        for name, vocabulary, text in (("new", tokenizer, new), ("old", self.run.tokenizer, old)):
            if text is not None:
                found |= zip((f"src_{name}", f"tgt_{name}"), coverage(vocabulary, text), strict=True)
        return found

    def continued(
        self, model: TranslationModel, tokenizer: Tokenizer, max_steps: int | None
    ) -> Checkpoint | None:
        """Return a checkpoint of `model`, in which the optimizer of the run goes on; None for a fresh one.

        Raises:
            UserError: a training of `max_steps` would end before.
        """
        if self.cfg.init.optimizer is OptimizerUse.fresh:
            return None
        _require_later(self.checkpoint, max_steps, typed=self.cfg.trainer.max_steps)
        step, rows = int(self.checkpoint), _Rows(model, self.run.tokenizer, tokenizer)
        begun = self.run.directory.checkpoints.load(step)
        stored, progress = begun.optimizer, TrainState(step=step)
        state, sources = dict[str, Tensor](), self._sources(model)
        for key, x in stored.items():
            name, _, kind = key.rpartition("/")
            if not key.startswith((OF_OBJECTIVE, OF_TRAINED)):
                state |= {f"{own}/{kind}": rows.moved(own, x) for own, its in sources.items() if its == name}
        for name, x in model.named_parameters() if self.cfg.keeps_average else ():
            if x.requires_grad:
                theirs = stored.get(f"{OF_TRAINED}{sources.get(name)}")
                state[OF_TRAINED + name] = x.detach().clone() if theirs is None else rows.moved(name, theirs)
        if self.cfg.optimizer.averages:
            self._require_states_of_all(model, state)
        if isinstance(self.cfg.schedule, PlateauConfig) and isinstance(self.run.cfg.schedule, PlateauConfig):
            progress.num_cuts = TrainState.stored_in(begun.state).num_cuts
        return Checkpoint(step, model.state_dict(), state, progress.to_store())

    def _require_states_of_all(self, model: TranslationModel, state: Mapping[str, Tensor]) -> None:
        """Raise `UserError` unless all weights that learn have a state, so that one average is of all."""
        known = {key.rpartition("/")[0] for key in state}
        fresh = [name for name, x in model.named_parameters() if x.requires_grad and name not in known]
        if fresh:
            raise UserError(
                f"init.optimizer=keep: optimizer={self.cfg.optimizer.name} averages all weights from the "
                f"same update on, but {self.cfg.init.run} has no state of {len(fresh)} that learn here, "
                f"such as {fresh[0]}; set init.optimizer=fresh"
            )

    def _sources(self, model: TranslationModel) -> dict[str, str]:
        """Return, for each weight that learns and is taken from the run, the name of its own there."""
        here, there = _own_names(model.state_dict()), _own_names(self.run.model.state_dict())
        taken = {here[name]: there[name] for name in self._chosen() if name in here}
        return {
            name: taken[name] for name, x in model.named_parameters() if x.requires_grad and name in taken
        }


def opened_start(cfg: TrainConfig) -> Start | None:
    """Open the run that a training starts from, or return None if it starts from random weights.

    Raises:
        UserError: there is no such run or checkpoint, or the training contradicts it; or no such vectors.
    """
    init = cfg.init
    require_vectors(init)
    if init.run is None:
        return None
    checkpoint, sha256 = identify_checkpoint(init.run, init.checkpoint)
    stored = load_config(RunDirectory(Path(init.run)).config_file)
    stored = dataclasses.replace(stored, model=kept(stored.model, init.layers))
    refuse_contradictions(init, to_plain(cfg), to_plain(stored))
    _require_symbols(cfg, stored)
    if turned := _turned_directions(cfg, stored):
        warn(f"init={init.run} {turned}; swap data.src and data.tgt unless that is meant")
    if stored.data.tags and not cfg.data.tags and _is_of_text(cfg, stored):
        tags = ", ".join(stored.data.tags.values())
        warn(
            f"init={init.run} has read a tag of each language ({tags}), but this data has none; "
            f"{way_to_tags(cfg.data)}"
        )
    for remark in _tags_of_others(cfg, stored):
        warn(f"init={init.run} {remark}")
    if init.optimizer is OptimizerUse.keep:
        _require_optimizer(cfg, stored, checkpoint)
    on_cpu = dataclasses.replace(cfg.runtime, device="cpu", precision=Precision.fp32)
    run = open_run(init.run, checkpoint, on_cpu, init.layers)
    return Start(cfg, run, checkpoint, sha256)


def _require_symbols(cfg: TrainConfig, stored: TrainConfig) -> None:
    """Raise `UserError` when a kept vocabulary has no piece for a tag of the new data."""
    old, new = set(stored.data.symbols), set(cfg.data.symbols)
    if cfg.init.vocabulary is VocabularyUse.keep and new - old:
        raise UserError(
            f"init.vocabulary=keep: the vocabulary of {cfg.init.run} has no piece for the tag "
            f"{', '.join(sorted(new - old))}; set init.vocabulary=extend"
        )


def _turned_directions(cfg: TrainConfig, stored: TrainConfig) -> str:
    """Return what both trainings translate, if that is the same the other way round alone, or nothing."""
    new, old = cfg.data.languages, stored.data.languages
    is_turned = not {*new} & {*old} and {*new} & {(tgt, src) for src, tgt in old}
    if not is_turned or not _is_of_text(cfg, stored):
        return ""
    return f"translates {directions(old)}, but this training {directions(new)}"


def _tags_of_others(cfg: TrainConfig, stored: TrainConfig) -> Iterator[str]:
    """Yield a sentence for each tag of the tokenizer that was of another language than those of the data."""
    if not _is_of_text(cfg, stored):
        return
    for side, place in (("src", 0), ("tgt", 1)):
        tag, own = (getattr(one.tokenizer, f"{side}_tag") for one in (cfg, stored))
        old, new = (dict.fromkeys(pair[place] for pair in one.data.languages) for one in (stored, cfg))
        if tag and tag == own and not new.keys() <= old.keys():
            yield (
                f"reads {tag} in front of every text of the {side} side, which was that of {', '.join(old)}, "
                f"but this training has {', '.join(new)} there; set tokenizer.{side}_tag=... unless that is "
                "meant"
            )


def _is_of_text(cfg: TrainConfig, stored: TrainConfig) -> bool:
    """Return whether both trainings translate, the one with weights of the other."""
    return {cfg.task, stored.task} == {Task.translation} and bool(cfg.init.weights)


def _require_optimizer(cfg: TrainConfig, stored: TrainConfig, checkpoint: str) -> None:
    """Raise `UserError` unless the optimizer of a checkpoint can go on."""
    key = "init.optimizer=keep"
    if checkpoint == AVERAGE:
        raise UserError(
            f"{key}: {cfg.init.run} ends with an average of checkpoints, which has no optimizer; "
            "set init.checkpoint=best or last"
        )
    if int(checkpoint) == 0:
        raise UserError(
            f"{key}: {cfg.init.run} is a model without an optimizer, imported or exported; "
            "set init.optimizer=fresh"
        )
    if cfg.optimizer.name != stored.optimizer.name:
        raise UserError(
            f"{key}: optimizer={cfg.optimizer.name}, but {cfg.init.run} was trained with "
            f"optimizer={stored.optimizer.name}; choose that one, or init.optimizer=fresh"
        )
    if isinstance(stored.adapt, FewWeightsConfig):
        raise UserError(
            f"{key}: {cfg.init.run} was trained with adapt={stored.adapt.name}, and its optimizer knows "
            "nothing but the few weights that learnt there; leave it out"
        )
    if are_counted(cfg.trainer.max_steps):
        _require_later(checkpoint, cfg.trainer.max_steps, typed=cfg.trainer.max_steps)


def _require_later(checkpoint: str, max_steps: int | None, *, typed: object) -> None:
    """Raise `UserError` unless a training of `max_steps` updates, `typed` by the user, ends after a step."""
    if max_steps is not None and max_steps <= int(checkpoint):
        counted = "" if typed == max_steps else f" ({max_steps} updates)"
        raise UserError(
            f"init.optimizer=keep goes on after step {checkpoint}, but trainer.max_steps={typed!r}{counted} "
            "ends before; raise it"
        )


def record_file(run: RunDirectory) -> Path:
    """Return the file of a run that says what it started from."""
    return run.path / "init.json"


def require_unchanged(run: RunDirectory, cfg: TrainConfig, *, is_needed: bool = False) -> None:
    """Raise `UserError` when a run that is trained began from other weights than `init.run` has now.

    Where the other run or its checkpoint is gone, there is nothing to compare, which is an error only if
    they are needed again.
    """
    init, file = cfg.init, record_file(run)
    if init.run is None or not file.is_file():
        return
    before = read_json(file, {"sha256": str, "checkpoint": str})
    then = f"checkpoint {before['checkpoint']} of sha256 {before['sha256'][:16]}"
    way_out = f"restore that one{run.or_anew}"
    try:
        found, sha256 = identify_checkpoint(init.run, init.checkpoint)
    except UserError as error:
        if not is_needed:
            return
        raise UserError(
            f"{run.path} started from {then} of init={init.run}, which cannot be found: {error}; {way_out}"
        ) from error
    if sha256 != before["sha256"]:
        raise UserError(
            f"{run.path} started from another model than init={init.run} has now: {then} then, {found} of "
            f"{sha256[:16]} now; {way_out}"
        )


def _load(
    model: TranslationModel,
    weights: Mapping[str, Tensor],
    rows: _Rows,
    misfit: Callable[[Mapping[str, str]], UserError],
) -> list[str]:
    """Load weights, their rows moved, and return the names of the tensors that stay as they were.

    Raises:
        UserError: one of them has no place in the model, or another shape, or two of them have the place of
            one; `misfit` makes the error.
    """
    own = model.state_dict()
    names = _own_names(own)
    moved = {name: rows.moved(name, x) for name, x in weights.items()}
    wrong = {
        name: f"{name} is {list(x.shape)}, but {list(own[name].shape)} in this model"
        for name, x in moved.items()
        if name in own and x.shape != own[name].shape
    }
    wrong |= {name: f"{name} has no place in this model" for name in moved if name not in own}
    taken = dict[str, str]()
    for name, x in moved.items() if not wrong else ():
        other = taken.setdefault(names[name], name)
        if not torch.equal(x, moved[other]):
            wrong[name] = f"{name} is the same as {other} in this model (model.tying), but not in the run"
    if wrong:
        raise misfit(wrong)
    model.load_state_dict(own | moved)
    return [name for name in own if names[name] not in taken]


def _own_names(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return for each name of a weight the first that it has: a matrix that is tied has several."""
    first = dict[object, str]()
    return {name: first.setdefault(memory_of(x), name) for name, x in weights.items()}


class _Rows:
    """The way of the rows of a model's matrices from one vocabulary to another."""

    def __init__(self, model: TranslationModel, old: Tokenizer, new: Tokenizer):
        tables = [f"{name}.weight" for name, x in model.named_modules() if isinstance(x, TokenEmbedding)]
        self._names = {*tables, *(f"output.{name}" for name, _ in model.output.named_parameters())}
        self._tgt = None if old.tgt_model == new.tgt_model else origins(old.tgt_model, new.tgt_model)
        self._src = self._tgt if new.src_model == new.tgt_model and old.src_model == old.tgt_model else None
        if self._src is None and old.src_model != new.src_model:
            self._src = origins(old.src_model, new.src_model)
        self._sizes = {"src": new.src_vocab_size, "tgt": new.tgt_vocab_size}
        self._is_joint = new.src_model == new.tgt_model
        self._has_labels = new.cfg.labels

    def moved(self, name: str, tensor: Tensor) -> Tensor:
        """Return a weight, or what an optimizer keeps of it, with the rows of the new vocabulary."""
        found = self._src if name.startswith("src_embedding") else self._tgt
        has_rows = tensor.ndim > 0 and len(tensor) > 1  # what Adafactor keeps of all columns is one row
        return moved(tensor, found) if found is not None and name in self._names and has_rows else tensor

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many pieces of each side begin as they were, from others, and from the mean of all."""
        both = {"joint": self._tgt} if self._is_joint else {"src": self._src, "tgt": self._tgt}
        if self._has_labels:  # which begin anew
            both = {"src": self._src}
        return {side: self._counts(side, found) for side, found in both.items()}

    def _counts(self, side: str, found: Origins | None) -> dict[str, int]:
        size = self._sizes.get(side, self._sizes["tgt"])
        if found is None:
            return {"pieces": size, "kept": size, "of_others": 0, "of_all": 0}
        kept, of_all = sum(isinstance(ids, int) for ids in found), found.count([])
        return {"pieces": size, "kept": kept, "of_others": size - kept - of_all, "of_all": of_all}

    def lines(self, use: VocabularyUse) -> Iterator[str]:
        """Yield a line for each vocabulary."""
        for side, n in self.counts().items():
            new = ""
            if n["pieces"] > n["kept"]:
                new = (
                    f", {n['of_others']:,} begin as the mean of the pieces that spelt them before, "
                    f"{n['of_all']:,} as the mean of all"
                )
            yield f"vocabulary ({side}, {use.value}): {n['pieces']:,} pieces, {n['kept']:,} of the run{new}"


def moved(tensor: Tensor, found: Origins) -> Tensor:
    """Return the rows (V', ...) that begin from rows of `tensor` (V, ...), as `found` says.

    The mean of moments in 8 bits is that of their levels, and of their scales: about their mean.
    """

    def mean(rows: Tensor) -> Tensor:
        return rows.float().mean(0).to(rows.dtype)

    of_all = mean(tensor)
    rows = (tensor[ids] if isinstance(ids, int) else mean(tensor[ids]) if ids else of_all for ids in found)
    return torch.stack(list(rows))


def _coverage_lines(covered: Mapping[str, Coverage], cfg: TrainConfig) -> Iterator[str]:
    """Yield a line for each side of the validation pairs, and a warning where much is unknown."""
    for side, language in (("src", cfg.data.src), ("tgt", cfg.data.tgt)):
        new, old = covered.get(f"{side}_new"), covered.get(f"{side}_old")
        if new is None:
            continue
        before = f" ({old.per_word:.2f} and {old.unknown_share:.2%} on those of the run)" if old else ""
        yield (
            f"validation pairs, {language}: {new.per_word:.2f} pieces a word, {new.unknown_share:.2%} of "
            f"them unknown{before}"
        )
        if new.unknown_share > MUCH_UNKNOWN and cfg.init.vocabulary is VocabularyUse.keep:
            yield "warning: much is unknown to this vocabulary; init.vocabulary=extend adds pieces"
