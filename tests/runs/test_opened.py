"""An opened run, from Python."""

from __future__ import annotations

import pytest

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
