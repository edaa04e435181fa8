"""`nmt export`: folders that work by the program in their card, what is refused, and that nothing is lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nmt.cli import main
from nmt.comparison.record import read_run
from nmt.config.stored import load_config, save_config
from nmt.data.parallel_text import Split
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens import tokenizer_training
from nmt.decoding.configs import BeamConfig, LineSplitting
from nmt.exchange import export as module
from nmt.exchange import to_safetensors
from nmt.runs.opened import initial_model
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.training.adapting.configs import LoraConfig
from tests.runs.untrained import GPT, RNN, TRANSFORMER, WORDS, untrained, untrained_classifier

CPU = RuntimeConfig(device="cpu", threads=1)
LINES = [*WORDS[:6], "ab  BA", "h, 'a'! ☃☃ b", "a"]
Translate = Callable[[list[str]], list[str]]


def exported(run: Path, form: str, *keys: str) -> Path:
    """Export with `nmt export`, and return the folder."""
    folder = run.with_name(f"{run.name}.{form}")
    assert (
        main(["export", f"run={run}", f"format={form}", f"output={folder}", "runtime.device=cpu", *keys]) == 0
    )
    return folder


def program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the program of a card in its folder, and return its names."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "casing", raising=False)
    names: dict[str, Any] = {}
    exec(compile(code[1], "README.md", "exec"), names)
    return names


def ours(run: Path, lines: list[str], **settings: Any) -> list[str]:
    whole: dict[str, Any] = {
        "beam_size": 1,
        "split_lines": LineSplitting.none,
    }  # as foreign programs read lines
    return [found.text for found in open_run(run, runtime_cfg=CPU).translate(lines, **whole, **settings)]


SLOW = pytest.mark.slow
MODELS = {
    "rotary": ("model.positions=rotary",),
    "lower case": ("tokenizer.lowercase=true", "tokenizer.strip_punctuation=true"),
    "right to left": ("tokenizer.right_to_left=true",),
    "words": ("tokenizer=word",),
    "tags of languages": ("tokenizer.src_tag=a", "tokenizer.tgt_tag=b"),
    "two vocabularies": ("tokenizer.joint=false", "model.tying=none"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tags of languages" else SLOW) for name in MODELS]
)
def test_the_program_for_ctranslate2(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained(tmp_path / "run", *MODELS[name])
    names = program(exported(run, "ctranslate2", "decoding.beam_size=1"), monkeypatch)
    for line in LINES:  # one at a time: the program has one limit for all lines, that of the longest
        assert names["translate"]([line]) == ours(run, [line])
    assert names["translate"]([]) == []
    assert names["translate"](["", "a b"])[0] == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(
    "name", ["Marian", pytest.param("lower case", marks=SLOW), pytest.param("two vocabularies", marks=SLOW)]
)
def test_the_program_for_transformers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, translations one by one and together, and the defaults of `generate`."""
    run = untrained(tmp_path / "run", *MODELS.get(name, ["model.norm_order=post"]))
    names = program(exported(run, "huggingface", "decoding.beam_size=1"), monkeypatch)
    opened, tokenizer = open_run(run, runtime_cfg=CPU), names["tokenizer"]
    prepared = [line.lower().replace("'", "") for line in LINES[:6]] if name == "lower case" else LINES
    assert tokenizer(prepared).input_ids == opened.tokenizer.encode_src(prepared)
    assert type(tokenizer) is transformers.MarianTokenizer
    assert tokenizer(text_target="a b").input_ids == opened.tokenizer.encode_tgt(["a b"])[0]
    for line in LINES:  # skip_special_tokens drops unknown pieces, too
        expected = [text.replace(" \N{DOUBLE QUESTION MARK} ", "") for text in ours(run, [line])]
        assert names["translate"]([line]) == [text.strip() for text in expected]
    assert [bool(text) for text in names["translate"](["", " ", "a b"])] == [False, False, True]
    defaults = names["model"].generation_config
    assert (defaults.num_beams, defaults.suppress_tokens, defaults.max_length) == (1, [0, 2], 1024)


