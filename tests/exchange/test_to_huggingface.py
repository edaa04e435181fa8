"""Models in `transformers`: the class that fits gives our logits, also after it was saved again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.errors import UserError
from nmt.exchange.to_huggingface import converted
from nmt.layers.choices import Activation, NormOrder, Positions
from nmt.models.configs import Tying
from tests.conftest import VOCAB_SIZE
from tests.exchange.variants import LONGEST, NUM_POSITIONS, greedy, logits, sources, variant

POST = NormOrder.post
VARIANTS: dict[str, dict[str, Any]] = {
    "Blenderbot": {},
    "Blenderbot, learned positions": {"positions": Positions.learned},
    "Blenderbot, no positions": {"positions": Positions.none, "embedding_scale": False},
    "Blenderbot, untied": {"tying": Tying.none},
    "MBart": {"embedding_norm": True},
    "MBart, untied": {"embedding_norm": True, "tying": Tying.src_output},
    "Bart": {"embedding_norm": True, "norm_order": POST, "positions": Positions.learned},
    "MBart, another decoder": {"embedding_norm": True, "decoder_num_heads": 1, "decoder_d_ff": 20},
    "Marian, shared layers": {"norm_order": POST, "encoder_sharing": [1, 1], "decoder_sharing": [1, 1]},
    "Bart, untied": {"embedding_norm": True, "norm_order": POST, "tying": Tying.src_tgt},
    "Marian": {"norm_order": POST, "activation": Activation.silu},
    "Marian, partly tied": {"norm_order": POST, "tying": Tying.tgt_output},
    "Marian, an odd width": {"norm_order": POST, "tying": Tying.none, "d_model": 15, "num_heads": 3},
    "Blenderbot, a bias on the logits": {"output_bias": True},
    "MBart, a bias on the logits": {"output_bias": True, "embedding_norm": True},
    "Bart, a bias on the logits": {"output_bias": True, "embedding_norm": True, "norm_order": POST},
    "Marian, a bias on the logits": {"output_bias": True, "norm_order": POST},
    "Marian, no bias": {
        "norm_order": POST,
        **dict.fromkeys(("attention_bias", "attention_output_bias", "feed_forward_bias"), False),
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_computes_the_same(tmp_path: Path, name: str) -> None:
    model, cfg = variant(**VARIANTS[name])
    converted(model, cfg, NUM_POSITIONS).save_pretrained(tmp_path)
    found = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(found).__name__.startswith(name.partition(",")[0])
    found.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    src, mask = sources()
    tgt = torch.randint(4, VOCAB_SIZE, (len(src), 8))
    expected = logits(model, src, mask, tgt)
    tgt_in = torch.cat([torch.full_like(tgt[:, :1], BOS_ID), tgt], dim=1)
    for other in (found, again):
        with torch.inference_mode():
            theirs = other(input_ids=src, attention_mask=mask.long(), decoder_input_ids=tgt_in).logits
        assert_close(theirs, expected, atol=1e-4, rtol=0.0)


def test_a_version_that_shares_what_is_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers 4 does, whatever its config says."""
    load = transformers.BlenderbotForConditionalGeneration.load_state_dict

    def load_and_tie(self: Any, state: dict[str, Tensor]) -> None:
        load(self, state)
        self.lm_head.weight = self.model.shared.weight

    monkeypatch.setattr(transformers.BlenderbotForConditionalGeneration, "load_state_dict", load_and_tie)
    model, cfg = variant(tying=Tying.none)
    message = r"transformers [\d.]+ shares lm_head.weight with other weights, .* 'transformers>=5'"
    with pytest.raises(UserError, match=message):
        converted(model, cfg, NUM_POSITIONS)


@pytest.mark.parametrize("name", ["Blenderbot", "MBart", "Bart", "Marian"])
def test_greedy_search_finds_the_same(name: str) -> None:
    model, cfg = variant(**VARIANTS[name] | {"tying": Tying.none})
    src, mask = sources()
    with torch.inference_mode():
        rows = converted(model, cfg, NUM_POSITIONS).generate(
            input_ids=src,
            attention_mask=mask.long(),
            max_length=LONGEST,
            suppress_tokens=[PAD_ID, BOS_ID],
        )
    found = [[token for token in row[1:] if token not in (EOS_ID, PAD_ID)] for row in rows.tolist()]
    assert found == [ids[: LONGEST - 1] for ids in greedy(model, src, mask)]
