"""`nmt VERB [overrides]`: choose the verb, show errors, set the exit code.

Knows no config and no model: the arguments of a verb go to `nmt.config.compose`, the configs to the module
that its row of `nmt.verbs` names. Both are imported once a verb is known: `nmt --help` answers at once.

Exit codes: 0 done, 1 a bug of ours, 2 the user's config or data, 3 a sweep with failed trials, 4 training
stopped, 5 a training that was not reproduced, 128 + N after signal N.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nmt import __version__
from nmt.config.verb import Verb
from nmt.errors import Interrupted, Log, NmtError, UserError, suggest, visible
from nmt.files import another, require_unlocked
from nmt.loading import loaded
from nmt.runtime_config import num_processes, require_one_process
from nmt.streams import standard_streams
from nmt.verbs import VERBS

HELP = """\
nmt {version}: neural machine translation, from text to BLEU

usage: nmt VERB [GROUP=CHOICE ...] [key=value ...] [options]

{verbs}

{examples}

nmt VERB --help lists groups, choices and every key; nmt VERB --help PART those
of one part, and nmt VERB --help WORD the keys that have to do with it.
eval "$(nmt -sc install=bash)" completes them.
"""
HELP_WORDS = ("-h", "--help", "help")
SHELLS = ("bash", "fish", "zsh")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code of the process, which may be one of several.

    Without `argv` the command is that of the process, whose standard streams are then made safe, too.
    """
    if argv is None:
        gc.disable()  # modules and configs are no garbage; a tenth of the time of a start
        with standard_streams():
            return main(sys.argv[1:])
    arguments = list(argv)
    if num_processes() == 1:
        return report(lambda: dispatch(arguments), print_error)
    from nmt.distributed import Launch

    with Launch() as launch:
        return launch.end(report(lambda: dispatch(arguments), launch.log))


def print_error(text: str) -> None:
    """Write `text` to standard error."""
    print(text, file=sys.stderr)


def report(call: Callable[[], int], log: Log) -> int:
    """Call `call`, tell `log` what cut it short, and return the exit code; nothing else shows an error."""
    try:
        code = call()
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        log(visible(str(stop)))
        return stop.exit_code
    except NmtError as error:
        log(visible(f"error: {error}"))
        return error.exit_code
    except KeyboardInterrupt:
        log("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the pipe is gone: `nmt translate ... | head`
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EACCES) or error.filename is None:
            raise
        name = str(error.filename)
        log(visible(f"error: {name[:80]}{'...' if len(name) > 80 else ''}: {error.strerror}"))
        return UserError.exit_code


def dispatch(argv: list[str]) -> int:
    """Run the verb or the option that the first argument names, and return the exit code."""
    verbs = "\n".join(f"  {name:<11}{verb.summary}" for name, verb in VERBS.items())
    examples = "\n".join(f"  {verb.examples[0]}" for verb in VERBS.values())
    usage = HELP.format(version=__version__, verbs=verbs, examples=examples)
    first, rest = (argv[0], argv[1:]) if argv else ("", [])
    if first in HELP_WORDS and rest:
        first, rest = rest[0], ["--help", *rest[1:]]
    if first in VERBS:
        return run_verb(VERBS[first], rest)
    if first in HELP_WORDS:
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


def _require_unlocked(argv: list[str]) -> None:
    """Refuse a run directory that another training uses, at once: to import torch takes seconds."""
    if num_processes() == 1 and not any(word.startswith("-") for word in argv):
        for run in [word.partition("=")[2] for word in argv if word.startswith("run=")]:
            require_unlocked(Path(run), another("run"))


def run_verb(verb: Verb, argv: list[str]) -> int:
    """Compose the configs of `verb` and run each."""
    if verb.writes_run:
        _require_unlocked(argv)
    from nmt.config.compose import compose
    from nmt.config.overrides import parse_flags
    from nmt.config.trials import plan

    if not verb.shared:
        require_one_process(f"nmt {verb.name}")
    flags = parse_flags(verb, argv)
    if flags.multirun and not flags.help:
        planned = plan(verb, argv)
        require_one_process("a sweep")
        from nmt.sweeps.drive import sweep

        _collect_garbage()
        return sweep(planned, verb.run, report)
    if trials := compose(verb, argv):
        loaded(verb.code)
        _collect_garbage()
    for trial in trials:
        verb.run(trial)
    return 0


def _collect_garbage() -> None:
    """Let the garbage collector begin in the process of a command, and skip what is there already."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def complete_in_shell(request: Sequence[str]) -> None:
    """Print the script that sets up completion in a shell, or the words that may end $COMP_LINE."""
    action, _, shell = request[0].partition("=") if len(request) == 1 else ("", "", "")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise UserError(
            f"say nmt -sc install=SHELL or uninstall=SHELL, with SHELL one of {', '.join(SHELLS)}"
        )
    from nmt.config import completion

    if action == "query":
        print(*completion.completions(VERBS, os.environ.get("COMP_LINE", "")), sep="\n")
    else:
        print((completion.SCRIPTS if action == "install" else completion.REMOVAL)[shell])
