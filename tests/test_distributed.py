"""Two processes on CPU compute what one computes, and end together."""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nmt import cli, distributed, kernels
from nmt.data.batches import encode
from nmt.data.batches.batching import Batch, collate
from nmt.data.batches.encode import EncodingOptions, LineEncoder, encode_together
from nmt.data.batches.examples import SentencePairs
from nmt.data.batches.streaming import closed
from nmt.data.batches.training_split import streamed
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import PairStream, ParallelText
from nmt.data.reading.bundled_data import DemoData
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.distributed import ALONE, World, explain, joined
from nmt.errors import Interrupted, TrainingStopped, UserError
from nmt.files import read_json, write_lines
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import AttentionScore, RnnConfig, TransformerConfig
from nmt.runs import train
from nmt.runs.directory import RunDirectory
from nmt.runs.status import Status
from nmt.runtime import MixedPrecisionStep, largest, seed_everything, whole
from nmt.runtime_config import Parallel, Precision, RuntimeConfig
from nmt.signals import StopRequest
from nmt.training.checkpoint import CheckpointStore
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import CrossEntropyConfig, SimCutConfig, Teacher
from nmt.training.objectives.objective import CrossEntropy, LossModule, Objective
from nmt.training.optimizers import adamw_8bit
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import (
    AdamConfig,
    AdamW8bitConfig,
    MuonConfig,
    OptimizerConfig,
    SgdConfig,
)
from nmt.training.optimizers.schedule_configs import ConstantConfig
from nmt.training.optimizers.schedules import ScheduleContext
from nmt.training.parallel_model import ParallelModel
from nmt.training.recovery import RolledBack
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import MEASURES, OnNonfinite, TrainerConfig
from nmt.translation.evaluate import validation_values
from nmt.translation.translate import translate
from tests.data.batches.test_streaming import PLAIN
from tests.training.objectives.test_objective import Silent, Sums, consistency, cross_entropy
from tests.training.test_auto_batch import Limited, many_pairs

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available() and hasattr(os, "fork")),
    reason="this torch has no torch.distributed with gloo, or the system no fork",
)
CPU = torch.device("cpu")
ADAM = AdamConfig(eps=1e-3)
RATE = ConstantConfig(peak_rate=1e-2, warmup_steps=0)
"""Adam, for which the gradient of the bias of keys, nothing but rounding errors, is too small to matter."""
DDP_ALONE = [Parallel.ddp, pytest.param(Parallel.fsdp, marks=pytest.mark.slow)]
"""Where FSDP does what it does in other tests, too."""
LINES = [" ".join(f"{(i * j) % 19}" for j in range(1, 2 + i % 9)) for i in range(30)]
"""Lines to train a tokenizer on."""
PATIENCE_SECONDS = 100
"""How long two processes may take to end."""
Body = Callable[[int], Any]


class Processes:
    """Two forks of this process, set up as torchrun sets up its workers, with the store in this one."""

    def __init__(self, body: Body, folder: Path, store: Any = None):
        self.store = store or dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.folder = folder
        context = multiprocessing.get_context("fork")
        self.workers = [context.Process(target=self._run, args=(body, rank)) for rank in range(2)]
        gc.freeze()  # the stores of earlier tests end threads, which a fork does not have
        for worker in self.workers:
            worker.start()
        gc.unfreeze()

    def _run(self, body: Body, rank: int) -> None:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port)}
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **place, **agent}
        for name in ("stdout", "stderr"):
            setattr(sys, name, (self.folder / f"{name}.{rank}").open("w", buffering=1, encoding="utf-8"))
            setattr(sys, f"__{name}__", getattr(sys, name))
        faulthandler.dump_traceback_later(0.9 * PATIENCE_SECONDS, file=sys.stderr)
        sys.exit(body(rank))

    def exit_codes(self, seconds: float = PATIENCE_SECONDS) -> list[int | None]:
        """Of both, once they have ended; they are killed when they have not, and told where they were."""
        deadline = time.monotonic() + seconds
        for worker in self.workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        codes = [worker.exitcode for worker in self.workers]
        if None in codes:
            print(self.text("stderr"))
        for worker in self.workers:
            worker.kill()
        return codes

    def text(self, name: str) -> str:
        """Return all that both have written to stdout or stderr."""
        return "".join((self.folder / f"{name}.{rank}").read_text(encoding="utf-8") for rank in range(2))


