"""What `nmt attention` writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.attention_views.configs import View, ViewsConfig
from nmt.attention_views.maps import SentenceMaps, attend, empty_maps
from nmt.attention_views.views import MAX_SHOWN_TOKENS, require_maps, write_views
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.models.base import State, TranslationModel

CPU = torch.device("cpu")
VOCAB_SIZE = 23
LINES = ["two dogs run in the snow", "a man in a red shirt", "a dog", "the snow is red"]
PAIRS = ["a dog\tred snow", "", "two dogs run\ta man is red", "the snow is red\tdogs"]


@pytest.fixture
def sentences(tiny_model: Callable[..., TranslationModel]) -> Callable[[list[str]], Iterator[SentenceMaps]]:
    """Return a function from lines, all with a target, to the attention of a small model."""
    cfg = TokenizerConfig(kind=TokenizerKind.char, vocab_size=VOCAB_SIZE)  # an upper bound
    tokenizer = Tokenizer.train(cfg, ParallelText(LINES * 10, LINES * 10))
    model = tiny_model().eval()
    return lambda lines: attend(lines, model, tokenizer, BeamConfig(beam_size=1), device=CPU)


Sentences = Callable[[list[str]], Iterator[SentenceMaps]]


class WithoutAttention(TranslationModel):
    """Predicts the next token from the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 5)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        return self.embedding(tgt_in)

    def project(self, hidden: Tensor) -> Tensor:
        return hidden

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        return State({"src": src})

    def advance(self, last: Tensor, state: State) -> Tensor:
        return self.embedding(last)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_view_is_written(sentences: Sentences, tmp_path: Path) -> None:
    written = write_views(sentences(PAIRS), ViewsConfig(), tmp_path / "new", "A run")
    expected = ["alignments.jsonl", "alignments.pharaoh", "attention.html"]
    expected += ["cross_0001.png", "cross_0003.png", "cross_0004.png"]
    assert names(tmp_path / "new") == expected
    assert sorted(path.name for path in written) == expected
    assert written[0].name == "attention.html"
    assert all((tmp_path / "new" / name).read_bytes()[:4] == b"\x89PNG" for name in expected[3:])
    assert "two dogs run" in (tmp_path / "new" / "attention.html").read_text(encoding="utf-8")


