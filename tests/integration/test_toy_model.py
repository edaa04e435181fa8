"""A model that somebody adds, by a row, a class and a file, driven by the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmt import cli
from nmt.models.base import State, TranslationModel
from nmt.models.configs import MODELS, ModelConfig


@dataclass
class BagConfig(ModelConfig):
    """A bag of source words beside the last target word."""

    name: str = "bag"
    num_copies: int = 1
    """Times that the bag counts."""


class Bag(TranslationModel):
    """The mean of the source embeddings, added to a linear map of the last target word."""

    def __init__(self, cfg: BagConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        self.cfg = cfg
        self.src_embedding = nn.Embedding(src_vocab_size, cfg.d_model)
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, cfg.d_model)
        self.last = nn.Linear(cfg.d_model, cfg.d_model)
        self.output = nn.Linear(cfg.d_model, tgt_vocab_size)

    def bag(self, src: Tensor, src_mask: Tensor) -> Tensor:
        counted = self.src_embedding(src) * src_mask[..., None]
        return self.cfg.num_copies * counted.sum(1) / src_mask.sum(1, keepdim=True)

    def hidden(self, bag: Tensor, tokens: Tensor) -> Tensor:
        return torch.tanh(bag + self.last(self.tgt_embedding(tokens)))

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        return self.hidden(self.bag(src, src_mask)[:, None], tgt_in)

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        return State(source={"bag": self.bag(src, src_mask)})

    def advance(self, last: Tensor, state: State) -> Tensor:
        state.position += 1
        bag = state.source["bag"]
        return self.hidden(bag.repeat_interleave(len(last) // len(bag), dim=0), last)


def test_a_model_is_a_row_a_class_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "bag", (BagConfig, Bag))
    file = tmp_path / "configs" / "model" / "bag.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [base_bag, _self_]\nd_model: 16\n")
    model = [f"--config-dir={tmp_path / 'configs'}", "model=bag"]
    command = ["train", "data=toy", "experiment=none", "tokenizer=word", "data.max_tokens=32", *model]
    quick = ["trainer.max_steps=20", "schedule.warmup_steps=10", f"run={tmp_path / 'run'}"]

    assert cli.main([*command, *quick, "model.num_copies=2"]) == 0
    assert "bag with" in capsys.readouterr().err
    assert cli.main(["evaluate", f"run={tmp_path / 'run'}", "decoding.beam_size=2"]) == 0
    assert "test        BLEU" in capsys.readouterr().out

    assert cli.main([*command, "model.num_copy=2"]) == 2
    assert "unknown key model.num_copy; did you mean model.num_copies?" in capsys.readouterr().err
