"""What can be compared: names of runs, files and folders, and references that are the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from nmt.comparison.translations import entries_of
from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.errors import UserError
from nmt.files import digest_of_lines
from tests.comparison.made import BAD, BLEU, GOOD, REFERENCES, SOURCES, lined, made_run, write


def names(*paths: Path) -> list[str]:
    return [str(path) for path in paths]


def test_runs_folders_and_files_of_translations(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "sweep" / "b")
    made_run(tmp_path / "sweep" / "c", hypotheses=BAD)
    file = a / "hypotheses" / "validation" / "step_00000040.de"
    entries = entries_of(names(a, tmp_path / "sweep", file), "validation", pytest.fail)
    assert [entry.name for entry in entries] == ["a", "sweep/b", "sweep/c", "a:step_00000040"]
    assert [entry.hypotheses for entry in entries] == [GOOD, GOOD, BAD, GOOD]
    assert all(entry.references == [REFERENCES] and not entry.problem for entry in entries)
    assert [entry.name for entry in entries_of(names(b), "validation", pytest.fail)] == ["b"]


def test_an_unfinished_run_has_the_translations_of_its_best_step(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", finished=False)
    (entry,) = entries_of(names(run), "validation", pytest.fail)
    assert entry.file == run / "hypotheses" / "validation" / "step_00000040.de"
    assert not entry.problem
    fewer = made_run(
        tmp_path / "fewer",
        finished=False,
        hypotheses=GOOD[:2],
        config={"num_validation_pairs": 2, "validation_decoding": {"beam_size": 1}},
    )
    (entry,) = entries_of(names(fewer), "validation", pytest.fail)
    assert entry.problem == (
        f"{entry.file} has 2 lines for 5 references, "
        "by num_validation_pairs=2 validation_decoding.beam_size=1"
    )
    other = made_run(tmp_path / "other")
    _, entry = entries_of(names(other, run), "test", pytest.fail)
    assert entry.problem == "it has no translations of test: its training is stopped"


@pytest.mark.parametrize(
    ("references", "problem"),
    [
        ([*REFERENCES[:2], "Das", *REFERENCES[3:]], "its references differ from those of a, first in line 3"),
        (REFERENCES[:4], "its references have 4 lines, but those of a 5"),
    ],
)
def test_runs_with_other_references_are_not_comparable(
    tmp_path: Path, references: list[str], problem: str
) -> None:
    size = len(references)
    a = made_run(tmp_path / "a")
    b = made_run(tmp_path / "b", hypotheses=GOOD[:size], references=references, sources=["x"] * size)
    entries = entries_of(names(a, b), "validation", pytest.fail)
    assert [entry.problem for entry in entries] == ["", problem]


def test_translations_that_are_not_of_the_references_are_not_compared(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", hypotheses=GOOD[:3])
    (entry,) = entries_of(names(run), "validation", pytest.fail)
    assert entry.problem == f"{run}/hypotheses/validation.de has 3 lines for 5 references"
    write(run / "hypotheses" / "validation.de", "x")
    (run / "hypotheses" / "validation.de").write_bytes(b"\xff\n")
    (entry,) = entries_of(names(run), "validation", pytest.fail)
    assert entry.problem == f"{run}/hypotheses/validation.de is damaged: byte 0 is not UTF-8"


def test_a_file_of_another_split_is_not_compared(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    (entry,) = entries_of(names(run / "hypotheses" / "test.de"), "validation", pytest.fail)
    assert entry.problem == "test.de does not seem to be of validation; say split=test"
    write(run / "hypotheses" / "wmt22.de", lined(GOOD))
    (entry,) = entries_of(names(run / "hypotheses" / "wmt22.de"), "validation", pytest.fail)
    assert entry.problem == "wmt22.de does not seem to be of validation; say split=..."


def test_sentences_are_compared_without_the_context_that_they_were_translated_behind(tmp_path: Path) -> None:
    """An evaluation knows the references as they are in data/."""
    context = [f"davor <brk> {line}" for line in REFERENCES]
    run = made_run(tmp_path / "run", references=context, sources=[f"before <brk> {line}" for line in SOURCES])
    write(run / "data" / "validation.ref2.de", lined(context))
    file = run / "hypotheses" / "validation-0123abcd.de"
    write(file, lined(GOOD))
    evaluation = {
        "hypotheses": "hypotheses/validation-0123abcd.de",
        "scores": {"bleu": 1.5},
        "signatures": {"bleu": BLEU},
        "sha256": {"tgt": digest_of_lines(context)},
    }
    write(run / "evaluations" / "validation-0123abcd.json", json.dumps(evaluation))
    plain = made_run(tmp_path / "plain")
    write(plain / "data" / "validation.ref2.de", lined(REFERENCES))
    for entry in entries_of(names(run, file, plain), "validation", pytest.fail):
        assert not entry.problem
        assert (entry.sources, entry.references) == (SOURCES, [REFERENCES] * 2)


def test_an_evaluation_names_its_settings_and_has_its_own_signature(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    file = run / "hypotheses" / "validation-0123abcd.de"
    write(file, (run / "hypotheses" / "validation.de").read_text())
    evaluation = {
        "hypotheses": "hypotheses/validation-0123abcd.de",
        "scores": {"bleu": 1.5},
        "signatures": {"bleu": "tok:none"},
        "sha256": {"tgt": hashlib.sha256("\n".join(REFERENCES).encode()).hexdigest()},
        "changed": {"decoding.beam_size": 8, "checkpoint": "40"},
    }
    (entry,) = entries_of(names(file), "validation", pytest.fail)
    silent = f"no file in evaluations/ says that {file.name} translates its validation sentences"
    assert entry.problem == silent  # they may be of another corpus
    other = evaluation | {"sha256": {"tgt": "0"}}
    write(run / "evaluations" / "validation-0123abcd.json", json.dumps(other))
    assert entries_of(names(file), "validation", pytest.fail)[0].problem == silent
    write(run / "evaluations" / "validation-0123abcd.json", json.dumps(evaluation))
    _, entry = entries_of(names(run, file), "validation", pytest.fail)
    assert entry.name == "run:beam_size=8 checkpoint=40"
    assert (entry.stored, entry.signatures["bleu"]) == ({"bleu": 1.5}, "tok:none")
    assert entries_of(names(run), "validation", pytest.fail)[0].signatures["bleu"] == BLEU


def test_evaluations_by_other_rules_leave_scores_signatures_and_names_alone(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    (before,) = entries_of(names(run), "validation", pytest.fail)
    file = run / "hypotheses" / "validation-0123abcd.de"
    write(file, (run / "hypotheses" / "validation.de").read_text())
    for name, scores, rules in (
        ("a", {"bleu": 9.0, "ter": 8.0}, {"scoring.lowercase": True}),
        ("b", {"bleu": 7.0}, {"metrics": ["bleu"]}),
    ):
        for hypotheses, search in (("validation", {}), (file.stem, {"decoding.beam_size": 8})):
            evaluation = {
                "hypotheses": f"hypotheses/{hypotheses}.de",
                "scores": scores,
                "signatures": {one: "case:lc" if rules.get("scoring.lowercase") else BLEU for one in scores},
                "sha256": {"tgt": digest_of_lines(REFERENCES)},
                "changed": search | rules,
            }
            write(run / "evaluations" / f"{hypotheses}-{name}.json", json.dumps(evaluation))
    own, other = entries_of(names(run, file), "validation", pytest.fail)
    assert (own.name, own.signatures, own.stored) == (
        before.name,
        before.signatures,
        before.stored | {"bleu": 7.0},
    )
    assert (other.name, other.signatures["bleu"], other.stored) == ("run:beam_size=8", BLEU, {"bleu": 7.0})


def test_an_exported_run_is_told_how_to_be_compared(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", finished=False)
    shutil.rmtree(run / "hypotheses")
    write(run / "export.json", "{}")
    _, entry = entries_of(names(made_run(tmp_path / "other"), run), "test", pytest.fail)
    way_out = f"nmt evaluate run={run} data.scored_split=test makes them"
    assert entry.record is not None
    assert (entry.record.state, entry.problem) == ("exported", f"it has no translations of test; {way_out}")


def test_several_references_are_read(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    write(run / "data" / "validation.ref2.de", "".join(f"{line}!\n" for line in REFERENCES))
    (entry,) = entries_of(names(run), "validation", pytest.fail)
    assert entry.references == [REFERENCES, [f"{line}!" for line in REFERENCES]]


def test_a_split_that_no_run_has(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    for name in ("test-1234abcd.de", "wmt22.de"):  # by another search, and of a set that is not kept
        write(run / "hypotheses" / name, "a\n")
    with pytest.raises(UserError, match=r"split=news: none of the runs has .* they have test, validation$"):
        entries_of(names(run), "news", pytest.fail)


def test_a_set_that_a_run_lacks_is_made_by_no_evaluation(tmp_path: Path) -> None:
    other, run = made_run(tmp_path / "other"), made_run(tmp_path / "my run")
    write(other / "hypotheses" / "test-news.de", (other / "hypotheses" / "test.de").read_text())
    for side in ("en", "de"):
        write(other / "data" / "news" / f"test.{side}", (other / "data" / f"test.{side}").read_text())
    _, entry = entries_of(names(other, run), "test-news", pytest.fail)
    assert entry.problem == "it has no translations of test-news"
    (run / "hypotheses" / "test.de").unlink()
    _, entry = entries_of(names(other, run), "test", pytest.fail)
    assert f"""; nmt evaluate 'run="{run}"' data.scored_split=test makes them""" in entry.problem


def test_a_run_under_two_paths_is_one_run(tmp_path: Path) -> None:
    run, link, told = made_run(tmp_path / "a"), tmp_path / "link", list[str]()
    link.symlink_to(run)
    (tmp_path / "b").mkdir()
    again = tmp_path / "b" / ".." / "a"
    (entry,) = entries_of(names(run, link, again, run), "validation", told.append)
    assert entry.name == "a"
    assert told == [f"{path} is {run}, and compared once" for path in (link, again)]


@pytest.mark.parametrize(
    "file", ["validation-news.de", "news/validation.de"]
)  # of an evaluation, of a training
def test_a_named_set(file: str, tmp_path: Path) -> None:
    signature = "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"
    news = {"validation": {"bleu": 7.0}, "signatures": {"bleu": signature}}
    run = made_run(tmp_path / "run", results={"sets": {"news": news}})
    for side, lines in (("en", ["a"]), ("de", ["b"])):
        write(run / "data" / "news" / f"validation.{side}", f"{lines[0]}\n")
    write(run / "hypotheses" / file, "c\n")
    (entry,) = entries_of(names(run), "validation-news", pytest.fail)
    assert (entry.problem, entry.references, entry.hypotheses) == ("", [["b"]], ["c"])
    assert entry.stored == ({"bleu": 7.0} if "/" in file else {})
    assert (entry.signatures["bleu"] == signature) == ("/" in file)
    write(tmp_path / "other.de", "d\n")
    _, other = entries_of(names(run, tmp_path / "other.de"), "validation-news", pytest.fail)
    assert (other.references, other.hypotheses, other.signatures) == ([["b"]], ["d"], {})
    with pytest.raises(UserError, match=r"they have test, validation, validation-news$"):
        entries_of(names(run), "test-news", pytest.fail)


@pytest.mark.parametrize("file", ["news/validation.de", "news/validation/step_00000020.de"])
def test_a_file_of_a_named_set_is_of_that_set_alone(file: str, tmp_path: Path) -> None:
    """Also where the set has as many lines as the validation split, which nothing else tells apart."""
    run = made_run(tmp_path / "run", finished=False)
    for side, lines in (("en", SOURCES), ("de", BAD)):
        write(run / "data" / "news" / f"validation.{side}", lined(lines))
    write(run / "hypotheses" / file, lined(BAD))
    (entry,) = entries_of(names(run / "hypotheses" / file), "validation", pytest.fail)
    assert entry.problem == f"{file} does not seem to be of validation; say split=validation-news"
    (entry,) = entries_of(names(run / "hypotheses" / file), "validation-news", pytest.fail)
    assert (entry.problem, entry.references, entry.hypotheses) == ("", [BAD], BAD)
    own = run / "hypotheses" / "validation" / "step_00000040.de"
    (entry,) = entries_of(names(own), "validation-news", pytest.fail)
    assert entry.problem == (
        "validation/step_00000040.de does not seem to be of validation-news; say split=validation"
    )


def test_an_unfinished_run_has_the_translations_of_a_named_set_of_its_best_step(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", finished=False)
    for side in ("en", "de"):
        write(run / "data" / "news" / f"validation.{side}", "a\n")
    file = run / "hypotheses" / "news" / "validation" / "step_00000040.de"
    write(file, "b\n")
    (entry,) = entries_of(names(run), "validation-news", pytest.fail)
    assert (entry.file, entry.problem) == (file, "")
    with pytest.raises(UserError, match=r"they have validation, validation-news$"):
        entries_of(names(run), "test", pytest.fail)


def test_files_of_other_systems_have_the_references_of_the_runs(tmp_path: Path) -> None:
    run, other = made_run(tmp_path / "a"), made_run(tmp_path / "b", references=BAD)
    write(run / "data" / "validation.ref2.de", lined(GOOD))
    plain, same, packed = tmp_path / "human.de", tmp_path / "old" / "human.de", tmp_path / "api.de.gz"
    write(plain, lined([*BAD[:4], ""]))
    write(same, "\n".join(BAD))
    packed.write_bytes(gzip.compress(lined(GOOD).encode()))
    entries = entries_of(names(packed, run, plain, other, same), "validation", pytest.fail)
    assert [entry.name for entry in entries] == ["api.de.gz", "a", str(plain), "b", str(same)]
    assert [entry.record is None for entry in entries] == [True, False, True, False, True]
    assert [entry.hypotheses for entry in entries] == [GOOD, GOOD, [*BAD[:4], ""], GOOD, BAD]
    assert entries.pop(3).problem.startswith("it has 1 references a line, but a 2")
    for entry in entries:
        assert (entry.problem, entry.sources, entry.references) == ("", SOURCES, [REFERENCES, GOOD])


@pytest.mark.parametrize(
    ("content", "split", "problem"),
    [
        (lined(GOOD[:4]), "test", r"other.de has 4 lines, but test of a has 5 references; .* or say split="),
        (lined([*GOOD, ""]), "test", r"other.de has 6 lines, but test of a has 5 references"),
        ("", "test", r"run: .*other.de is empty"),
        ("a" * (MAX_LINE_CHARS + 1) + "\n" + lined(GOOD[1:]), "test", "line 1 of .* has more than 1,048,576"),
        (lined(GOOD), "validation", "but a is not compared: .*validation.de has 1 lines for 5 references"),
    ],
)
def test_a_file_that_does_not_fit_the_references(
    tmp_path: Path, content: str, split: str, problem: str
) -> None:
    run = made_run(tmp_path / "a")
    write(run / "hypotheses" / "validation.de", "one\n")
    write(tmp_path / "other.de", content)
    with pytest.raises(UserError, match=problem):
        entries_of(names(run, tmp_path / "other.de"), split, pytest.fail)


def test_a_file_belongs_to_the_run_around_it_wherever_it_is_named_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = made_run(tmp_path / "a"), made_run(tmp_path / "b", references=BAD)
    monkeypatch.chdir(tmp_path)
    named, _ = entries_of(["a/hypotheses/validation.de", "b"], "validation", print)
    assert named.record is not None
    assert named.file == named.record.path / "hypotheses" / "validation.de"
    monkeypatch.chdir(other / "hypotheses")
    _, entry = entries_of([str(run), "validation.de"], "validation", print)
    assert "its references differ" in entry.problem
    foreign = tmp_path / "other" / "hypotheses" / "x.de"
    write(foreign, lined(GOOD))
    write(tmp_path / "other" / "config.yaml", "of: another program")
    _, entry = entries_of([str(run), str(foreign)], "validation", print)
    assert entry.record is None


def test_a_file_without_a_run(tmp_path: Path) -> None:
    write(tmp_path / "other.de", lined(GOOD))
    with pytest.raises(UserError, match=r"no run is named; say nmt compare RUN .*other.de"):
        entries_of(names(tmp_path / "other.de"), "test", pytest.fail)


def test_what_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"run={path} is neither a run"):
            entries_of(names(path), "validation", pytest.fail)


def test_a_damaged_run_is_refused_by_name_and_left_out_of_a_folder(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    bad = made_run(tmp_path / "b")
    write(bad / "results.json", "{")
    with pytest.raises(UserError, match=r"results\.json is damaged"):
        entries_of(names(bad), "validation", pytest.fail)
    said: list[str] = []
    assert [entry.name for entry in entries_of(names(tmp_path), "validation", said.append)] == ["a"]
    assert len(said) == 1
    assert "b is damaged and left out" in said[0]


def test_a_damaged_evaluation_spoils_one_run_alone(tmp_path: Path) -> None:
    runs = [str(made_run(tmp_path / name)) for name in ("a", "b")]
    write(tmp_path / "b" / "evaluations" / "test.json", "{")
    first, second = entries_of(runs, "test", warn=print)
    assert not first.problem
    assert "evaluations/test.json is damaged" in second.problem
