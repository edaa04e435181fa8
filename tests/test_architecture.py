"""The house rules a machine can check: the maps of the rooms, import order, unsafe calls, short functions."""

from __future__ import annotations

import ast
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


def module_map() -> list[str]:
    """Return the modules in import order, as `models.base`, by the lists of the package and its rooms."""
    order = []
    for row in rows(nmt.__doc__):
        room = row.removesuffix("/")
        if room == row:
            order.append(room)
            continue
        modules = rows(ast.get_docstring(TREES[room], clean=False))
        order += [f"{room}.{name}" for name in modules if name != "__init__"]
        place = modules.index("__init__") if "__init__" in modules else 0
        order.insert(len(order) - len(set(modules) - {"__init__"}) + place, room)
    return order


def module_name(path: Path) -> str:
    """`models.base` for `nmt/models/base.py`, `models` for `nmt/models/__init__.py`, "" for the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
CODE = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in (*FILES.values(), *sorted((ROOT / "scripts").glob("*.py")))
}
TREES = {name: CODE[path] for name, path in FILES.items()}
ORDER = module_map()
every_module = pytest.mark.parametrize("name", sorted(FILES), ids=lambda name: name or "nmt")


def imported_modules(name: str) -> Iterator[tuple[int, str]]:
    """Every import in a module, also inside functions, as (line, dotted name): `from a import b` is `a.b`."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{FILES[name]}:{node.lineno}: write the import from nmt, not from a dot"
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


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of the strings of a module; a string that stands alone is documentation."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.lineno, node.value


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_map_lists_every_module_once_and_nothing_else() -> None:
    assert sorted(ORDER) == sorted(FILES.keys() - {""})


@every_module
def test_a_module_imports_only_from_those_above_it(name: str) -> None:
    above = ORDER[: ORDER.index(name)] if name else ORDER  # the package offers names of all of them
    wrong = [
        f"{FILES[name].relative_to(ROOT)}:{line} imports {imported}"
        for line, imported in imported_modules(name)
        if (module := own_module(imported)) is not None and module not in above
    ]
    assert not wrong


@every_module
def test_no_module_runs_what_it_reads(name: str) -> None:
    """No pickle, no `torch.load`, no evaluated text, and no config value that names a class to import."""
    calls = [(n.lineno, dotted(n.func)) for n in ast.walk(TREES[name]) if isinstance(n, ast.Call)]
    keywords = [ast.unparse(n) for n in ast.walk(TREES[name]) if isinstance(n, ast.keyword)]
    imports = list(imported_modules(name))
    assert [found for found in imports if found[1].split(".")[0] in UNSAFE_MODULES] == []
    assert [found for found in [*imports, *calls] if found[1] in UNSAFE_CALLS] == []
    assert [
        text for text in keywords if text.startswith("allow_pickle=") and text != "allow_pickle=False"
    ] == []
    assert [line for line, text in strings(TREES[name]) if "_target_" in text] == []


def test_no_config_names_a_class_to_import() -> None:
    configs = sorted((ROOT / "configs").rglob("*.yaml"))
    assert configs
    assert [path.name for path in configs if "_target_" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_short(path: Path) -> None:
    functions = [n for n in ast.walk(CODE[path]) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_exception_is_caught_only_where_contributing_says_so() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`Exception` is caught only.*?;", text, flags=re.DOTALL)
    handlers = {
        path.relative_to(ROOT).as_posix(): [
            node.type for node in ast.walk(CODE[path]) if isinstance(node, ast.ExceptHandler)
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


@pytest.mark.parametrize("name", nmt.__all__)
def test_every_public_name_can_be_used(name: str) -> None:
    assert getattr(nmt, name) is not None
    assert name in dir(nmt)


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


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


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
