"""Documents and long lines through a run: n lines in, n lines out; workers give what a stream gives."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nmt.config.roots import LineFormat, TranslateConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import BeamConfig, LineSplitting
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runs.translation import TranslationTask
from nmt.runtime_config import RuntimeConfig
from nmt.translation.evaluate import evaluate_text
from nmt.translation.requests import Request
from nmt.translation.segments import Usual, joined_translations, translated_behind_context, usual_of
from nmt.translation.translate import Translation, _of_sentence, translate
from nmt.verbs import file_parts
from nmt.verbs.file_job import answer
from nmt.verbs.translate import TRANSLATION, with_previous_lines
from tests.runs.untrained import untrained

CPU = RuntimeConfig(device="cpu", threads=1)
SEARCH = BeamConfig(beam_size=2, max_length_offset=3, max_length_ratio=1.0)
IN_CONTEXT = ("data=files", "data.train=x", "data.validation=x", "data.test=x", "data.context=2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(untrained(tmp_path_factory.mktemp("runs") / "plain"), runtime_cfg=CPU)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = untrained(tmp_path_factory.mktemp("runs") / "documents", *IN_CONTEXT)
    return open_run(path, runtime_cfg=CPU)


def texts(run: Run, lines: Sequence[str | Request], **settings: Any) -> list[str]:
    return [found.text for found in run.translate(lines, SEARCH, **settings)]


def asked_by(run: Run, lines: Sequence[str | Request], search: BeamConfig = SEARCH) -> list[str]:
    """Return the sources that the search is given."""
    return [one.src for one in run.asking_for(None, run.segments(lines, search).requests)]


def test_a_line_of_several_sentences_is_the_sentences_joined(plain: Run) -> None:
    sentences = ["Ab ba.", "Cd dc.", "Ef fe."]
    line = " ".join(sentences)
    alone = texts(plain, sentences)
    (found,) = plain.translate(line, SEARCH, token_scores=True)
    assert (found.text, found.split) == (" ".join(t for t in alone if t), 3)
    assert found.as_json()["split"] == 3
    assert len(found.tokens) == len(found.log_probs) > len(found.ids)
    (whole,) = plain.translate(line, SEARCH, split_lines=LineSplitting.none)
    assert whole.split == 1
    assert asked_by(plain, [line], BeamConfig(split_tokens=100)) == [line]
    everything = BeamConfig(split_tokens=100, split_lines=LineSplitting.all)
    assert asked_by(plain, [line], everything) == sentences


def test_lines_stay_lines_and_warnings_name_them(plain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Ab ba. Cd dc.", "", "ab ba cd dc ef fe", "gh"]
    cfg = BeamConfig(beam_size=2, max_source_tokens=6, max_length_ratio=1.0, max_length_offset=1)
    found = list(plain.translate(lines, cfg))
    assert [one.split for one in found] == [4, 1, 6, 1]
    assert not any(one.truncated for one in found)
    assert found[1].text == ""
    assert "only the first" not in capsys.readouterr().err
    cut = list(plain.translate(lines, cfg, split_lines=LineSplitting.none))
    assert [one.truncated for one in cut] == [True, False, True, False]
    assert "6 tokens of line 1, 3 are translated" in capsys.readouterr().err


def test_what_is_usual_is_what_nearly_all_sources_have() -> None:
    tokenizer = mock.Mock(spec=Tokenizer)
    tokenizer.encode_src.side_effect = lambda lines: [line.split() for line in lines]
    sources = ["A dog."] * 198 + ["A dog. It runs."] * 2 + ["A. dog is here now."]
    assert usual_of(sources, tokenizer, "en") == Usual(5, 1)
    assert usual_of([*sources, *["He ran. It is."] * 5], tokenizer, "en") == Usual(5, 2)
    assert usual_of([], tokenizer, "en") is None


def test_a_line_with_a_prefix_stays_whole(plain: Run) -> None:
    assert asked_by(plain, [Request("Ab. Cd.", prefix="a")]) == ["Ab. Cd."]
    assert asked_by(plain, [Request("Ab. Cd.")]) == ["Ab.", "Cd."]


def test_a_request_has_its_context_in_front_and_so_have_the_sentences_of_a_line(documents: Run) -> None:
    asked = asked_by(documents, [Request("Ab.", context=["x", "y", "z"]), "Cd. Ef. Gh. Ba."])
    assert asked == ["y <brk> z <brk> Ab.", "Cd.", "Cd. <brk> Ef.", "Cd. <brk> Ef. <brk> Gh.",
                     "Ef. <brk> Gh. <brk> Ba."]  # fmt: skip
    composed = translate(
        ["ba <brk> ab"], documents.model, documents.tokenizer, SEARCH, device=documents.device
    )
    assert texts(documents, [Request("ab", context=["ba"])]) == [composed[0].text]


@pytest.mark.parametrize("both", [False, True])
def test_a_source_that_is_too_long_loses_the_oldest_context_first(
    tmp_path: Path, both: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence itself is cut only where it is too long alone."""
    target = [f"data.context_target={str(both).lower()}"]
    path = untrained(tmp_path / "run", *IN_CONTEXT, *target)
    run = open_run(path, runtime_cfg=CPU)
    for most, kept in ((27, ["cd dc", "ef fe"]), (26, ["ef fe"]), (17, ["ef fe"]), (16, []), (4, [])):
        search = dataclasses.replace(SEARCH, max_source_tokens=most)
        asked = run.asking_for(None, [Request("ab ba", context=["cd dc", "ef fe"])])
        (found,) = run.fitted(map(Request.of, asked), search)
        assert found.src == " <brk> ".join([*kept, "ab ba"])
    search = dataclasses.replace(SEARCH, max_source_tokens=7)
    capsys.readouterr()
    (wanted,) = run.translate("ab ba", search)
    assert list(run.translate(Request("ab ba", context=["cd dc", "ef fe"]), search)) == [wanted]
    text = ParallelText(["cd dc <brk> ef fe <brk> ab ba"], ["ab ba"])
    assert TranslationTask().outputs(run, text, search, ["bleu"]).hypotheses == [wanted.text]
    assert "only the first" not in capsys.readouterr().err


