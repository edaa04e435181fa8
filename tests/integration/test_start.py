"""A training that starts from the model of another run: weights, vocabulary, optimizer, its record."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from nmt.comparison.record import read_run
from nmt.config.stored import load_config
from nmt.errors import UserError
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_run
from tests.integration.test_resume import outcome

Command = Callable[..., "subprocess.CompletedProcess[str]"]

MODEL = [
    "model=transformer_tiny",
    "model.d_model=8",
    "model.d_ff=8",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=2",
]
TRAINING = [
    "schedule=constant",
    "schedule.peak_rate=0.01",
    "trainer.batch_tokens=256",
    "trainer.eval_every_steps=4",
    "trainer.save_every_steps=2",
    "tracking.sinks=[display,jsonl]",
    "decoding=greedy",
    "runtime.device=cpu",
]
WORDS = [
    "the",
    "old",
    "house",
    "is",
    "near",
    "a",
    "river",
    "and",
    "many",
    "boats",
    "go",
    "there",
    "when",
    "water",
    "is",
    "low",
]


@pytest.fixture(scope="module")
def source(nmt: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a few updates on the ten sentences of the toy corpus, with separate vocabularies."""
    run = tmp_path_factory.mktemp("source") / "toy"
    text = ["data=toy", "tokenizer=bpe", "tokenizer.vocab_size=60", "tokenizer.joint=false"]
    done = nmt(
        "train", f"run={run}", *text, *MODEL, "model.tying=tgt_output", *TRAINING, "trainer.max_steps=4"
    )
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides for thirty pairs of other words."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join(WORDS[i % 7 :: i % 3 + 1]) for i in range(30)]
    for side, end in (("en", ""), ("fr", " ß")):
        (folder / f"text.{side}").write_text("".join(f"{line}{end}\n" for line in lines), encoding="utf-8")
    return [
        "data=files",
        "data.src=en",
        "data.tgt=fr",
        *(f"data.{x}={folder}/text" for x in ("train", "validation", "test")),
    ]


