"""Models in CTranslate2: every variant that fits computes the same there, and others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from torch.testing import assert_close

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.exchange.to_ctranslate2 import ACTIVATIONS, NEVER, specification
from nmt.layers.choices import Norm, NormOrder, Positions
from nmt.models.configs import Tying
from tests.conftest import VOCAB_SIZE
from tests.exchange.variants import LONGEST, NUM_POSITIONS, greedy, logits, sources, variant

PIECES = ["<pad>", "<unk>", "<s>", "</s>", *(f"p{i}" for i in range(4, VOCAB_SIZE))]
POST = NormOrder.post
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"positions={kind.value}": {"positions": kind} for kind in Positions},
    **{f"activation={kind.value}": {"activation": kind} for kind in ACTIVATIONS},
    **{f"tying={kind.value}": {"tying": kind} for kind in Tying},
    "post-norm": {"norm_order": POST, "norm_eps": 1e-3},
    "post-norm and a final norm": {"norm_order": POST, "final_norm": True},
    "pre-norm without a final norm": {"final_norm": False},
    "RMS norm": {"norm": Norm.rms_norm, "norm_eps": 1e-3},
    "post RMS norm": {"norm": Norm.rms_norm, "norm_order": POST},
    "no bias": {"attention_bias": False, "attention_output_bias": False, "feed_forward_bias": False},
    "embeddings normed, not scaled": {"embedding_scale": False, "embedding_norm": True},
    "offsets clipped at once": {"positions": Positions.relative, "max_distance": 2},
    "three heads of ALiBi": {"positions": Positions.alibi, "d_model": 24, "num_heads": 3},
    "narrow keys": {"d_k": 4, "d_v": 8},
    "narrow rotary keys": {"d_k": 4, "d_v": 10, "positions": Positions.rotary},
    "narrow values": {"d_k": 12, "d_v": 6, "positions": Positions.relative},
    "wide heads": {"d_k": 12, "d_v": 12, "positions": Positions.alibi, "norm_order": POST},
    "a bias on the logits": {"output_bias": True},
    "a wide decoder": {
        "decoder_d_model": 24,
        "decoder_num_heads": 3,
        "decoder_d_ff": 20,
        "tying": Tying.none,
    },
    "a decoder of other heads": {"decoder_num_heads": 1, "positions": Positions.rotary},
    "shared layers": {"decoder_sharing": [1, 1], "encoder_sharing": [1, 1]},
    "stacks of unlike depth": {"encoder_layers": 3, "decoder_layers": 1},
}


def translator(folder: Path, quantization: str = "float32", **fields: Any) -> tuple[Any, Any]:
    """Return a model, and CTranslate2 with the same weights."""
    model, cfg = variant(**fields)
    spec = specification(model, cfg, NUM_POSITIONS)
    spec.register_source_vocabulary(PIECES)
    spec.register_target_vocabulary(PIECES)
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    return model, ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_computes_the_same(tmp_path: Path, name: str) -> None:
    """Greedy search gives the same tokens, and given targets have the same log probabilities."""
    model, found = translator(tmp_path, **VARIANTS[name])
    src, mask = sources()
    lines = [[PIECES[i] for i in row if i not in (PAD_ID, EOS_ID)] for row in src.tolist()]
    searched = found.translate_batch(
        lines, beam_size=1, max_decoding_length=LONGEST - 1, min_decoding_length=0
    )
    expected = [[PIECES[i] for i in ids][: LONGEST - 1] for ids in greedy(model, src, mask)]
    assert [result.hypotheses[0] for result in searched] == expected
    tgt = torch.randint(4, VOCAB_SIZE, (len(src), 8))
    scored = found.score_batch(lines, [[PIECES[i] for i in row] for row in tgt.tolist()])
    ours = logits(model, src, mask, tgt)
    ours[..., [PAD_ID, BOS_ID]] = NEVER
    ended = torch.cat([tgt, torch.full_like(tgt[:, :1], EOS_ID)], dim=1)
    log_probs = ours.log_softmax(-1).gather(-1, ended[..., None])[..., 0]
    assert_close(torch.tensor([line.log_probs for line in scored]), log_probs, atol=1e-3, rtol=1e-4)


def test_padding_and_begin_are_never_predicted(tmp_path: Path) -> None:
    """The output layer asks for PAD and BOS here, which our searches never return."""
    model, cfg = variant(tying=Tying.none)
    with torch.no_grad():
        model.output.weight[[PAD_ID, BOS_ID]] *= 50
    src, mask = sources()
    wanted = logits(model, src, mask, src[:, :1])[:, 0].argmax(-1)
    assert set(wanted.tolist()) <= {PAD_ID, BOS_ID}
    spec = specification(model, cfg, NUM_POSITIONS)
    spec.register_source_vocabulary(PIECES)
    spec.register_target_vocabulary(PIECES)
    spec.validate()
    spec.save(str(tmp_path))
    results = ctranslate2.Translator(str(tmp_path)).translate_batch([["p4"]] * 3, max_decoding_length=9)
    assert all({"<pad>", "<s>"}.isdisjoint(result.hypotheses[0]) for result in results)


@pytest.mark.parametrize(("quantization", "ratio"), [("float16", 0.6), ("bfloat16", 0.6), ("int8", 0.4)])
def test_smaller_number_formats_give_nearly_the_same(tmp_path: Path, quantization: str, ratio: float) -> None:
    fields = {"d_model": 64, "d_ff": 128, "positions": Positions.rotary}
    found, sizes, weights = [], [], []
    for name in ("float32", quantization):
        torch.manual_seed(0)
        model, search = translator(tmp_path / name, name, **fields)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
        scored = search.score_batch([["p5", "p6", "p7"]] * 2, [["p8", "p9"], ["p10"]])
        found.append(torch.tensor([sum(line.log_probs) for line in scored]))
        sizes.append((tmp_path / name / "model.bin").stat().st_size)
    assert_close(*found, atol=0.3, rtol=0.0)
    assert_close(*weights, atol=0.0, rtol=0.0)  # the model itself stays as it was
    assert sizes[1] < ratio * sizes[0]
