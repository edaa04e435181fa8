"""`nmt translate`: what a line of input asks for, and what a line of output is, in text and in JSON."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import LineFormat, TranslateConfig
from nmt.data.augment.translation_memory import TranslationMemory
from nmt.data.modifiers import MATCH_MARK
from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.decoding.configs import BeamConfig, LineSplitting, MBRConfig, SamplingConfig
from nmt.errors import UserError
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.translation.offers import Offers
from nmt.translation.requests import Request
from nmt.translation.translate import LINES_AT_ONCE
from nmt.verbs import VERBS
from nmt.verbs.file_job import answer_file
from nmt.verbs.translate import TRANSLATION, _request, with_previous_lines
from tests.runs.untrained import untrained

Capture = pytest.CaptureFixture[bytes]
MATCHES = "data.augment=[{name: matches}]"
CPU = RuntimeConfig(device="cpu", threads=1)
OBJECTS: list[dict[str, Any]] = [
    {"src": "ab ba", "prefix": "h", "must": ["cd"], "avoid": ["a b"]},
    {"src": "  "},
    {"src": "a b c d", "must": ["☃"]},
    {"src": "d" * 30},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("runs") / "untrained", "decoding.beam_size=4")


def answered(
    run: Path, text: str, monkeypatch: pytest.MonkeyPatch, capture: Capture, *keys: str
) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of output and the errors of `nmt translate` for `text`."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    capture.readouterr()
    code = main(["translate", f"run={run}", "runtime.device=cpu", *keys])
    found = capture.readouterr()
    return code, found.out.decode().splitlines(), found.err.decode()


def test_json_in_and_out_is_what_python_returns(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture
) -> None:
    text = "".join(json.dumps(line) + "\n" for line in OBJECTS)
    search: dict[str, Any] = {"n_best": 2, "max_source_tokens": 20, "split_lines": LineSplitting.none}
    keys = (
        "input_format=jsonl",
        "format=jsonl",
        *(f"decoding.{key}={getattr(value, 'value', value)}" for key, value in search.items()),
    )
    code, lines, errors = answered(run, text, monkeypatch, capfdbinary, *keys)
    assert code == 0
    found = [json.loads(line) for line in lines]
    requests = [Request(**line) for line in OBJECTS]
    translations = open_run(run, runtime_cfg=CPU).translate(requests, token_scores=True, **search)
    assert found == [translation.as_json() for translation in translations]
    first, blank, unmet, _ = found
    assert first["translation"].startswith("h")
    assert "cd" in first["translation"].split()
    assert len(unmet["alternatives"]) == 1
    assert len(first["tokens"]) == len(first["log_probs"])
    assert first["tokens"][-1] == "</s>"
    assert (blank["translation"], blank["tokens"], blank["unmet"]) == ("", [], [])
    assert unmet["unmet"] == ["☃"]
    assert [line["truncated"] for line in found] == [False, False, False, True]
    assert (
        "translations without a text that must be there, or with one that was to be avoided: 1, line 3"
        in errors
    )


def test_the_score_is_made_of_the_log_probabilities_of_the_tokens(run: Path) -> None:
    search = BeamConfig(beam_size=4, n_best=3, max_length_ratio=1.0, max_length_offset=3)
    (best,) = open_run(run, runtime_cfg=CPU).translate("ab ba", search, token_scores=True)
    for one in (best, *best.alternatives):
        assert len(one.log_probs) == len(one.ids) + 1
        assert sum(one.log_probs) / ((5 + len(one.log_probs)) / 6) == pytest.approx(one.score, abs=1e-4)


def test_a_prefix_after_a_tab_and_a_glossary(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture
) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("ab\tgh\n", encoding="utf-8")
    keys = ("prefixes=true", f"glossary={terms}")
    code, lines, errors = answered(run, "ab ba\tc\nb\t\nab\td d\n", monkeypatch, capfdbinary, *keys)
    assert (code, errors) == (0, "")
    assert [line[:1] for line in lines[::2]] == ["c", "d"]
    assert all("gh" in line.split() for line in lines[::2])
    code, _, errors = answered(run, "ab ba\tc\nb\n", monkeypatch, capfdbinary, *keys)
    assert code == 2
    assert "line 2 of the input has no TAB; with prefixes=true a line is SOURCE TAB PREFIX" in errors


def test_terms_are_enforced_in_a_run_that_was_not_trained_with_them(run: Path) -> None:
    opened = open_run(run, runtime_cfg=CPU)
    assert not opened.knows_terms
    plain, with_terms = (
        list(opened.translate(["ab ba", "x"], glossary=glossary, beam_size=4))
        for glossary in (None, {"ab": "gh"})
    )
    assert "gh" in with_terms[0].text.split()
    assert [one.unmet for one in with_terms] == [[], []]
    assert with_terms[1].text == plain[1].text
    (asked,) = opened.translate(Request("ab ba", terms={"ba": "gh"}), beam_size=4)
    assert "gh" in asked.text.split()
    with pytest.raises(UserError, match=r"glossary_use=both: .* was not trained with terms in its sources"):
        opened.translate("ab", glossary_use="both")


def test_the_match_of_a_line_is_offered_in_its_source(tmp_path: Path) -> None:
    opened = open_run(untrained(tmp_path / "run", MATCHES), runtime_cfg=CPU)
    assert MATCH_MARK in opened.cfg.data.symbols
    memory = TranslationMemory([("ab ba cd", "gh gh"), ("x", "y")])

    def sources(lines: list[str | Request], least: float = 0.5) -> list[str]:
        asked = opened.with_offers(lines, BeamConfig(), Offers(memory=memory, least=least))
        return [one.src for one in opened.fitted(asked, BeamConfig())]

    assert sources(["ab ba", "ba ba", ""]) == ["ab ba <match> gh gh", "ba ba", ""]
    assert sources(["ab ba"], 0.7) == ["ab ba"]
    assert sources([Request("ab ba", match="e"), Request("ba ba", match="f")]) == [
        "ab ba <match> e",
        "ba ba <match> f",
    ]
    assert sources([Request("ab ba", match="e " * 200)]) == ["ab ba"]  # over data.max_tokens
    assert sources([Request("", match="e"), Request("ab ba cd", match=" ")]) == ["", "ab ba cd <match> gh gh"]
    short = opened.fitted(
        opened.with_offers(["ab ba"], BeamConfig(), Offers(memory=memory)), BeamConfig(max_source_tokens=7)
    )
    assert [one.src for one in short] == ["ab ba"]  # which is all that is read
    assert sources([Request("ab ba", terms={"ab": "c"})]) == [
        "ab ba <match> gh gh"
    ]  # enforced: no terms known
    with pytest.raises(UserError, match="memory_least must be over 0 and at most 1, but is 0"):
        opened.translate("ab", memory=memory, memory_least=0)


def test_a_memory_is_read_from_files_and_what_a_job_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture
) -> None:
    run = untrained(tmp_path / "run", MATCHES)
    (tmp_path / "memory.tsv").write_text("ab ba cd\tgh gh\nx\ty\n")
    (tmp_path / "memory.en").write_text("ab ba cd\nx\n")
    (tmp_path / "memory.fr").write_text("gh gh\ny\n")
    (tmp_path / "memory.jsonl").write_text('{"en": "ab ba cd", "fr": "gh gh"}\n')
    opened = open_run(run, runtime_cfg=CPU)
    wanted = [one.text for one in opened.translate(["ab ba", "h"], memory=[("ab ba cd", "gh gh")])]
    assert wanted != [one.text for one in opened.translate(["ab ba", "h"])]
    assert wanted[0] == next(opened.translate(Request("ab ba", match="gh gh"))).text
    for name in ("memory.tsv", "memory", "memory.jsonl"):
        key = f"memory={tmp_path / name}"
        assert answered(run, "ab ba\nh\n", monkeypatch, capfdbinary, key)[:2] == (0, wanted)
    code, _, errors = answered(run, "ab\n", monkeypatch, capfdbinary, f"memory={tmp_path / 'memory.tmx'}")
    assert (code, "error: memory: there is no file" in errors) == (2, True)
    unit = "".join(f'<tuv xml:lang="{one}"><seg>{one}</seg></tuv>' for one in ("en-US", "en-GB", "fr"))
    (tmp_path / "memory.tmx").write_text(f"<tmx><body><tu>{unit}</tu></body></tmx>")
    code, _, errors = answered(run, "ab\n", monkeypatch, capfdbinary, f"memory={tmp_path / 'memory.tmx'}")
    assert (code, errors.count("; give a .tsv of lines SOURCE TAB TARGET")) == (2, 1)
    assert "column" not in errors
    names: dict[str, Any] = {key: str(tmp_path / key) for key in ("input", "output", "memory")}
    cfg = TranslateConfig(run=str(run), decoding=BeamConfig(), runtime=CPU, **names)
    before = TRANSLATION.facts(cfg)
    (tmp_path / "memory.fr").write_text("gh gh\nz\n")
    assert TRANSLATION.facts(cfg) != before


def test_a_run_without_matches_names_the_line_that_has_one(run: Path) -> None:
    opened = open_run(run, runtime_cfg=CPU)
    with pytest.raises(UserError, match=r"^memory: the run was not trained with translations of similar"):
        opened.translate("ab", memory=[("ab", "c")])
    with pytest.raises(UserError, match=r"^line 2 of the input: match: the run was not trained with transl"):
        list(opened.translate(["ab", Request("ab", match="c")]))


def test_the_names_of_files_say_their_format_and_a_block_is_answered_as_a_stream(
    run: Path, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"input": str(tmp_path / "in.jsonl.gz"), "output": str(tmp_path / "out.jsonl")}
    with gzip.open(names["input"], "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in OBJECTS)
    cfg = TranslateConfig(run=str(run), decoding=BeamConfig(max_length_offset=3), runtime=CPU, **names)
    assert cfg.writes_json
    assert cfg.reads_json
    assert TRANSLATION.facts(cfg)["writes JSON"]
    keys = [f"{key}={value}" for key, value in names.items()]
    (composed,) = compose(VERBS["translate"], [f"run={run}", "runtime.device=cpu", *keys])
    assert composed.to_config(TranslateConfig).reads_json
    warnings: list[str] = []
    lines = [json.dumps(line) for line in OBJECTS]
    answers = TRANSLATION.open_answers(cfg)
    whole = list(answers(lines, 0, warnings.append))
    assert whole == [one for i, line in enumerate(lines) for one in answers([line], i, warnings.append)]
    assert warnings[0].endswith("line 3")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"prefixes": True, "input_format": LineFormat.jsonl},
            'prefixes=true is for lines of text; an object of JSON has its "prefix" itself',
        ),
        (
            {"scores": True, "format": LineFormat.jsonl},
            "scores=true is for lines of text; format=jsonl has the scores anyway",
        ),
        ({"glossary": " "}, "glossary must name a file, but is empty"),
    ],
)
def test_keys_that_contradict_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TranslateConfig(run="x", decoding=BeamConfig(), **keys)
    assert str(caught.value) == message


def test_another_glossary_is_another_job(tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    cfg = TranslateConfig(run="x", decoding=BeamConfig(), glossary=str(terms))
    terms.write_text("a\tb\n", encoding="utf-8")
    before = TRANSLATION.facts(cfg)
    terms.write_text("a\tc\n", encoding="utf-8")
    assert TRANSLATION.facts(cfg) != before


MARKED = ["<b>ab</b> ba", "ab &lt; ba", "ab ba", '<g id="1">a b<x/></g>', "", "<i>d", "<br>"]


def test_tags_are_kept_and_plain_lines_are_as_ever(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture
) -> None:
    text = "".join(f"{line}\n" for line in MARKED)
    code, lines, errors = answered(run, text, monkeypatch, capfdbinary, "markup=true", "decoding.n_best=2")
    assert code == 0
    assert "the tags of line 6 are not well-formed" in errors
    opened = open_run(run, runtime_cfg=CPU)
    plain = list(opened.translate(["ab ba", "ab < ba", "ab ba", "a b", "", "d", ""], n_best=2))
    found = list(opened.translate(MARKED, n_best=2, markup=True))
    assert found[2] == plain[2]
    for one, bare, tags in zip(
        found, plain, (["<b>", "</b>"], [], [], ["<x/>", "</g>"], [], ["<i>"], ["<br>"]), strict=True
    ):
        for mine, other in zip((one, *one.alternatives), (bare, *bare.alternatives), strict=True):
            assert (mine.ids, mine.score) == (other.ids, other.score)
            assert all(mine.text.count(tag) == 1 for tag in tags)
            if not tags:
                assert mine.text.replace("&lt;", "<") == other.text
    assert [line.split(" ||| ")[1] for line in lines if line.startswith("0 ")] == [
        found[0].text,
        *(other.text for other in found[0].alternatives),
    ]
    cfg = TranslateConfig(run=str(run), markup=True, decoding=opened.cfg.decoding, runtime=CPU)
    assert TRANSLATION.facts(cfg)["markup"] is True
    written = list(TRANSLATION.open_answers(cfg)(MARKED, 0, lambda _: None))
    assert written == [one.text for one in opened.translate(MARKED, markup=True)]


def test_a_line_feed_within_a_tag_begins_no_line_of_text(run: Path) -> None:
    cfg = TranslateConfig(run=str(run), markup=True, decoding=BeamConfig(), runtime=CPU)
    cfg = dataclasses.replace(cfg, input_format=LineFormat.jsonl)
    line = json.dumps({"src": "<b\nclass='x'\r\nid=y>ab</b> ba <!-- a\nb -->"})
    (text,) = TRANSLATION.open_answers(cfg)([line], 0, print)
    assert "<b class='x' id=y>" in text
    assert "<!-- a b -->" in text
    as_json = dataclasses.replace(cfg, format=LineFormat.jsonl)
    (found,) = TRANSLATION.open_answers(as_json)([line], 0, print)
    assert "<b\nclass='x'\r\nid=y>" in json.loads(found)["translation"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = ("data=files", "data.train=x", "data.validation=x", "data.test=x", "data.context=2")
    return untrained(tmp_path_factory.mktemp("runs") / "documents", *files)


TOO_LONG = json.dumps({"src": "a " * MAX_LINE_CHARS})[: MAX_LINE_CHARS + 1]
JSON_LINES: dict[str, Any] = {"input_format": LineFormat.jsonl}


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        (JSON_LINES, "{", 'is no JSON; a line is an object such as {"src": "A dog."}'),
        (JSON_LINES, "", 'is no JSON; a line is an object such as {"src": "A dog."}'),
        (JSON_LINES, '{"src": "a", "must": "b"}', 'must must be a list of words or phrases, but is "b"'),
        (JSON_LINES, '{"src": "a", "tgt": "xx"}', "tgt=xx: the run translates into"),
        (JSON_LINES, '{"src": "a", "must": ["b"]}', "phrases that must appear need several beams"),
        (JSON_LINES, '{"src": "a", "terms": {"b": "c"}}', "phrases that must appear need several beams"),
        (JSON_LINES, TOO_LONG, "has more than 1,048,576 characters; remove it"),
        ({**JSON_LINES, "documents": True}, TOO_LONG, "has more than 1,048,576 characters; remove it"),
        ({**JSON_LINES, "documents": True}, "[]", "is no object with a text"),
        ({"prefixes": True}, "a", "has no TAB; with prefixes=true a line is SOURCE TAB PREFIX"),
    ],
)
def test_a_wrong_line_of_a_file_is_told_before_any_is_translated(
    documents: Path, tmp_path: Path, keys: dict[str, Any], line: str, message: str
) -> None:
    """In a late block; mending it made all that was translated useless."""
    right = "a\tb" if "prefixes" in keys else '{"src": "a"}'
    (tmp_path / "in").write_text(f"{right}\n" * LINES_AT_ONCE + f"{line}\n")
    files: dict[str, Any] = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    search = BeamConfig(beam_size=1)
    cfg = TranslateConfig(run=str(documents), decoding=search, runtime=CPU, **files, **keys)
    with pytest.raises(UserError) as caught:
        answer_file(cfg, TRANSLATION)
    assert re.match(rf"line {LINES_AT_ONCE + 1} of the input:? ", str(caught.value))
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_blank_lines_end_documents_of_json(documents: Path) -> None:
    cfg = TranslateConfig(run=str(documents), decoding=BeamConfig(), documents=True, **JSON_LINES)
    read = TRANSLATION.reader(cfg)
    assert read is not None
    lines = read(['{"src": "a"}', '{"src": "b"}', "", '{"src": "c"}'])
    assert [json.loads(line)["context"] for line in lines] == [[], ["a"], [], []]


def test_a_glossary_is_refused_at_once_by_a_search_that_cannot_enforce_it(run: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("h\tg\n", encoding="utf-8")
    cfg = TranslateConfig(run=str(run), decoding=BeamConfig(beam_size=1), runtime=CPU, glossary=str(terms))
    with pytest.raises(UserError, match=r"^glossary: phrases that must appear need several beams, but"):
        TRANSLATION.open_answers(cfg)
    opened = open_run(run, runtime_cfg=CPU)
    with pytest.raises(UserError, match=r"^glossary: phrases that must appear need a beam, but"):
        opened.translate("ab", SamplingConfig(), glossary={"h": "g"})
    search = MBRConfig(num_samples=0, beam_size=2)
    assert list(opened.translate("ab", search, glossary={"h": "g"}))


def test_a_long_context_is_no_line_that_is_too_long() -> None:
    lines = ["a" * (MAX_LINE_CHARS // 2)] * 3
    cfg = TranslateConfig(run="x", decoding=BeamConfig(), documents=True)
    *_, last = with_previous_lines(lines, 2, are_json=False)
    assert _request(cfg, last, 3).context == lines[:2]
