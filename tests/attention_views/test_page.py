"""The page: nothing from elsewhere, no markup from a corpus, weights as the model gave them."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.attention_views.alignment import Weights
from nmt.attention_views.maps import SentenceMaps
from nmt.attention_views.page import TEMPLATE, page, page_data
from nmt.data.tokens.tokenizer import EOS, Piece
from nmt.pages import script_json

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>&lt;b&gt;\u2028\u2029",
    "\"\\u003c'`${1}",
    '{"here": "the data"}',
]


class Tags(HTMLParser):
    """The elements of a page, and the text of its data element."""

    def __init__(self, content: str):
        super().__init__()
        self.found: list[str] = []
        self.data = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(f"{tag}#{dict(attrs).get('id')}")

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] == "script#data":
            self.data += data


def sentence(*, line: int = 1, tokens: list[str] | None = None, layers: int = 2) -> SentenceMaps:
    """Random weights between these source tokens and two target tokens."""
    src = [*(Piece(9, token, token) for token in tokens or ["▁a", "▁b"]), EOS]
    tgt = [Piece(9, "▁c", "c"), EOS]

    def random(rows: int, columns: int) -> list[Weights]:
        weights = np.random.default_rng(line).random((layers, 3, rows, columns), dtype=np.float32)
        return list(weights / weights.sum(axis=-1, keepdims=True))

    S, T = len(src), len(tgt)
    return SentenceMaps(line, src, tgt, random(S, S), random(T, T), random(T, S))


def read(content: str) -> dict[str, Any]:
    found = json.loads(Tags(content).data)
    assert isinstance(found, dict)
    return found


def unpacked(layer: dict[str, Any], rows: int, columns: int) -> Weights:
    scaled = np.frombuffer(base64.b64decode(layer["weights"]), dtype=np.uint8)
    return scaled.reshape(layer["heads"], rows, columns).astype(np.float32) / np.float32(255)


def test_the_weights_on_the_page_are_those_of_the_sentence() -> None:
    original = [sentence(line=3), sentence(line=5, tokens=["▁x", "y", "z"])]
    shown = read(page("Attention", [page_data(s) for s in original]))
    assert shown["title"] == "Attention"
    assert [s["line"] for s in shown["sentences"]] == [3, 5]
    for was, found in zip(original, shown["sentences"], strict=True):
        tokens = {"src": [p.text for p in was.src], "tgt": ["▁c", "</s>"], "tgt_in": ["<s>", "▁c"]}
        sides = {"encoder": ("src", "src"), "decoder": ("tgt", "tgt_in"), "cross": ("tgt", "src")}
        for kind, (rows, columns) in sides.items():
            content = found["maps"][kind]
            assert (content["rows"], content["columns"]) == (tokens[rows], tokens[columns])
            for weights, layer in zip(getattr(was, kind), content["layers"], strict=True):
                restored = unpacked(layer, len(content["rows"]), len(content["columns"]))
                np.testing.assert_allclose(restored, weights, atol=0.5 / 255 + 1e-6)


def test_queries_and_keys_are_on_the_page_where_the_sentence_has_them() -> None:
    original = sentence()
    random = np.random.default_rng(1).normal(size=(2, 3, 3, 4)).astype(np.float32)
    original.factors = {"encoder": [(random[0], random[1] * 100)] * 2}
    maps = page_data(original)["maps"]
    assert maps["cross"]["factors"] == []
    for pair in maps["encoder"]["factors"]:
        for packed, values in zip(pair, (random[0], random[1] * 100), strict=True):
            numbers = np.frombuffer(base64.b64decode(packed["values"]), "<i2") * packed["largest"] / 32767
            assert packed["channels"] == 4
            np.testing.assert_allclose(numbers.reshape(values.shape), values, atol=packed["largest"] / 65000)


def test_only_the_kinds_that_there_are_appear() -> None:
    only_cross = sentence()
    only_cross.encoder, only_cross.decoder = [], []
    assert list(page_data(only_cross)["maps"]) == ["cross"]


@pytest.mark.fault(38)
def test_a_corpus_cannot_add_to_the_page() -> None:
    plain = page("Attention", [page_data(sentence())])
    hostile = page(HOSTILE[0], [page_data(sentence(tokens=HOSTILE))])
    assert Tags(hostile).found == Tags(plain).found
    shown = read(hostile)
    assert shown["title"] == HOSTILE[0]
    assert shown["sentences"][0]["maps"]["cross"]["columns"] == [*HOSTILE, "</s>"]
    assert shown["sentences"][0]["text"] == "".join(HOSTILE)


@given(st.recursive(st.text() | st.sampled_from(HOSTILE), lambda inner: st.lists(inner, max_size=4)))
def test_script_json_is_json_without_a_character_of_markup(content: Any) -> None:
    text = script_json(content)
    assert json.loads(text) == content
    assert not set(text) & set("<>&\u2028\u2029")


def test_the_page_needs_nothing_else() -> None:
    """No address, no element or rule that loads something, and a policy that would forbid it."""
    content = page("Attention", [page_data(sentence())])
    assert (
        re.findall(r"https?:|//\w|\b(?:src|href|srcset|action)\s*=|url\(|@import|import\(|fetch\(", content)
        == []
    )
    assert not {tag.split("#")[0] for tag in Tags(content).found} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
    }
    assert "default-src 'none'" in content


@pytest.mark.fault(38)
def test_text_never_becomes_markup() -> None:
    script = TEMPLATE.read_text(encoding="utf-8")
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|DOMParser", script) == []
    )


def test_the_page_stays_small() -> None:
    """Ten sentences of 30 tokens, 6 layers of 8 heads, all three kinds."""
    weights = np.full((8, 30, 30), 1 / 30, dtype=np.float32)
    pieces = [Piece(9, "▁token", " token")] * 30
    long = page_data(SentenceMaps(1, pieces, pieces, [weights] * 6, [weights] * 6, [weights] * 6))
    assert len(page("Attention", [long] * 10)) < 2_000_000


def test_weights_that_are_no_shares_are_kept_in_range() -> None:
    odd = sentence(layers=1)
    odd.cross = [np.array([[[1.7, -0.2, 0.5]] * 2], dtype=np.float32)]
    layer = page_data(odd)["maps"]["cross"]["layers"][0]
    assert unpacked(layer, 2, 3)[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.5], abs=0.01)