def results_of_two(body: Callable[[World], Any], folder: Path) -> list[Any]:
    """Return the result (JSON) of `body` in each of two processes."""

    def write(rank: int) -> None:
        with joined(5.0) as world:
            result = body(world)
        (folder / f"result.{rank}").write_text(json.dumps(result), encoding="utf-8")

    processes = Processes(write, folder)
    codes = processes.exit_codes()
    assert codes == [0, 0], processes.text("stderr")
    return [json.loads((folder / f"result.{rank}").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.fixture
def trainer(tmp_path: Path, pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]) -> Any:
    """Return a function of a world that returns a trainer in it."""

    def build(
        world: World,
        parallel: Parallel = Parallel.ddp,
        folder: str = "run",
        objective: Objective | None = None,
        precision: Precision = Precision.fp32,
        optimizer_cfg: OptimizerConfig = ADAM,
        **fields: Any,
    ) -> Trainer:
        plain: dict[str, Any] = {"batch_tokens": 40, "patience": 0, "eval_every_steps": 100, "max_steps": 6}
        cfg = TrainerConfig(**(plain | {"best_metric": "loss"} | fields))
        seed_everything(1)
        runtime = RuntimeConfig(parallel=parallel, precision=precision)
        parallel_model = ParallelModel(
            tiny_model(), objective or cross_entropy(), runtime, world=world, ema_decay=cfg.ema_decay
        )
        batches = [collate(pairs, range(start, start + 8)) for start in range(0, 40, 8)]
        optimizer = build_optimizer(optimizer_cfg, parallel_model.trained, world)

        def validate(step: int) -> dict[str, float]:
            own = world.shard(batches)
            return {
                "valid/loss": validation_values(parallel_model.model, own, device=CPU, world=world)["loss"]
            }

        return Trainer(
            cfg,
            RATE,
            ScheduleContext(d_model=16),
            parallel_model=parallel_model,
            amp_step=MixedPrecisionStep(optimizer, device=CPU, precision=precision, clip_norm=1.0),
            pairs_of_epoch=lambda epoch, *stage: pairs,
            validate=validate,
            store=CheckpointStore(tmp_path / folder / "checkpoints"),
            seed=1,
            higher_is_better=False,
            world=world,
        )

    return build


def outcome(trainer: Trainer) -> dict[str, Any]:
    """Weights, moments and progress, without the time."""
    weights, state = trainer.parallel_model.tensors(trainer.amp_step.optimizer)
    tensors = {**weights, **{name: whole(x) for name, x in state.items()}}
    progress = {k: v for k, v in vars(trainer.train_state).items() if "seconds" not in k and k != "window"}
    padded = ("seconds", "src_positions", "tgt_positions")
    window = {k: v for k, v in trainer.train_state.window.items() if k not in padded}
    return {
        "tensors": {name: x.flatten().tolist() for name, x in tensors.items() if x.dtype is not torch.uint8},
        "levels": {name: x.flatten().tolist() for name, x in tensors.items() if x.dtype is torch.uint8},
        "progress": progress,
        "window": window,
    }


def assert_same(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key], tolerance)
    elif one is None or isinstance(one, str):
        assert other == one
    else:
        assert other == pytest.approx(one, rel=1e-3, abs=tolerance)


@pytest.mark.fault(39, 42)
@pytest.mark.parametrize("objective", [cross_entropy, consistency])
@pytest.mark.parametrize("parallel", list(Parallel))
def test_two_processes_compute_the_gradients_of_one(
    trainer: Any, tmp_path: Path, parallel: Parallel, objective: Callable[[], Objective]
) -> None:
    """Moments after one update: a whole batch for each, and one that leaves the second without a row."""

    def update(world: World) -> dict[str, Any]:
        made = trainer(world, parallel, objective=objective(), measures=list(MEASURES), accumulate=3)
        made._update(
            made.epochs.pairs_of_epoch(1, 0).part(0), [np.arange(13), np.arange(13, 20), np.arange(20, 21)]
        )
        made._read()
        return outcome(made)

    alone = update(ALONE)
    first, second = results_of_two(update, tmp_path)
    assert first == second
    assert_same(alone, first)


def test_the_largest_value_is_that_of_all_parts_of_which_some_are_empty(tmp_path: Path) -> None:
    def found(world: World) -> float:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world.size,))
        narrow, wide = torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.constant_(narrow.weight, -3.0)
        torch.nn.init.constant_(wide.weight, 2.0)
        for layer in (narrow, wide):
            fully_shard(layer, mesh=mesh)
        return float(whole(largest([narrow.weight, wide.weight])).detach())

    assert results_of_two(found, tmp_path) == [3.0, 3.0]


def test_layers_are_gathered_in_bf16_and_gradients_summed_in_fp32(trainer: Any, tmp_path: Path) -> None:
    """The embeddings stay in fp32, and so do the weights that the optimizer updates."""

    def update(world: World) -> list[Any]:
        with kernels.disabled():
            made, kinds = trainer(world, Parallel.fsdp, precision=Precision.bf16), dict[str, str]()
            model = made.parallel_model.trained
            for name in ("encoder.0", "src_embedding"):
                module = model.get_submodule(name)
                weight = next(iter(dict(module.named_parameters())))

                def note(called: Any, *_: Any, name: str = name, weight: str = weight) -> None:
                    kinds[name] = str(called.get_parameter(weight).dtype)

                module.register_forward_pre_hook(note)
            made.gradients.add(made.epochs.pairs_of_epoch(1, 0), [np.arange(13), np.arange(13, 21)], 1)
            gradients = {name: whole(x.grad) for name, x in model.named_parameters()}
        types = {str(x.dtype) for x in [*gradients.values(), *model.parameters()]}
        return [kinds, sorted(types), {name: x.flatten().tolist() for name, x in gradients.items()}]

    _, types, alone = update(ALONE)
    first, second = results_of_two(update, tmp_path)
    assert first == second
    assert first[:2] == [{"encoder.0": "torch.bfloat16", "src_embedding": "torch.float32"}, types]
    assert types == ["torch.float32"]
    assert_same(alone, first[2], tolerance=3e-2)


