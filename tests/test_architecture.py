"""The house rules a machine can check: the maps of the rooms, import order, unsafe calls, short functions."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nmt
from nmt.config.compose import compose
from nmt.config.trials import plan
from nmt.kernels import HEADERS, UNITS
from nmt.verbs import VERBS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nmt"
MAX_FUNCTION_LINES = 60
UNSAFE_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "instantiate", "hydra.utils.instantiate"}


def rows(docstring: str | None) -> list[str]:
    """Return the first words of the indented rows of a docstring: rooms, or the modules of a room."""
    return re.findall(r"^ {4}(\w+/?) {2,}\S", docstring or "", flags=re.MULTILINE)


def module_name(path: Path) -> str:
    """`models.base` for `nmt/models/base.py`, `models` for `nmt/models/__init__.py`, "" for the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def module_map() -> list[str]:
    """Return the modules in import order, as `models.base`, by the lists of the package and its rooms."""
    return list(listed(rows(nmt.__doc__), ""))


def listed(names: list[str], room: str) -> Iterator[str]:
    """Yield the modules of a list of modules and rooms, a room where its list says `__init__`, or first."""
    for row in names:
        name = f"{room}.{row}".strip("./")
        if row == "__init__":
            yield room
        elif row.endswith("/"):
            inside = rows(ast.get_docstring(tree(FILES[name]), clean=False))
            yield from listed(inside if "__init__" in inside else ["__init__", *inside], name)
        else:
            yield name


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Every import in a module, also inside functions, as (line, dotted name): `from a import b` is `a.b`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path, node.lineno)}: write the import from nmt, not from a dot"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def own_module(imported: str) -> str | None:
    """Return the module of the package that an import reads; None for libraries and the package itself."""
    parts = imported.split(".")
    names = (".".join(parts[1:end]) for end in range(len(parts), 1, -1)) if parts[0] == "nmt" else ()
    return next((name for name in names if name in FILES), None)


def dotted(node: ast.expr) -> str:
    """`torch.load` for the expression that reads so; nothing for anything but names and attributes."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of the strings of a module; a string that stands alone is documentation."""
    documentation = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.lineno, node.value


