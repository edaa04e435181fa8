"""LoRA and adapters: what learns, what is frozen, and what becomes of it when it is merged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.kernels import fused
from nmt.layers.low_precision import in_low_precision, rows_of
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import ConvolutionalConfig, DecoderOnlyConfig, ModelConfig, RnnConfig, Tying
from nmt.models.fused_layers import fused_layers
from nmt.runtime_config import Precision
from nmt.training.adapting.adaptation import adapt, frozen_names, merge, num_learning
from nmt.training.adapting.configs import ADAPTATIONS, AdaptationConfig, AdaptersConfig, LoraConfig
from nmt.training.adapting.lora import LowRankUpdate
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import AdamWConfig, MuonConfig, OptimizerConfig
from nmt.translation.translate import in_precision
from tests.conftest import VOCAB_SIZE

Model = Callable[..., TranslationModel]
Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]

LORA = LoraConfig(rank=3, patterns=["*"])
ADAPTERS = AdaptersConfig(size=4)


def shaken(model: TranslationModel) -> None:
    """Give the added weights values that an update could have given them."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)


def updated(model: TranslationModel, cfg: OptimizerConfig, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    optimizer = build_optimizer(cfg, model)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    for _ in range(2):
        model.project(model.train()(*batch)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_every_row_has_its_name_and_its_code() -> None:
    assert all(row().name == name for name, (row, _) in ADAPTATIONS.items())


@pytest.mark.parametrize("cfg", [LORA, ADAPTERS])
def test_an_adaptation_changes_nothing_at_first_and_renames_nothing(
    tiny_model: Model, sentences: Sentences, cfg: AdaptationConfig
) -> None:
    model, batch = tiny_model().eval(), sentences(2, 5, 4)
    before, names = model(*batch), model.state_dict().keys()
    adapt(model, cfg)
    assert torch.equal(model.eval()(*batch), before)
    assert names < model.state_dict().keys()
    assert set(names) == frozen_names(model)
    learning, total = num_learning(model)
    assert 0 < learning < total / 2


@pytest.mark.parametrize("optimizer", [AdamWConfig(weight_decay=0.1), MuonConfig()])
@pytest.mark.parametrize("cfg", [LORA, ADAPTERS])
def test_what_is_frozen_keeps_its_bits(
    tiny_model: Model, sentences: Sentences, cfg: AdaptationConfig, optimizer: OptimizerConfig
) -> None:
    model = tiny_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    adapt(model, cfg)
    began = copy.deepcopy(model.state_dict())
    updated(model, optimizer, sentences(2, 5, 4))
    after = model.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert any(not torch.equal(after[name], began[name]) for name in after.keys() - before.keys())


FAMILIES: dict[str, ModelConfig] = {
    "decoder_only": DecoderOnlyConfig(d_model=8, d_ff=8, num_heads=2, num_layers=1, dropout=0.0),
    "convolutional": ConvolutionalConfig(
        d_model=8, encoder_layers=1, decoder_layers=1, dropout=0.0, tying=Tying.none
    ),
    "rnn": RnnConfig(d_model=8, dropout=0.0),
}


def test_the_root_of_the_rank_divides_a_stabilised_update() -> None:
    plain, stabilised = LoraConfig(rank=4, alpha=6.0), LoraConfig(rank=4, alpha=6.0, rank_stabilised=True)
    assert (plain.scale, stabilised.scale) == (1.5, 3.0)


@pytest.mark.parametrize("family", ["transformer", *FAMILIES])
def test_merged_is_unmerged(tiny_model: Model, sentences: Sentences, family: str) -> None:
    sizes = {"src_vocab_size": VOCAB_SIZE, "tgt_vocab_size": VOCAB_SIZE}
    model = tiny_model() if family == "transformer" else build_model(FAMILIES[family], **sizes)
    batch, classes, names = sentences(2, 5, 4), [type(m) for m in model.modules()], model.state_dict().keys()
    adapt(model, LORA)
    shaken(model)
    in_training, unmerged = model.train()(*batch), model.eval()(*batch)
    merge(model, LORA)
    assert [type(m) for m in model.modules()] == classes
    assert model.state_dict().keys() == names
    torch.testing.assert_close(model.eval()(*batch), unmerged, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(in_training, unmerged, rtol=1e-4, atol=1e-5)


def test_whoever_reads_a_weight_reads_the_sum(tiny_model: Model, sentences: Sentences) -> None:
    model, (src, mask, tgt) = tiny_model().eval(), sentences(2, 5, 4)
    adapt(model, LORA)
    shaken(model)
    merged = copy.deepcopy(model)
    merge(merged, LORA)
    for precision in (Precision.bf16, Precision.int8):
        one, other = (in_low_precision(x.eval(), precision)(src, mask, tgt) for x in (model, merged))
        assert torch.equal(one, other)
    states = [x.start(src, mask) for x in (model, merged)]
    for last in tgt.T:
        one, other = (x.step(last, state) for x, state in zip((model, merged), states, strict=True))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_search_computes_each_sum_once(
    tiny_model: Model, sentences: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plain maps, which the kernels know, in a copy that shares all else."""
    model, batch = tiny_model(tying=Tying.none).eval(), sentences(2, 5, 4)
    adapt(model, LORA)
    shaken(model)
    merged = copy.deepcopy(model)
    merge(merged, LORA)
    searched = in_precision(model, BeamConfig(), torch.device("cpu"))
    monkeypatch.setattr(LowRankUpdate, "weight", None)
    assert torch.equal(searched(*batch), merged(*batch))
    assert beam_search(searched, *batch[:2], BeamConfig()) == beam_search(merged, *batch[:2], BeamConfig())
    assert fused_layers(searched.decoder) is not None  # type: ignore[arg-type]
    shared = {x.data_ptr() for x in searched.parameters()} & {x.data_ptr() for x in model.parameters()}
    assert model.src_embedding.tokens.weight.data_ptr() in shared  # type: ignore[union-attr, operator]
    assert in_precision(searched, BeamConfig(), torch.device("cpu")) is searched
    assert isinstance(model.output, LowRankUpdate)


@torch.no_grad()
def test_search_computes_weight_normalisation_once(sentences: Sentences) -> None:
    sizes = {"src_vocab_size": VOCAB_SIZE, "tgt_vocab_size": VOCAB_SIZE}
    model, batch = build_model(FAMILIES["convolutional"], **sizes).eval(), sentences(2, 5, 4)
    searched = in_precision(model, BeamConfig(), torch.device("cpu"))
    assert not any(is_parametrized(module) for module in searched.modules())
    assert torch.equal(searched(*batch), model(*batch))
    assert beam_search(searched, *batch[:2], BeamConfig()) == beam_search(model, *batch[:2], BeamConfig())


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.bf16])
def test_rows_of_an_adapted_output_layer_are_those_of_the_sum(
    tiny_model: Model, precision: Precision
) -> None:
    """As a search over some of the vocabulary takes them, during the training."""
    model = tiny_model(tying=Tying.none).eval()
    adapt(model, LORA)
    shaken(model)
    output = in_low_precision(model, precision).output
    hidden, rows = torch.randn(5, model.hidden_size), torch.tensor([0, 5, 7])
    with torch.no_grad():
        torch.testing.assert_close(rows_of(output, rows)(hidden), output(hidden)[:, rows])


def test_maps_packed_in_one_matrix_have_an_update_each() -> None:
    model = nn.ModuleDict({"a": fused.Linear(4, 6, 2)})
    adapt(model, LoraConfig(rank=2, patterns=["*"]))  # type: ignore[arg-type]
    module = model["a"]
    assert isinstance(module, LowRankUpdate)
    base = module.frozen_weight.clone()
    nn.init.normal_(module.lora_up)
    change = module.weight - base
    assert [int(torch.linalg.matrix_rank(part)) for part in change.split([6, 2])] == [2, 2]


@torch.no_grad()
def test_adapters_keep_the_contract(tiny_model: Model, sentences: Sentences) -> None:
    model, (src, mask, tgt) = tiny_model(), sentences(3, 6, 5)
    adapt(model, ADAPTERS)
    shaken(model)
    full, state = model.eval()(src, mask, tgt), model.start(src, mask)
    for position, last in enumerate(tgt.T):
        torch.testing.assert_close(model.advance(last, state), full[:, position], rtol=1e-4, atol=1e-5)
    merge(model, ADAPTERS)
    assert torch.equal(model(src, mask, tgt), full)


def test_other_weights_may_learn_too(tiny_model: Model) -> None:
    model = tiny_model()
    adapt(model, LoraConfig(train=["*norm*"]))
    assert "encoder_norm.weight" not in frozen_names(model)
    assert "output.weight" in frozen_names(model)


def test_a_matrix_with_two_names_has_no_update(tiny_model: Model) -> None:
    with pytest.raises(UserError, match=r"adapt.patterns: no weight has a name like 'output.\*'"):
        adapt(tiny_model(tying=Tying.all), LoraConfig(patterns=["output.*"]))
    model = tiny_model(tying=Tying.none)
    adapt(model, LoraConfig(patterns=["output.*"]))
    assert isinstance(model.output, LowRankUpdate)


def test_adapters_need_layers() -> None:
    model = build_model(FAMILIES["rnn"], src_vocab_size=9, tgt_vocab_size=9)
    with pytest.raises(UserError) as refused:
        adapt(model, ADAPTERS)
    assert str(refused.value) == (
        "adapt=adapters is for models whose layers end in feed-forward blocks, and this one has none; "
        "use adapt=lora"
    )
