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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from benchmarking import (
    ALLOCATORS,
    ROOT,
    Record,
    Results,
    System,
    compare,
    described,
    grouped,
    in_words,
    markdown,
    median,
    median_ratio,
    read,
    require_installed,
    run_once,
    session,
    ways,
)
from sacrebleu.metrics.bleu import BLEU

sys.path.insert(0, str(ROOT / "scripts" / "peers"))
from job import batch_size, parallel, translated  # type: ignore[import-not-found]

from nmt.config.compose import compose
from nmt.config.roots import TranslateConfig
from nmt.data.parallel_text import Split
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.tokenizer_training import TokenizerKind
from nmt.errors import UserError
from nmt.exchange.configs import ExportConfig, Format, Quantization
from nmt.exchange.export import export as export_folder
from nmt.files import write_lines
from nmt.layers.choices import Activation, Norm, NormOrder, Positions
from nmt.layers.positions import sinusoids
from nmt.models.configs import TransformerConfig, Tying
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.opened import Run
from nmt.runs.opening import open_run, open_runs
from nmt.verbs import VERBS

OURS = "nmt"
SENTENCES = tuple(f"{number} sentences" for number in (64, 16, 32, 128, 256))
TOKENS = tuple(f"{number} tokens" for number in (512, 1024, 2048, 4096))


def systems(args: argparse.Namespace) -> dict[str, System]:
    """Return all systems with the settings that are tried, in the order in which they are."""
    own = {"parallel": ways(args.threads)}
    shared = {**own, "allocator": ALLOCATORS}
    ct2 = {**own, "batch": SENTENCES + TOKENS, "products": ("own", "MKL"), "allocator": ALLOCATORS}
    torch_peer = {**own, "batch": ("64 sentences", "128 sentences", "2048 tokens")}
    attention = {"attention": ("sdpa", "eager")}
    found = {}
    for precision in ("fp32", *args.ours):
        search = {"search": [f"decoding.precision={precision}"]}
        name = OURS if precision == "fp32" else f"{OURS} {precision}"
        found[name] = System(None, "bench_decode.py", search, {**own, "batch": BUDGETS})
    for number in ("float32", "int8", "bfloat16"):
        found[f"ctranslate2 {number}"] = System("main", "peers/ct2_decode.py", {"compute": number}, ct2)
    found["hf"] = System("main", "peers/hf_decode.py", {}, {**torch_peer, **attention, **shared})
    found["joeynmt"] = System("joeynmt", "peers/joeynmt_decode.py", {}, {**torch_peer, **shared})
    return found


BUDGETS = tuple(f"{number} tokens" for number in (8192, 16384))
"""Values of decoding.batch_tokens, hypotheses included."""
EXPORTS = {"ct2": Format.ctranslate2, "hf": Format.huggingface}
"""Adapters that get the run as `nmt export` writes it."""
BEAMS = {"beam": 5, "greedy": 1}
MODES = ("batch", "one by one")
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


def searched(settings: Sequence[str]) -> TranslateConfig:
    """Return the config of `nmt translate` on CPU."""
    (composed,) = compose(VERBS["translate"], ["runtime.device=cpu", *settings])
    return composed.to_config(TranslateConfig)


def load(job: Record) -> Callable[[list[str]], list[str]]:
    """Return a function of lines that translates as `nmt translate` does."""
    settings = [f"run={job['run']}", f"runtime.threads={parallel(job)[1]}", "decoding=beam"]
    settings += [f"decoding.beam_size={job['beam_size']}", f"decoding.batch_tokens={batch_size(job)[0]}"]
    settings += ["decoding.length_penalty=average", f"decoding.length_penalty_alpha={job['alpha']}"]
    cfg = searched([*settings, *job["search"]])
    opened = open_runs(cfg)
    return lambda lines: [found.text for found in opened.translate(lines, cfg.decoding)]


def job_for(name: str, system: System, args: argparse.Namespace, folder: Path) -> Record:
    """Return what the adapter of a system needs besides what all jobs share."""
    adapter = Path(system.script).stem.removesuffix("_decode")
    if system.environment is None:
        return {**system.job, "run": str(args.run.resolve())}
    number = system.job.get("compute", "float32")
    if adapter not in EXPORTS:
        return system.job
    return {**system.job, "exported": exported(args.run, folder / f"{adapter}-{number}", adapter, number)}


def judged(result: Record, job: Record) -> Record:
    """Compare the translations of a run with the references and with our own search."""
    if "error" in result:
        return result
    found, ours, wanted = (
        Path(job[key]).read_text(encoding="utf-8").split("\n")[:-1]
        for key in ("output", "expected", "reference")
    )
    same = sum(x == y for x, y in zip(found, ours, strict=True))
    bleu = BLEU().corpus_score(found, [wanted]).score
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=job["tokenizer"])
    length = sum(map(len, tokenizer.encode(found))) / len(found)
    return result | {"bleu": round(bleu, 2), "same_as_nmt": same / len(ours), "mean_length": length}