def unsafe(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and name of pickle, `torch.load`, evaluated text and values that name a class."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and dotted(node.func) in UNSAFE_CALLS:
            yield node.lineno, dotted(node.func)
        elif isinstance(node, ast.keyword) and ast.unparse(node) == "allow_pickle=True":
            yield node.lineno, ast.unparse(node)
    for line, name in imported_modules(path):
        if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS:
            yield line, name
    yield from ((line, text) for line, text in strings(path) if "_target_" in text)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_map_lists_every_module_once_and_nothing_else() -> None:
    assert sorted(module_map()) == sorted(FILES.keys() - {""})


def test_a_module_imports_only_from_those_above_it() -> None:
    order = module_map()
    wrong = []
    for name, path in FILES.items():
        above = {*(order[: order.index(name)] if name else order)}  # the package offers names of all of them
        for line, imported in imported_modules(path):
            if (module := own_module(imported)) is not None and module not in above:
                wrong.append(f"{place(path, line)} imports {imported}")
    assert wrong == []


def test_no_module_runs_what_it_reads() -> None:
    assert [f"{place(path, line)}: {what}" for path in FILES.values() for line, what in unsafe(path)] == []


def test_no_config_names_a_class_to_import() -> None:
    configs = sorted((ROOT / "configs").rglob("*.yaml"))
    assert configs
    assert [path.name for path in configs if "_target_" in path.read_text(encoding="utf-8")] == []


def test_functions_stay_short() -> None:
    """Those of the package and of the scripts."""
    long = []
    for path in (*FILES.values(), *sorted((ROOT / "scripts").glob("*.py"))):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{place(path, node.lineno)} {node.name} has {lines} lines")
    assert long == []


def test_exception_is_caught_only_where_contributing_says_so() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`Exception` is caught only.*?;", text, flags=re.DOTALL)
    handlers = {
        path.relative_to(ROOT).as_posix(): [
            node.type for node in ast.walk(tree(path)) if isinstance(node, ast.ExceptHandler)
        ]
        for path in FILES.values()
    }
    catching = {
        path
        for path, types in handlers.items()
        if "Exception" in [ast.unparse(x) if x else "Exception" for x in types]
    }
    assert set(re.findall(r"`(nmt/[\w/]+\.py)`", told)) == catching


@pytest.mark.parametrize(
    "code",
    [
        "import nmt",
        "import nmt.cli",
        "import sys, nmt.cli; sys.argv = ['nmt', '--help']\ntry: nmt.cli.main()\nexcept SystemExit: pass",
    ],
    ids=["import nmt", "import nmt.cli", "nmt --help"],
)
def test_torch_is_not_imported_before_it_is_used(code: str) -> None:
    result = run_python(
        f"{code}\nimport sys; print(*sorted({{'torch', 'datasets'}} & sys.modules.keys()), file=sys.stderr)"
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.strip() == ""


def test_python_m_nmt_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "nmt", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert all(verb in result.stdout for verb in ("train", "evaluate", "translate", "attention"))


def test_every_public_name_can_be_used() -> None:
    assert [name for name in nmt.__all__ if getattr(nmt, name) is None] == []
    assert {*nmt.__all__} <= {*dir(nmt)}


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'nmt' has no attribute 'nonsense'"):
        nmt.nonsense  # noqa: B018


def test_the_tree_in_the_readme_names_every_file() -> None:
    """Everything at the top of the package, of the scripts and of the configs."""
    words = set(re.findall(r"[\w.-]+", (ROOT / "README.md").read_text(encoding="utf-8")))
    shown = [*PACKAGE.iterdir(), *(ROOT / "scripts").iterdir(), *(ROOT / "configs").iterdir()]
    expected = {path.name for path in shown if not path.name.startswith((".", "__pycache__"))}
    assert expected - words == set()


def test_every_kernel_is_named_by_its_room() -> None:
    kernels = {path.name for path in (PACKAGE / "kernels").iterdir() if path.suffix in (".cpp", ".h")}
    assert kernels == {*itertools.chain(*UNITS.values()), *HEADERS}


def test_the_tree_in_the_readme_is_in_import_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme[readme.index("\nnmt/") : readme.index("\nconfigs/")]
    shown = re.findall(r"^  (\w+)(?:/|\.py) +\S", tree, flags=re.MULTILINE)
    assert shown[:-1] == [row.removesuffix("/") for row in rows(nmt.__doc__)]
    assert shown[-1] == "__init__"


def test_every_test_and_table_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|nmt)/[\w/]+\.py)(?:::(\w+))?`", text)
    tables = re.findall(r"`([A-Z_]+)` in `(nmt/[\w/]+\.py)`", text)
    assert len(named) > 10
    assert len(tables) > 8
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")}
    assert [
        path for path, _ in named if path not in files | {"nmt/training/foo.py"} and "foo" not in path
    ] == []
    for path, name in named:
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name
    for table, path in tables:
        assert re.search(rf"^{table}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), table


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*\S)", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_a_page_leads_somewhere() -> None:
    lost = []
    for page in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))):
        links = re.findall(
            r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")
        )
        for link, anchor in links:
            other = page.parent / link if link else page
            if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
                lost.append(f"{page.name}: {link}#{anchor}")
    assert lost == []


def test_the_verbs_that_processes_share_are_those_of_the_docs() -> None:
    text = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`train`[^.]*?(?:\.md[^.]*)?share their work", text)
    assert set(re.findall(r"`(\w+)`", told)) == {verb.name for verb in VERBS.values() if verb.shared}


def test_every_training_in_the_docs_can_be_composed() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    lines = dict.fromkeys(re.findall(r"^nmt train .*", text, flags=re.MULTILINE))
    assert len(lines) > 10
    for line in lines:
        _, _, *arguments = shlex.split(line, comments=True)
        if "-m" in arguments:  # the first of the listed values will do
            firsts = [re.sub(r"^([\w.]+=[\w.]+),.*", r"\1", argument) for argument in arguments]
            assert plan(VERBS["train"], firsts).folder.name
        elif not {"--help", "..."} & {*arguments} and not any("init=" in one for one in arguments):
            assert compose(VERBS["train"], arguments)