def test_the_average_of_the_weights_teaches_each_process(trainer: Any, tmp_path: Path) -> None:
    """After an update that has parted it from the weights."""

    def update(world: World) -> dict[str, Any]:
        objective = build_objective(SimCutConfig(cut=0.0, teacher=Teacher.ema), Silent())
        made = trainer(world, objective=objective, ema_decay=0.9)
        for start in (0, 10):
            made._update(made.epochs.pairs_of_epoch(1, 0).part(0), [np.arange(start, start + 10)])
        made._read()
        return outcome(made)

    alone = update(ALONE)
    first, second = results_of_two(update, tmp_path)
    assert first == second
    assert alone["window"]["kl"] > 1e-3
    assert_same(alone, first, tolerance=1e-4)


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("parallel", "ema_decay", "optimizer_cfg"),
    [
        (Parallel.ddp, 0.0, ADAM),
        (Parallel.fsdp, 0.9, ADAM),
        (Parallel.fsdp, 0.0, AdamW8bitConfig(eps=1e-3)),
        pytest.param(Parallel.fsdp, 0.0, SgdConfig(), marks=pytest.mark.slow),
        pytest.param(Parallel.ddp, 0.9, ADAM, marks=pytest.mark.slow),
        pytest.param(Parallel.fsdp, 0.0, ADAM, marks=pytest.mark.slow),
    ],
)
def test_a_training_goes_on_in_another_number_of_processes(
    trainer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallel: Parallel,
    ema_decay: float,
    optimizer_cfg: OptimizerConfig,
) -> None:
    monkeypatch.setattr(adamw_8bit, "LEAST_COLUMNS", 1)  # of matrices whose moments have 8 bits

    def fit(world: World, steps: int, folder: str) -> dict[str, Any]:
        fields = {"max_steps": steps, "max_epochs": 3, "ema_decay": ema_decay}
        made = trainer(world, parallel, folder, optimizer_cfg=optimizer_cfg, **fields)
        checkpoint = made.store.latest(pytest.fail)
        if checkpoint:
            made.resume(checkpoint)
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker:
            made.fit(tracker, StopRequest())
        return outcome(made)

    straight = fit(ALONE, 9, "straight")
    fit(ALONE, 3, "run")
    results_of_two(lambda world: fit(world, 6, "run"), tmp_path)
    again = fit(ALONE, 9, "run")
    for result in (straight, again):
        for key in ("scores", "losses", "lowest_loss", "regular"):
            del result["progress"][key]
        for key in ("validations_without_gain", "validations_without_lower_loss"):
            del result["progress"][key]
    levels = [result.pop("levels") for result in (straight, again)]  # which a rounding moves by one
    assert bool(levels[0]) == isinstance(optimizer_cfg, AdamW8bitConfig)
    for name, one in levels[0].items():
        assert levels[1][name] == pytest.approx(one, rel=0, abs=1), name
    assert_same(straight, again, tolerance=1e-3)


def test_processes_are_in_the_same_stage(trainer: Any, pairs: EncodedPairs, tmp_path: Path) -> None:
    """Each asks for the pairs of the second stage after the last update of the first."""
    both = pairs, EncodedPairs(pairs.tgt, pairs.src, digest="other")

    def fit(world: World) -> dict[str, Any]:
        made = trainer(world, folder=f"run{world.size}", max_steps=5)
        made.epochs.stage_ends, found = (3,), []

        def pairs_of_epoch(epoch: int, stage: int) -> EncodedPairs:
            found.append([epoch, stage, made.train_state.step])
            return both[stage]

        made.epochs.pairs_of_epoch = pairs_of_epoch
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker:
            made.fit(tracker, StopRequest())
        return {**outcome(made), "found": found}

    alone = fit(ALONE)
    first, second = results_of_two(fit, tmp_path)
    assert first["found"] == second["found"] == alone.pop("found") == [[1, 0, 0], [2, 1, 3]]
    assert first == second
    del first["found"]
    assert_same(alone, first, tolerance=1e-3)


@pytest.mark.parametrize(("folders", "codes"), [(("run", "run"), [0, 0]), (("run", "other"), [2, 2])])
def test_all_ranks_must_see_one_run_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folders: tuple[str, str], codes: list[int]
) -> None:
    monkeypatch.setattr(train, "SHARED_SECONDS", 0.0)

    def begin(world: World) -> int:
        run = RunDirectory(tmp_path / folders[world.rank])
        if world.is_main:
            write_lines(run.config_file, ["seed: 1"])
        train._require_shared(run, world)
        return 0

    processes = Processes(launched(begin, monkeypatch), tmp_path)
    assert processes.exit_codes() == codes
    told = "run=... must name a directory that all machines share" in processes.text("stderr")
    assert told == any(codes)


