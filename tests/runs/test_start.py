"""What a training takes over from another run; `tests/integration/test_start.py` goes through the command."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.starting import other_computation
from nmt.config.stored import load_config, save_config
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError
from nmt.files import read_json
from nmt.layers.choices import Positions
from nmt.models.configs import TransformerConfig
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.runs.start import _Rows, opened_start
from nmt.training.adapting.configs import AdaptersConfig, LoraConfig
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS
from tests.runs.untrained import CLASSIFIER, untrained


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["data.src=fr", "data.tgt=en"],
            "warning: init=RUN translates en to fr, but this training fr to en; swap data.src and data.tgt "
            "unless that is meant\n",
        ),
        (["data.src=fr", "data.tgt=en", "init.weights=[]"], ""),
        (["data.src=en", "data.tgt=fr"], ""),
    ],
)
def test_a_start_in_the_other_direction_is_warned_of(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run")
    (composed,) = compose(VERBS["train"], ["data=toy", f"init={run}", *arguments])
    assert opened_start(composed.to_config(TrainConfig)) is not None
    assert capsys.readouterr().err == told.replace("RUN", str(run))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["data=toy", "data.src=en", "data.tgt=fr"], ""),
        (
            ["data=files", "data.src=en", "data.tgt=de", "data.train=x", "data.validation=x", "data.test=x"],
            "warning: init=RUN reads __fr__ in front of every text of the tgt side, which was that of fr, "
            "but this training has de there; set tokenizer.tgt_tag=... unless that is meant\n",
        ),
    ],
)
def test_the_tag_of_another_language_is_warned_of(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run")
    stored = load_config(run / "config.yaml")
    tagged = dataclasses.replace(stored.tokenizer, tgt_tag="__fr__")
    save_config(dataclasses.replace(stored, tokenizer=tagged), run / "config.yaml")
    (composed,) = compose(VERBS["train"], [f"init={run}", *arguments])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmt.runs.start.open_run", lambda *_: None)
        assert opened_start(composed.to_config(TrainConfig)) is not None
    assert capsys.readouterr().err == told.replace("RUN", str(run))


def test_a_checkpoint_that_is_gone_is_needed_by_a_repetition_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, run = untrained(tmp_path / "base"), tmp_path / "run"
    command = ["train", f"init={base}", "init.checkpoint=7", f"run={run}", "data=toy", "experiment=none"]
    command += ["schedule=constant", "schedule.warmup_steps=0", "decoding=greedy"]
    command += [
        "decoding.max_length_ratio=0",
        "decoding.max_length_offset=2",
        "runtime.device=cpu",
        "runtime.threads=1",
    ]
    assert main([*command, "trainer.max_steps=1"]) == 0
    then = f"checkpoint 7 of sha256 {read_json(run / 'init.json')['sha256'][:16]}"
    way_out = "; restore that one"

    def refused(*arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    kept, pruned = (base / "checkpoints" / f"step_0000000{step}" for step in (7, 9))
    kept.rename(pruned)
    assert main([*command, "trainer.max_steps=1"]) == 0
    assert f"{run} is finished:" in capsys.readouterr().out
    why = f"checkpoint=7 is not in {base}; there are the steps 9"
    assert refused("reproduce", f"run={run}") == (
        f"error: {run} started from {then} of init={base}, which cannot be found: {why}{way_out}"
    )
    shutil.copytree(pruned, tmp_path / "copy")
    shutil.rmtree(base / "checkpoints")
    assert main([*command, "trainer.max_steps=2"]) == 0

    shutil.copytree(tmp_path / "copy", kept)
    with (kept / "MANIFEST.json").open("a") as manifest:
        manifest.write("\n")
    now = f"7 of {identify_checkpoint(base)[1][:16]} now"
    commands = [*command, "trainer.max_steps=2"], ["reproduce", f"run={run}"]
    for arguments, anew in zip(commands, (", or start anew with another run=...", ""), strict=True):
        told = (
            f"error: {run} started from another model than init={base} has now: {then} then, {now}{way_out}"
        )
        assert refused(*arguments) == told + anew
    assert not (tmp_path / "run-reproduced").exists()


LABELS = ["task=classification", "data=labels", *(f"data.{x}=x.tsv" for x in ("train", "validation", "test"))]
FROM_ENCODER = "init.weights=[encoder.*,src_embedding.*]"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "tokenizer.source_factors=[case]",
            ["data=toy", "init.vocabulary=remap", "tokenizer=char"],
            "  src_embedding.tokens.factors.0.weight has no place in this model\n"
            '  tokenizer.source_factors=[], but ["case"] there\n'
            "set these keys as they are there, or take what fits: init.weights=[",
        ),
        (
            "model.encoder_layers=3",
            [*LABELS, *CLASSIFIER, "model.positions=sinusoidal", "model.encoder_layers=2", FROM_ENCODER],
            "  and 2 more\n"
            "  model.encoder_layers=2, but 3 there\n"
            "set these keys as they are there, or take fewer layers, such as init.encoder_layers=[1,2], or "
            "take what fits: init.weights=[src_embedding.*]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_told_with_the_keys_that_differ(
    old: str, new: list[str], told: str, tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", old)
    (composed,) = compose(VERBS["train"], [f"init={run}", *new])
    cfg = composed.to_config(TrainConfig)
    start = opened_start(cfg)
    assert start is not None
    tokenizer = Tokenizer(cfg.tokenizer, start.run.tokenizer.src_model, start.run.tokenizer.tgt_model)
    with pytest.raises(UserError) as error:
        start.begin(initial_model(cfg, tokenizer), tokenizer, None, print)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("weights", "new", "told"),
    [
        (
            "encoder.*,src_embedding.*",
            [
                *LABELS,
                *("model=encoder", "model.d_model=8", "model.d_ff=8", "model.encoder_layers=1"),
                *("model.num_heads=4", "model.positions=alibi", "model.norm_eps=0.1"),
                *("model.activation=gelu", "model.embedding_scale=false", "model.dropout=0.3"),
            ],
            "model.num_heads=4, but 2 there; model.norm_eps=0.1, but 1e-05 there; model.positions=alibi, but "
            "sinusoidal there; model.activation=gelu, but relu there; model.embedding_scale=false, but true "
            "there; ",
        ),
        ("encoder.*", ["data=toy", "model.decoder_num_heads=1", "model.decoder_layers=2"], ""),
        (
            "decoder.*",
            ["data=toy", "model.decoder_num_heads=1"],
            "model.decoder_num_heads=1, but 2 there; ",
        ),
        ("*embedding.*", ["data=toy", "model.num_heads=4"], ""),
        ("*", ["data=toy", "model.dropout=0.3"], ""),
    ],
)
def test_layers_that_compute_something_else_in_the_new_model_are_warned_of(
    weights: str, new: list[str], told: str, tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", "model.positions=sinusoidal")
    (composed,) = compose(VERBS["train"], [f"init={run}", f"init.weights=[{weights}]", *new])
    start = opened_start(cfg := composed.to_config(TrainConfig))
    assert start is not None
    tokenizer = Tokenizer(cfg.tokenizer, start.run.tokenizer.src_model, start.run.tokenizer.tgt_model)
    log = list[str]()
    start.begin(initial_model(cfg, tokenizer), tokenizer, None, log.append)
    warning = "warning: layers of the run compute something else in this model: "
    way_out = "set these keys as they are there unless that is meant"
    assert [line for line in log if "warning" in line] == ([warning + told + way_out] if told else [])


@pytest.mark.parametrize(
    ("old", "new", "of_encoder", "of_decoder"),
    [
        ({}, {"num_heads": 4, "decoder_num_heads": 8}, "model.num_heads=4, but 8 there", ""),
        ({}, {"num_heads": 4}, "model.num_heads=4, but 8 there", "model.decoder_num_heads=4, but 8 there"),
        ({}, {"decoder_num_heads": 8, "max_distance": 9}, "", ""),
        ({"positions": Positions.t5}, {"positions": Positions.t5, "max_distance": 128}, "", ""),
        (
            {"positions": Positions.t5},
            {"positions": Positions.t5, "max_distance": 64},
            "model.max_distance=64, but 128 there",
            "model.max_distance=64, but 128 there",
        ),
        ({}, {"encoder_sharing": [1, 2, 3, 4], "encoder_layers": 4, "decoder_layers": 9}, "", ""),
        (
            {"encoder_layers": 2},
            {"encoder_layers": 4, "encoder_sharing": [1, 2, 1, 2]},
            "model.encoder_sharing=[1, 2, 1, 2], but null there",
            "",
        ),
        (
            {"decoder_layers": 4, "decoder_sharing": [1, 1, 2, 2]},
            {"decoder_layers": 4, "decoder_sharing": [1, 2, 1, 2]},
            "",
            "model.decoder_sharing=[1, 2, 1, 2], but [1, 1, 2, 2] there",
        ),
    ],
)
def test_what_layers_compute_is_compared_by_what_the_keys_stand_for(
    old: dict[str, Any], new: dict[str, Any], of_encoder: str, of_decoder: str
) -> None:
    models = TransformerConfig(**new), TransformerConfig(**old)
    for stacks, told in (({"encoder"}, of_encoder), ({"decoder", "decoder_norm"}, of_decoder)):
        assert other_computation(*models, stacks) == ([told] if told else [])


def test_a_run_with_adapters_is_a_start_in_part(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    stored = load_config(run / "config.yaml")
    save_config(dataclasses.replace(stored, adapt=AdaptersConfig()), run / "config.yaml")
    for weights, name in (("[*]", "adapters"), ("[]", "none"), ("[encoder.*]", "none")):
        (composed,) = compose(VERBS["train"], ["data=toy", f"init={run}", f"init.weights={weights}"])
        assert composed.to_config(TrainConfig).adapt.name == name


@pytest.mark.parametrize(
    ("old", "new", "chosen", "told"),
    [
        ("all", "all", "tgt_embedding.*", []),
        ("all", "none", "tgt_embedding.*", ["src_embedding.tokens.weight", "output.weight"]),
        ("none", "all", "src_embedding.*", []),
        (
            "none",
            "all",
            "src_embedding.*,output.*",
            "output.weight is the same as src_embedding.token",
        ),
    ],
)
def test_a_matrix_with_several_names_is_taken_by_any_of_them(
    old: str, new: str, chosen: str, told: str | list[str], tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", f"model.tying={old}")
    given = ["data=toy", f"init={run}", f"model.tying={new}", f"init.weights=[{chosen},*coder*]"]
    (composed,) = compose(VERBS["train"], given)
    start = opened_start(cfg := composed.to_config(TrainConfig))
    assert start is not None
    model, log = initial_model(cfg, start.run.tokenizer), list[str]()
    if isinstance(told, str):
        with pytest.raises(UserError, match=told):
            start.begin(model, start.run.tokenizer, None, log.append)
        return
    start.begin(model, start.run.tokenizer, None, log.append)
    anew = "weights that begin anew: "
    assert [line for line in log if line.startswith(anew)] == ([anew + ", ".join(told)] if told else [])
    name = chosen.replace("*", "tokens.weight")
    assert torch.equal(model.state_dict()[name], start.run.model.state_dict()[name])
    assert start._sources(model).keys() == {name for name, _ in model.named_parameters()} - {*told}


def test_a_new_tokenizer_is_no_way_out_of_other_source_factors(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "tokenizer.source_factors=[case]")
    given = ["data=toy", f"init={run}", "tokenizer.source_factors=[]"]
    for more, is_offered in (
        (["tokenizer.lowercase=true"], True),
        (["init.weights=[encoder.*]"], True),
        ([], False),
    ):
        (composed,) = compose(VERBS["train"], [*given, *more])
        with pytest.raises(UserError, match="leave these keys out, then they follow the run") as error:
            opened_start(composed.to_config(TrainConfig))
        assert ("init.vocabulary=remap takes a new tokenizer" in str(error.value)) is is_offered


def test_a_start_without_its_tags_is_told_how_to_give_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tag on the side of the target, too, no advice leads to a training without tags."""
    one = "data.corpora={NAME: {name: toy, src: en, tgt: fr}}"
    tagged = ["data=mixture", "data.target_tags=true", one]
    way = f'set {" ".join(tagged[:2])} "{one[:-2]}, ...}}}}", with the other keys of data.* there'
    run = untrained(tmp_path / "run", "tokenizer.tag_side=both", data=tagged)

    def told(*arguments: str) -> str:
        (composed,) = compose(VERBS["train"], [f"init={run}", *arguments])
        opened_start(composed.to_config(TrainConfig))
        return capsys.readouterr().err

    assert told(*tagged) == told("data=toy", "tokenizer.tag_side=source", "init.weights=[]") == ""
    lost = f"warning: init={run} has read a tag of each language (<2fr>), but this data has none; "
    assert told("data=toy", "tokenizer.tag_side=source") == f"{lost}{way}\n"
    assert told(tagged[0], one, "tokenizer.tag_side=source") == f"{lost}set data.target_tags=true\n"
    with pytest.raises(UserError) as error:
        told("data=toy")
    assert str(error.value).endswith(f"data.target_tags=true, but there are none; {way}")


