"""The library is built once wherever there is a compiler, and loaded only if it is whole and private."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt import kernels
from nmt.disk_cache import cache_dir
from nmt.errors import UserError

COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
needs_a_compiler = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not COMPILER,
    reason="needs Linux on x86-64 with a C++ compiler",
)


@needs_a_compiler
def test_the_kernels_are_built_wherever_there_is_a_compiler() -> None:
    assert kernels.problem() == ""


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "processor",
    [
        *("x86-64", "haswell", "alderlake"),
        *("skylake-avx512", "icelake-server", "cooperlake", "sapphirerapids"),
    ],
)
def test_the_kernels_are_code_for_every_processor(processor: str, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -march={processor} -O1 -Wno-psabi\n')
    compiler.chmod(0o755)
    kernels._build([str(compiler)], tmp_path)
    assert (tmp_path / kernels.LIBRARY).stat().st_size > 0


STAND_IN = """#!/bin/sh
case "$1" in
  --version) cat "{folder}/version" ;;
  *) sleep {seconds}
     echo built >> "{folder}/log"
     while [ "$1" != -o ]; do shift; done
     cp "{folder}/empty.so" "$2" ;;
esac
"""


@pytest.fixture(scope="module")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("library") / "empty.so"
    subprocess.run([str(COMPILER), "-shared", "-x", "c++", "/dev/null", "-o", str(library)], check=True)
    return library


@pytest.fixture
def compiler(tmp_path: Path, empty_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stand-in for the compiler, which makes an empty library; the cache is new."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    shutil.copy(empty_library, folder / "empty.so")
    (folder / "version").write_text("1.0")
    (folder / "c++").write_text(STAND_IN.format(folder=folder, seconds=0))
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("CXX", str(folder / "c++"))
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    return folder


problem = kernels.problem.__wrapped__  # what a new process would find


def libraries() -> list[Path]:
    return sorted(kernels.folder().glob("*/library.so"))


def num_builds(compiler: Path) -> int:
    """Return how often the library was built: each time with an object of each unit, and a link."""
    builds, rest = divmod(len((compiler / "log").read_text().splitlines()), len(kernels.UNITS) + 1)
    assert rest == 0
    return builds


@needs_a_compiler
def test_the_library_is_built_once_and_found_again(
    compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [problem(), problem()] == ["", ""]
    assert num_builds(compiler) == 1
    assert capsys.readouterr().err == "building the kernels in C++, once; this takes half a minute\n"
    [library] = libraries()
    assert sorted(path.name for path in library.parent.iterdir()) == ["entry.json", "library.so"]


@needs_a_compiler
def test_a_compiler_may_be_called_by_another_program(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env NAME=value {compiler}/c++")
    assert problem() == ""
    assert num_builds(compiler) == 1
    (compiler / "with spaces").mkdir()
    shutil.copy(compiler / "c++", compiler / "with spaces" / "c++")
    monkeypatch.setenv("CXX", f"{compiler}/with spaces/c++")
    assert problem() == ""
    assert num_builds(compiler) == 2


@needs_a_compiler
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: bytes(len(content)),
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    ],
    ids=["truncated", "empty", "zeros", "one bit"],
)
def test_a_damaged_library_is_built_anew(
    damage: Callable[[bytes], bytes], compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem() == ""
    [library] = libraries()
    content = library.read_bytes()
    library.write_bytes(damage(content))
    capsys.readouterr()
    assert problem() == ""
    assert libraries() == [library]
    assert library.read_bytes() == content
    message = (
        f"building the kernels in C++, those in {library.parent} are damaged; this takes half a minute\n"
    )
    assert capsys.readouterr().err == message


@needs_a_compiler
@pytest.mark.parametrize("depth", [0, 1, 2], ids=["the library", "its folder", "the folder of all"])
@pytest.mark.parametrize("change", ["group may write", "all may write", "other owner"])
def test_a_library_that_others_may_change_is_not_loaded(compiler: Path, depth: int, change: str) -> None:
    assert problem() == ""
    path = [libraries()[0], *libraries()[0].parents][depth]
    if change == "other owner":
        if os.getuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(path, 12345, -1)
    else:
        path.chmod(path.stat().st_mode | (0o020 if change == "group may write" else 0o002))
    reason = f"{path} belongs to another user or can be written by others; remove it"
    assert problem() == f"they cannot be built or loaded: {reason}"


@needs_a_compiler
def test_the_library_is_private_whatever_the_umask(compiler: Path) -> None:
    before = os.umask(0)
    try:
        assert problem() == ""
    finally:
        os.umask(before)
    for path in [libraries()[0], *libraries()[0].parents][:3]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


@needs_a_compiler
def test_the_library_is_on_the_disk_before_it_has_its_name(
    compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(old: Path, new: Path) -> None:
        events.append(f"{new}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    assert problem() == ""
    flushed = next(i for i, event in enumerate(events) if event.endswith("/library.so"))
    named = events.index(str(libraries()[0].parent))
    assert flushed < named


@needs_a_compiler
def test_a_build_that_is_killed_leaves_nothing(compiler: Path) -> None:
    (compiler / "c++").write_text(STAND_IN.format(folder=compiler, seconds=2))
    process = multiprocessing.get_context("fork").Process(target=problem)
    process.start()
    while not [*kernels.folder().glob("nmt-*/folder/*.o")]:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert libraries() == []
    (compiler / "c++").write_text(STAND_IN.format(folder=compiler, seconds=0))
    assert problem() == ""
    assert {path.name for path in kernels.folder().iterdir()} == {".lock", libraries()[0].parent.name}


@needs_a_compiler
def test_a_compiler_that_hangs_is_killed(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (compiler / "c++").write_text(STAND_IN.format(folder=compiler, seconds=1))
    monkeypatch.setattr(kernels, "LONGEST_BUILD", 0.3)
    assert problem() == f"{compiler / 'c++'} was not done after 0 minutes"
    assert libraries() == []


@needs_a_compiler
def test_another_compiler_or_c_library_gets_another_library(
    compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem() == ""
    (compiler / "version").write_text("1.1")
    assert problem() == ""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.0"))
    assert problem() == ""
    monkeypatch.setattr("torch.compiled_with_cxx11_abi", lambda: False)
    assert problem() == ""
    monkeypatch.setattr("torch.__version__", "1.0")
    assert problem() == ""
    assert len(libraries()) == num_builds(compiler) == 5


def refuse(*_: object) -> None:
    raise OSError("no locks")


@needs_a_compiler
@pytest.mark.parametrize("has_locks", [True, False])
def test_two_processes_that_build_at_once_both_have_a_library(
    has_locks: bool, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (compiler / "c++").write_text(STAND_IN.format(folder=compiler, seconds=0.3))
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", refuse)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=lambda: sys.exit(bool(problem()))) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    [library] = libraries()
    assert library.read_bytes() == (compiler / "empty.so").read_bytes()
    assert {path.name for path in kernels.folder().iterdir()} == {".lock", library.parent.name}
    assert num_builds(compiler) == (1 if has_locks else 2)
    assert problem() == ""


@needs_a_compiler
def test_a_process_that_waits_for_another_says_so(compiler: Path, tmp_path: Path) -> None:
    kernels.folder().mkdir(parents=True, mode=0o700)
    words = tmp_path / "words"
    words.touch()

    def build() -> None:
        with words.open("w", buffering=1) as file, contextlib.redirect_stderr(file):
            sys.exit(bool(problem()))

    process = multiprocessing.get_context("fork").Process(target=build)
    with open(kernels.folder() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process.start()
        while not words.read_text().endswith("\n") and process.is_alive():
            time.sleep(0.01)
        said = words.read_text()
        fcntl.flock(lock, fcntl.LOCK_UN)  # the process has the file open, too
    process.join()
    assert (process.exitcode, num_builds(compiler)) == (0, 1)
    assert said == "waiting for the kernels in C++, which another process builds\n"


@needs_a_compiler
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "/bin/false", "/bin/false failed with no reason given"),
        (
            "CXX",
            "/no/compiler",
            "they cannot be built or loaded: [Errno 2] No such file or directory: '/no/compiler'",
        ),
        (
            "CXX",
            "/no/ccache c++",
            "they cannot be built or loaded: [Errno 2] No such file or directory: '/no/ccache'",
        ),
        (
            "NMT_CACHE",
            "/proc/cache",
            "they cannot be built or loaded: [Errno 2] No such file or directory: '/proc/cache'",
        ),
        ("NMT_CACHE", "/dev/null", "they cannot be built or loaded: [Errno 17] File exists: '/dev/null'"),
    ],
)
def test_without_compiler_or_cache_one_status_says_why(
    variable: str, value: str, reason: str, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert problem().startswith(reason)
    monkeypatch.setattr(kernels, "problem", problem)
    assert kernels.status().startswith(f"without kernels: {reason}")
    assert not kernels.load()


@needs_a_compiler
def test_a_library_that_cannot_be_loaded_is_told_with_the_reason(compiler: Path) -> None:
    (compiler / "empty.so").write_bytes(b"no library")
    assert problem() == f"they cannot be built or loaded: {libraries()[0]}: file too short"


@needs_a_compiler
def test_without_a_home_folder_the_way_out_is_named(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "NMT_CACHE"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # of no user
    found = "the cache has no place, as this user has no home folder; set NMT_CACHE to a folder for it"
    assert problem() == f"they cannot be built: {found}"
    with pytest.raises(UserError, match=f"^{found}$"):
        cache_dir()


@needs_a_compiler
def test_a_compiler_that_fails_is_quoted_in_english_and_leaves_nothing(
    compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    failing = 'echo "training.cpp:1: error: no space $LC_ALL" >&2; exit 1'
    (compiler / "c++").write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{failing}\n')
    needed = "they need g++ 11 or later, which CXX may name"
    assert problem() == f"{compiler}/c++ failed with training.cpp:1: error: no space C; {needed}"
    assert [path.name for path in kernels.folder().iterdir()] == [".lock"]


@needs_a_compiler
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf '\\273x\\253: Fehler\\n' >&2; exit 1", "\ufffdx\ufffd: Fehler; they need"),
        ("", "an error of its own: it wrote no library; they need"),
        (
            '[ "$1" = -shared ] || exit 0; echo "cannot find -lgomp" >&2; '
            'echo "collect2: error: ld" >&2; exit 1',
            "cannot find -lgomp; they need",
        ),
    ],
)
def test_the_reason_of_a_failed_build_is_that_of_the_compiler(script: str, told: str, compiler: Path) -> None:
    (compiler / "c++").write_text(f"#!/bin/sh\nprintf 'g++ \\251\\n'\n{script}\n")
    assert told in problem()


def test_without_any_compiler_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert problem() == "there is no C++ compiler; install g++ 11 or later"
