"""`nmt VERB [overrides]`: choose the verb, show errors, set the exit code.

Knows no config and no model: a verb's arguments go to `nmt.config.compose`, its configs to `nmt.verbs` or
`nmt.runs.opened`. They are imported only once a verb is known, so that `nmt --help` answers at once.

Exit codes: 0 done, 1 a bug of ours, 2 the user's config or data, 3 a sweep with failed trials, 4 training
stopped, 128 + N after signal N.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nmt import __version__
from nmt.errors import Interrupted, NmtError, UserError, suggest

if TYPE_CHECKING:
    from nmt.config.compose import Composed

VERBS = {
    "train": "train a model and score it; the same command again continues or reports",
    "evaluate": "score a trained model: its recorded score again, or on other data",
    "translate": "translate standard input to standard output line by line, or a large file",
    "generate": "continue a text with a trained language model",
    "attention": "show what a trained model attends to: a page, images and word alignments",
}
HELP = f"""\
nmt {__version__}: neural machine translation, from text to BLEU

usage: nmt VERB [GROUP=CHOICE ...] [key=value ...] [options]

{chr(10).join(f"  {verb:<11}{text}" for verb, text in VERBS.items())}

  nmt train                                  train the bundled demo
  nmt train experiment=multi30k_en_de        train a recipe
  nmt evaluate run=RUN                       score the run directory RUN
  nmt translate run=RUN < src.txt > hyp.txt  translate with it
  nmt generate run=RUN prompt="A man"        continue a text with a language model
  nmt attention run=RUN < src.txt            see what it looks at

nmt VERB --help lists the groups, their choices and every key. eval "$(nmt -sc install=bash)" completes them.
"""
SHARED_VERBS = ("train", "evaluate")
"""Those that several processes, started by torchrun, can share."""
SHELLS = ("bash", "fish", "zsh")
SWEEP_FAILED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code of the process, which may be one of several."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return run_command(arguments, print_error)
    from nmt.distributed import Launch

    with Launch() as launch:
        return launch.end(run_command(arguments, launch.say))


def print_error(text: str) -> None:
    """Write `text` to standard error."""
    print(text, file=sys.stderr)


def run_command(argv: list[str], say: Callable[[str], None]) -> int:
    """Run the command, `say` what ended it before its time, and return the exit code."""
    try:
        code = dispatch(argv)
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        say(str(stop))
        return stop.exit_code
    except NmtError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has left (`nmt translate ... | head`). What Python flushes at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def dispatch(argv: list[str]) -> int:
    """Run what the first argument names."""
    first, rest = (argv[0], argv[1:]) if argv else ("", [])
    if first in VERBS:
        return run_verb(first, rest)
    if first in ("-h", "--help", "help"):
        print(HELP, end="")
    elif first in ("-V", "--version"):
        print(f"nmt {__version__}")
    elif first in ("-sc", "--shell-completion"):
        complete(rest)
    elif not first:
        print(HELP, end="", file=sys.stderr)
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


def run_verb(verb: str, argv: list[str]) -> int:
    """Compose the configs of `verb` and run each."""
    from nmt.config import compose

    if verb not in SHARED_VERBS:
        _require_one_process(f"nmt {verb}")
    trials = compose.compose(verb, argv)
    is_sweep = any(trial.name for trial in trials)
    if is_sweep:
        _require_one_process("a sweep")
    if is_sweep:
        return sweep(trials, ACTIONS[verb])
    for trial in trials:
        ACTIONS[verb](trial)
    return 0


def train(trial: Composed) -> dict[str, Any]:
    """Train one config and return its results."""
    cfg, run_dir = trial.to_training()
    from nmt.verbs import train

    return train.train(cfg, run_dir)


def evaluate(trial: Composed) -> dict[str, Any]:
    """Score one run and return the results."""
    from nmt.config.roots import EvaluateConfig
    from nmt.runs import opened

    return opened.evaluate(trial.to_config(EvaluateConfig))


def translate(trial: Composed) -> dict[str, Any]:
    """Translate a file with several workers, or standard input to standard output."""
    from nmt.config.roots import TranslateConfig
    from nmt.runs import opened
    from nmt.verbs import translate_file

    cfg = trial.to_config(TranslateConfig)
    (opened.translate if cfg.input is None else translate_file.translate_file)(cfg)
    return {}


def generate(trial: Composed) -> dict[str, Any]:
    """Continue a text."""
    from nmt.config.roots import GenerateConfig
    from nmt.runs import opened

    opened.generate(trial.to_config(GenerateConfig))
    return {}


def attention(trial: Composed) -> dict[str, Any]:
    """Show what a model attends to for the sentences on standard input."""
    from nmt.config.roots import AttentionVerbConfig
    from nmt.runs import opened

    opened.attention(trial.to_config(AttentionVerbConfig))
    return {}


ACTIONS: dict[str, Callable[[Composed], dict[str, Any]]] = {
    "train": train,
    "evaluate": evaluate,
    "translate": translate,
    "generate": generate,
    "attention": attention,
}


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
        except (
            Exception
        ) as error:  # out of memory, a bug: whatever it is, it ends one trial and not the sweep
            traceback.print_exc()
            rows.append((trial.name, "failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    width = max(len(name) for name, _, _ in rows)
    for name, status, outcome in [("trial", "status", "score"), *rows]:
        print(f"{name:<{width}}  {status:<6}  {outcome}")
    return SWEEP_FAILED if any(status == "failed" for _, status, _ in rows) else 0


def score(results: dict[str, Any]) -> str:
    """Return the scores of a trial: on the test split if that was scored."""
    from nmt.decoding.metrics import labelled_scores

    scored = [results[split] for split in ("test", "validation", "train") if split in results]
    return "  ".join(labelled_scores(scored[0])) if scored else "-"


def complete(request: Sequence[str]) -> None:
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
    from nmt.config import compose

    os.environ["COMP_LINE"] = line.replace(f" {verb}", "", 1)
    compose.complete(verb or "train", request)
