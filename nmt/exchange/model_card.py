"""The card of an exported model: a README.md that says what the model is, from what its run has recorded.

Nothing is asked of the network, and nothing is invented: what a run has not recorded, the card says is not
recorded.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt import __version__
from nmt.config.roots import Task
from nmt.config.stored import to_plain
from nmt.data.configs import SEPARATOR, directions
from nmt.data.parallel_text import one_line
from nmt.data.tokens.label_set import named
from nmt.data.tokens.tokenizer_training import Case
from nmt.exchange.configs import ExportConfig, Format
from nmt.exchange.shared import beam_search_of, lost_settings, recorded_scores, transformer_of
from nmt.files import IMPORT_RECORD, read_json
from nmt.layers.choices import Positions
from nmt.metrics.scoring import label_of
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.opened import Run

LICENSE = "LICENSE-PLACEHOLDER"
"""What stands where the owner of a model has to choose a license."""


class Purpose(NamedTuple):
    """What a model is for, as its card says."""

    what: str
    """What stands in the title of the card."""
    does: str
    """What the model does, behind "A model that"."""
    pipeline: str
    """What model hubs call it."""
    limits: Sequence[str]
    """Sentences about its inputs."""


def _translation(run: Run) -> Purpose:
    languages = directions(run.cfg.data.languages)
    line = "One line is one sentence or short paragraph"
    if run.cfg.data.context:
        of = " with their translations" if run.cfg.data.context_target else ""
        limits = [f"{line}; in training, up to {run.cfg.data.context} before it{of} stood in front."]
    else:
        limits = [f"{line}; the model sees no other line."]
    return Purpose(languages, f"translates {languages}", "translation", limits)


def _language_model(run: Run) -> Purpose:
    return Purpose(run.cfg.data.tgt, f"continues text in {run.cfg.data.tgt}", "text-generation", [])


def _classification(run: Run) -> Purpose:
    labels = one_line(named(run.tokenizer.labels))
    is_pair = SEPARATOR in run.cfg.data.symbols
    text, way = "a text", []
    if is_pair:
        text, way = "two texts", [f"Two texts are one line, with the piece {SEPARATOR} between."]
    return Purpose(labels, f"finds the label of {text} ({labels})", "text-classification", way)


PURPOSES: dict[Task, Callable[[Run], Purpose]] = {
    Task.translation: _translation,
    Task.language_model: _language_model,
    Task.classification: _classification,
}


def model_card(run: Run, cfg: ExportConfig, program: str, longest: int) -> str:
    """Return the card; `program` uses the folder, whose positions allow `longest` tokens."""
    purpose = PURPOSES[run.cfg.task](run)
    about = f"A model that {purpose.does}, {_origin(run)}.{_mean(cfg)}"
    parts = {
        f"{Path(cfg.runs[0]).name}: {purpose.what}": about,
        "Use": f"In this folder ({_requirements(run, cfg)}):\n\n```python\n{program}```",
        "Scores": _scores(run, cfg),
        "Model": _model(run, cfg),
        "Training data": _data(run),
        "Training": _training(run),
        "Limits": "\n".join(f"- {limit}" for limit in _limits(run, cfg, longest)),
        "License": f"{LICENSE}: no license was chosen yet. Put one here, and in the first lines of this "
        "file, before you share the model; that of the training data may bind you.",
    }
    (title, text), *rest = parts.items()
    sections = "".join(f"\n## {name}\n\n{content}\n" for name, content in rest)
    return _without_home(f"{_front_matter(run, cfg)}\n# {title}\n\n{text}\n{sections}")


def _without_home(text: str) -> str:
    """Return a text for others, in which paths do not tell the home directory of whoever trained."""
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def _mean(cfg: ExportConfig) -> str:
    """Return what is said of a model whose weights are the mean of those of several runs."""
    if len(cfg.runs) == 1:
        return ""
    shares = zip(cfg.ensemble.normalised(len(cfg.runs)), cfg.runs, strict=True)
    named = ", ".join(f"{share:.3g} of {Path(run).name}" for share, run in shares)
    return f" Its weights are the mean of several runs' ({named}); what follows is recorded of the first."


def _front_matter(run: Run, cfg: ExportConfig) -> str:
    """Return the lines that model hubs read."""
    names = dict.fromkeys(name for pair in run.cfg.data.languages for name in pair)
    library = {Format.huggingface: "transformers"}.get(cfg.format, cfg.format.value)
    languages = [] if run.tokenizer.labels else ["language:", *(f"- {name!r}" for name in names)]
    pipeline = f"pipeline_tag: {PURPOSES[run.cfg.task](run).pipeline}"
    lines = ["---", *languages, f"license: {LICENSE}", f"library_name: {library}", pipeline, "---"]
    return "\n".join(lines)


def _requirements(run: Run, cfg: ExportConfig) -> str:
    tokenizer = run.cfg.tokenizer
    if cfg.format is Format.nmt:  # which prepares targets, too
        needed = {
            "tokenizers": None in run.tokenizer.kinds,
            "sacremoses": bool(tokenizer.moses_src or tokenizer.moses_tgt),
        }
        others = "".join(f" and `{name}`" for name, is_needed in needed.items() if is_needed)
        return f"with `nmt` {__version__} or later{others}"
    libraries = {
        Format.ctranslate2: "ctranslate2 sentencepiece",
        Format.huggingface: "'transformers>=5' torch sentencepiece",
        Format.safetensors: "safetensors torch sentencepiece",
    }
    return f"`pip install {libraries[cfg.format]}{' sacremoses' * bool(tokenizer.moses_src)}`"


def _recorded(run: Run, name: str) -> dict[str, Any]:
    """Return a JSON file of the run, or nothing when there is none."""
    file = run.directory.path / name
    return read_json(file) if file.is_file() else {}


def _origin(run: Run) -> str:
    """Return who trained the model, as far as the run has recorded it."""
    if found := _recorded(run, IMPORT_RECORD):
        kind = one_line(str(found.get("config", {}).get("model_type", "another")))
        return f"trained by another program and imported into `nmt` {__version__} from a {kind} model"
    version = _recorded(run, "environment.json").get("packages", {}).get("nmt", __version__)
    start = " from the weights of another model" if run.cfg.init.run else ""
    return f"trained with `nmt` {version}{start}"


def _scores(run: Run, cfg: ExportConfig) -> str:
    """Return a table of the recorded scores and their signatures, or why there is none."""
    results = recorded_scores(run)
    if len(cfg.runs) > 1:
        return "None recorded: the mean of several runs has no results of its own."
    if cfg.encoder_layers is not None or cfg.decoder_layers is not None:
        return "None recorded: those of the run are of all layers, of which some are left out here."
    if results is None:
        return "None recorded: the run has no finished training of its own."
    splits = [split for split in ("validation", "test") if results.get(split)]
    names = dict.fromkeys(name for split in splits for name in results[split])
    rows = [[label_of(name), *(_number(results[split].get(name)) for split in splits)] for name in names]
    lines = [_table(["", *splits], rows)]
    exported, final = (identify_checkpoint(cfg.runs[0], name) for name in (cfg.checkpoints[0], "final"))
    if exported != final:
        lines.append(f"These are the scores of checkpoint {final[0]}; exported is {exported[0]}.")
    lines.append("They were computed before the export, by `nmt` itself. Signatures:")
    lines.append("\n".join(f"- {label_of(name)}: `{text}`" for name, text in results["signatures"].items()))
    return "\n\n".join(lines)


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.2f}"


def _model(run: Run, cfg: ExportConfig) -> str:
    """Return a table of the sizes and variations of the model."""
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    sizes = run.tokenizer.src_vocab_size, run.tokenizer.tgt_vocab_size
    shared = "one vocabulary" if run.tokenizer.src_model == run.tokenizer.tgt_model else "source and target"
    pieces = f"{sizes[0]:,} ({shared})" if len(set(sizes)) == 1 else f"{sizes[0]:,} and {sizes[1]:,}"
    if run.tokenizer.labels:
        pieces = f"{sizes[0]:,}, and {len(run.tokenizer.labels):,} labels"
    facts = {
        "parameters": f"{parameters:,}",
        "pieces": pieces,
        "tokenizer": _tokenizer(run),
        "checkpoint": identify_checkpoint(cfg.runs[0], cfg.checkpoints[0])[0],
        "number format of the weights": cfg.quantization.value,
    }
    return _table(["", ""], [*_rows(facts), *_rows(to_plain(run.cfg.model))])


def _tokenizer(run: Run) -> str:
    """Return how the models of both sides segment."""
    kinds = run.tokenizer.kinds[: 1 if run.tokenizer.labels else 2]
    found = dict.fromkeys(f"SentencePiece, {kind.value}" if kind else "Hugging Face" for kind in kinds)
    return " and ".join(found)


def _data(run: Run) -> str:
    """Return what the run has recorded about its training data."""
    file = run.directory.path / "data" / "train.json"
    found = read_json(file) if file.is_file() else {}
    pairs = f"{found['training_pairs']:,}" if "training_pairs" in found else "not recorded"
    facts = {"pairs after filtering": pairs, "SHA-256 of the pairs": found.get("sha256", "not recorded")}
    return _table(["", ""], [*_rows(facts), *_rows(to_plain(run.cfg.data), "data.")])


def _training(run: Run) -> str:
    """Return the command of the training, its length and the environment."""
    environment, results = _recorded(run, "environment.json"), run.directory.results() or {}
    command = environment.get("command")
    text = "The command was not recorded." if not command else f"```\n{_command(command)}\n```"
    facts = {
        "updates": results.get("step"),
        "averaged checkpoints": results.get("averaged_steps"),
        "hours": _number(results["train_seconds"] / 3600) if "train_seconds" in results else None,
        "device": environment.get("device"),
        "number format of the products": environment.get("precision"),
        "Python": environment.get("python"),
        "platform": environment.get("platform"),
        **environment.get("packages", {}),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return f"{text}\n\n{_table(['', ''], _rows(known))}\n\nThe whole config is in config.yaml of the run."


def _command(words: list[str]) -> str:
    """Return the recorded command line, `nmt` in place of the path of the program."""
    return " ".join(["nmt", *(shlex.quote(str(word)) for word in words[1:])])


def _limits(run: Run, cfg: ExportConfig, longest: int) -> Iterator[str]:
    """Yield sentences about what the model cannot do, or does otherwise than `nmt translate`."""
    yield from PURPOSES[run.cfg.task](run).limits
    yield f"Texts have at most {longest:,} tokens."
    yield "Of its quality nothing is known beyond the scores above; other domains have not been measured."
    if cfg.format is Format.nmt:
        return
    beam_size, alpha = beam_search_of(run.cfg.decoding)
    if cfg.format is Format.safetensors:
        yield "These are weights: the program above reads them, and does not compute the model."
        return
    if run.cfg.data.context:
        yield "The program above translates each line without those before it."
    yield (
        f"The search has {beam_size} beams and divides the log probability of a translation by its length to "
        f"the power of {alpha:g}; that of `nmt` may end earlier or later and divide otherwise, so that a "
        "few translations of beam search differ."
    )
    if lost := lost_settings(run.cfg.decoding):
        settings = ", ".join(f"`{one_line(setting)}`" for setting in lost)
        yield f"The program above searches without {settings}, which the config of the model has."
    else:
        yield "Greedy search is the same, but for translations that do not end by themselves."
    if cfg.format is Format.ctranslate2 and transformer_of(run, cfg).positions is Positions.t5:
        yield "CTranslate2 before 4.8.3 computes model.positions=t5 wrongly, without a message."
    if cfg.format is Format.huggingface:
        tokenizer = run.cfg.tokenizer
        cases = tokenizer.lowercase or tokenizer.case is Case.markup
        if cases or tokenizer.strip_punctuation or tokenizer.moses_src:
            yield "The tokenizer in this folder does not prepare lines; the program above does."
        yield "A line that begins with >> and has << later is read by MarianTokenizer as a language code."


def _rows(facts: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    return [[f"{prefix}{name}", _shown(value)] for name, value in facts.items()]


def _shown(value: Any) -> str:
    """Return a value as a config file has it, in a cell of a table."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return one_line(text).replace("|", "\\|")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
