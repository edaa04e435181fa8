"""A classifier of misaligned pairs, trained without labels and asked about pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nmt.cli import main
from nmt.data.augment.damage import KINDS
from nmt.data.cleaning.filtering import chains, judged_alone
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.files import FilesData
from nmt.data.reading.sources import stream
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runs.pair_classifier import label_probabilities, require_pair_classifier
from nmt.runs.scorers import RunScorers
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import untrained

CPU = RuntimeConfig(device="cpu", threads=1)
ANIMALS = {"dog": "Hund", "cat": "Katze", "cow": "Kuh", "bird": "Vogel", "mouse": "Maus"}
SRC = [f"the {one} sees a {other}" for one in ANIMALS for other in ANIMALS]
TGT = [f"{one} sieht {other}" for one in ANIMALS.values() for other in ANIMALS.values()]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run that has learnt which side is which."""
    folder = tmp_path_factory.mktemp("aligned")
    for side, lines in (("en", SRC), ("de", TGT)):
        (folder / f"pairs.{side}").write_text("".join(f"{line}\n" for line in lines))
    arguments = [
        "experiment=misaligned_pairs",
        f"run={folder / 'run'}",
        f"data.corpus={{train: {folder / 'pairs'}, validation: {folder / 'pairs'}}}",
        *(f"data.damage.{kind}=0" for kind in KINDS if kind != "swapped"),
        "model.d_model=16",
        "model.d_ff=16",
        "model.num_heads=2",
        "model.encoder_layers=1",
        "tokenizer=word",
        "schedule.peak_rate=0.02",
        "schedule.warmup_steps=5",
        "trainer.batch_tokens=256",
        "trainer.max_steps=40",
        "trainer.eval_every_steps=40",
        "trainer.save_every_steps=40",
        "runtime.device=cpu",
    ]
    assert main(["train", *arguments]) == 0
    return open_run(folder / "run", runtime_cfg=CPU)


def test_true_pairs_are_told_from_damaged_ones(classifier: Run) -> None:
    true = label_probabilities(classifier, ParallelText(SRC, TGT), "aligned")
    assert true.min() > 0.5
    assert label_probabilities(classifier, ParallelText(TGT, SRC), "aligned").max() < 0.5


def test_probabilities_are_those_of_the_command_whatever_is_asked_together(classifier: Run) -> None:
    text = ParallelText([SRC[0], "the\tdog", SRC[7]], [TGT[0], "Hund", TGT[3]])
    together = label_probabilities(classifier, text, "misaligned")
    lines = [f"{SRC[0]}\t{TGT[0]}", "the dog\tHund", f"{SRC[7]}\t{TGT[3]}"]
    alone = [probabilities["misaligned"] for line in lines for _, probabilities in classifier.classify(line)]
    assert together == pytest.approx(alone, abs=1e-6)
    assert together + label_probabilities(classifier, text, "aligned") == pytest.approx(np.ones(3))


def test_runs_and_labels_that_do_not_fit_are_refused(classifier: Run, tmp_path: Path) -> None:
    pair, key = ("en", "de"), "data.filters[0]"
    require_pair_classifier(classifier, "aligned", pair, key)
    with pytest.raises(
        UserError, match=r"data\.filters\[0\]\.label must be one .* aligned, misaligned, .*'good'"
    ):
        require_pair_classifier(classifier, "good", pair, key)
    translator = open_run(untrained(tmp_path / "run"), runtime_cfg=CPU)
    with pytest.raises(
        UserError, match=r"data\.filters\[0\]\.run=.* must be a classifier .* task=translation"
    ):
        require_pair_classifier(translator, "aligned", pair, key)
    with pytest.raises(UserError, match=r"data\.filters\[0\]: .* judges pairs of en-de, but .* are de-en"):
        require_pair_classifier(classifier, "aligned", pair[::-1], key)


def test_the_filter_drops_what_the_classifier_finds_misaligned(classifier: Run, tmp_path: Path) -> None:
    sides = {"en": [*SRC, *TGT[:4]], "de": [*TGT, *SRC[:4]]}  # four pairs with their sides swapped
    for side, lines in sides.items():
        (tmp_path / f"pairs.{side}").write_text("".join(f"{line}\n" for line in lines))
    cfg = FilesData(train=str(tmp_path / "pairs"))
    rows = [{"name": "classifier", "run": str(classifier.path)}]
    (chain,) = chains(replace(cfg, filters=rows), {}, RunScorers(CPU)).values()
    source = stream(cfg, Split.train)
    ((text, report),) = judged_alone(source, cfg, filter_pairs, chain)
    assert (text.src, text.tgt) == (SRC, TGT)
    assert report.dropped["classifier"] == 4
    with pytest.raises(UserError, match=r"data\.filters\[0\]\.min must be .* 1"):
        chains(replace(cfg, filters=[rows[0] | {"min": 2}]), {}, None)