def batch_of(length: int) -> Batch:
    """Two pairs of random tokens, the same in every process."""
    ids = torch.randint(4, 23, (2, length), generator=torch.Generator().manual_seed(length))
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), ids, ids, torch.arange(2 * length))


def losses(
    model: TranslationModel, batches: Sequence[Batch], world: World, parallel: Parallel
) -> list[float]:
    """Those of a model that learns from `batches`, one after the other."""
    parallel_model = ParallelModel(
        model.train(), cross_entropy(), RuntimeConfig(parallel=parallel), world=world
    )
    amp_step = MixedPrecisionStep(
        build_optimizer(ADAM, parallel_model.trained), device=CPU, precision=Precision.fp32, clip_norm=0.0
    )
    found = []
    for batch in batches:
        loss, _ = parallel_model(batch, 1)
        amp_step.backward(loss / batch.num_tokens)
        amp_step.clip()
        amp_step.step(1e-2, torch.zeros(()))
        found.append(float(loss.detach()) / batch.num_tokens)
    return found


def test_a_table_of_positions_may_grow_on_one_rank_alone(
    tiny_model: Callable[..., TranslationModel], tmp_path: Path
) -> None:
    def fit(world: World) -> list[float]:
        lengths = (5, 600 if world.is_main else 6, 7)
        return losses(tiny_model(), [batch_of(length) for length in lengths], world, Parallel.ddp)

    first, second = results_of_two(fit, tmp_path)
    assert first[0] == second[0]
    assert first[2] == pytest.approx(second[2])


@pytest.mark.parametrize(
    ("attention", "parallel"),
    [
        pytest.param(
            attention, parallel, marks=() if attention is AttentionScore.additive else pytest.mark.slow
        )
        for attention in AttentionScore
        for parallel in Parallel
    ],
)
def test_recurrent_models_learn_in_two_processes(
    attention: AttentionScore, parallel: Parallel, tmp_path: Path
) -> None:
    """Whose layers are stepped through, not called."""

    def fit(world: World) -> list[float]:
        seed_everything("model")
        cfg = RnnConfig(d_model=16, attention=attention, encoder_layers=2, decoder_layers=2, dropout=0.0)
        model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23)
        return losses(model, [batch_of(5), batch_of(7), batch_of(5)], world, parallel)

    alone = fit(ALONE)
    assert alone[2] < alone[0]
    for found in results_of_two(fit, tmp_path):
        assert found == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("parallel", DDP_ALONE)
def test_layers_that_are_shared_or_left_out_learn_as_in_one_process(
    parallel: Parallel, tmp_path: Path
) -> None:
    """Whatever layers a batch of an update leaves out: the processes leave out the same; none waits long."""

    def fit(world: World) -> list[float]:
        seed_everything("model")
        stack: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 2, "dropout": 0.0}
        depths: dict[str, Any] = {"encoder_layers": 3, "decoder_layers": 3, "decoder_sharing": [1, 2, 1]}
        model = build_model(
            TransformerConfig(**stack, **depths, layer_drop=0.6), src_vocab_size=23, tgt_vocab_size=23
        )
        seed_everything("updates", rank=world.rank)
        parallel_model = ParallelModel(
            model.train(), cross_entropy(), RuntimeConfig(parallel=parallel), world=world
        )
        optimizer = build_optimizer(ADAM, parallel_model.trained)
        amp_step = MixedPrecisionStep(optimizer, device=CPU, precision=Precision.fp32, clip_norm=1.0)
        found = []
        for _ in range(4):
            for number, batch in enumerate([batch_of(5), batch_of(7), batch_of(6)]):
                with parallel_model.exchanging(is_last=number == 2):
                    loss, _ = parallel_model(batch, 1)
                    amp_step.backward(loss / 50)
                found.append(float(loss.detach()))
            amp_step.clip()
            amp_step.step(1e-2, torch.zeros(()))
        return found

    alone = fit(ALONE)
    for found in results_of_two(fit, tmp_path):
        assert found == pytest.approx(alone, rel=1e-4)


def test_the_loss_of_a_split_is_that_of_one_process(trainer: Any, tmp_path: Path) -> None:
    alone = trainer(ALONE).validate(0)
    assert results_of_two(lambda world: trainer(world).validate(0), tmp_path) == [alone, alone]


def test_translations_are_those_of_one_process(
    tiny_model: Callable[..., TranslationModel], tmp_path: Path
) -> None:
    lines = [*LINES, ""]
    cfg = TokenizerConfig(kind=TokenizerKind.word, vocab_size=23)
    tokenizer = Tokenizer.train(cfg, ParallelText(lines, lines))
    model = tiny_model()
    search = BeamConfig(beam_size=2, batch_tokens=64, n_best=2)

    def translated(world: World) -> list[Any]:
        found = translate(lines, model, tokenizer, search, device=CPU, world=world)
        return [[t.text, t.score, t.ids, [other.text for other in t.alternatives]] for t in found]

    alone = translated(ALONE)
    assert results_of_two(translated, tmp_path) == [alone, alone]


