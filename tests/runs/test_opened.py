"""An opened run, from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.data.pairs import Split
from nmt.decoding.requests import Request
from nmt.errors import UserError
from nmt.runs.opened import Run, open_run
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import WORDS, untrained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    untrained(path)
    return open_run(path, runtime_cfg=RuntimeConfig(device="cpu", threads=1))


def test_one_sentence_is_one_line(run: Run) -> None:
    sentence = " ".join(WORDS[:3])
    assert list(run.translate(sentence)) == list(run.translate([sentence]))
    assert [maps.line for maps in run.attend(sentence)] == [1]


def test_keys_of_the_search_are_keywords(run: Run) -> None:
    (found,) = run.translate(WORDS[0], beam_size=4, n_best=3)
    assert len(found.alternatives) == 2
    assert run.cfg.decoding.n_best == 1
    with pytest.raises(TypeError, match="colour"):
        run.translate(WORDS[0], colour="red")


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
