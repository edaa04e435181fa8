"""What is asked about lines, and the answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.attention_views.alignment import mean_weights
from nmt.decoding.configs import BeamConfig, LengthPenalty, LineSplitting
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.serving.answers import Question, answers, num_tokens
from nmt.serving.configs import ServingConfig
from nmt.serving.tasks import served_task
from nmt.translation.offers import NO_OFFERS
from nmt.translation.requests import Request
from tests.runs.untrained import WORDS, untrained

CPU = RuntimeConfig(device="cpu", threads=1)
LINES = [" ".join(WORDS[i : i + 1 + i % 4]) for i in range(0, 24, 3)]


@pytest.fixture(scope="module", params=["left_to_right", "right_to_left"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    overrides = ["tokenizer.right_to_left=true"] if request.param == "right_to_left" else []
    untrained(path, *overrides)
    return open_run(path, runtime_cfg=CPU)


def test_texts_and_scores_are_those_of_translate(run: Run) -> None:
    search = replace(run.cfg.decoding, n_best=3)
    found = answers(run, LINES, [Question(search, scores=True)] * len(LINES))
    for answer, one in zip(found, run.translate(LINES, search), strict=True):
        every = [answer, *answer["alternatives"]]
        assert [x["text"] for x in every] == [one.text, *(other.text for other in one.alternatives)]
        assert [x["score"] for x in every] == pytest.approx(
            [one.score, *(other.score for other in one.alternatives)], abs=1e-4
        )


def test_log_probabilities_are_those_of_the_search(run: Run) -> None:
    search = BeamConfig(length_penalty=LengthPenalty.none, max_length_ratio=1.0, max_length_offset=3)
    for answer in answers(run, LINES, [Question(search, scores=True)] * len(LINES)):
        assert answer["log_prob"] == pytest.approx(answer["score"], abs=1e-4)
        assert math.fsum(token["log_prob"] for token in answer["tokens"]) == answer["log_prob"]
        assert answer["tokens"][-1]["text"] == "</s>"


def test_the_confidence_of_a_word_is_the_probability_of_its_pieces(run: Run) -> None:
    for answer in answers(run, LINES, [Question(run.cfg.decoding, scores=True)] * len(LINES)):
        assert [word["text"] for word in answer["words"]] == answer["text"].split()
        expected, before = 0.0, 0.0  # a space belongs to the word after it, and the last ones to none
        for token in answer["tokens"][:-1]:
            before += token["log_prob"]
            if token["text"] != "▁":
                expected, before = expected + before, 0.0
        words = math.fsum(math.log(word["confidence"]) for word in answer["words"])
        assert words == pytest.approx(expected, abs=1e-6)


def test_attention_is_that_of_the_views(run: Run) -> None:
    found = answers(run, LINES, [Question(run.cfg.decoding, attention=True)] * len(LINES))
    for answer, maps in zip(found, run.attend(LINES), strict=True):
        attention = answer["attention"]
        assert attention["src_tokens"] == [piece.text for piece in maps.src]
        assert attention["tgt_tokens"] == [piece.text for piece in maps.tgt]
        for row, wanted in zip(attention["weights"], mean_weights(maps.cross).tolist(), strict=True):
            assert row == pytest.approx(wanted, abs=1e-3)
        assert len(attention["word_weights"]) == len(attention["tgt_words"]) == len(answer["text"].split())


def test_only_what_is_asked_for_is_answered_also_for_blank_lines(run: Run) -> None:
    plain, detailed = Question(run.cfg.decoding), Question(run.cfg.decoding, scores=True, attention=True)
    first, second, blank = answers(run, [LINES[0], LINES[1], "  "], [plain, detailed, detailed])
    assert [*first] == ["text"]
    assert {*second} == {"text", "score", "log_prob", "words", "tokens", "attention"}
    assert {*blank} == {*second}
    assert (blank["text"], blank["words"], blank["attention"]["tgt_words"]) == ("", [], [])


def test_a_line_that_would_be_cut_is_named(run: Run) -> None:
    search = replace(run.cfg.decoding, max_source_tokens=8)
    assert num_tokens(run, ["ab"], Question(search), [0])[0] <= 8
    with pytest.raises(UserError, match=r"text\[1\] has more than the 8 tokens that are read; split it"):
        num_tokens(run, ["ab", 5 * "ab ba "], Question(search), [0, 1])
    with pytest.raises(UserError, match=r"text\[0\]"):
        num_tokens(run, [f"a{1000 * ' '}b"], Question(search), [0])


def test_a_run_that_begins_with_the_tag_of_a_language(tmp_path: Path) -> None:
    """A blank line has an answer without the tag."""
    run = open_run(untrained(tmp_path / "run", "tokenizer.tgt_tag=b"), runtime_cfg=CPU)
    question = Question(run.cfg.decoding, scores=True, attention=True)
    asked = [question, question, replace(question, prefix="c")]
    found = answers(run, [WORDS[0], " ", WORDS[1]], asked)
    num_ids = [len(one.ids) for one in run.translate([WORDS[0], " "])]
    assert [len(one["tokens"]) for one in found[:2]] == [num_ids[0], 1]  # with EOS, without the tag
    assert found[1]["tokens"][0]["text"] == "</s>"
    assert found[0]["log_prob"] == pytest.approx(sum(one["log_prob"] for one in found[0]["tokens"]))
    assert found[1]["text"] == ""
    assert found[2]["text"].startswith("c")
    assert found[2]["attention"]["tgt_tokens"][0] == "b"


def test_terms_of_the_context_are_not_those_of_the_sentence(tmp_path: Path) -> None:
    run = open_run(untrained(tmp_path / "run"), runtime_cfg=CPU)
    run.cfg.data.context = 1
    question = Question(run.cfg.decoding, terms=(("ab", "cd"),))
    request = Request("ba", context=["ab"], terms={"ab": "cd"})
    (line,) = run.asking_for(None, [request])
    (found,), (wanted,) = answers(run, [line.src], [question]), run.translate(request)
    assert (found["text"], found["unmet"]) == (wanted.text, wanted.unmet)


def test_tags_are_those_of_translate(run: Run) -> None:
    lines = ["<b>ab</b> ba", "ab ba"]
    found = answers(run, lines, [Question(run.cfg.decoding, markup=True), Question(run.cfg.decoding)])
    assert [one["text"] for one in found] == [one.text for one in run.translate(lines, markup=True)]
    assert found[0]["text"].count("<b>") == 1


def test_a_line_with_tags_is_split_as_by_translate(run: Run) -> None:
    search = replace(run.cfg.decoding, split_lines=LineSplitting.all)
    lines = ["<b>Ab ba.</b> Cd <a title='X. Yes'>dc</a>. Ef <i>fe</i>.", "Ab. Ba."]
    asked = [Question(search, markup=True, scores=True), Question(search)]
    found = answers(run, lines, asked)
    (expected,) = run.translate(lines[0], search, markup=True)
    assert found[0]["text"] == expected.text
    assert all(found[0]["text"].count(tag) == 1 for tag in ("<b>", "</b>", "<a title='X. Yes'>", "<i>"))
    assert len(found[0]["sentences"]) == 3
    assert "sentences" not in found[1]  # the app splits lines without tags
    plain = num_tokens(run, ["Ab ba. Cd dc. Ef fe."], asked[1], [0])[0]
    assert num_tokens(run, lines[:1], asked[0], [0])[0] >= plain


def test_terms_that_make_a_line_too_long_are_counted(tmp_path: Path) -> None:
    run = open_run(untrained(tmp_path / "run", "data.augment=[{name: terms}]"), runtime_cfg=CPU)
    question = Question(replace(run.cfg.decoding, max_source_tokens=14), terms=(("ab", "cd dc cd dc"),))
    assert run.knows_terms
    assert len(num_tokens(run, ["ba"], question, [0])) == 1
    with pytest.raises(UserError, match=r"text\[3\] has more than the 14 tokens that are read"):
        num_tokens(run, ["ba", "ab"], question, [2, 3])


def test_the_match_of_a_line_is_offered_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = untrained(tmp_path / "run", "data.augment=[{name: matches}]")
    (tmp_path / "memory.tsv").write_text("ab ba cd\tgh gh\n")
    run = open_run(path, runtime_cfg=CPU)
    cfg = ServingConfig(memory=str(tmp_path / "memory.tsv"), memory_least=0.6)
    task = served_task(run, run.cfg.decoding, None, cfg)
    asked = task.asked(task.body()(text=["ab ba", "cd"]))
    found = [one["text"] for one in task.answers(asked.lines, [asked.question] * 2)]
    assert found == [one.text for one in run.translate(["ab ba", "cd"], memory=[("ab ba cd", "gh gh")])]
    assert found != [one.text for one in run.translate(["ab ba", "cd"])]
    without = replace(asked.question, offers=NO_OFFERS)
    plain, counted = (num_tokens(run, asked.lines, one, [0, 1]) for one in (without, asked.question))
    assert (counted[0] > plain[0], counted[1]) == (True, plain[1])
    monkeypatch.setattr(task, "_remembered", "de")  # of another language than that which is asked for
    with monkeypatch.context() as patch:
        patch.setattr(run, "asking_for", lambda _, lines, domain: lines)
        assert task.asked(task.body()(text="ab ba", tgt="de")).question.offers.memory
        assert task.asked(task.body()(text="ab ba", tgt="fr")).question.offers is NO_OFFERS
    with pytest.raises(UserError, match="was not trained with translations of similar sources"):
        served_task(open_run(untrained(tmp_path / "other"), runtime_cfg=CPU), run.cfg.decoding, None, cfg)
