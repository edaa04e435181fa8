"""Entries of `sets` whose pairs are those of another corpus, modified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.data.parallel_text import Split
from nmt.data.reading.augmented import USUAL, AugmentedData
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import MixtureData, has_split, load, set_configs
from nmt.errors import UserError


def test_the_usual_sets_are_one_line() -> None:
    data = DemoData()
    found = set_configs({"augmented": {"augment": "usual"}, "toy": {"name": "toy", "tgt": "fr"}}, data)
    assert list(found) == [*USUAL, "toy"]
    plain, upper = load(data, Split.test), load(found["upper"], Split.test)
    assert (upper.src, upper.tgt) == ([line.upper() for line in plain.src], [t.upper() for t in plain.tgt])
    assert load(found["typos"], Split.test).tgt == plain.tgt
    assert load(found["typos"], Split.test) == load(found["typos"], Split.test)
    assert not has_split(found["upper"], Split.train)


def test_a_set_has_modifiers_in_order_and_a_corpus_of_its_own() -> None:
    entry = {"name": "toy", "tgt": "fr", "augment": ["typos", {"name": "upper_case", "rate": 0.5}]}
    (found,) = set_configs({"mixed": entry}, DemoData()).values()
    assert isinstance(found, AugmentedData)
    assert (found.of.name, found.tgt, [row["rate"] for row in found.augment]) == ("toy", "fr", [1.0, 0.5])
    assert list(set_configs({"toy": entry | {"augment": "usual"}}, DemoData())) == [f"toy-{n}" for n in USUAL]


def test_tags_in_front_of_the_sources_of_a_mixture_stay() -> None:
    data = MixtureData(corpora={"a": {"name": "toy", "tgt": "fr"}}, tgt="fr", target_tags=True)
    (found,) = set_configs({"upper": {"augment": ["upper_case"]}}, data).values()
    plain, upper = load(data, Split.test), load(found, Split.test)
    assert plain.src[0].startswith("<2fr> ")
    assert upper.src == [f"<2fr> {line.removeprefix('<2fr> ').upper()}" for line in plain.src]
    assert found.tags == data.tags  # so that no further tag is put in front


def test_the_pairs_of_a_mixture_are_modified_by_the_rules_of_their_own_languages(tmp_path: Path) -> None:
    for language in ("en", "tr"):
        (tmp_path / f"dev.{language}").write_text("iki\n")
    entry = {"src": "tr", "tgt": "en", "train": f"{tmp_path}/dev", "validation": f"{tmp_path}/dev"}
    data = MixtureData(corpora={"a": entry})
    (found,) = set_configs({"upper": {"augment": ["upper_case"]}}, data).values()
    upper = load(found, Split.validation)
    assert (upper.src, upper.tgt) == (["İKİ"], ["IKI"])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"up": {"augment": []}}, "sets.up.augment is empty; name a modifier: upper_case, "),
        (
            {"up": {"augment": "all"}},
            "sets.up.augment must be a list, such as [{name: upper_case}], but is 'all'",
        ),
        ({"up": {"augment": ["loud"]}}, "sets.up.augment[0].name must be one of upper_case, "),
        (
            {"upper": {"name": "demo"}, "more": {"augment": "usual"}},
            "sets.upper is there twice: once by augment: usual; give one another name",
        ),
    ],
)
def test_an_entry_that_is_no_augmented_set_is_one_error(sets: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        set_configs(sets, DemoData())
    assert str(caught.value).startswith(message)