def test_processes_that_share_the_work_of_muon_update_as_one(
    tiny_model: Callable[..., TranslationModel], tmp_path: Path
) -> None:
    """Bit for bit, for matrices of several shapes, some of them packed."""

    def updated(world: World) -> list[Any]:
        seed_everything(1)
        model = tiny_model(d_ff=36, d_k=4, encoder_layers=1)
        optimizer = build_optimizer(MuonConfig(weight_decay=0.1), model, world)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        return [x.flatten().tolist() for x in model.parameters()]

    alone = updated(ALONE)
    assert results_of_two(updated, tmp_path) == [alone, alone]


def test_what_is_dealt_comes_back_in_order(tmp_path: Path) -> None:
    def pass_around(world: World) -> list[Any]:
        rank, dealt = world.rank, list(world.shard(range(5)))
        together = world.unshard([[i, "é"] for i in dealt])
        return [
            dealt,
            together,
            world.broadcast(f"from {rank}"),
            world.all_reduce_max(rank),
            world.all_gather(rank),
        ]

    items = [[i, "é"] for i in range(5)]
    assert results_of_two(pass_around, tmp_path) == [
        [[0, 2, 4], items, "from 0", 1.0, [0, 1]],
        [[1, 3], items, "from 0", 1.0, [0, 1]],
    ]
    assert pass_around(ALONE) == [[0, 1, 2, 3, 4], items, "from 0", 0.0, [0]]


def test_bytes_of_any_length_are_exchanged(tmp_path: Path) -> None:
    def exchanged(world: World) -> list[Any]:
        own = [b"", b"a\0" * world.rank, bytes(3 - world.rank)]
        return [[list(data) for data in world.apart().all_gather_bytes(data)] for data in own]

    found = [[[], []], [[], [97, 0]], [[0, 0, 0], [0, 0]]]
    assert results_of_two(exchanged, tmp_path) == [found, found]
    assert exchanged(ALONE) == [[[]], [[]], [[0, 0, 0]]]


