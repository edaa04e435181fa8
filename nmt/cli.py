"""`nmt VERB [overrides]`: choose the verb, show errors, set the exit code.

Knows no config and no model: the arguments of a verb go to `nmt.config.compose`, the configs to the module
that its row of `nmt.verbs` names. Both are imported once a verb is known: `nmt --help` answers at once.

Exit codes: 0 done, 1 a bug of ours, 2 the user's config or data, 3 a sweep with failed trials, 4 training
stopped, 128 + N after signal N.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt import __version__
from nmt.config.verb import Verb
from nmt.errors import Interrupted, Log, NmtError, UserError, suggest
from nmt.files import OTHER_RUN, require_unlocked
from nmt.verbs import VERBS

if TYPE_CHECKING:
    from nmt.config.compose import Composed

HELP = """\
nmt {version}: neural machine translation, from text to BLEU

usage: nmt VERB [GROUP=CHOICE ...] [key=value ...] [options]

{verbs}

{examples}

nmt VERB --help lists the groups, their choices and every key. eval "$(nmt -sc install=bash)" completes them.
"""
SHELLS = ("bash", "fish", "zsh")
SWEEP_FAILED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code of the process, which may be one of several."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return run_command(arguments, print_error)
    from nmt.distributed import Launch

    with Launch() as launch:
        return launch.end(run_command(arguments, launch.log))


def print_error(text: str) -> None:
    """Write `text` to standard error."""
    print(text, file=sys.stderr)


def run_command(argv: list[str], log: Log) -> int:
    """Run the command, report through `log` what cut it short, and return the exit code."""
    try:
        code = dispatch(argv)
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        log(str(stop))
        return stop.exit_code
    except NmtError as error:
        log(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        log("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of the pipe is gone (`nmt translate ... | head`): let Python's flush at exit go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def dispatch(argv: list[str]) -> int:
    """Run the verb or the option that the first argument names, and return the exit code."""
    verbs = "\n".join(f"  {name:<11}{verb.summary}" for name, verb in VERBS.items())
    examples = "\n".join(f"  {verb.examples[0]}" for verb in VERBS.values())
    usage = HELP.format(version=__version__, verbs=verbs, examples=examples)
    first, rest = (argv[0], argv[1:]) if argv else ("", [])
    if first in VERBS:
        return run_verb(VERBS[first], rest)
    if first in ("-h", "--help", "help"):
        print(usage, end="")
    elif first in ("-V", "--version"):
        print(f"nmt {__version__}")
    elif first in ("-sc", "--shell-completion"):
        complete_in_shell(rest)
    elif not first:
        print(usage, end="", file=sys.stderr)
        return UserError.exit_code
    elif "=" in first or first.startswith("-"):
        raise UserError(f"the verb comes first: nmt {'|'.join(VERBS)} {first} ...")
    else:
        raise UserError(
            f"there is no verb {first!r}{suggest(first, VERBS)}; the verbs are {', '.join(VERBS)}"
        )
    return 0


def _require_one_process(what: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{what} runs in one process; start it without torchrun")


def _require_unlocked(argv: list[str]) -> None:
    """Refuse a run directory that another training uses, at once: to import torch takes seconds."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not any(word.startswith("-") for word in argv):
        for run in [word.partition("=")[2] for word in argv if word.startswith("run=")]:
            require_unlocked(Path(run), OTHER_RUN)


def run_verb(verb: Verb, argv: list[str]) -> int:
    """Compose the configs of `verb` and run each."""
    if not verb.opens_run:
        _require_unlocked(argv)
    from nmt.config.compose import compose

    if not verb.shared:
        _require_one_process(f"nmt {verb.name}")
    trials = compose(verb, argv)
    if any(trial.name for trial in trials):
        _require_one_process("a sweep")
        return sweep(trials, verb.run)
    for trial in trials:
        verb.run(trial)
    return 0


def sweep(trials: Sequence[Composed], action: Callable[[Composed], dict[str, Any]]) -> int:
    """Run every trial whatever happens to the others, print a table and return the exit code."""
    rows = []
    for number, trial in enumerate(trials, start=1):
        print(f"[{number}/{len(trials)}] {trial.name}", file=sys.stderr)
        try:
            rows.append((trial.name, "done", score(action(trial))))
        except Interrupted:
            raise
        except NmtError as error:
            print(f"error: {error}", file=sys.stderr)
            rows.append((trial.name, "failed", str(error).splitlines()[0]))
        except Exception as error:  # out of memory, a bug: it ends one trial and not the sweep
            traceback.print_exc()
            rows.append((trial.name, "failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    width = max(len(name) for name, _, _ in rows)
    for name, status, outcome in [("trial", "status", "score"), *rows]:
        print(f"{name:<{width}}  {status:<6}  {outcome}")
    return SWEEP_FAILED if any(status == "failed" for _, status, _ in rows) else 0


def score(results: dict[str, Any]) -> str:
    """Return the scores of a trial as text: on the test split if it was scored, else validation, train."""
    from nmt.decoding.metrics import labelled_scores

    scored = [results[split] for split in ("test", "validation", "train") if split in results]
    return "  ".join(labelled_scores(scored[0])) if scored else "-"


def complete_in_shell(request: Sequence[str]) -> None:
    """Set up completion in a shell, or answer the shell, which sends the line typed so far in $COMP_LINE."""
    action, _, shell = request[0].partition("=") if len(request) == 1 else ("", "", "")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise UserError(
            f"say nmt -sc install=SHELL or uninstall=SHELL, with SHELL one of {', '.join(SHELLS)}"
        )
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    verb = words[1] if len(words) > 1 else ""
    if action == "query" and verb not in VERBS:
        print(*VERBS)
        return
    from nmt.config.compose import complete

    os.environ["COMP_LINE"] = line.replace(f" {verb}", "", 1)
    sys.argv[0] = "nmt"  # the command to complete, however this process was started
    complete(VERBS[verb or "train"], request)