def test_images_of_an_earlier_call_are_gone_and_other_files_stay(
    sentences: Sentences, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = ViewsConfig(views=[View.images])
    for name in ("cross_mine.png", "cross_12.png", "photo.png"):
        (tmp_path / name).write_bytes(b"")
    write_views(sentences(PAIRS), cfg, tmp_path, "A run")
    write_views(sentences(PAIRS[:1]), cfg, tmp_path, "A run")
    assert names(tmp_path) == ["cross_0001.png", "cross_12.png", "cross_mine.png", "photo.png"]
    gone = "cross_0003.png, cross_0004.png"
    assert capsys.readouterr().err == f"removed from {tmp_path}, as of an earlier call: {gone}\n"


def test_a_page_of_other_sentences_does_not_stay_beside_new_files(
    sentences: Sentences, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_views(sentences(PAIRS[:1]), ViewsConfig(), tmp_path, "A run")
    write_views(sentences([]), ViewsConfig(views=[View.page]), tmp_path, "A run")
    assert names(tmp_path) == ["alignments.jsonl", "alignments.pharaoh"]  # perhaps of a whole corpus
    assert "earlier call: attention.html, cross_0001.png\n" in capsys.readouterr().err


def test_alignments_have_a_line_for_every_line(sentences: Sentences, tmp_path: Path) -> None:
    write_views(sentences(PAIRS * 3), ViewsConfig(views=[View.soft, View.hard]), tmp_path, "A run")
    assert names(tmp_path) == ["alignments.jsonl", "alignments.pharaoh"]
    hard = (tmp_path / "alignments.pharaoh").read_text().split("\n")
    soft = [json.loads(line) for line in (tmp_path / "alignments.jsonl").read_text().splitlines()]
    assert (len(hard), hard[-1], len(soft)) == (13, "", 12)
    for pair, links, found in zip(PAIRS * 3, hard, soft, strict=False):
        source, _, target = pair.partition("\t")
        assert (found["src"], found["tgt"]) == (source, target)
        aligned = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert [word for _, word in aligned] == list(range(len(target.split())))
        assert all(0 <= word < len(source.split()) for word, _ in aligned)


def test_soft_alignments_are_the_mean_over_heads(sentences: Sentences, tmp_path: Path) -> None:
    (sentence,) = sentences(PAIRS[:1])
    for layer, expected in (
        (None, np.concatenate(sentence.cross)),
        (1, sentence.cross[0]),
        (2, sentence.cross[1]),
    ):
        write_views([sentence], ViewsConfig(views=[View.soft], layer=layer), tmp_path, "A run")
        found = json.loads((tmp_path / "alignments.jsonl").read_text())
        assert found["src_tokens"] == [piece.text for piece in sentence.src]
        assert found["tgt_tokens"] == [piece.text for piece in sentence.tgt]
        assert found["tgt_tokens"][-1] == found["src_tokens"][-1] == "</s>"
        np.testing.assert_allclose(found["weights"], expected.mean(axis=0), atol=6e-5)


def test_page_and_images_show_the_first_lines(
    sentences: Sentences, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_views(sentences([*PAIRS[:3], "", *PAIRS]), ViewsConfig(max_sentences=3), tmp_path, "A run")
    assert names(tmp_path)[2:] == ["attention.html", "cross_0001.png", "cross_0003.png"]
    assert len((tmp_path / "alignments.pharaoh").read_text().splitlines()) == 8
    assert capsys.readouterr().err == (
        "warning: page and images show the first 3 lines; max_sentences=... shows more\n"
    )


def test_a_sentence_that_nobody_could_read_is_not_shown(
    sentences: Sentences, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = ViewsConfig(views=[View.page, View.hard])
    long = "a " * MAX_SHOWN_TOKENS
    written = write_views(sentences([f"{long}\ta"]), cfg, tmp_path, "A run")
    assert [path.name for path in written] == ["alignments.pharaoh"]
    assert capsys.readouterr().err == (
        "warning: line 1 is not shown: a side of it has more than 128 tokens\n"
        "warning: no page is written, because there is no sentence to show\n"
    )


@pytest.mark.parametrize(
    ("views", "last"), [([View.page], 4), ([View.images], 4), ([View.hard], None), (list(View), None)]
)
def test_no_more_is_read_than_is_shown(views: list[View], last: int | None) -> None:
    assert ViewsConfig(views=views, max_sentences=3).last_line == last


def test_when_the_input_is_wrong_nothing_is_half_written(sentences: Sentences, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 5 of the input has 2 TABs"):
        write_views(sentences([*PAIRS, "a\tb\tc"]), ViewsConfig(views=[View.hard]), tmp_path, "A run")
    assert names(tmp_path) == []


@pytest.mark.fault(38)
def test_the_text_of_a_corpus_is_no_markup_on_the_page(sentences: Sentences, tmp_path: Path) -> None:
    hostile = "a </script><img src=x onerror=alert(1)> dog"
    write_views(sentences([f"{hostile}\ta"]), ViewsConfig(views=[View.page]), tmp_path, hostile)
    content = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert "<img" not in content
    assert content.count("</script>") == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"views": []}, "views must name at least one view, and each once, but is []"),
        (
            {"views": [View.hard, View.hard]},
            "views must name at least one view, and each once, but is [hard, hard]",
        ),
        ({"output": " "}, "output must name a directory, but is empty; output=null is RUN/attention"),
        ({"layer": 0}, "layer counts from 1, but is 0; null means all layers"),
        ({"neurons": -1}, "neurons must not be negative, but is -1"),
        (
            {"max_sentences": 0},
            "max_sentences must be at least 1, but is 0; views=[soft,hard] writes neither page nor images",
        ),
    ],
)
def test_errors_in_the_config(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        ViewsConfig(**fields)  # type: ignore[arg-type]
    assert str(raised.value) == message


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UserError) as raised:
        require_maps(empty_maps(WithoutAttention(), CPU), ViewsConfig(), "the model of RUN (model.name=x)")
    assert str(raised.value) == (
        "the model of RUN (model.name=x) has no attention to show: it computes no attention weights"
    )


def test_a_model_that_attends_to_itself_alone_has_a_page_alone() -> None:
    maps = SentenceMaps(1, encoder=[np.ones((1, 1, 1), np.float32)])
    require_maps(maps, ViewsConfig(views=[View.page], layer=1), "the model")
    with pytest.raises(UserError) as raised:
        require_maps(maps, ViewsConfig(views=[View.page, View.hard, View.images]), "the model")
    assert str(raised.value) == (
        "the model does not attend from target to source, which hard, images need; set views=[page]"
    )


def test_a_layer_that_is_not_there_is_refused(tiny_model: Callable[..., TranslationModel]) -> None:
    maps = empty_maps(tiny_model(decoder_layers=3), CPU)
    require_maps(maps, ViewsConfig(layer=3), "the model")
    with pytest.raises(UserError) as raised:
        require_maps(maps, ViewsConfig(layer=4), "the model")
    assert str(raised.value) == "layer must be from 1 to 3 in the model, but is 4"