@pytest.mark.parametrize("size", [1, 2, 27, 40])
def test_a_stream_that_ranks_encode_together_is_that_of_one_process(
    size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lines left out, weights and samples included; each rank encodes its chunks alone."""
    lines = [" ".join(f"{(i * j) % 19}" for j in range(1, 2 + i % 9)) for i in range(size)]
    text = ParallelText(lines, lines[::-1], weights=[i + 0.5 for i in range(size)])
    cfg = TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=40)
    tokenizer = Tokenizer.train(cfg, ParallelText(LINES, LINES))
    options = EncodingOptions(20, 20, weighted=True)
    monkeypatch.setattr(encode, "CHUNK_PAIRS", 5)
    called = []

    def counted(self: LineEncoder, chunk: ParallelText, first: int) -> Any:
        called.append([first, len(chunk)])
        return plainly(self, chunk, first)

    plainly = LineEncoder.__call__
    monkeypatch.setattr(LineEncoder, "__call__", counted)

    def encoded(world: World) -> list[Any]:
        called.clear()
        found = []
        for encoder in (
            LineEncoder(tokenizer, options),
            LineEncoder(tokenizer, options, 0.1, seed=1, epoch=1),
        ):
            pairs, report = encode_together(text, encoder, world)
            assert pairs.weights is not None
            sides = [
                [ids.tolist() for ids in side.take(range(len(pairs)))] for side in (pairs.src, pairs.tgt)
            ]
            found.append([sides, pairs.weights.tolist(), pairs.digest, str(report)])
        return [found, list(called)]

    alone, _ = encoded(ALONE)
    (first, of_first), (second, of_second) = results_of_two(encoded, tmp_path)
    assert first == second == alone
    assert sum(n for _, n in of_first + of_second) == 2 * size
    assert {n for n, _ in of_first}.isdisjoint(n for n, many in of_second if many)


def test_ranks_that_encode_together_leave_together(tmp_path: Path) -> None:
    """A signal may interrupt one of them between two buffers, or while it reads up to where it was."""
    lines = [str(i) for i in range(19)]
    tokenizer = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.word, vocab_size=23), ParallelText(lines, lines)
    )
    source = PairStream(lambda: "stamp", lambda: iter([ParallelText(lines, lines)]))

    def trained(world: World) -> list[Any]:
        examples = SentencePairs(DemoData(streaming=True, buffer_pairs=8), seed=1)
        examples.world = world.apart()
        text = streamed([source], [[1.0]], examples.cfg, examples.filter, [PLAIN])
        pairs_of_epoch = examples.epochs(text, tokenizer, lambda line: None)
        found = []
        for is_resumed in (False, True):
            with closed(pairs_of_epoch):
                if not is_resumed:
                    found.append(len(pairs_of_epoch(1, 0).part(0)))
                if world.is_main:
                    pairs_of_epoch(2, 0)
        return [*found, len(pairs_of_epoch(2, 0).part(0))]

    assert results_of_two(trained, tmp_path) == [[8, 8], [8, 8]]


def test_rank_0_goes_first(tmp_path: Path) -> None:
    def look(world: World) -> bool:
        with world.main_first():
            exists = (tmp_path / "cache").exists()
            if world.is_main:
                time.sleep(0.5)
                write_lines(tmp_path / "cache", ["ready"])
        return exists

    assert results_of_two(look, tmp_path) == [False, True]


def launched(
    body: Callable[[World], int], monkeypatch: pytest.MonkeyPatch, timeout_seconds: float = 300
) -> Body:
    """Return a command that does `body`, run as `nmt` runs its verbs."""

    def command(argv: list[str]) -> int:
        with joined(timeout_seconds / 60) as world:
            return body(world)

    monkeypatch.setattr(cli, "dispatch", command)
    return lambda rank: cli.main([])


def wait_for_the_other(world: World) -> int:
    world.barrier()
    return 0


@pytest.mark.fault(40)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("data.x is wrong"), 2, "error: data.x is wrong\n"),
        (ZeroDivisionError("a bug"), 1, "ZeroDivisionError: a bug\n"),
    ],
)
def test_an_error_of_one_ends_all_with_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: int, error: Exception, code: int, message: str
) -> None:
    def fail(world: World) -> int:
        if world.rank == failing:
            raise error
        return wait_for_the_other(world)

    processes = Processes(launched(fail, monkeypatch), tmp_path)
    assert processes.exit_codes() == [code, code]
    assert processes.text("stderr").endswith(message)
    assert processes.text("stderr").count(message) == 1
    assert "gloo" not in processes.text("stderr")


@pytest.mark.fault(40)
def test_a_restart_knows_nothing_of_the_start_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which ended with an error, and left its keys in the store that torchrun keeps."""

    def fail(world: World) -> int:
        if world.rank == 1:
            raise UserError("no")
        return wait_for_the_other(world)

    first = Processes(launched(fail, monkeypatch), tmp_path)
    assert first.exit_codes() == [2, 2]
    second = Processes(launched(wait_for_the_other, monkeypatch), tmp_path, first.store)
    assert second.exit_codes() == [0, 0], second.text("stderr")
    assert second.text("stderr") == ""


@pytest.mark.fault(20)
def test_rank_0_closes_what_it_has_open_when_all_have_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torchrun asks the others to stop when the first has ended, and kills them after 30 seconds."""
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 0.1)

    def fail(world: World) -> int:
        with StopRequest() as stop, ExitStack() as opened:
            if world.is_main:
                status = Status(RunDirectory(tmp_path), stop, requeue=False)
                opened.enter_context(status)
                opened.callback(close)
                opened.enter_context(status.told_at_once())
            raise TrainingStopped("the loss is nan")

    def close() -> None:
        assert read_json(tmp_path / "status.json")["state"] == "stopped"
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        (tmp_path / "closed").touch()

    assert Processes(launched(fail, monkeypatch), tmp_path).exit_codes() == [4, 4]
    assert (tmp_path / "closed").exists()
    assert read_json(tmp_path / "status.json")["reason"] == "the loss is nan"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (UserError("shared memory is full:\n- make room"), 2, "shared memory is full: make room"),
        (ZeroDivisionError("a bug"), 1, "ZeroDivisionError: a bug"),
    ],
)
def test_rank_0_records_the_reason_of_the_process_that_failed_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int, reason: str
) -> None:
    def fail(world: World) -> int:
        with StopRequest() as stop, ExitStack() as opened:
            if world.is_main:
                opened.enter_context(Status(RunDirectory(tmp_path), stop, requeue=False, world=world))
            if world.rank == 1:
                raise error
            return wait_for_the_other(world)

    assert Processes(launched(fail, monkeypatch), tmp_path).exit_codes() == [code, code]
    status = read_json(tmp_path / "status.json")
    assert (status["state"], status["reason"]) == ("failed", f"rank 1: {reason}")


def test_rank_0_records_that_another_process_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(world: World) -> int:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with StopRequest() as stop, Status(RunDirectory(tmp_path), stop, requeue=False, world=world):
            return wait_for_the_other(world)

    assert Processes(launched(fail, monkeypatch), tmp_path).exit_codes() == [4, -signal.SIGKILL]
    status = read_json(tmp_path / "status.json")
    assert (status["state"], status["reason"]) == ("failed", "another process of the training is gone")


@pytest.mark.fault(24, 41)
@pytest.mark.parametrize("stopped", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_is_stopped_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stopped: int
) -> None:
    def stop(world: World) -> int:
        world.barrier()
        if world.rank == stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        return wait_for_the_other(world)

    # A client of the store may need some seconds to connect.
    processes = Processes(launched(stop, monkeypatch, timeout_seconds=5), tmp_path)
    processes.workers[1 - stopped].join(60)
    lines = (tmp_path / f"stderr.{1 - stopped}").read_text().splitlines()
    name = f"process {processes.workers[stopped].pid} on {socket.gethostname()}"
    assert lines[0] == (
        f"error: rank {stopped} ({name}) has given no sign of life for 5 seconds (runtime.timeout_minutes); "
        "what the training saved is intact, and the same command goes on from there. "
        "The threads of this process wait here:"
    )
    assert any(line.endswith(" in stop") for line in lines), lines  # the function above
    os.kill(processes.workers[stopped].pid or 0, signal.SIGCONT)
    assert processes.exit_codes() == [4, 4]


@pytest.mark.slow
@pytest.mark.fault(41)
def test_neither_long_work_nor_a_stop_of_all_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm may stop all processes of a job for a while, and rank 0 may prepare data for hours."""

    def prepare(world: World) -> int:
        (tmp_path / f"ready.{world.rank}").touch()
        if world.is_main:
            time.sleep(8)
        return wait_for_the_other(world)

    processes = Processes(launched(prepare, monkeypatch, timeout_seconds=3), tmp_path)
    while not all((tmp_path / f"ready.{rank}").exists() for rank in range(2)):
        time.sleep(0.01)
    for number, seconds in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
        for worker in processes.workers:
            os.kill(worker.pid or 0, number)
        time.sleep(seconds)
    assert processes.exit_codes() == [0, 0], processes.text("stderr")


def test_a_process_that_is_stuck_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(world: World) -> int:
        if world.rank == 1:
            raise UserError("no")
        time.sleep(600)
        return 0

    processes = Processes(launched(fail, monkeypatch), tmp_path)
    assert processes.exit_codes() == [2, 2]
    assert processes.text("stderr") == "error: no\n"


@pytest.mark.fault(40)
def test_a_process_that_vanishes_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def vanish(world: World) -> int:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return wait_for_the_other(world)

    processes = Processes(launched(vanish, monkeypatch), tmp_path)
    assert processes.exit_codes() == [4, -signal.SIGKILL]
    assert processes.text("stderr").startswith(
        "error: another process of the training is gone; what it saved is intact"
    )
    assert len(processes.text("stderr").splitlines()) == 1


@pytest.mark.fault(19)
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_is_granted_by_all_after_the_same_step(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, tmp_path: Path, signalled: int
) -> None:
    def fit(world: World) -> int:
        made = trainer(world, max_steps=10**6, save_every_steps=10**6, eval_every_steps=10**6)
        with StopRequest() as stop, Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker:
            (tmp_path / f"ready.{world.rank}").touch()
            made.fit(tracker, stop)
        return 0

    processes = Processes(launched(fit, monkeypatch), tmp_path)
    deadline = time.monotonic() + 100
    while not (tmp_path / f"ready.{signalled}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(processes.workers[signalled].pid or 0, signal.SIGTERM)
    assert processes.exit_codes() == [Interrupted(15, "").exit_code] * 2
    (step,) = CheckpointStore(tmp_path / "run" / "checkpoints").steps()
    assert processes.text("stderr") == (
        f"stopped by SIGTERM after step {step}, which is saved; the same command goes on from there\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["translate", "run=x"], "error: nmt translate runs in one process; start it without torchrun\n"),
        (["train", "-m", "seed=1,2"], "error: a sweep runs in one process; start it without torchrun\n"),
    ],
)
def test_verbs_that_processes_cannot_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str], message: str
) -> None:
    processes = Processes(lambda rank: cli.main(argv), tmp_path)
    assert processes.exit_codes() == [2, 2]
    assert processes.text("stderr") == message


