"""What is said of translations that may not be what they are taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.comparison.remarks import remarks
from nmt.comparison.translations import entries_of
from tests.comparison.made import BAD, GOOD, REFERENCES, lined, made_run, write


@pytest.mark.parametrize(
    ("lines", "remark"),  # its beginning; empty: there is none
    [
        (BAD, ""),
        (["", *BAD[1:3], " ", BAD[4]], "2 of 5 lines of other.de, first line 1, are empty"),
        (
            [BAD[0], *(f"{line} ." for line in BAD[1:])],
            "4 of 5 lines of other.de, first line 2, look tokenised",
        ),
        (["zwei Mä@@ nner", *BAD[1:]], "1 of 5 lines of other.de, first line 1, look tokenised"),
        (["▁zwei ▁Männer", *BAD[1:]], "1 of 5 lines of other.de, first line 1, look tokenised"),
        ([f"{line}. So." for line in BAD], ""),
        ([*GOOD[1:], GOOD[0]], "the lines of other.de are hardly more like their references than"),
    ],
)
def test_remarks_on_translations(lines: list[str], remark: str, tmp_path: Path) -> None:
    write(tmp_path / "other.de", lined(lines))
    paths = [str(made_run(tmp_path / "a")), str(tmp_path / "other.de")]
    run, other = entries_of(paths, "test", pytest.fail)
    assert list(remarks(run, "test")) == []
    found = list(remarks(other, "test"))
    assert [one[: len(remark)] for one in found] == [remark] * bool(remark)


def test_references_that_look_tokenised_are_no_reason_for_a_remark(tmp_path: Path) -> None:
    spaced = [f"{line} ." for line in REFERENCES]
    (run,) = entries_of([str(made_run(tmp_path / "a", hypotheses=spaced, references=spaced))], "test", print)
    assert list(remarks(run, "test")) == []
