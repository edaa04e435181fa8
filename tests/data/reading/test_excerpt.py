"""Excerpts: the first training pairs and the shortest pairs to score, whatever the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmt.data.parallel_text import Split
from nmt.data.reading import sources
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.excerpt import excerpt
from nmt.data.reading.files import FilesData, TextData
from nmt.data.reading.sources import MixtureData
from nmt.files import write_lines


def test_the_first_pairs_and_the_shortest_to_score(tmp_path: Path) -> None:
    cfg = DemoData(max_tokens=99)
    found = excerpt(cfg, tmp_path, most_pairs=50, most_scored=3)
    assert (found.num_pairs, found.is_whole) == (50, False)
    assert (found.data.max_tokens, found.data.languages) == (99, cfg.languages)
    train = sources.load(found.data, Split.train)
    assert train.src == sources.load(cfg, Split.train).src[:50]
    validation, everything = (sources.load(data, Split.validation) for data in (found.data, cfg))
    assert len(validation) == 3
    assert max(map(len, validation.src)) < max(map(len, everything.src[:50]))
    assert {*zip(validation.src, validation.tgt, strict=True)} <= {
        *zip(everything.src, everything.tgt, strict=True)
    }


def test_all_pairs_of_a_small_corpus(tmp_path: Path) -> None:
    found = excerpt(DemoData(), tmp_path, most_pairs=10**9, most_scored=3)
    assert found.is_whole


def test_a_mixture_gives_as_many_pairs_of_each_corpus_with_their_tags(tmp_path: Path) -> None:
    corpora: dict[str, dict[str, Any]] = {
        "a": {
            "name": "demo",
            "tag": "bt",
            "filters": ["duplicates"],
        },
        "b": {"name": "demo", "src": "de", "tgt": "en", "domain": "med"},
    }
    keys: dict[str, Any] = {"target_tags": True, "fixers": ["spaces"], "scored": ["b"]}
    keys["stages"] = [{"until": 9, "weights": {"a": 1}}, {"weights": {"b": 1}}]
    keys["filters"] = [{"name": "duplicates", "earlier": True}, {"name": "duplicates"}]
    cfg = MixtureData(src="en", tgt="de", corpora=corpora, **keys)
    found = excerpt(cfg, tmp_path, most_pairs=20, most_scored=2)
    assert (found.num_pairs, found.is_whole, found.left_out) == (20, False, ["duplicates"])
    ours, theirs = (sources.training_streams(data) for data in (found.data, cfg))
    for name, stream in ours.items():
        assert stream.read().src == next(iter(theirs[name].chunks())).src[:10]
    assert (found.data.tags, found.data.domains) == (cfg.tags, cfg.domains)
    assert [row["earlier"] for row in found.data.filters] == [False]
    assert not any(part.filters for part in found.data.parts(Split.train).values())  # may drop all of so few
    assert {*found.data.parts(Split.validation)} == {*found.data.parts(Split.test)} == {"b"}
    assert found.data.fixers == []  # the pairs are repaired already


def test_a_split_of_blank_pairs_alone_is_taken_as_it_is(tmp_path: Path) -> None:
    for name in ("blank.en", "blank.de"):
        write_lines(tmp_path / name, [" ", ""])
    place = str(tmp_path / "blank")
    cfg = FilesData(src="en", tgt="de", train=place, validation=place, test=place)
    found = excerpt(cfg, tmp_path, most_pairs=5, most_scored=3)
    assert len(sources.load(found.data, Split.validation)) == 2


def test_a_text_stays_in_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "text", [f"line {i}" for i in range(100)])
    cfg = TextData(train=str(tmp_path / "text"), blocks=2)
    found = excerpt(cfg, tmp_path, most_pairs=30, most_scored=3)
    assert not found.data.has_source
    assert sources.load(found.data, Split.train).tgt[:3] == ["line 0", "line 1", "line 2"]
    assert len(sources.load(found.data, Split.validation)) == 10


def test_splits_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "excerpt").mkdir()
    found = excerpt(
        DemoData(scored_split=Split.validation), tmp_path / "excerpt", most_pairs=5, most_scored=2
    )
    assert not sources.has_split(found.data, Split.test)