def test_a_bug_keeps_its_traceback() -> None:
    code, text = explain(KeyError("x"))
    assert (code, text) == (1, "KeyError: 'x'")
    assert explain(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))[0] == 4


class FaultyOnRank(CrossEntropy):
    """Cross-entropy that fails in one step on one rank: no number comes of it, or memory ends."""

    def __init__(self, is_here: bool, step: int, *, out_of_memory: bool = False):
        super().__init__(CrossEntropyConfig(), Silent())
        self.step = step if is_here else 0
        self.out_of_memory = out_of_memory

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        loss, named = super().__call__(module, batch, step)
        if step == self.step and self.out_of_memory:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss * torch.nan if step == self.step else loss, named


@pytest.mark.fault(20)
@pytest.mark.parametrize("parallel", DDP_ALONE)
def test_no_rank_updates_its_weights_when_one_has_a_loss_that_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, tmp_path: Path, parallel: Parallel
) -> None:
    def fit(world: World) -> int:
        made = trainer(world, parallel, objective=FaultyOnRank(world.rank == 1, 4), save_every_steps=3)
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker, StopRequest() as stop:
            try:
                made.fit(tracker, stop)
            finally:
                weights, _ = made.parallel_model.tensors(made.amp_step.optimizer)
                saved = made.store.load(3).model
                same = all(torch.equal(x, saved[name]) for name, x in weights.items())
                (tmp_path / f"same.{world.rank}").write_text(str(same))
        return 0

    processes = Processes(launched(fit, monkeypatch), tmp_path)
    assert processes.exit_codes() == [4, 4]
    assert [(tmp_path / f"same.{rank}").read_text() for rank in range(2)] == ["True", "True"]
    assert re.fullmatch(
        r"error: step 4: the loss is nan on rank 1, for the pairs .* of the training data.*\. The "
        r"weights were left as step 3 made them\. The last checkpoint is that of step 3\. .*\n",
        processes.text("stderr"),
    )
    report = read_json(tmp_path / "run" / "nonfinite_step_00000004.json")
    losses = [batch["loss"] for rank in report["ranks"] for batch in rank["batches"]]
    assert losses[0] > 0
    assert losses[1] == "nan"


