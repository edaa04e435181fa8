"""Errors of the user: one or several in a message, and nothing in them that a terminal obeys."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.stored import to_plain
from nmt.errors import Problems, UserError, first_of, in_one_line, visible, warn
from nmt.verbs import VERBS

CLEAR_SCREEN = "\x1b[2J"


def test_one_problem_is_a_sentence_and_several_are_a_list() -> None:
    assert str(UserError("a")) == "a"
    error = pickle.loads(pickle.dumps(UserError("a", "b")))  # workers of a large translation send theirs
    assert str(error) == "2 settings cannot be used:\n  - a\n  - b"
    assert error.problems == ("a", "b")


def test_a_message_of_several_lines_becomes_one() -> None:
    assert in_one_line(str(UserError("a", "b"))) == "2 settings cannot be used: a; b"
    assert in_one_line("run has another config:\n  seed: 1 -> 2\n\nsay  nmt\ttrain") == (
        "run has another config: seed: 1 -> 2; say nmt train"
    )


def test_problems_are_gathered_once_each_and_refused_together() -> None:
    problems = Problems()
    problems.refuse()
    for error in (UserError("a"), UserError("b", "a")):
        with problems.gathered():
            raise error
    with pytest.raises(UserError) as refused:
        problems.refuse()
    assert refused.value.problems == ("a", "b")
    with pytest.raises(ValueError, match="a bug"), problems.gathered():
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe: „x“ ▁y 日本\n\tz", "größe: „x“ ▁y 日本\n\tz"),
        (f"a{CLEAR_SCREEN}b\x07\r\x9b1m\x7f", r"a\x1b[2Jb\x07\r\x9b1m\x7f"),
        ("a\u202eb\u2028c\ud800", r"a\u202eb\u2028c\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert visible(text) == shown
    warn(text)
    assert capsys.readouterr().err == f"warning: {shown}\n"


@pytest.mark.fault(38)
def test_no_file_of_a_stranger_sends_escapes_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header of a TSV file, the key of a JSON line, the key of a stored config, and names of files."""
    monkeypatch.chdir(tmp_path)
    Path("evil.tsv").write_text(f"{CLEAR_SCREEN}a\tb\nx\ty\n")
    Path("evil.jsonl").write_text('{"\\u001b[2Ja": "x"}\n')
    (composed,) = compose(VERBS["train"], [])
    plain = to_plain(composed.to_config(TrainConfig)) | {f"{CLEAR_SCREEN}a": 1}
    for name in ("run", f"{CLEAR_SCREEN}run"):
        Path(name).mkdir()
        Path(name, "config.yaml").write_text(yaml.safe_dump(plain))
    for split in ("validation", "test"):
        Path(f"{split}.tsv").write_text("en\tde\nx\ty\n")
    files = ["data=files", "data.validation=validation.tsv", "data.test=test.tsv", "runtime.device=cpu"]
    for command in (
        ["train", *files, "data.train=evil.tsv", "run=a"],
        ["train", *files, "data.train=evil.jsonl", "run=b"],
        ["evaluate", "run=run"],
        ["evaluate", f"run={CLEAR_SCREEN}run"],
        ["train", "-cd", f"{CLEAR_SCREEN}nowhere"],
        [f"{CLEAR_SCREEN}train"],
    ):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert r"\x1b[2J" in shown.err
        assert "\x1b" not in shown.err + shown.out


def test_a_list_has_its_first_names_and_how_many_more_there_are() -> None:
    assert first_of([1, 2, 3], most=3) == "1, 2, 3"
    assert first_of(range(1_234), most=2) == "0, 1 and 1,232 more"