def test_an_optimizer_that_cannot_go_on_is_refused(tmp_path: Path) -> None:
    """Of an average, and of a run of few weights."""
    averaged, adapted = (untrained(tmp_path / name, "trainer.average=1") for name in ("averaged", "adapted"))
    store = RunDirectory(averaged).checkpoints
    store.save_average(store.average([7]), [7])
    save_config(
        dataclasses.replace(load_config(adapted / "config.yaml"), adapt=LoraConfig()), adapted / "config.yaml"
    )
    for run, told in (
        (averaged, "an average of checkpoints, which has no optimizer; set init.checkpoint=best or last"),
        (adapted, "with adapt=lora, and its optimizer knows nothing but the few weights that learnt there"),
    ):
        keys = ["data=toy", f"init={run}", "init.optimizer=keep"]
        (composed,) = compose(VERBS["train"], keys)
        with pytest.raises(UserError, match=f"^init.optimizer=keep: {run} .* {told}"):
            opened_start(composed.to_config(TrainConfig))


@pytest.mark.parametrize(("schedule", "cuts"), [("plateau", 3), ("constant", 0)])
def test_an_optimizer_that_is_kept_keeps_the_cuts_of_a_plateau(
    schedule: str, cuts: int, tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", "schedule=plateau")
    store, progress = RunDirectory(run).checkpoints, TrainState(step=9, num_cuts=3, lowest_loss=0.5)
    store.save(Checkpoint(9, store.load_model(7), {}, progress.to_store()))
    keys = ["data=toy", f"init={run}", "init.optimizer=keep", "init.checkpoint=9", f"schedule={schedule}"]
    (composed,) = compose(VERBS["train"], keys)
    start = opened_start(composed.to_config(TrainConfig))
    assert start is not None
    begun = start.continued(start.run.model, start.run.tokenizer, None)
    assert begun is not None
    assert TrainState.stored_in(begun.state) == TrainState(step=9, num_cuts=cuts)


def test_what_an_optimizer_keeps_of_columns_has_no_rows_of_a_vocabulary() -> None:
    """Adafactor keeps (V, 1) and (1, D) of a table (V, D)."""
    rows = object.__new__(_Rows)
    rows._names, rows._src, rows._tgt = {"tgt_embedding.weight"}, None, [0, 1, 2, [0, 2], []]
    shapes = {(3, 4): (5, 4), (3, 1): (5, 1), (1, 4): (1, 4), (): (), (3,): (5,)}
    for old, new in shapes.items():
        assert rows.moved("tgt_embedding.weight", torch.ones(old)).shape == new
        assert rows.moved("encoder.0.weight", torch.ones(old)).shape == old
    levels = torch.tensor([[0, 8], [100, 100], [4, 16]], dtype=torch.uint8)  # of moments in 8 bits
    moved = rows.moved("tgt_embedding.weight", levels)
    assert moved.dtype is torch.uint8
    assert moved.tolist() == [[0, 8], [100, 100], [4, 16], [2, 12], [34, 41]]