@pytest.fixture
def start(nmt: Command, source: Path, corpus: list[str], tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Return a function of overrides that trains from `source` on the corpus; it returns run and messages."""

    def run(
        *overrides: str, steps: int = 2, name: str = "run", code: int = 0, init: Path = source
    ) -> tuple[Path, str]:
        path = tmp_path / name
        done = nmt(
            "train",
            f"init={init}",
            f"run={path}",
            *corpus,
            *TRAINING,
            f"trainer.max_steps={steps}",
            *overrides,
        )
        assert done.returncode == code, done.stderr
        return path, done.stderr

    return run


def weights(run: Path, step: int) -> dict[str, Tensor]:
    return RunDirectory(run).checkpoints.load_model(step)


def test_the_model_follows_the_run(start: Callable[..., tuple[Path, str]], source: Path) -> None:
    run, messages = start("schedule.peak_rate=1e-30", "model.dropout=0.4")
    cfg, old = load_config(run / "config.yaml"), load_config(source / "config.yaml")
    assert cfg.model.dropout == 0.4  # type: ignore[attr-defined]
    assert (cfg.model.d_model, cfg.tokenizer) == (8, old.tokenizer)
    for name, x in weights(source, 4).items():
        assert torch.allclose(weights(run, 2)[name], x, rtol=0, atol=1e-9)
    record = json.loads((run / "init.json").read_text())
    assert (record["run"], record["checkpoint"], record["new_weights"]) == (str(source), "4", [])
    assert f"starting from {source}, step 4 (sha256 {record['sha256'][:16]})" in messages
    assert "vocabulary (src, keep): 60 pieces, 60 of the run" in messages
    assert "warning: much is unknown to this vocabulary; init.vocabulary=extend adds pieces" in messages


@pytest.mark.slow
def test_the_same_command_finds_the_run_again(
    nmt: Command, start: Callable[..., tuple[Path, str]], source: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(source, tmp_path / "copy")
    run, _ = start(init=copy)
    start(init=copy)
    assert (run / "results.json").is_file()
    changed = copy / "checkpoints" / "step_00000004" / "MANIFEST.json"
    changed.write_text(changed.read_text() + "\n")
    _, messages = start(init=copy, code=2)
    assert f"{run} started from another model than init={copy} has now: checkpoint 4 of sha256" in messages
    shutil.rmtree(copy)  # nothing is needed of it any more
    start(init=copy, steps=4)
    assert weights(run, 4)
    assert nmt("evaluate", f"run={run}").returncode == 0


EMA = ("trainer.ema_decay=0.9", "trainer.freeze=[encoder.*,src_embedding.*]", "model.dropout=0.3")


@pytest.mark.parametrize("kind", ["lora", pytest.param("adapters", marks=pytest.mark.slow)])
def test_few_weights_that_learn_are_stored_alone_and_the_run_opens_alone(
    start: Callable[..., tuple[Path, str]], source: Path, tmp_path: Path, kind: str
) -> None:
    copied = shutil.copytree(source, tmp_path / "copied")
    run, messages = start(f"adapt={kind}", "trainer.ema_decay=0.9", init=copied)
    shutil.rmtree(copied)
    assert f"adapt={kind}: " in messages
    assert f" of {read_run(run).parameters:,} weights learn" in messages
    old = weights(source, 4)
    assert all(torch.equal(weights(run, 2)[name], x) for name, x in old.items())
    folder = run / "checkpoints"
    with safe_open(folder / "step_00000002" / "model.safetensors", framework="pt") as file:
        assert not set(file.keys()) & old.keys()
    beside = RunDirectory(run).checkpoints.load(2).optimizer.keys()
    trained = {name.removeprefix("trained/") for name in beside if name.startswith("trained/")}
    assert trained == {name.removesuffix("/exp_avg") for name in beside if name.endswith("/exp_avg")}
    opened = open_run(run)
    assert (opened.model.state_dict().keys() == old.keys()) == (kind == "lora")
    (folder / "base.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"base.safetensors has 7 bytes"):
        open_run(run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "adapters"])
def test_an_interrupted_adaptation_ends_with_the_bits_of_one_in_one_go(
    start: Callable[..., tuple[Path, str]], kind: str
) -> None:
    more = (f"adapt={kind}", "trainer.ema_decay=0.9", "model.dropout=0.3", "trainer.average=2")
    straight, _ = start(*more, steps=8, name="straight")
    run, _ = start(*more, steps=4)
    start(*more, steps=8)
    before, after = outcome(straight, 8), outcome(run, 8)
    assert before["tensors"] == after["tensors"]
    assert before["scores"] == after["scores"]


EVERYTHING = (*EMA, "init.vocabulary=extend", "init.optimizer=keep")


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.slow), EVERYTHING])
def test_an_interrupted_training_ends_with_the_bits_of_one_in_one_go(
    start: Callable[..., tuple[Path, str]], more: tuple[str, ...]
) -> None:
    first = 4 if more else 0  # of the optimizer that is kept
    straight, _ = start(*more, "trainer.average=2", steps=first + 8, name="straight")
    run, _ = start(*more, "trainer.average=2", steps=first + 4)
    start(*more, "trainer.average=2", steps=first + 8)
    before, after = outcome(straight, first + 8), outcome(run, first + 8)
    assert before["tensors"] == after["tensors"]
    assert before["scores"] == after["scores"]


@pytest.mark.slow
def test_frozen_weights_stay_those_of_the_run(start: Callable[..., tuple[Path, str]], source: Path) -> None:
    run, messages = start(*EMA)
    assert "by trainer.freeze=[encoder.*, src_embedding.*]" in messages
    store = RunDirectory(run).checkpoints
    for name, x in store.load_model(2).items():
        assert torch.equal(x, weights(source, 4)[name]) == name.startswith(("encoder.", "src_embedding."))
    state = {name.rpartition("/")[0] for name in store.load(2).optimizer if not name.startswith("trained/")}
    assert state
    assert not any(name.startswith(("encoder.", "src_embedding.")) for name in state)


@pytest.mark.parametrize("vocabulary", ["extend", pytest.param("remap", marks=pytest.mark.slow)])
def test_rows_of_the_vocabulary_go_with_their_pieces(
    start: Callable[..., tuple[Path, str]], source: Path, vocabulary: str
) -> None:
    text = ["tokenizer=char", "tokenizer.joint=false"] if vocabulary == "remap" else []
    run, messages = start(
        *text, "schedule.peak_rate=1e-30", f"init.vocabulary={vocabulary}", "init.new_pieces=15"
    )
    old, new = open_run(source), open_run(run)
    assert "begin as the mean of the pieces that spelt them before" in messages
    before, after = old.model.state_dict(), new.model.state_dict()
    ids, new_ids = (
        {text: i for i, text in enumerate(x.tokenizer.tgt_spellings(range(x.tokenizer.tgt_vocab_size)))}
        for x in (old, new)
    )
    shared = sorted(ids.keys() & new_ids.keys())
    assert len(shared) > 8
    table = "tgt_embedding.tokens.weight"
    rows, new_rows = ([of[text] for text in shared] for of in (ids, new_ids))
    assert torch.allclose(before[table][rows], after[table][new_rows], rtol=0, atol=1e-9)
    mean, sharp_s = before["output.weight"].mean(0), after["output.weight"][new_ids["ß"]]
    assert torch.allclose(sharp_s, mean, atol=1e-6)
    assert after["src_embedding.tokens.weight"].shape[0] == new.tokenizer.src_vocab_size
    if vocabulary == "extend":
        assert list(new_ids)[:60] == list(ids)


@pytest.mark.slow
def test_an_optimizer_that_is_kept_goes_on_with_its_moments(
    start: Callable[..., tuple[Path, str]], source: Path
) -> None:
    run, messages = start(
        "init.optimizer=keep", "schedule.peak_rate=1e-30", "optimizer.beta1=0.999999", steps=5
    )
    assert "the optimizer goes on after step 4" in messages
    old, new = (RunDirectory(path).checkpoints.load(step) for path, step in ((source, 4), (run, 5)))
    key = "decoder.0.feed_forward.block.inner.weight"
    assert new.optimizer[f"{key}/step"] == old.optimizer[f"{key}/step"] + 1
    assert torch.allclose(new.optimizer[f"{key}/exp_avg"], old.optimizer[f"{key}/exp_avg"], atol=1e-4)


def test_a_part_of_the_weights_goes_into_another_model(
    start: Callable[..., tuple[Path, str]], source: Path
) -> None:
    part = ["init.weights=[encoder.*,src_embedding.*]", "model.decoder_layers=1", "schedule.peak_rate=1e-30"]
    run, messages = start(*part, "model.tying=none")
    assert "weights that begin anew: tgt_embedding.tokens.weight, output.weight, decoder.*." in messages
    new, old = weights(run, 2), weights(source, 4)
    same = {name for name in new if name in old and torch.allclose(new[name], old[name], rtol=0, atol=1e-9)}
    assert {name for name in old if name.startswith(("encoder.", "src_embedding."))} <= same
    assert "output.weight" not in same


def test_some_of_the_layers_are_taken(start: Callable[..., tuple[Path, str]], source: Path) -> None:
    run, _ = start("init.decoder_layers=[2]", "schedule.peak_rate=1e-30")
    new, old = weights(run, 2), weights(source, 4)
    assert not any(name.startswith("decoder.1.") for name in new)
    for name, x in new.items():
        assert torch.allclose(x, old[name.replace("decoder.0.", "decoder.1.")], rtol=0, atol=1e-9)


REFUSED = {
    "no_such_layer": (
        ["init.decoder_layers=[3]"],
        ["init.decoder_layers=[3] must name layers from 1 to 2, the depth of the decoder, in ascending"],
    ),
    "layers_of_a_kept_optimizer": (
        ["init.decoder_layers=[1]", "init.optimizer=keep"],
        ["init.optimizer=keep goes on with every weight of the run, but init.encoder_layers or"],
    ),
    "other_sizes": (
        ["model.d_model=16", "tokenizer.joint=true"],
        [
            "model.d_model=16, but 8 there",
            "tokenizer.joint=true, but false there",
            "then they follow the run; ",
        ],
    ),
    "another_family": (
        ["model=rnn_luong", "model.tying=tgt_output"],
        ["model.name=rnn, but transformer there"],
    ),
    "no_such_weight": (
        ["init.weights=[encodr.*]"],
        ["init.weights: no weight has a name like 'encodr.*'; did you mean 'encoder.*'?"],
    ),
    "misfit": (
        ["init.weights=[decoder.*]", "model.d_ff=16", "model.decoder_layers=1"],
        [
            "the weights of init=",
            "do not fit:",
            "decoder.1.self_attention.residual.norm.weight has no place in this model",
            "decoder.0.feed_forward.block.inner.weight is [8, 8], but [16, 8] in this model",
            "model.d_ff=16, but 8 there",
            "set these keys as they are there, or take fewer layers, such as init.decoder_layers=[1], or "
            "take what fits: init.weights=[]",
        ],
    ),
    "nothing_left_to_train": (
        ["init.optimizer=keep"],
        ["goes on after step 4, but trainer.max_steps=2 ends before"],
    ),
    "another_optimizer": (
        ["init.optimizer=keep", "optimizer=muon", "trainer.max_steps=9"],
        ["init.optimizer=keep: optimizer=muon, but", "was trained with optimizer=adam"],
    ),
    "no_such_checkpoint": (["init.checkpoint=3"], ["checkpoint=3 is not in", "there are the steps 2, 4"]),
}


@pytest.mark.parametrize(("overrides", "texts"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    start: Callable[..., tuple[Path, str]], overrides: list[str], texts: list[str]
) -> None:
    _, messages = start(*overrides, code=2)
    for text in texts:
        assert text in messages


def test_a_directory_that_is_no_run_is_refused(nmt: Command, tmp_path: Path) -> None:
    done = nmt("train", f"init={tmp_path}", "data=toy")
    assert done.returncode == 2
    assert f"init={tmp_path} is not a run directory: it has no config.yaml" in done.stderr
