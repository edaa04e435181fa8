"""Compare an exported run with the run itself: the same translations, the same BLEU, and how fast.

    python scripts/compare_exports.py RUN --rounds 3 --threads 2 > exports.json

A system is a format and a number format, "huggingface float32", say. Printed are, for greedy search and 5
beams: the lines whose translation is ours token for token, BLEU, the speed as the median of ratios within a
round, in which every system translates in turn, and the size of the weights. For a line that differs, also by
how much our model prefers its own token where the two part: near 0 where rounding decides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU

from nmt.data.parallel_text import ParallelText, Split
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.decoding.configs import BeamConfig, LengthPenalty
from nmt.exchange.configs import ExportConfig, Format, Quantization
from nmt.exchange.export import export
from nmt.runs.agreement import pieces_of
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig

Search = Callable[[Sequence[str], int], list[list[int]]]
"""Ids of the translations of lines, given the number of beams."""
LONGEST = 256
"""Limit of the others in tokens; they are cut where ours end, at twice the length of the source and 10."""


def ours(run: Run) -> Search:
    """Return the search of this project; scores are divided by the length, as in the others."""

    def search(lines: Sequence[str], beam_size: int) -> list[list[int]]:
        decoding = BeamConfig(beam_size=beam_size, length_penalty=LengthPenalty.average)
        return [found.ids for found in run.translate(lines, decoding)]

    return search


def ctranslate2_search(run: Run, folder: Path, threads: int) -> Search:
    """Return the search of CTranslate2 with an exported folder."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", intra_threads=threads)
    src, tgt = pieces_of(run.tokenizer.src_model), pieces_of(run.tokenizer.tgt_model)
    ids = {piece: i for i, piece in enumerate(tgt)}

    def search(lines: Sequence[str], beam_size: int) -> list[list[int]]:
        sources = [[src[i] for i in line[:-1]] for line in run.tokenizer.encode_src(lines)]
        results = translator.translate_batch(
            sources,
            beam_size=beam_size,
            max_decoding_length=LONGEST - 1,
            min_decoding_length=0,
            max_batch_size=64,
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return search


def transformers_search(run: Run, folder: Path) -> Search:
    """Return `generate` of transformers with an exported folder, 64 similar lines at a time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def search(lines: Sequence[str], beam_size: int) -> list[list[int]]:
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        found: list[list[int]] = [[]] * len(lines)
        for start in range(0, len(order), 64):
            chosen = order[start : start + 64]
            batch = tokenizer([lines[i] for i in chosen], return_tensors="pt", padding=True)
            with torch.inference_mode():
                rows = model.generate(**batch, num_beams=beam_size, max_length=LONGEST)
            for i, row in zip(chosen, rows[:, 1:].tolist(), strict=True):
                found[i] = [x for x in row if x not in (EOS_ID, PAD_ID)]
        return found

    return search


def gap(run: Run, line: str, expected: list[int], found: list[int]) -> tuple[int, float]:
    """Return the place of the first token that differs, and how much more probable ours is: a log ratio."""
    ended = [*expected, EOS_ID], [*found, EOS_ID]
    first = next(i for i, (x, y) in enumerate(zip(*ended, strict=False)) if x != y)
    src = torch.tensor(run.tokenizer.encode_src([line]))
    tgt_in = torch.tensor([[BOS_ID, *expected[:first]]])
    with torch.inference_mode():
        hidden = run.model(src, torch.ones_like(src).bool(), tgt_in)
        logits = run.model.project(hidden)[0, -1]
    return first, float(logits[ended[0][first]] - logits[ended[1][first]])


def exported(args: argparse.Namespace, run: Run, folder: Path, system: str) -> tuple[Search, float]:
    """Export the run as `system` says, "FORMAT QUANTIZATION"; return the search and the size in megabytes."""
    form, _, number = system.partition(" ")
    cfg = ExportConfig(
        run=str(args.run),
        checkpoint=args.checkpoint,
        decoding=run.cfg.decoding,
        format=Format(form),
        output=str(folder),
        quantization=Quantization(number),
    )
    export(run, cfg)
    if cfg.format is Format.ctranslate2:
        search, weights = ctranslate2_search(run, folder, args.threads), folder / "model.bin"
    else:
        search, weights = transformers_search(run, folder), folder / "model.safetensors"
    return search, round(weights.stat().st_size / 1e6, 2)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Return the results of all systems."""
    run = open_run(args.run, args.checkpoint, RuntimeConfig(device="cpu", threads=args.threads))
    text = evaluation_text(run.directory, run.cfg, run.cfg.data, Split(args.split))
    chosen = ParallelText(text.src[: args.lines], text.tgt[: args.lines])
    searches, facts = {"nmt": ours(run)}, dict[str, dict[str, Any]](nmt={})
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        for number, system in enumerate(args.systems):
            searches[system], size = exported(args, run, Path(folder, str(number)), system)
            facts[system] = {"megabytes": size}
        for beam_size in args.beams:
            for name, found in measured(args, run, searches, chosen, beam_size).items():
                facts[name][f"beam {beam_size}"] = found
    about = {"split": args.split, "lines": len(chosen), "threads": args.threads, "rounds": args.rounds}
    return {"run": str(args.run), **about, "systems": facts}


def measured(
    args: argparse.Namespace, run: Run, searches: dict[str, Search], text: ParallelText, beam_size: int
) -> dict[str, dict[str, Any]]:
    """Return what each search finds, and how fast in turn with the others."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    found: dict[str, list[list[int]]] = {}
    limits = [2 * len(ids) + 9 for ids in run.tokenizer.encode_src(text.src)]
    for search in searches.values():
        search(text.src[:16], beam_size)
    for number in range(args.rounds):
        for name in list(searches) if number % 2 == 0 else list(searches)[::-1]:
            started = time.perf_counter()
            ids = searches[name](text.src, beam_size)
            seconds[name].append(time.perf_counter() - started)
            found[name] = [line[:limit] for line, limit in zip(ids, limits, strict=True)]
    facts = {}
    for name in searches:
        others = [i for i, (x, y) in enumerate(zip(found[name], found["nmt"], strict=True)) if x != y]
        hyps = [run.tokenizer.decode(ids) for ids in found[name]]
        ratios = [a / b for a, b in zip(seconds["nmt"], seconds[name], strict=True)]
        facts[name] = {
            "same lines": len(text) - len(others),
            "BLEU": round(BLEU().corpus_score(hyps, [text.tgt]).score, 2),
            "times as fast as nmt": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
            "seconds": [round(x, 1) for x in seconds[name]],
            "gaps": [[i, *gap(run, text.src[i], found["nmt"][i], found[name][i])] for i in others[:10]],
        }
    return facts


def main() -> None:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="run directory of a trained Transformer")
    parser.add_argument("--checkpoint", default="final")
    parser.add_argument("--split", default="validation", choices=["validation", "test"])
    parser.add_argument("--lines", type=int, default=10**6, help="at most so many lines of the split")
    parser.add_argument("--systems", nargs="+", default=["ctranslate2 float32", "ctranslate2 int8"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(compare(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
