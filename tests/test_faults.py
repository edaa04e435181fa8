"""The faults that a run must survive: each has a test that injects it, marked with its number.

`@pytest.mark.fault(16)` on a test means that the test injects fault 16 of `FAULTS`. At least one test of each
fault runs with every change: it is neither slow nor skipped everywhere. SECURITY.md and
docs/runs.md promise what is tested there; scripts/soak.py and scripts/fuzz.py inject thousands at random.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

FAULTS = {
    # Crash and resume
    1: "SIGKILL at a random step: the same command ends with the weights of an uninterrupted run",
    2: "SIGKILL at every write, fsync and rename of a save: the old checkpoint or the new one is there",
    3: "SIGKILL while old checkpoints are deleted: one is valid, and leftovers go at the next start",
    4: "three kills in one epoch, at its end and right after a validation: identical",
    5: "another number of workers after a restart: identical",
    6: "a kill with accumulation, dropout, label smoothing and sampled subwords: identical",
    7: "a kill in mixed precision: loss scale, schedule, best score and patience go on",
    8: "a kill between two lines of metrics: each step is there exactly once",
    9: "a damaged newest checkpoint is set aside by name, the one before it is used",
    10: "all checkpoints damaged: each with its reason, nothing is overwritten",
    11: "a damaged checkpoint that was asked for by name is never replaced by another",
    12: "a full disk: the old checkpoint stays, training goes on, and stops after repeated failures",
    13: "a run directory that cannot be written, or is a file, is refused before the model is built",
    14: "a second process in a run directory is refused, with the host and process of the first",
    15: "a checkpoint of an earlier version goes on with the same losses, one of a newer version is refused",
    # Signals
    16: "SIGTERM in any phase: saved where there is something to save, exit code 143, preempted, in time",
    17: "SIGUSR1 under Slurm with requeue: scontrol is called once, by rank 0",
    18: "Ctrl-C once saves, twice leaves at once; in a sweep no further trial starts",
    19: "SIGTERM to one of two ranks: both save the same step and end",
    # Numbers, memory, hangs
    20: "NaN on one rank: all stop before the update, and the pairs are named",
    21: "non-finite updates are skipped if asked for, up to a limit in a row",
    22: "out of memory: the batch is tried again in parts with the same result",
    23: "a killed worker is named, and nothing hangs",
    24: "a process that sleeps for ever ends the others within a timeout",
    25: "the same seed twice gives the same weights, another seed other ones",
    # Data and config
    26: "lines that are misaligned by one, CR, U+2028, NUL, a missing last line feed",
    27: "empty, blank, UTF-16, Latin-1, gzip by name, a directory: each has its own message",
    28: "a dirty corpus trains, with exact counts and bounded memory",
    29: "a thousand lines in, a thousand out, also with empty and overlong ones; a closed pipe is quiet",
    30: "a vocabulary that is too large or small, a changed tokenizer",
    31: "the same file for both sides, test pairs in the training data, a misspelt split, all pairs too long",
    32: "unknown key, wrong type, out of range, missing group: all in one message",
    33: "any overrides: exit code 0 or 2, never a traceback",
    34: "trials of a sweep that raise, exit, are killed or return NaN end alone; rerun runs the rest",
    # Security
    35: "pickles, _target_, YAML tags, aliases and environment variables in files run no code",
    36: "safetensors of wrong shapes, names, sizes and offsets: one message, bounded memory",
    37: "links out of a run directory, files that never end: nothing outside is touched",
    38: "markup and escapes in text are shown as text; no secret is stored",
    # Several processes
    39: "two ranks compute what one computes; 2, 1, 2 ranks go on in one order",
    40: "SIGKILL of a rank under torchrun --max-restarts: the restart goes on, identical",
    41: "a dead link or a stopped rank is named within the timeout; the rerun is identical",
    42: "batches that two ranks cannot share evenly: nothing hangs, every pair is used once",
}


RARE = r"pytest\.mark\.(slow|gpu|network|skip)\b"
"""A mark of a test that the suite of every change leaves out; what is skipped if ... runs somewhere."""


def marked(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield the number of each fault that a test of a file injects, and whether the test is left out."""
    tree = ast.parse(path.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    of_all = [ast.unparse(node.value) for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = of_all + [ast.unparse(decorator) for decorator in node.decorator_list]
            is_left_out = any(re.match(RARE, mark) for mark in marks)
            for numbers in re.findall(r"pytest\.mark\.fault\(([\d, ]+)\)", " ".join(marks)):
                yield from ((int(number), is_left_out) for number in numbers.split(","))


@pytest.fixture(scope="module")
def injected() -> dict[int, list[bool]]:
    """Return by the number of a fault which of its tests are left out."""
    found: dict[int, list[bool]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for number, is_left_out in marked(path):
            found.setdefault(number, []).append(is_left_out)
    return found


@pytest.mark.parametrize("number", FAULTS)
def test_a_test_of_every_change_injects_the_fault(number: int, injected: dict[int, list[bool]]) -> None:
    assert not all(injected.get(number, [])), FAULTS[number]


def test_every_mark_names_a_fault(injected: dict[int, list[bool]]) -> None:
    assert set(injected) <= set(FAULTS)


def test_every_guarantee_names_tests_that_are_there() -> None:
    text = (TESTS.parent / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 7
    for file, function in named:
        content = (TESTS.parent / file).read_text()
        assert not function or f"def {function}(" in content, f"{file}::{function}"