def test_weights_that_have_drifted_apart_are_noticed_at_the_next_validation(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, tmp_path: Path
) -> None:
    def fit(world: World) -> int:
        made = trainer(world, save_every_steps=2, eval_every_steps=3)
        update = made._update

        def update_otherwise(*arguments: Any) -> None:
            update(*arguments)
            if world.rank == 1 and made.train_state.step == 2:
                next(iter(made.parameters.values())).data[4, 0] += 1e-6

        made._update = update_otherwise
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker, StopRequest() as stop:
            made.fit(tracker, stop)
        return 0

    processes = Processes(launched(fit, monkeypatch), tmp_path)
    assert processes.exit_codes() == [4, 4]
    assert re.fullmatch(
        r"error: step 3: rank 1 has other weights than rank 0 in .* such as \S+, though all ranks make "
        r"the same updates\. The last checkpoint is that of step 2\. Leave out a machine with other "
        r"hardware, other libraries or faulty memory; the same command then goes on\n",
        processes.text("stderr"),
    )


@pytest.mark.fault(20)
def test_all_ranks_go_back_to_the_same_checkpoint(trainer: Any, tmp_path: Path) -> None:
    def fit(world: World) -> dict[str, Any]:
        faulty, sound = (
            trainer(world, objective=objective, save_every_steps=3, on_nonfinite=OnNonfinite.rollback)
            for objective in (FaultyOnRank(world.rank == 1, 5), None)
        )
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker:
            with pytest.raises(RolledBack):
                faulty.fit(tracker, StopRequest())
            checkpoint = sound.store.latest(pytest.fail)
            assert checkpoint is not None
            sound.resume(checkpoint)
            assert (sound.train_state.step, sound.train_state.batch) == (3, 5)
            sound.fit(tracker, StopRequest())
        return outcome(sound)

    first, second = results_of_two(fit, tmp_path)
    assert first == second
    assert (first["progress"]["step"], first["progress"]["rollbacks"]) == (6, 1)


@pytest.mark.fault(22, 39)
@pytest.mark.parametrize("optimizer_cfg", [ADAM, MuonConfig()], ids=["adam", "muon"])
def test_all_ranks_take_the_number_that_fits_on_each(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, tmp_path: Path, optimizer_cfg: OptimizerConfig
) -> None:
    """Half of each batch is on each rank; there is room for 1,000 tokens on rank 1, for more on rank 0.

    Muon, whose work the ranks share in a training, makes its updates alone.
    """
    monkeypatch.setattr("nmt.training.gradients.TIMED_SECONDS", 0)

    def find(world: World) -> int:
        objective = Limited(1000 if world.rank else 2000)
        size: dict[str, Any] = {"batch_tokens": "auto", "auto_batch_tokens": 64}
        made = trainer(world, objective=objective, optimizer_cfg=optimizer_cfg, **size)
        made.epochs.pairs_of_epoch = lambda epoch, stage: many_pairs()
        found: int = made.find_batch_tokens(lambda text: None)
        return found

    first, second = results_of_two(find, tmp_path)
    assert first == second
    assert 1280 <= first <= 2000


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("parallel", "step", "code"), [(Parallel.ddp, 1, 2), (Parallel.ddp, 3, 4), (Parallel.fsdp, 1, 2)]
)
def test_memory_that_ends_on_one_rank_ends_all(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, tmp_path: Path, parallel: Parallel, step: int, code: int
) -> None:
    """In the trial of the largest batch, before step 1, or later; the batch is not retried in parts."""

    def fit(world: World) -> int:
        made = trainer(world, parallel, objective=FaultyOnRank(world.rank == 1, step, out_of_memory=True))
        with Tracker(TrackedRun(tmp_path), TrackingConfig(sinks=[])) as tracker, StopRequest() as stop:
            made.fit(tracker, stop)
        return 0

    processes = Processes(launched(fit, monkeypatch), tmp_path)
    assert processes.exit_codes() == [code, code]
    assert re.fullmatch(
        rf"error: step {step}: a batch of .* does not fit into memory; lower trainer.batch_tokens, .*\n",
        processes.text("stderr"),
    )
