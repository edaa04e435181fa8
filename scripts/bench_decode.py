"""Speed of translation side by side with other toolkits: the same weights, the same sources, the same search.

    python scripts/bench_peers.py PEERS                                  # install the peers, once
    python scripts/bench_decode.py run RUN PEERS --output FILE.jsonl     # measure; every option: run --help
    python scripts/bench_decode.py table FILE.jsonl                      # the tables of docs/performance.md

The model is any run of a pre-norm encoder-decoder Transformer with sinusoids and one matrix of embeddings.
Each system gets lines of text and gives lines of text, SentencePiece included, loading excluded; scores are
divided by the length to the power of alpha in all of them. This project searches as `nmt translate` does; a
peer by the adapter scripts/peers/NAME_decode.py, with the weights as `nmt export` writes them for the peer,
or else converted by the adapter.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from benchmarking import (
    ADAPTERS,
    Record,
    Results,
    alternate,
    described,
    environment,
    environments,
    grouped,
    markdown,
    measured,
    median,
    median_ratio,
    read,
    session,
)
from sacrebleu.metrics.bleu import BLEU

from nmt.config.compose import compose
from nmt.config.roots import TranslateConfig
from nmt.data.pairs import Split
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokenizer_training import TokenizerKind
from nmt.errors import UserError
from nmt.exchange.configs import ExportConfig, Format, Quantization
from nmt.exchange.export import export as export_folder
from nmt.files import write_lines
from nmt.layers.choices import Activation, Norm, NormOrder, Positions
from nmt.layers.positions import sinusoids
from nmt.models.configs import TransformerConfig, Tying
from nmt.runs.opened import Run, evaluation_text, open_run, open_runs
from nmt.verbs import VERBS

OURS = "nmt"
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ctranslate2 float32": ("main", "ct2", {"compute": "float32", "workers": 1}),
    "ctranslate2 int8": ("main", "ct2", {"compute": "int8", "workers": 1}),
    "ctranslate2 int8, a worker per thread": ("main", "ct2", {"compute": "int8", "workers": None}),
    "hf": ("main", "hf", {}),
    "joeynmt": ("joeynmt", "joeynmt", {}),
}
"""System -> environment, adapter, and further keys of its job; `workers` None: as many as threads."""
EXPORTS = {"ct2": Format.ctranslate2, "hf": Format.huggingface}
"""Adapters that get the run as `nmt export` writes it."""
BEAMS = {"beam": 5, "greedy": 1}
SPEED = "sentences_per_second"
POSITIONS = 1024


def export(opened: Run, folder: Path, num_lines: int) -> Record:
    """Write weights, tokenizer, sources and references of a run to `folder`; return what all jobs share."""
    require_convertible(opened)
    cfg = opened.cfg
    model = cfg.model
    assert isinstance(model, TransformerConfig)
    weights = {name: tensor.numpy() for name, tensor in opened.model.state_dict().items()}
    np.savez(folder / "weights.npz", positions=sinusoids(POSITIONS, model.d_model).numpy(), **weights)
    (folder / "tokenizer.model").write_bytes(opened.tokenizer.src_model)
    text = evaluation_text(opened.directory, cfg, cfg.data, Split.test)
    write_lines(folder / "source.txt", text.src[:num_lines])
    write_lines(folder / "reference.txt", text.tgt[:num_lines])
    keys = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
    processor = sentencepiece.SentencePieceProcessor(model_proto=opened.tokenizer.src_model)
    pieces = [processor.id_to_piece(i) for i in range(opened.tokenizer.src_vocab_size)]
    return {
        "work": str(folder),
        "weights": str(folder / "weights.npz"),
        "tokenizer": str(folder / "tokenizer.model"),
        "sizes": {key: getattr(model, key) for key in keys},
        "vocab_size": len(pieces),
        "pieces": pieces,
        "norm_eps": model.norm_eps,
        "dropout": 0.0,
        "pad_id": PAD_ID,
        "unk_id": UNK_ID,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
    }


def exported(run: Path, folder: Path, adapter: str, number: str) -> str:
    """Export the run for a peer, in the number format `number`, unless that is done; return the folder."""
    if not folder.exists():
        opened = open_run(run)
        cfg = ExportConfig(
            run=str(run),
            decoding=opened.cfg.decoding,
            format=EXPORTS[adapter],
            output=str(folder),
            quantization=Quantization(number),
        )
        export_folder(opened, cfg)
    return str(folder)


def require_convertible(opened: Run) -> None:
    """Raise `UserError` for a model that the other toolkits cannot express as it is."""
    model, tokenizer = opened.cfg.model, opened.cfg.tokenizer
    wanted: dict[str, Any] = {
        "norm_order": NormOrder.pre,
        "norm": Norm.layer_norm,
        "norm_eps": 1e-5,
        "positions": Positions.sinusoidal,
        "activation": Activation.relu,
        "tying": Tying.all,
        "embedding_scale": True,
        "embedding_norm": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "feed_forward_bias": True,
        "d_k": None,
        "d_v": None,
    }
    if not isinstance(model, TransformerConfig):
        raise UserError(f"the run must be of model.name=transformer to be converted, but is of {model.name}")
    for key, value in wanted.items():
        if getattr(model, key) != value:
            raise UserError(f"model.{key} must be {value} to be converted, but is {getattr(model, key)}")
    if tokenizer.lowercase or tokenizer.strip_punctuation or tokenizer.kind is TokenizerKind.word:
        raise UserError(
            "the run must have a tokenizer that is a SentencePiece model and nothing else: without "
            "tokenizer.kind=word, tokenizer.lowercase and tokenizer.strip_punctuation"
        )


def translate_ours(job: Record) -> Record:
    """Translate the lines of a job as `nmt translate` does."""
    search = [f"decoding.beam_size={job['beam_size']}", f"decoding.length_penalty_alpha={job['alpha']}"]
    settings = ["decoding=beam", *search, "decoding.length_penalty=average", *job["settings"]]
    if any(setting.startswith("decoding=") for setting in job["settings"]):
        settings = job["settings"]
    threads = f"runtime.threads={job['threads']}"
    (composed,) = compose(VERBS["translate"], [f"run={job['run']}", "runtime.device=cpu", threads, *settings])
    cfg = composed.to_config(TranslateConfig)
    opened = open_runs(cfg)
    lines = Path(job["source"]).read_text(encoding="utf-8").split("\n")[:-1]
    list(opened.translate(lines[:16], cfg.decoding))
    started = time.perf_counter()
    if job["one_by_one"]:
        found = [next(opened.translate([line], cfg.decoding)) for line in lines]
    else:
        found = list(opened.translate(lines, cfg.decoding))
    seconds = time.perf_counter() - started
    write_lines(Path(job["output"]), [translation.text for translation in found])
    length = sum(len(translation.ids) for translation in found) / len(found)
    return {"seconds": seconds, SPEED: len(lines) / seconds, "mean_length": length}


def systems(args: argparse.Namespace, job: Record, folder: Path) -> dict[str, Any]:
    """Return for each system that is asked for a function that runs the system once."""
    runs: dict[str, Any] = {}
    interpreters = environments(args.peers)
    here = [sys.executable, str(Path(__file__).resolve()), "ours"]
    variants = {OURS: []} | {
        name: settings.split() for name, _, settings in (v.partition(":") for v in args.ours)
    }
    for name, settings in variants.items():
        runs[name] = (here, {"settings": settings, "run": str(args.run.resolve())}, "default")
    for name in args.systems:
        home, adapter, more = PEERS[name]
        if home not in interpreters:
            sys.exit(f"{name} is not installed in {args.peers}; see scripts/bench_peers.py")
        if "workers" in more:
            more = {**more, "workers": more["workers"] or args.threads}
        if adapter in EXPORTS:
            number = more.get("compute", "float32")
            more = {
                **more,
                "exported": str(exported(args.run, folder / f"{adapter}-{number}", adapter, number)),
            }
        command = [str(interpreters[home]), str(ADAPTERS / f"{adapter}_decode.py")]
        runs[name] = (command, more, args.allocator)
    return {
        name: functools.partial(run_once, [*command], {**job, **more}, folder / f"{number}", args, allocator)
        for number, (name, (command, more, allocator)) in enumerate(runs.items())
    }


def run_once(command: list[str], job: Record, stem: Path, args: argparse.Namespace, allocator: str) -> Record:
    """Run a system, and compare its translations with the references and with our own search."""
    job_file, output = stem.with_suffix(".json"), stem.with_suffix(".txt")
    job_file.write_text(json.dumps({**job, "output": str(output)}), encoding="utf-8")
    variables = environment(threads=args.threads, allocator=allocator)
    result = measured([*command, str(job_file)], variables)
    if "error" in result:
        return result
    lines = {
        name: Path(path).read_text(encoding="utf-8").split("\n")[:-1]
        for name, path in {"found": output, "ours": job["expected"], "wanted": job["reference"]}.items()
    }
    same = sum(x == y for x, y in zip(lines["found"], lines["ours"], strict=True))
    bleu = BLEU().corpus_score(lines["found"], [lines["wanted"]]).score
    return result | {"bleu": round(bleu, 2), "same_as_nmt": same / len(lines["ours"])}


def run(args: argparse.Namespace) -> None:
    """Measure everything: each search, on all lines at once and line by line."""
    results = Results(args.output)
    results.write(session("decode", args.peers, {"threads": args.threads, "rounds": args.rounds}))
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.redirect_stdout(sys.stderr):
        folder = Path(name)
        shared = export(open_run(args.run), folder, args.lines)
        lines = {
            key: (folder / f"{key}.txt").read_text(encoding="utf-8").split("\n")[:-1]
            for key in ("source", "reference")
        }
        for mode in args.modes:
            number = args.lines_one_by_one if mode == "one by one" else args.lines
            files = {key: folder / f"{key}-{number}.txt" for key in lines}
            for key, file in files.items():
                write_lines(file, lines[key][:number])
            for search in args.searches:
                job = shared | {key: str(file) for key, file in files.items()}
                job |= {"beam_size": BEAMS[search], "alpha": args.alpha, "one_by_one": mode == "one by one"}
                job |= {"threads": args.threads, "batch_sentences": args.batch_sentences}
                job["expected"] = str(expected(args, job, folder))
                about = {"benchmark": "decode", "search": search, "mode": mode, "lines": number}
                alternate(systems(args, job, folder), args.rounds, functools.partial(write, results, about))


def write(results: Results, about: Record, record: Record) -> None:
    """Write a result with the search, mode and number of lines that it is about."""
    results.write(about | record)


def expected(args: argparse.Namespace, job: Record, folder: Path) -> Path:
    """Write the translations of our own float32 search, for comparisons, and return their file."""
    file = folder / "expected.txt"
    ours = {"output": str(file), "settings": [], "run": str(args.run.resolve()), "one_by_one": False}
    translate_ours(job | ours)
    return file


def table(files: Iterable[Path]) -> str:
    """Return the results of some files as Markdown: machine and command of each, then one table."""
    records = read(files)
    parts = [described(record) for record in records if record["kind"] == "session"]
    header = (
        "search",
        "lines",
        "system",
        "sentences/s",
        "range",
        "nmt is",
        "mean length",
        "BLEU",
        "as nmt",
        "memory",
    )
    rows = []
    found = (record for record in records if record["kind"] == "result")
    for (search, mode), group in grouped(found, "search", "mode").items():
        by_system = {name: runs for (name,), runs in grouped(group, "system").items()}
        for name, runs in by_system.items():
            rows.append([search, mode, name, *cells(runs, by_system.get(OURS, []))])
    return "\n\n".join([*parts, markdown(header, rows)])


def cells(runs: Sequence[Record], ours: Sequence[Record]) -> list[str]:
    """Return the cells of one system in the table."""
    errors = [record["error"] for record in runs if "error" in record]
    if errors:
        return [f"failed: {errors[0]}", *[""] * 6]
    speeds = [record[SPEED] for record in runs]
    ratio = median_ratio([record for record in ours if "error" not in record], runs, SPEED)
    return [
        f"{median(runs, SPEED):,.1f}",
        f"{min(speeds):,.1f} to {max(speeds):,.1f}",
        "" if ratio is None or runs is ours else f"{ratio:.2f} times as fast",
        f"{median(runs, 'mean_length'):.2f}",
        f"{median(runs, 'bleu'):.2f}",
        f"{100 * median(runs, 'same_as_nmt'):.1f}%",
        f"{median(runs, 'peak_rss_mb') / 1024:.1f} GB",
    ]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = top.add_subparsers(dest="verb", required=True)
    measure = verbs.add_parser("run", help="measure", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    measure.add_argument("run", type=Path, help="run directory of a trained Transformer")
    measure.add_argument("peers", type=Path, help="the folder that scripts/bench_peers.py filled")
    measure.add_argument("--output", type=Path, required=True, help="JSON lines; results are appended")
    measure.add_argument("--systems", nargs="*", default=list(PEERS), choices=list(PEERS))
    measure.add_argument("--searches", nargs="+", default=list(BEAMS), choices=list(BEAMS))
    measure.add_argument(
        "--modes", nargs="+", default=["batch", "one by one"], choices=["batch", "one by one"]
    )
    measure.add_argument("--rounds", type=int, default=3)
    measure.add_argument("--lines", type=int, default=1000, help="lines of the test split, as one batch")
    measure.add_argument("--lines-one-by-one", type=int, default=200)
    measure.add_argument("--batch-sentences", type=int, default=64, help="sentences of a batch of a peer")
    measure.add_argument("--alpha", type=float, default=1.0, help="exponent of the length penalty")
    measure.add_argument("--threads", type=int, default=2)
    measure.add_argument("--allocator", default="tuned", choices=["default", "tuned"], help="of the peers")
    measure.add_argument(
        "--ours",
        nargs="*",
        default=[],
        metavar="NAME:KEY=VALUE ...",
        help="more searches of ours, each with its settings; one with decoding=... has these settings alone",
    )
    show = verbs.add_parser("table", help="make tables of results")
    show.add_argument("files", nargs="+", type=Path)
    ours = verbs.add_parser("ours", help="one translation of ours, as `run` starts it")
    ours.add_argument("job", type=Path)
    return top


def main() -> None:
    """Run the command that the first argument names."""
    args = parser().parse_args()
    if args.verb == "run":
        run(args)
    elif args.verb == "table":
        print(table(args.files))
    else:
        print(json.dumps(translate_ours(json.loads(args.job.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