def test_a_separator_in_the_text_of_a_run_without_context_is_text(plain: Run) -> None:
    search = dataclasses.replace(SEARCH, max_source_tokens=4)
    (found,) = plain.fitted([Request("ab <brk> ba")], search)
    assert found.src == "ab <brk> ba"


def test_context_is_refused_by_a_run_without(plain: Run) -> None:
    with pytest.raises(
        UserError,
        match=r"^line 1 of the input: context: the run was trained",
    ):
        texts(plain, [Request("ab", context=["ba"])])
    cfg = TranslateConfig(run=str(plain.path), documents=True)
    with pytest.raises(UserError, match=r"^documents=true needs a run that was trained with data\.context"):
        answer(cfg, TRANSLATION)


def test_blank_lines_and_other_names_end_documents() -> None:
    lines = list(with_previous_lines(["a", "b", "c", " ", "d", "e"], 2, are_json=False))
    assert [json.loads(line)["context"] for line in lines] == [[], ["a"], ["a", "b"], [], [], ["d"]]
    rows = [("a", "1"), ("b", "1"), ("c", "2"), ("d", "2")]
    given = [json.dumps({"src": src, "document": name}) for src, name in rows]
    lines = list(with_previous_lines(given, 2, are_json=True))
    assert [json.loads(line)["context"] for line in lines] == [[], ["a"], [], ["c"]]


@pytest.mark.parametrize("is_json", [False, True])
def test_a_file_in_blocks_is_translated_as_a_stream_and_goes_on(
    documents: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any, is_json: bool
) -> None:
    """With blocks of three lines, each of which begins within a document."""
    words = ["ab", "ba", "cd", "dc", "", "ef", "fe", "gh"]
    lines = [json.dumps({"src": w, "document": "1"}) if is_json else w for w in words]
    source = tmp_path / ("in.jsonl" if is_json else "in")
    source.write_text("".join(f"{line}\n" for line in lines))
    form: dict[str, Any] = {"input_format": LineFormat.jsonl} if is_json else {}
    common: dict[str, Any] = {
        "run": str(documents.path),
        "decoding": SEARCH,
        "runtime": CPU,
        "documents": True,
    }
    monkeypatch.setattr(sys, "stdin", mock.Mock(buffer=io.BytesIO(source.read_bytes()), isatty=lambda: False))
    answer(TranslateConfig(**common, **form), TRANSLATION)
    expected = capsysbinary.readouterr().out
    assert expected.count(b"\n") == len(words)
    contexts = [[], ["ab"], ["ab", "ba"], ["ba", "cd"], [], [], ["ef"], ["ef", "fe"]]
    asked = [Request(word, context=context) for word, context in zip(words, contexts, strict=True)]
    if not is_json:
        assert expected.decode().splitlines() == texts(documents, asked)
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 3)
    cfg = TranslateConfig(**common, **form, input=str(source), output=str(tmp_path / "out"), workers=1)
    job = file_parts.Job.read(source, tmp_path / "out", "translated", TRANSLATION.reader(cfg))
    answers = TRANSLATION.open_answers(cfg)
    found = [line for block in job.blocks() for line in answers(block.lines, block.first_line, print)]
    assert "".join(f"{line}\n" for line in found).encode() == expected


