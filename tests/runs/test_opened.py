"""An opened run, from Python."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from nmt.config.roots import RunConfig
from nmt.data.parallel_text import Split
from nmt.decoding.configs import BeamConfig, DecodingConfig
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.configs import TransformerConfig
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runs.opened import Run
from nmt.runs.opening import ensemble_of, open_run
from nmt.runtime_config import Precision, RuntimeConfig
from nmt.translation.requests import Request
from tests.runs.untrained import GPT, RNN, TRANSFORMER, WORDS, untrained, untrained_classifier


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    untrained(path)
    return open_run(path, runtime_cfg=RuntimeConfig(device="cpu", threads=1))


def test_one_sentence_is_one_line(run: Run) -> None:
    sentence = " ".join(WORDS[:3])
    assert list(run.translate(sentence)) == list(run.translate([sentence]))
    assert [maps.line for maps in run.attend(sentence)] == [1]


def test_a_step_may_be_a_number(run: Run) -> None:
    (step,) = run.directory.checkpoints.steps()
    assert open_run(run.path, step, RuntimeConfig(device="cpu")).path == run.path


def test_keys_of_the_search_are_keywords(run: Run) -> None:
    (found,) = run.translate(WORDS[0], beam_size=4, n_best=3, avoid=("ab",))
    assert len(found.alternatives) == 2
    assert run.cfg.decoding.n_best == 1
    assert list(run.translate(WORDS[0], precision="bf16", beam_size="2")) == list(
        run.translate(WORDS[0], precision=Precision.bf16, beam_size=2)
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("beam", 5, "unknown key decoding.beam; did you mean decoding.beam_size?"),
        ("beam_size", "many", "decoding.beam_size must be a whole number, but is 'many'"),
        ("beam_size", 0, "decoding.beam_size must be at least 1, but is 0"),
        ("strategy", "mbr", "decoding.strategy is beam and cannot be set by itself to 'mbr'; pass"),
        ("precision", "int9", "decoding.precision must be one of auto, bf16, fp16, fp32, int8 or null"),
    ],
)
def test_a_keyword_that_is_wrong_is_one_error(run: Run, key: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        run.translate(WORDS[0], **{key: value})


def test_pairs_of_ones_own_are_scored_as_those_of_the_run(run: Run) -> None:
    text = run.directory.kept_text(Split.test, run.cfg.data)
    assert text is not None
    own = run.evaluate(text.src, text.tgt, metrics=["chrf"])
    assert own == run.evaluate(split="test", metrics=["chrf"])
    assert {*own.values} == {"loss", "perplexity", "chrf"}
    assert own.hypotheses == [one.text for one in run.translate(text.src)]
    assert run.evaluate(text.src, text.tgt, beam_size=1).hypotheses == [
        one.text for one in run.translate(text.src, beam_size=1)
    ]


def test_a_run_is_opened_with_some_of_its_layers(tmp_path: Path) -> None:
    """And is then what a model is that has these layers alone, in every other way."""
    deep = (*TRANSFORMER, "model.encoder_layers=4", "model.decoder_layers=3", "model.decoder_sharing=[1,2,2]")
    path, cpu = untrained(tmp_path / "run", model=deep), RuntimeConfig(device="cpu")
    whole, part = open_run(path, runtime_cfg=cpu), open_run(path, runtime_cfg=cpu, layers=([1, 3], [2, 3]))
    model = part.cfg.model
    assert isinstance(model, TransformerConfig)
    assert (model.encoder_layers, model.encoder_sharing) == (2, None)
    assert (model.decoder_layers, model.decoder_sharing) == (2, [1, 1])
    whole.model.encoder_order, whole.model.decoder_order = [0, 2], [1, 1]  # type: ignore[assignment]
    assert [one.score for one in part.translate(WORDS[:3])] == [
        one.score for one in whole.translate(WORDS[:3])
    ]
    again = build_model(
        model, src_vocab_size=part.tokenizer.src_vocab_size, tgt_vocab_size=part.tokenizer.tgt_vocab_size
    )
    again.load_state_dict(part.model.state_dict())


def test_layers_that_are_not_there_cannot_be_kept(tmp_path: Path) -> None:
    path = untrained(tmp_path / "run", "model.encoder_layers=4")
    for kept in ([0, 1], [3, 1], [5], []):
        with pytest.raises(
            UserError, match=r"^encoder_layers=\[.*\] must name layers from 1 to 4, the depth of .*=\[1, 3\]$"
        ):
            open_run(path, layers=(kept, None))
    with pytest.raises(UserError, match=r"Transformers .*, but the run has model.name=rnn; leave them out$"):
        open_run(untrained(tmp_path / "rnn", model=RNN), layers=(None, [1]))


def test_the_layers_that_are_kept_tell_results_apart(tmp_path: Path) -> None:
    cfg = RunConfig(run=str(untrained(tmp_path / "run")))
    _, whole = with_fixed_checkpoints(cfg)
    _, part = with_fixed_checkpoints(dataclasses.replace(cfg, encoder_layers=[1]))
    assert part == whole | {"encoder_layers": [1]}


def test_sides_that_do_not_fit_are_refused(run: Run) -> None:
    for sides in ((["a"], ["b", "c"]), (["a"], None), (None, ["b"])):
        with pytest.raises(UserError, match="as many sources as references"):
            run.evaluate(*sides)


def test_a_request_has_at_most_as_many_tokens_as_a_source(tmp_path: Path) -> None:
    run = open_run(untrained(tmp_path / "run"), runtime_cfg=RuntimeConfig(device="cpu"))
    lines = [Request("ab"), Request("ab", prefix="ab " * 40_000)]
    message = r"line 2: prefix and must have .* tokens, but as in a source, at most 1,024 can"
    with pytest.raises(UserError, match=message):
        list(run.translate(lines))


@pytest.mark.parametrize(
    ("method", "arguments", "settings", "message"),
    [
        ("score", ("a b",), {}, "run.score takes pairs (source, translation), but pairs[0] is 'a'; write"),
        (
            "score",
            (["a b"],),
            {},
            "run.score takes pairs (source, translation), but pairs[0] is 'a b'; write",
        ),
        (
            "score",
            ([("a", None)],),
            {},
            "run.score takes pairs (source, translation), but pairs[0] is ('a', None); write",
        ),
        ("score", ([5],), {}, "run.score takes pairs (source, translation), but pairs[0] is 5; write"),
        ("score", ([("a \ud800", "b")],), {}, "'a \\ud800' has half of a surrogate pair"),
        ("translate", ([None],), {}, "a line must be a text or a request, but is None"),
        ("evaluate", ([], []), {}, "run.evaluate has no pair to score: both lists are empty"),
        ("attend", ([None],), {}, "line 1 of the input must be a text, but is None"),
        ("attend", (["a", "a\0"],), {}, "'a\\x00' has a NUL character"),
        ("evaluate", ("a b", "c d"), {}, "run.evaluate takes lists of lines; put brackets around"),
        ("evaluate", (["a"], ["b", "c"]), {}, "run.evaluate takes as many sources as references"),
        ("evaluate", (), {"split": "tset"}, "split must be one of train, validation, test, but is 'tset'"),
        ("evaluate", (), {"metrics": "blue"}, "metrics[0] must be one of bleu, spbleu"),
        (
            "evaluate",
            (["a"], [("b", "c")]),
            {},
            "run.evaluate: references[0] must be a text, but is ('b'",
        ),
        ("evaluate", (["a\ud800"], ["b"]), {}, "'a\\ud800' has half of a surrogate pair"),
        ("translate", ("a", {}), {}, "decoding must be a config, such as BeamConfig(beam_size=8), but is {}"),
        ("attend", ("a", "greedy"), {}, "decoding must be a config, such as BeamConfig(beam_size=8), but"),
        ("score", ([("a", "b")], BeamConfig), {}, "decoding must be a config, such as BeamConfig(beam"),
        ("translate", ("a",), {"tgt": 5}, "tgt must be a language, but is 5"),
        ("evaluate", (), {"tgt": "fr"}, "tgt=fr is for pairs that are passed: those of a split have"),
        ("translate", ("a", DecodingConfig()), {}, "decoding must be one of BeamConfig"),
        (
            "translate",
            ("a",),
            {"strategy": "mbr", "num_samples": 4},
            "decoding.strategy is beam and cannot be set by itself to 'mbr'; pass",
        ),
        (
            "translate",
            ("a",),
            {"glossary_use": "foo"},
            "glossary_use must be one of auto, annotate",
        ),
        (
            "translate",
            ("a",),
            {"glossary": "terms.tsv"},
            "glossary must map terms to their translations",
        ),
        (
            "translate",
            ("a",),
            {"glossary": {"a": "|"}},
            "glossary: 'a' or its translation '|' is no text, or blank",
        ),
        ("translate", ("a",), {"glossary": {"a": None}}, "glossary: 'a' or its translation None is no text"),
    ],
)
def test_arguments_of_another_shape_are_one_readable_error(
    run: Run, method: str, arguments: tuple[Any, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        list(getattr(run, method)(*arguments, **settings))


@pytest.mark.parametrize(
    ("method", "arguments", "settings", "message"),
    [
        ("generate", (None,), {}, "prompt must be a text, but is None"),
        ("generate", ("a\0b",), {}, "'a\\x00b' has a NUL character"),
        (
            "generate",
            ("a",),
            {"max_tokens": -3},
            "max_tokens must be a whole number of at least 1, but is -3",
        ),
        (
            "generate_lines",
            (2,),
            {"max_tokens": 0},
            "max_tokens must be a whole number of at least 1, but is 0",
        ),
        ("generate_lines", (-1,), {}, "num must be a whole number of at least 0, but is -1"),
        ("classify", ([3],), {}, "line 1 of the input must be a text, but is 3"),
        ("classify", (["a", "b\tc"],), {}, "line 2 of the input has a TAB, but the run classifies one text"),
        ("attend", (["a\0"],), {}, "'a\\x00' has a NUL character"),
    ],
)
def test_so_are_those_of_models_of_other_tasks(
    method: str, arguments: tuple[Any, ...], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if method.startswith("generate"):
        path = untrained(tmp_path / "run", "task=language_model", model=GPT)
    else:
        path = untrained_classifier(tmp_path / "run")
    run = open_run(path, runtime_cfg=RuntimeConfig(device="cpu"))
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        list(getattr(run, method)(*arguments, **settings))


def test_lines_come_from_any_iterable(run: Run) -> None:
    lines = ["ab", "b a"]
    assert run.score(zip(lines, lines, strict=True)) == run.score([("ab", "ab"), ("b a", "b a")])
    assert run.evaluate(iter(lines), iter(lines)).values == run.evaluate(lines, lines).values
    with pytest.raises(UserError, match="an ensemble needs at least one run"):
        ensemble_of([])


def test_a_run_that_is_not_there_gets_the_nearest_one(run: Run) -> None:
    wrong = f"{run.path}x"
    with pytest.raises(UserError, match=f"^run={re.escape(wrong)} is not a directory; did you mean"):
        open_run(wrong)
