"""Values as they are typed: in a shell, and then for Hydra."""

from __future__ import annotations

import shlex

import pytest

from nmt.config.overrides import parse_flags, runs_of, usable
from nmt.config.spelling import shell_word, unquoted
from nmt.verbs import VERBS


@pytest.mark.parametrize(
    "path",
    [
        "outputs/demo-1",
        "/tmp/my runs/a, b",
        "2024_01_02",
        "null",
        "it's",
        '"x"',
        "~/a",
        "a[1]{b}",
        "größe=3",
        "$HOME/${a}",
        "back\\slash",
        "a;b&c",
        " a ",
    ],
)
def test_a_setting_that_is_printed_can_be_typed(path: str) -> None:
    (word,) = shlex.split(shell_word("run", path))
    flags = parse_flags(VERBS["train"], [word])
    assert runs_of([usable(VERBS["train"], flags.overrides[0], flags)], "run") == [path]


def test_a_plain_path_is_typed_without_quotes() -> None:
    assert shell_word("run", "outputs/a-b/c_1.2") == "run=outputs/a-b/c_1.2"
    assert shell_word("run", "my runs/a") == "'run=\"my runs/a\"'"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("'2024_01_02'", "2024_01_02"),
        ("[b,'1e3']", "[b,1e3]"),
        ("{a:'true'}", "{a:true}"),
        ("'null'", "'null'"),
        ("'a, b'", "'a, b'"),
        ("\"it is 'x'\"", "\"it is 'x'\""),
    ],
)
def test_a_plain_text_is_shown_without_quotes(value: str, shown: str) -> None:
    assert unquoted(value) == shown