def spoken(breaks: dict[str, str]) -> Any:
    """Return a search that answers by a table."""
    return lambda requests, _: [Translation(breaks[one.src]) for one in requests]


def test_behind_context_the_sentence_counts_and_one_that_cannot_be_found_is_translated_alone() -> None:
    answers = {
        "a <brk> b": "A <brk> B",
        "<2de> a <brk> c": "A C",
        "<2de> c": "C",
        "d": "D <brk> E",
    }
    warned: list[str] = []
    asked = [Request(src) for src in ("a <brk> b", "<2de> a <brk> c", "d")]
    found = translated_behind_context(asked, spoken(answers), warned.append)
    assert [one.text for one in found] == ["B", "C", "E"]
    assert warned == [
        "1 of 3 sentences were translated without context: of them with their context the model made another "
        "number of sentences"
    ]


def test_alternatives_of_another_number_of_sentences_are_left_out() -> None:
    others = [Translation("A <brk> C"), Translation("A B"), Translation("A <brk> A <brk> B")]
    one = Translation("A <brk> B", alternatives=others)
    (found,) = translated_behind_context([Request("a <brk> b")], lambda *_: [one], print)
    assert (found.text, [other.text for other in found.alternatives]) == ("B", ["C"])


def test_phrases_are_those_of_the_sentence_itself_and_so_are_tokens() -> None:
    asked: list[tuple[str, int]] = []

    def search(requests: list[Request], places: Sequence[int]) -> list[Translation]:
        asked.extend((one.src, place) for one, place in zip(requests, places, strict=True))
        return [Translation("A") for _ in requests]

    translated_behind_context([Request("a"), Request("a <brk> b", must=["B"])], search, print)
    assert asked == [("a", 0), ("b", 1)]
    tokens = ["A", "<brk>", "B", "</s>"]
    assert tokens[_of_sentence(tokens, False)] == ["B", "</s>"]
    assert tokens[_of_sentence(tokens, True)] == ["A"]


def test_alternatives_are_joined_as_far_as_all_parts_have_some() -> None:
    first = Translation("a", 1.0, [Translation("b"), Translation("c")])
    found = joined_translations([first, Translation("d", 2.0, [Translation("e")], truncated=True)])
    assert (found.text, found.score, found.truncated) == ("a d", 3.0, True)
    assert [one.text for one in found.alternatives] == ["b e"]


def test_scores_are_those_of_the_sentences_themselves(documents: Run) -> None:
    further = [["XY <brk> BA", "CD"]]
    text = ParallelText(["ab <brk> ba", "cd"], ["AB <brk> BAx", "CDx"], further)
    hypotheses = [Translation("AB <brk> BA"), Translation("CD")]
    with mock.patch("nmt.translation.evaluate.translate", return_value=hypotheses):
        scores = evaluate_text(
            documents.model, documents.tokenizer, text, SEARCH, ["chrf"],
            tgt_lang="de", device=documents.device, context_target=True,
        )  # fmt: skip
    assert scores.hypotheses == ["BA", "CD"]
    assert scores.values["chrf"] == 100.0


def test_a_stream_is_read_no_further_than_needed(plain: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter(range(100))
    monkeypatch.setattr("nmt.runs.opened.LINES_AT_ONCE", 4)
    found = plain.translate((f"ab{next(taken) and ''}" for _ in range(50)), SEARCH)
    next(found)
    assert next(taken) == 4
    lines = ["ab", "ba", "", "cd", "dc"]
    model, tokenizer, device = plain.model, plain.tokenizer, plain.device
    parts = (translate(part, model, tokenizer, SEARCH, device=device) for part in (lines[:4], lines[4:]))
    assert list(plain.translate(lines, SEARCH)) == [*itertools.chain(*parts)]


def test_kept_pairs_are_read_for_their_length(plain: Run) -> None:
    kept = plain.directory.kept_text(Split.validation, plain.cfg.data)
    assert kept is not None
    assert plain.usual == Usual(max(map(len, plain.tokenizer.encode_src(kept.src))), 1)
