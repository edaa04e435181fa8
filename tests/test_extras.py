"""The extras are those of the package, and one that is not there is one error that names it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nmt import extras
from nmt.errors import UserError

ROOT = Path(__file__).parents[1]


def test_the_extras_are_those_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.optional-dependencies]")[1].split("\ndev = ")[0]
    rows = re.findall(r"^(\w+) = \[(.*?)\]", section, flags=re.MULTILINE)
    listed = {name: tuple(re.findall(r'"([\w.-]+)', packages)) for name, packages in rows}
    assert {name: extra.distributions for name, extra in extras.EXTRAS.items()} == listed


def test_an_import_needs_no_extra_and_none_says_so() -> None:
    modules = [name for extra in extras.EXTRAS.values() for name in extra.modules or extra.distributions]
    code = (
        f"import sys; sys.modules |= dict.fromkeys({modules}); "
        "import nmt.exchange.importing, nmt.exchange.m2m100, nmt.exchange.marian"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not [name for name, extra in extras.EXTRAS.items() if "import" in extra.purpose]


@pytest.mark.parametrize("missing", ["MeCab", "ipadic"])
def test_any_library_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == missing else module)
    with pytest.raises(UserError, match=r"^This needs ipadic and mecab-python3: pip install 'nmt\[ja\]'$"):
        extras.require("ja", "This")
    extras.require("ko", "This")


def test_a_library_in_a_package_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "zst", extras.Extra(("no_such_package.zstd",), "a test"))
    assert not extras.EXTRAS["zst"].is_there
    monkeypatch.setitem(sys.modules, "no_such_package", None)
    assert not extras.EXTRAS["zst"].is_there