def test_the_program_marks_capitals_and_keeps_symbols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = "tokenizer.case=markup", "tokenizer.symbols=['!','☃']"
    run = untrained(tmp_path / "run", *keys)
    names, asked = program(exported(run, "ctranslate2"), monkeypatch), []

    def translate_batch(pieces: list[list[str]], **settings: object) -> list[SimpleNamespace]:
        asked.extend(pieces)
        return [SimpleNamespace(hypotheses=[line]) for line in pieces]

    names["translator"] = SimpleNamespace(translate_batch=translate_batch)
    lines = ["ab BA", "Hab!Ab ☃ B", ""]
    assert names["translate"](lines) == lines
    ids = [[*names["source"].piece_to_id(line), EOS_ID] for line in asked]
    assert ids == open_run(run, runtime_cfg=CPU).tokenizer.encode_src(lines)


@pytest.mark.parametrize("model", [RNN, ("model.tying=src_tgt",), GPT])
def test_plain_weights(tmp_path: Path, model: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the card has all weights by the names of the model, and the tokenizers."""
    run = untrained(tmp_path / "run", *model) if len(model) == 1 else untrained(tmp_path / "run", model=model)
    folder = exported(run, "safetensors")
    names, opened = program(folder, monkeypatch), open_run(run, runtime_cfg=CPU)
    expected = opened.model.state_dict()
    assert names["weights"].keys() == expected.keys()
    assert all(torch.equal(names["weights"][name], expected[name]) for name in expected)
    assert names["config"]["model"]["d_model"] == opened.cfg.model.d_model
    assert [*names["source"].encode("a b"), names["config"]["eos_id"]] == opened.tokenizer.encode_src(
        ["a b"]
    )[0]
    stored = load_file(folder / to_safetensors.WEIGHTS)
    assert len({tensor.data_ptr() for tensor in expected.values()}) == len(stored)
    half = exported(run.rename(tmp_path / "half"), "safetensors", "quantization=bfloat16")
    assert {tensor.dtype for tensor in load_file(half / to_safetensors.WEIGHTS).values()} == {torch.bfloat16}


@pytest.mark.parametrize("form", ["safetensors", "nmt"])
def test_tied_weights_are_stored_once_where_a_copy_to_the_cpu_is_one(
    run: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, unlike here, `Tensor.cpu` always copies."""
    tensors = open_run(run, runtime_cfg=CPU).model.state_dict()
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    (file,) = exported(run, form).rglob("model.safetensors")
    assert len(load_file(file)) == len({tensor.data_ptr() for tensor in tensors.values()}) < len(tensors)


RUNS: dict[str, dict[str, Any]] = {
    "transformer": {"overrides": ("model.tying=src_tgt", "decoding.beam_size=3")},
    "two vocabularies": {"overrides": ("tokenizer.joint=false", "model.tying=none")},
    "layers that share weights": {
        "overrides": ("model.decoder_layers=2", "model.decoder_sharing=[1,1]", "model.activation=selu")
    },
    "rnn": {"model": RNN},
    "decoder alone": {"model": GPT},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_the_model_alone(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, ties, translations, kept pairs and defaults are those of the run."""
    facts = RUNS[name]
    run = untrained(tmp_path / "run", *facts.get("overrides", ()), model=facts.get("model", TRANSFORMER))
    folder = exported(run, "nmt", "decoding.max_length_offset=5")
    theirs, mine = open_run(run, runtime_cfg=CPU), open_run(folder, runtime_cfg=CPU)
    expected, found = theirs.model.state_dict(), mine.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert mine.cfg.decoding == dataclasses.replace(theirs.cfg.decoding, max_length_offset=5)
    names = program(folder, monkeypatch)
    assert names["translate"](LINES) == [one.text for one in theirs.translate(LINES, max_length_offset=5)]
    assert mine.directory.kept_text(Split.test, mine.cfg.data) == theirs.directory.kept_text(
        Split.test, mine.cfg.data
    )
    (checkpoint,) = folder.joinpath("checkpoints").iterdir()
    stored = load_file(checkpoint / "model.safetensors")
    assert sum(x.numel() for x in stored.values()) == sum(x.numel() for x in theirs.model.parameters())
    assert load_file(checkpoint / "optimizer.safetensors") == {}
    record = json.loads((folder / "export.json").read_text())
    assert [(one["run"], one["checkpoint"], one["share"]) for one in record["of"]] == [("run", "7", 1.0)]


@pytest.mark.parametrize("form", ["nmt", pytest.param("ctranslate2", marks=SLOW)])
@pytest.mark.parametrize("tags", [False, True])
def test_the_program_asks_for_a_domain(
    tmp_path: Path, form: str, tags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = "data.corpora={drugs: {name: toy, domain: med}, courts: {name: toy, domain: law}}"
    data = ("data=mixture", "data.tgt=fr", f"data.target_tags={str(tags).lower()}", corpora)
    run = untrained(tmp_path / "run", "seed=7", data=data)
    names = program(exported(run, form, "decoding.beam_size=1"), monkeypatch)
    found = [names["translate"](LINES[:1], domain=one) for one in ("med", "law", None)]
    assert found == [ours(run, LINES[:1], domain=one) for one in ("med", "law", None)]
    assert len({*map(tuple, found)}) > 1


def test_a_classifier_as_a_run_with_the_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained_classifier(tmp_path / "run")
    names = program(exported(run, "nmt"), monkeypatch)
    assert names["classify"](LINES) == [label for label, _ in open_run(run, runtime_cfg=CPU).classify(LINES)]


def test_an_exported_run_in_half_the_bytes_is_what_other_runs_start_from(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported(run, "nmt", "quantization=bfloat16")
    found, expected = (open_run(path, runtime_cfg=CPU).model.state_dict() for path in (folder, run))
    assert all(torch.equal(found[name], expected[name].bfloat16().float()) for name in expected)
    assert read_run(folder).state == "exported"
    capsys.readouterr()
    assert main(["runs", str(folder)]) == 0
    assert re.search(r" exported +- +- ", capsys.readouterr().out)  # of no number of updates
    short = ("trainer.max_steps=1", "runtime.device=cpu", "data=toy")
    assert main(["train", f"run={folder}", *short]) == 2
    assert capsys.readouterr().err == (
        f"error: {folder} is a model alone, as nmt export writes it, and no training can go on there; "
        f"start one from it with init={folder} and another run=...\n"
    )
    tuned = run.with_name("tuned")
    assert main(["train", f"init={folder}", "init.optimizer=keep", f"run={tuned}", *short]) == 2
    assert "is a model without an optimizer, imported or exported; set init.optimizer=fresh" in (
        capsys.readouterr().err
    )
    assert main(["train", f"init={folder}", f"run={tuned}", *short]) == 0


def test_an_exported_run_holds_what_lora_has_learnt(run: Path) -> None:
    cfg, opened = load_config(run / "config.yaml"), open_run(run, runtime_cfg=CPU)
    cfg.adapt = LoraConfig(rank=2)
    adapted = initial_model(cfg, opened.tokenizer)
    for parameter in adapted.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    store = opened.directory.checkpoints
    store.save(dataclasses.replace(store.load(7), model=adapted.state_dict()))
    save_config(cfg, run / "config.yaml")
    folder = exported(run, "nmt")
    assert load_config(folder / "config.yaml").adapt.name == "none"
    assert ours(folder, LINES) == ours(run, LINES)


REFUSED = {
    "format=ctranslate2 model.activation=selu": (
        "model.activation must be relu or gelu or silu or glu or reglu or geglu or swiglu for "
        "format=ctranslate2, but is selu; format=safetensors holds any model"
    ),
    "format=ctranslate2 model.decoder_self_attention=ssru": (
        "model.decoder_self_attention must be attention for format=ctranslate2, but is ssru; "
        "format=safetensors holds any model"
    ),
    "format=huggingface model.decoder_self_attention=average": (
        "model.decoder_self_attention must be attention for the class Blenderbot of transformers, but is "
        "average; format=safetensors holds any model"
    ),
    "format=huggingface tokenizer.tgt_tag=b tokenizer.source_factors=[position]": (
        "2 settings cannot be used:\n"
        "  - tokenizer.tgt_tag must be '' for a tokenizer of transformers, but is b; "
        "format=safetensors holds any model\n"
        "  - tokenizer.source_factors must be [] for a tokenizer of transformers, but is ['position']; "
        "format=safetensors holds any model"
    ),
    "format=huggingface model.positions=rotary": (
        "model.positions must be sinusoidal or learned or none for the class Blenderbot of transformers, but "
        "is rotary; format=ctranslate2 holds this model, and format=safetensors holds any model"
    ),
    "format=huggingface model.norm_order=post model.positions=learned": (
        "model.positions must be sinusoidal for the class Marian of transformers, but is learned; "
        "format=ctranslate2 holds this model, and format=safetensors holds any model"
    ),
    "format=huggingface tokenizer.tgt_tag=b": (
        "tokenizer.tgt_tag must be '' for a tokenizer of transformers, but is b; "
        "format=ctranslate2 holds this model, and format=safetensors holds any model"
    ),
    "format=huggingface model.norm=rms_norm model.d_k=2 tokenizer=word": (
        "3 settings cannot be used:\n"
        "  - model.norm must be layer_norm for the class Blenderbot of transformers, but is rms_norm; "
        "format=ctranslate2 holds this model, and format=safetensors holds any model\n"
        "  - model.d_k must be null or 4 for the class Blenderbot of transformers, but is 2; "
        "format=ctranslate2 holds this model, and format=safetensors holds any model\n"
        "  - tokenizer.kind must be unigram or bpe or char for a tokenizer of transformers, but is word; "
        "format=ctranslate2 holds this model, and format=safetensors holds any model"
    ),
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_format_cannot_hold(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    form, *overrides = command.split(" ")
    run = untrained(tmp_path / "run", *overrides)
    assert main(["export", f"run={run}", form, f"output={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err == f"error: {REFUSED[command]}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("model", "name"), [(RNN, "rnn"), (GPT, "decoder_only")])
def test_other_families_are_refused(
    tmp_path: Path, model: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", model=model)
    for form in ("ctranslate2", "huggingface"):
        assert main(["export", f"run={run}", f"format={form}", f"output={tmp_path / 'out'}"]) == 2
        assert capsys.readouterr().err == (
            f"error: format={form} holds encoder-decoder Transformers (model.name=transformer) that "
            f"translate, but {run} has model.name={name}; format=safetensors holds any model\n"
        )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return untrained(tmp_path / "run")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "output=OUT",
            "format is missing; set format=..., one of ctranslate2, huggingface, safetensors, nmt",
        ),
        ("format=ctranslate2", "output is missing; set output=..."),
        ("format=ctranslate2 output=", "output must name a folder, but is empty"),
        (
            "format=safetensors quantization=int8 output=OUT",
            "quantization=int8 needs format=ctranslate2, but format is safetensors; choose float32, bfloat16 "
            "or float16",
        ),
        (
            "format=safetensors output=RUN",
            "output: RUN is there already and stays; remove it, or choose another output=...",
        ),
        (
            "run=[RUN,RUN] format=ctranslate2 output=OUT",
            "run names 2 runs, but an exported model is one model; export them one by one, or distil the "
            "ensemble into one model first: nmt distil teacher=[A,B]; ensemble.mean=weights makes one model "
            "of a run and those that started from it",
        ),
        (
            "format=safetensors output=OUT ensemble.lm=RUN",
            "ensemble.lm=RUN is a second model, but an exported model is one; leave it out",
        ),
        (
            "format=safetensors output=OUT decoding.shortlist=a.npz",
            "decoding.shortlist=a.npz has no place in an exported model, which predicts all pieces; add "
            "decoding.shortlist=null",
        ),
    ],
)
def test_settings_that_are_refused(
    run: Path, keys: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(run), "OUT": str(run.with_name("out"))}
    for name, place in places.items():
        keys, message = keys.replace(name, place), message.replace(name, place)
    given = [] if keys.startswith("run=") else [f"run={run}"]
    assert main(["export", *given, *keys.split(" ")]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_missing_library_is_one_error(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert main(["export", f"run={run}", "format=ctranslate2", f"output={run}.out"]) == 2
    assert capsys.readouterr().err == (
        "error: format=ctranslate2 needs the package ctranslate2, which is not installed: "
        "pip install 'nmt[export]'\n"
    )


def test_a_folder_appears_whole_or_not_at_all(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "model_card", fails)
    folder = run.with_name("out")
    assert main(["export", f"run={run}", "format=safetensors", f"output={folder}"]) == 4
    assert capsys.readouterr().err == f"error: cannot write {folder}: the disk is full\n"
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_the_checkpoint_that_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second checkpoint is exported when it is asked for, and the card says whose scores it shows."""
    store = open_run(run).directory.checkpoints
    first = store.load(7)
    weights = {name: tensor + 1 for name, tensor in first.model.items()}
    store.save(type(first)(9, weights, first.optimizer, first.state))
    scores = {"loss": 1.5, "bleu": 30.126}
    results = {"step": 9, "validation": scores, "test": scores, "signatures": {"bleu": "nrefs:1"}}
    facts = {"train_seconds": 7200.0, "tgt_tokens_per_second": 100.0}
    (run / "results.json").write_text(json.dumps(results | facts), encoding="utf-8")
    last = exported(run, "safetensors", "checkpoint=last")
    card = (last / "README.md").read_text(encoding="utf-8")
    assert "| BLEU | 30.13 | 30.13 |" in card
    assert "`nrefs:1`" in card
    assert "exported is" not in card
    again = exported(exported(run, "nmt"), "safetensors")
    assert "| BLEU | 30.13 | 30.13 |" in (again / "README.md").read_text(encoding="utf-8")
    rounded = exported(run.rename(run.with_name("whole")), "nmt", "quantization=bfloat16")
    assert "| BLEU | 30.13 | 30.13 |" in (rounded / "README.md").read_text(encoding="utf-8")
    of_rounded = exported(rounded, "safetensors")
    assert "None recorded" in (of_rounded / "README.md").read_text(encoding="utf-8")
    older = exported(run.with_name("whole").rename(run.with_name("renamed")), "safetensors", "checkpoint=7")
    assert "These are the scores of checkpoint 9; exported is 7." in (older / "README.md").read_text("utf-8")
    stored = load_file(older / "model.safetensors")
    assert all(torch.equal(tensor, first.model[name]) for name, tensor in stored.items())
    alone = exported(run.with_name("renamed").rename(run.with_name("older")), "nmt", "checkpoint=7")
    assert "None recorded" in (exported(alone, "safetensors") / "README.md").read_text(encoding="utf-8")


def test_the_mean_of_the_weights_of_runs_is_exported_as_one_model(run: Path) -> None:
    other = untrained(run.with_name("other"), "seed=2")
    folder = run.with_name("mean")
    keys = ["ensemble.mean=weights", "ensemble.weights=[1,3]", "runtime.device=cpu", f"output={folder}"]
    assert main(["export", f"run=[{run},{other}]", "format=safetensors", *keys]) == 0
    first, second = (open_run(path, runtime_cfg=CPU).model.state_dict() for path in (run, other))
    for name, tensor in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(tensor, 0.25 * first[name] + 0.75 * second[name])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Its weights are the mean of several runs' (0.25 of run, 0.75 of other)" in card
    assert "None recorded: the mean of several runs has no results of its own." in card
    shutil.rmtree(folder)
    assert main(["export", f"run=[{run},{other}]", "format=nmt", *keys]) == 0
    record = json.loads((folder / "export.json").read_text())
    assert [(one["run"], one["share"]) for one in record["of"]] == [("run", 0.25), ("other", 0.75)]


def test_the_card_names_the_settings_of_search_that_the_program_lacks(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    keys = ["decoding.no_repeat_ngram_size=3", "decoding.avoid=[a|b]", "decoding.precision=fp32"]
    card = (exported(run, "ctranslate2", *keys) / "README.md").read_text(encoding="utf-8")
    settings = "`decoding.no_repeat_ngram_size=3`, `decoding.avoid=['a|b']`"
    assert f"The program above searches without {settings}, which the config of the model has." in card
    assert "Greedy search is the same" not in card
    card = (exported(run.rename(tmp_path / "other"), "ctranslate2") / "README.md").read_text("utf-8")
    assert "searches without" not in card
    assert "Greedy search is the same, but" in card


@pytest.mark.parametrize("target", ["ctranslate2", "huggingface"])
@pytest.mark.parametrize(
    ("keys", "lost", "beams"),
    [
        (["decoding=mbr"], "`decoding.strategy=mbr`", BeamConfig().beam_size),
        (["decoding=sampling"], "`decoding.strategy=sampling`", BeamConfig().beam_size),
        (["decoding=greedy", "decoding.length_penalty_alpha=0.6"], "", 1),
    ],
)
def test_other_searches_become_those_of_the_program(
    target: str, keys: list[str], lost: str, beams: int, tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", "tokenizer=bpe", "tokenizer.vocab_size=40")
    card = (exported(run, target, *keys) / "README.md").read_text(encoding="utf-8")
    assert f"The search has {beams} beams" in card
    assert (f"The program above searches without {lost}, " in card) == bool(lost)


def test_the_card_installs_what_the_tokenizer_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(MosesPunctNormalizer=lambda lang: SimpleNamespace(normalize=str), __spec__=1)
    monkeypatch.setitem(sys.modules, "sacremoses", library)
    monkeypatch.setattr(tokenizer_training, "_moses", library.MosesPunctNormalizer)
    run = untrained(tmp_path / "run", "tokenizer.moses_src=en", "tokenizer.moses_tgt=en")
    for form, needed in (
        ("ctranslate2", "`pip install ctranslate2 sentencepiece sacremoses`"),
        ("nmt", "or later and `sacremoses`"),
    ):
        folder = exported(run, form)
        assert needed in (folder / "README.md").read_text(encoding="utf-8")
        assert program(folder, monkeypatch)["translate"](["a b"])
    card = (exported(run, "huggingface") / "README.md").read_text(encoding="utf-8")
    assert "The tokenizer in this folder does not prepare lines; the program above does." in card
    target = untrained(tmp_path / "target", "tokenizer.moses_tgt=en")
    for form, needed in (
        ("ctranslate2", "`pip install ctranslate2 sentencepiece`"),
        ("nmt", "and `sacremoses`"),
    ):
        assert needed in (exported(target, form) / "README.md").read_text(encoding="utf-8")


def test_the_card_of_a_model_with_context_says_that_its_program_gives_none(tmp_path: Path) -> None:
    data = ("data=files", "data.src=en", "data.tgt=de", "data.train=a", "data.validation=b", "data.test=c")
    run = untrained(tmp_path / "run", "data.context=2", "data.context_target=true", data=data)
    for form, is_told in (("ctranslate2", True), ("nmt", False)):
        card = (exported(run, form) / "README.md").read_text(encoding="utf-8")
        assert "in training, up to 2 before it with their translations stood in front." in card
        assert ("The program above translates each line without those before it." in card) == is_told
        assert "sees no other line" not in card


def test_a_model_with_chosen_layers_has_no_scores(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "model.encoder_layers=2")
    scores = {"loss": 1.5, "bleu": 30.126}
    results: dict[str, Any] = {"step": 7, "validation": scores, "signatures": {"bleu": "nrefs:1"}}
    results |= {"train_seconds": 60.0, "tgt_tokens_per_second": 100.0}
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    card = (exported(run, "safetensors", "encoder_layers=[2]") / "README.md").read_text(encoding="utf-8")
    assert "None recorded: those of the run are of all layers, of which some are left out here." in card
    assert "30.13" not in card


@pytest.mark.parametrize("form", ["ctranslate2", "huggingface", "nmt", "safetensors"])
def test_every_file_of_a_folder_is_as_readable_as_any(tmp_path: Path, form: str) -> None:
    folder = exported(untrained(tmp_path / "run", "model.norm_order=post"), form)
    (tmp_path / "any").touch()
    expected = (tmp_path / "any").stat().st_mode
    assert {file.stat().st_mode for file in folder.rglob("*") if file.is_file()} == {expected}


def test_the_card_says_what_is_recorded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    command = ["/somewhere/nmt/__main__.py", "train", "data=toy", "run=a b", "init=/home/me/base"]
    facts = {"command": command, "python": "3.11.7", "packages": {"nmt": "0.1.0", "torch": "2.13.0"}}
    (run / "environment.json").write_text(json.dumps(facts), encoding="utf-8")
    card = (exported(run, "safetensors") / "README.md").read_text(encoding="utf-8")
    for line in (
        "license: LICENSE-PLACEHOLDER",
        "LICENSE-PLACEHOLDER: no license was chosen yet.",
        "None recorded: the run has no finished training of its own.",
        "nmt train data=toy 'run=a b' init=~/base",
        "| pairs after filtering | not recorded |",
        "| d_model | 8 |",
        "| torch | 2.13.0 |",
    ):
        assert line in card


@pytest.mark.parametrize("key", ["lowercase=true", "case=markup", "case=keep"])
def test_the_card_says_that_lines_are_prepared_by_the_program(tmp_path: Path, key: str) -> None:
    run = untrained(tmp_path / "run", "model.norm_order=post", f"tokenizer.{key}")
    card = (exported(run, "huggingface") / "README.md").read_text(encoding="utf-8")
    said = "The tokenizer in this folder does not prepare lines; the program above does." in card
    assert said == (key != "case=keep")