def run(args: argparse.Namespace) -> None:
    """Measure everything: each search, on all lines at once and line by line."""
    chosen = chosen_systems(args)
    results = Results(args.output)
    earlier = read([args.output]) if args.output.exists() else []
    results.write(session("decode", args.peers, {"threads": args.threads, "rounds": args.rounds}))
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.redirect_stdout(sys.stderr):
        folder = Path(name)
        shared = export(open_run(args.run), folder, args.lines) | {"alpha": args.alpha}
        own = {name: job_for(name, system, args, folder) for name, system in chosen.items()}
        for mode in args.modes:
            alone = mode == "one by one"
            numbers = (args.lines, args.trial_lines)
            if alone:
                numbers = (args.lines_one_by_one, args.lines_one_by_one // 2)
            fitting = {name: one_by_one(system) if alone else system for name, system in chosen.items()}
            for search in args.searches:
                job = shared | {"beam_size": BEAMS[search], "one_by_one": alone}
                texts = [texts_of(args, job, folder, number) for number in numbers]

                def measure(name: str, settings: Record, is_trial: bool) -> Record:
                    given = job | texts[is_trial] | own[name] | settings  # noqa: B023
                    if settings.get("products") == "MKL":
                        given["variables"] = {"CT2_USE_MKL": "1"}
                    found = run_once(chosen[name], args.peers, given, folder / "job")
                    return {"settings": settings} | judged(found, given)

                about = {"benchmark": "decode", "search": search, "mode": mode, "lines": numbers[0]}
                keep = functools.partial(write, results, about)
                known = [record for record in earlier if about.items() <= record.items()]
                compare(fitting, SPEED, args.rounds, measure, keep, known)


def chosen_systems(args: argparse.Namespace) -> dict[str, System]:
    """Return the systems that the command line names; without trials, with the first of all settings."""
    every = systems(args)
    names = args.systems or list(every)
    if unknown := set(names) - every.keys():
        sys.exit(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    chosen = {name: every[name] for name in names}
    require_installed(chosen, args.peers)
    if args.trial_lines:
        return chosen
    return {
        name: system._replace(settings={key: values[:1] for key, values in system.settings.items()})
        for name, system in chosen.items()
    }


def one_by_one(system: System) -> System:
    """Return a system for lines that come one at a time: no batches, one worker, of all threads or of one."""
    first = system.settings["parallel"][0]
    parallel = dict.fromkeys((first, "1 x 1") if first.startswith("1 x") else ("1 x 1",))
    settings = {**system.settings, "parallel": tuple(parallel), "batch": system.settings["batch"][:1]}
    return system._replace(settings=settings)


def texts_of(args: argparse.Namespace, job: Record, folder: Path, number: int) -> Record:
    """Write the first lines, and their translations by our own float32 search; return the files."""
    files = {key: folder / f"{key}-{number}.txt" for key in ("source", "reference")}
    for key, file in files.items():
        write_lines(file, (folder / f"{key}.txt").read_text(encoding="utf-8").split("\n")[:number])
    expected = folder / f"expected-{job['beam_size']}-{number}.txt"
    if not expected.exists():
        lines = files["source"].read_text(encoding="utf-8").split("\n")[:-1]
        settings = {
            "search": ["decoding.precision=fp32"],
            "run": str(args.run.resolve()),
            "parallel": f"1 x {args.threads}",
        }
        write_lines(expected, load({**job, **settings, "batch": BUDGETS[0]})(lines))
    output = {"expected": str(expected), "output": str(folder / "output.txt")}
    return {key: str(file) for key, file in files.items()} | output


def write(results: Results, about: Record, record: Record) -> None:
    """Write a result with the search, mode and number of lines that it is about."""
    results.write(about | record)


def table(files: Iterable[Path]) -> str:
    """Return the results of some files as Markdown: machine and command of each, then one table."""
    records = read(files)
    parts = [described(record) for record in records if record["kind"] == "session"]
    header = (
        "search",
        "lines",
        "system",
        "settings",
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
        return [f"failed: {errors[0]}", *[""] * 7]
    speeds = [record[SPEED] for record in runs]
    ratio = median_ratio([record for record in ours if "error" not in record], runs, SPEED)
    return [
        in_words(runs[0]["settings"]),
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
    measure.add_argument(
        "--systems", nargs="*", help="by default all; their names are in the error for another"
    )
    measure.add_argument("--searches", nargs="+", default=list(BEAMS), choices=list(BEAMS))
    measure.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    measure.add_argument("--rounds", type=int, default=3)
    measure.add_argument("--lines", type=int, default=1000, help="lines of the test split, at once")
    measure.add_argument(
        "--trial-lines",
        type=int,
        default=500,
        help="the same, when settings are tried; 0: the first ones are taken",
    )
    measure.add_argument("--lines-one-by-one", type=int, default=200)
    measure.add_argument("--alpha", type=float, default=1.0, help="exponent of the length penalty")
    measure.add_argument("--threads", type=int, default=2)
    measure.add_argument("--ours", nargs="*", default=["bf16"], help="more values of decoding.precision")
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
        translated(json.loads(args.job.read_text(encoding="utf-8")), load)


if __name__ == "__main__":
    main()
