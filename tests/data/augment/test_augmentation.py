"""Modifiers of pairs: what each changes on which side, and that chunks and processes make no difference."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from typing import Any

import pytest

from nmt.data import modifiers
from nmt.data.augment.augmentation import KEYBOARDS, Augmentation
from nmt.data.batches.encode import EncodingOptions, LineEncoder
from nmt.data.modifiers import EMOJI, MODIFIERS, Need
from nmt.data.parallel_text import ParallelText, concatenated
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import MixtureData
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.errors import UserError

SRC = ["The old dog sleeps in a green house.", "Where is the tall tree?", "A cat runs", "Nobody sees it!"]
TGT = ["Der alte Hund schläft in einem grünen Haus.", "Wo ist der hohe Baum?", "Eine Katze rennt.", "Keiner."]
TEXT = ParallelText(SRC * 100, TGT * 100)
NAMES = [name for name, row in MODIFIERS.items() if row.config.needs is Need.nothing]
"""The others have tests of their own: test_terms.py and test_matches.py."""
ALL: list[Any] = [{"name": name, "rate": 0.3} for name in NAMES]


def augmentation(
    entries: list[Any], languages: tuple[str, str] = ("en", "de"), symbols: tuple[str, ...] = ()
) -> Augmentation:
    return Augmentation(tuple(modifiers.parsed("data.augment", entries)), languages, symbols)


def modified(
    name: str, src: str, tgt: str, languages: tuple[str, str] = ("en", "de"), symbols: tuple[str, ...] = ()
) -> tuple[str, str]:
    of_all = augmentation([{"name": name, "rate": 1.0}], languages, symbols)
    text = of_all(ParallelText([src], [tgt]), seed=1)
    return text.src[0], text.tgt[0]


@pytest.mark.parametrize(
    ("name", "languages", "pair", "expected"),
    [
        ("upper_case", "en de", ("It is big.", "Es ist groß."), ("IT IS BIG.", "ES IST GROSS.")),
        ("upper_case", "tr el", ("iki ılık", "Δύο"), ("İKİ ILIK", "ΔΥΟ")),
        ("upper_case", "tur_Latn ell", ("iki ılık", "Δύο"), ("İKİ ILIK", "ΔΥΟ")),
        ("upper_case", "ka ja", ("ორი ab", "犬です"), ("ორი AB", "犬です")),
        ("title_case", "en de", ("don't eat-in NASA", "„oben ist's"), ("Don't Eat-in NASA", "„Oben Ist's")),
        ("title_case", "tr_TR ar", ("iyi gün", "كلب"), ("İyi Gün", "كلب")),
        ("lower_case", "en de", ("The USA won.", "Die USA."), ("the usa won.", "Die USA.")),
        ("lower_case", "tr de", ("ISI İyi", "Gut"), ("ısı iyi", "Gut")),
        ("end_punctuation", "en de", ("Go home!", "Geh heim. "), ("Go home", "Geh heim")),
        ("end_punctuation", "en zh", ("Mr. X left ...", "走了。"), ("Mr. X left", "走了")),
        ("end_punctuation", "en de", ("Stop.", "Halt"), ("Stop.", "Halt")),
        ("end_punctuation", "en de", ("?", "Wie?"), ("?", "Wie?")),
        ("end_punctuation", "en de", ("One. . ", f"a{'.' * 50_000}b."), ("One.", f"a{'.' * 50_000}b")),
        ("typos", "ja en", ("犬です。 cat is it", "x"), ("犬です。 cat is it", "x")),
    ],
)
def test_each_side_is_as_documented(
    name: str, languages: str, pair: tuple[str, str], expected: tuple[str, str]
) -> None:
    src, tgt = languages.split()
    assert modified(name, *pair, languages=(src, tgt)) == expected


def test_typos_are_one_slip_in_a_word_of_the_source() -> None:
    near = {letter for row in KEYBOARDS["de"] for letter in row}
    slips = augmentation([{"name": "typos", "rate": 1.0}], ("de", "en"))(
        ParallelText(TEXT.tgt, TEXT.src), seed=3
    )
    assert slips.tgt == TEXT.src
    kinds = set[str]()
    for old, new in zip(TEXT.tgt, slips.src, strict=True):
        before, after = old.split(), new.split()
        assert len(before) == len(after)
        assert 1 <= sum(a != b for a, b in zip(before, after, strict=True)) <= 4
        for a, b in zip(before, after, strict=True):
            if a != b:
                assert a[0] == b[0]
                assert len(a.strip(".!?")) >= 4
                kinds.add(
                    "swapped" if sorted(a) == sorted(b) else ("fewer", "missed", "more")[len(b) - len(a) + 1]
                )
                assert set(b) - set(a) <= near
    assert kinds == {"swapped", "fewer", "missed", "more"}


def test_noise_is_the_same_on_both_sides() -> None:
    noisy = augmentation([{"name": "noise", "rate": 1.0}])(TEXT, seed=1)
    places = set[bool]()
    for i in range(len(TEXT)):
        inserted = noisy.src[i].replace(TEXT.src[i], "")
        assert noisy.tgt[i].replace(TEXT.tgt[i], "") == inserted
        assert 1 <= len(inserted.strip()) <= 3
        assert set(inserted.strip()) <= set(EMOJI)
        places.add(noisy.src[i].startswith(inserted))
    assert places == {True, False}


@pytest.mark.parametrize(("tgt", "begins"), [("drei", "eins <brk> zwei <brk> "), ("zwei <brk> drei", "")])
def test_noise_in_front_of_a_sentence_is_where_its_translation_has_it(tgt: str, begins: str) -> None:
    src = "eins <brk> zwei <brk> drei"
    text = ParallelText([src] * 40, [tgt] * 40)
    noisy = augmentation([{"name": "noise", "rate": 1.0}])(text, seed=1)
    in_front = [(new, tgt_) for new, tgt_ in zip(noisy.src, noisy.tgt, strict=True) if tgt_.endswith(tgt)]
    assert 10 < len(in_front) < 30
    for new, tgt_ in in_front:
        assert new == f"{begins}{tgt_.removesuffix(tgt)}{src.removeprefix(begins)}"


@pytest.mark.parametrize("name", NAMES)
def test_tags_markup_and_blank_sides_stay(name: str) -> None:
    symbols = ("<2de>", "<bt>", "⟦sep⟧")
    body, tgt = "see the <b>Great tree</b> at {place} or https://x.org/Abc ⟦sep⟧ mail.", "x <b>y</b> {place}."
    plain = modified(name, body, tgt, symbols=symbols)
    assert modified(name, f"<2de> <bt> {body}", tgt, symbols=symbols) == (f"<2de> <bt> {plain[0]}", plain[1])
    for kept in ("<b>", "</b>", "{place}", "https://x.org/Abc", "⟦sep⟧"):
        assert kept in plain[0]
    for pair in (("", "x."), ("x.", ""), ("<2de> ", "x."), ("<2de> .", "."), ("!", "..")):
        new = modified(name, *pair, symbols=symbols)
        assert [bool(side.strip()) for side in new] == [bool(side.strip()) for side in pair]


def test_labels_stay() -> None:
    every = augmentation([{"name": name, "rate": 1.0} for name in ("upper_case", "end_punctuation")])
    text = dataclasses.replace(every, has_labels=True)(
        ParallelText(["It is big.\tIt is not."], ["yes."]), seed=1
    )
    assert (text.src, text.tgt) == (["IT IS BIG.\tIT IS NOT"], ["yes."])


def test_a_modified_pair_is_a_function_of_seed_and_number_alone() -> None:
    of_all = augmentation(ALL)
    whole = of_all(TEXT, seed=5)
    for size in (1, 7, 399):
        parts = [
            of_all(ParallelText(TEXT.src[i : i + size], TEXT.tgt[i : i + size]), seed=5, first=i)
            for i in range(0, len(TEXT), size)
        ]
        assert concatenated(parts) == whole
    assert of_all(TEXT, seed=6) != whole
    assert ParallelText(SRC * 100, TGT * 100) == TEXT
    changed = sum(a != b for a, b in zip(TEXT.src, augmentation(ALL[:1])(TEXT, seed=5).src, strict=True))
    assert 0.2 < changed / len(TEXT) < 0.4
    assert whole.references == []
    several = ParallelText(TEXT.src, TEXT.tgt, [TEXT.tgt, TEXT.src])
    assert of_all(several, seed=5).references[0] == of_all(several, seed=5).tgt == whole.tgt


def test_what_is_drawn_stays_what_it_is() -> None:
    """A change of the draws or of a modifier would change every run that goes on."""
    for rows, expected in ((ALL[:6], "763b2049b3479b2d"), (ALL[6:], "38c1bf3ff9372d9f")):
        text = augmentation(rows)(TEXT, seed=1)
        assert hashlib.sha256("\n".join([*text.src, *text.tgt]).encode()).hexdigest()[:16] == expected


def test_an_encoder_modifies_each_epoch_otherwise_and_in_each_process_alike() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=60), TEXT)
    plain = LineEncoder(tokenizer)(TEXT, 0)[0].ids.tolist()

    def ids(epoch: int, alpha: float = 0.0) -> list[int]:
        encoder = LineEncoder(tokenizer, EncodingOptions(), alpha, 1, epoch, augmentation(ALL))
        found: list[int] = encoder(TEXT, 0)[0].ids.tolist()
        (again, _) = pickle.loads(pickle.dumps(encoder))(TEXT, 0)
        assert again.ids.tolist() == found
        return found

    drawn = [plain, ids(1), ids(2), ids(1, 0.1)]
    assert ids(1) == drawn[1]
    assert len({tuple(one) for one in drawn}) == 4


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("typos", "data.augment must be a list, such as [{name: upper_case}], but is 'typos'"),
        ([3], "data.augment[0] must be a group of keys with a name, such as {name: upper_case}, but is 3"),
        (
            ["typos", {"name": "upper"}],
            f"data.augment[1].name must be one of {', '.join(MODIFIERS)}, but is 'upper'; "
            "did you mean 'upper_case'?",
        ),
        ([{"name": "typos", "wrds": 1}], "unknown key data.augment[0].wrds; did you mean 'words'?"),
        ([{"name": "typos", "xyz": 1}], "unknown key data.augment[0].xyz; the keys of name=typos are "),
        ([{"name": "typos", "rate": 1.5}], "data.augment[0].rate must be in [0, 1], but is 1.5"),
        ([{"name": "typos", "rate": "often"}], "data.augment[0].rate cannot be 'often'"),
        ([{"name": "noise", "most": 0}], "data.augment[0].most must be at least 1, but is 0"),
        ([{"name": "noise", "characters": " "}], "data.augment[0].characters must be characters to insert"),
    ],
)
def test_an_entry_that_is_no_modifier_is_one_error(entries: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        DemoData(augment=entries)
    assert str(caught.value).startswith(message)


def test_a_corpus_of_a_mixture_has_modifiers_of_its_own_behind_those_of_all() -> None:
    clean: dict[str, Any] = {"train": "x"}
    noised: dict[str, Any] = {"train": "y", "src": "fr", "augment": ["drop_words", "mask_words"]}
    cfg = MixtureData(corpora={"clean": clean, "noised": noised}, augment=["typos"])
    found = Augmentation.of_corpora(cfg)
    assert [[row.name for row in one.modifiers] for one in found] == [
        ["typos"],
        ["typos", "drop_words", "mask_words"],
    ]
    assert [one.languages for one in found] == [("en", "de"), ("fr", "de")]
    assert {one.symbols for one in found} == {("<mask>",)}
    assert MixtureData(corpora={"noised": noised}).is_augmented
    assert not MixtureData(corpora={"clean": clean}).is_augmented
    with pytest.raises(UserError, match=r"^data.corpora.a.augment\[0\].window must be at least 1, but is 0"):
        MixtureData(corpora={"a": {"train": "x", "augment": [{"name": "shuffle_words", "window": 0}]}})


def test_a_config_states_every_key_of_its_modifiers() -> None:
    cfg = DemoData(augment=["typos"])
    assert cfg.augment == [{"name": "typos", "rate": 0.05, "words": 0.1}]
    assert Augmentation.of_corpora(cfg) == [Augmentation((modifiers.TyposConfig("typos"),), ("en", "de"))]
    corpora = {"a": {"train": "x", "tag": "bt"}}
    tagged = MixtureData(corpora=corpora, target_tags=True, augment=["typos"])
    assert Augmentation.of_corpora(tagged)[0].symbols == ("<2de>", "<bt>")
    assert not any(Augmentation.of_corpora(DemoData()))
    assert not augmentation([{"name": "typos", "rate": 0.0}])
