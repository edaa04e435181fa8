"""The wiring of `nmt evaluate`: score a trained model on one split."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from nmt import distributed
from nmt.config.compose import Composed
from nmt.config.overrides import FROM_RUN
from nmt.config.roots import Task, TrainConfig
from nmt.data.pairs import DataConfig, ParallelText
from nmt.decoding.confidence import agreement
from nmt.decoding.metrics import sentence_chrf
from nmt.decoding.score import score
from nmt.errors import UserError, warn
from nmt.files import write_lines
from nmt.runs.opened import Run, evaluation_text, open_runs, score_line
from nmt.runs.tasks import Evaluation
from nmt.signals import StopRequest
from nmt.verbs.configs import EvaluateConfig


def run(trial: Composed) -> dict[str, Any]:
    """Score a trained model on one split, print and return the scores; several processes share the work."""
    cfg = trial.to_config(EvaluateConfig)
    opened = open_runs(cfg)
    _require_languages(opened.cfg, cfg.data)
    if cfg.confidence:
        opened.require_task(Task.translation)
    split = cfg.data.scored_split
    with StopRequest(cfg.runtime.grace_seconds), distributed.joined(cfg.runtime.timeout_minutes) as world:
        with world.main_first():  # the first rank may download the corpus
            named = cfg.read_corpus or trial.choices.get("data") != FROM_RUN
            text = evaluation_text(opened.directory, opened.cfg, cfg.data, split, named=named)
        if opened.cfg.data.tags and not cfg.data.tags:  # another corpus than the run's, without tags
            text = ParallelText(list(opened.asking_for(cfg.data.tgt, text.src)), text.tgt)
        tested = dataclasses.replace(opened, cfg=dataclasses.replace(opened.cfg, data=cfg.data), world=world)
        scores = Evaluation(tested, text, warn).scores(cfg.decoding, cfg.metrics)
        if world.is_main:
            print(score_line(split.value, scores.values), flush=True)
            for name, signature in scores.signatures.items():
                print(f"signature   {name}|{signature}")
            file = opened.directory.hypotheses / hypothesis_name(cfg, opened.cfg)
            write_lines(file, scores.hypotheses)
            print(f"written     {file}")
            if cfg.confidence:
                _report_confidence(opened, cfg, text, scores.hypotheses, file)
    return {split.value: scores.values, "signatures": scores.signatures}


def _report_confidence(
    opened: Run, cfg: EvaluateConfig, text: ParallelText, hypotheses: list[str], file: Path
) -> None:
    """Print how confidence and sentence chrF correlate, and write both of each translation beside `file`."""
    model, search = opened.searched(cfg.decoding), cfg.decoding
    found = score(text.src, hypotheses, model, opened.tokenizer, search, device=opened.device)
    confidence = [one.per_token for one in found]
    chrf = sentence_chrf(hypotheses, text.tgt)
    print(f"confidence  {agreement(confidence, chrf)}")
    values = file.with_name(f"{file.name}.confidence.tsv")
    write_lines(values, [f"{x:.4f}\t{y:.2f}" for x, y in zip(confidence, chrf, strict=True)])
    print(f"written     {values}")


def _require_languages(trained: TrainConfig, data: DataConfig) -> None:
    own = trained.data
    if trained.task is Task.language_model and data.tgt != own.tgt:
        raise UserError(f"the run models {own.tgt}, but data.tgt is {data.tgt}; add data.tgt={own.tgt}")
    wrong = [pair for pair in data.languages if pair not in own.languages]
    if trained.task is Task.translation and wrong:
        (src, tgt), known = wrong[0], " and ".join(f"{a} to {b}" for a, b in dict.fromkeys(own.languages))
        first = own.languages[0]
        raise UserError(
            f"the run translates {known}, "
            f"but data is {src} to {tgt}; add data.src={first[0]} data.tgt={first[1]}"
        )


def hypothesis_name(cfg: EvaluateConfig, trained: TrainConfig) -> str:
    """Return a file name: test.de for the settings of the run, with a hash of the settings for others."""
    same_data = dataclasses.replace(cfg.data, scored_split=trained.data.scored_split) == trained.data
    own = len(cfg.runs) == 1 and cfg.checkpoint == "final"
    if own and same_data and cfg.decoding == trained.decoding:
        return f"{cfg.data.scored_split.value}.{cfg.data.tgt}"
    settings = repr((cfg.data, cfg.decoding, cfg.checkpoint))
    if len(cfg.runs) > 1:
        settings += repr(([str(Path(run).resolve()) for run in cfg.runs], cfg.ensemble))
    return f"{cfg.data.scored_split.value}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.{cfg.data.tgt}"
