"""Several corpora: how often each is drawn from, the tags of its sources, and errors that name it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.augment.augmentation import Augmentation
from nmt.data.batches.batching import plan_epoch
from nmt.data.batches.training_split import CorpusText, TrainingText, digest_of, train_tokenizer
from nmt.data.cleaning.filtering import chains
from nmt.data.cleaning.filters import FilterReport
from nmt.data.configs import DataConfig
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds, SampleCounts, joined
from nmt.data.modifiers import UpperCaseConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split, concatenated
from nmt.data.reading.bundled_data import ToyData
from nmt.data.reading.files import FilesData
from nmt.data.reading.mixture import (
    TemperatureOf,
    in_domain,
    mean_shares,
    split_front,
    tagged,
    untagged,
    without_front,
)
from nmt.data.reading.sources import SOURCES, MixtureData, has_split, load, stream, streams, training_streams
from nmt.data.special_ids import UNK_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import UserError

SRC = [f"the {animal} {verb}" for animal in ("dog", "cat", "cow") for verb in ("sleeps", "runs", "sees us")]
DE = [
    f"{animal} {verb}"
    for animal in ("der Hund", "die Katze", "die Kuh")
    for verb in ("schläft", "rennt", "sieht uns")
]
FR = [
    f"{animal} {verb}"
    for animal in ("le chien", "le chat", "la vache")
    for verb in ("dort", "court", "nous voit")
]


@pytest.fixture
def two_languages(tmp_path: Path) -> MixtureData:
    """Return nine sources with German and with French targets; German has a test split, too."""
    for tgt, lines in (("de", DE), ("fr", FR)):
        for name, text in (("en", SRC), (tgt, lines)):
            (tmp_path / f"train-{tgt}.{name}").write_text("".join(f"{line}\n" for line in text))
    place = f"{tmp_path}/train-"
    return MixtureData(
        corpora={
            "german": {"train": f"{place}de", "validation": f"{place}de", "test": f"{place}de"},
            "french": {"train": f"{place}fr", "validation": f"{place}fr", "tgt": "fr", "weight": 3.0},
        },
        target_tags=True,
    )


def known(text: ParallelText) -> CorpusText:
    return CorpusText(FilterReport(len(text)), digest_of(text), {"test": 1}, lambda: iter([text]))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.75, 0.25]), (2.0, [3**0.5 / (3**0.5 + 1), 1 / (3**0.5 + 1)]), (None, [0.5, 0.5])],
)
def test_shares_follow_size_and_temperature(temperature: float | None, expected: list[float]) -> None:
    cfg = MixtureData(corpora={"a": {"train": "x"}, "b": {"train": "x"}}, temperature=temperature)
    assert cfg.shares([300, 100]) == pytest.approx(expected)


def test_the_temperature_may_be_of_directions() -> None:
    """Corpora of a direction share its part by their sizes; one that is alone has the share it has anyway."""
    keys: dict[str, dict[str, Any]] = {"a": {}, "b": {"weight": 2.0}, "c": {"src": "de", "tgt": "en"}}
    corpora = {name: {"train": "x", **own} for name, own in keys.items()}
    cfg = MixtureData(corpora=corpora, temperature=2.0, temperature_of=TemperatureOf.directions)
    assert cfg.shares([800, 100, 100]) == pytest.approx([24 / 39, 6 / 39, 9 / 39])
    assert replace(cfg, temperature=None).shares([300, 100, 7]) == pytest.approx([3 / 9, 2 / 9, 4 / 9])
    staged = replace(cfg, stages=[{"until": 0.5, "weights": {"a": 1, "c": 1}}, {"weights": {"b": 1, "c": 1}}])
    of_corpora = replace(staged, temperature_of=TemperatureOf.corpora)
    assert [staged.shares([900, 400, 100], stage) for stage in (0, 1)] == [
        [0.75, 0.0, 0.25],
        of_corpora.shares([900, 400, 100], 1),
    ]


def test_a_low_temperature_is_no_overflow() -> None:
    cfg = MixtureData(corpora={"a": {"train": "x"}, "b": {"train": "x"}}, temperature=0.01)
    assert cfg.shares([10**6, 10**5]) == pytest.approx([1.0, 0.0])


def test_the_mean_share_of_one_stage_is_its_share() -> None:
    assert mean_shares([[0.3, 0.7]]) == [0.3, 0.7]
    assert mean_shares([[0.5, 0.5], [1.0, 0.0]]) == [0.75, 0.25]


def test_a_weight_multiplies_a_share() -> None:
    corpora: dict[str, dict[str, Any]] = {"a": {"train": "x"}, "b": {"train": "x", "weight": 2.0}}
    assert MixtureData(corpora=corpora).shares([100, 100]) == pytest.approx([1 / 3, 2 / 3])
    assert MixtureData(corpora=corpora, temperature=None).shares([1, 900]) == pytest.approx([1 / 3, 2 / 3])


def test_an_epoch_takes_of_each_corpus_what_is_asked_for() -> None:
    lengths = np.arange(1, 31) % 7 + 2
    draws = [SampleCounts(10, 25), SampleCounts(20, 5)]
    plan = plan_epoch(lengths, lengths, seed=1, epoch=1, max_tokens=40, draws=draws)
    counts = Counter(np.concatenate(list(plan)).tolist())
    assert {counts[row] for row in range(10)} == {2, 3}
    assert sum(counts[row] for row in range(10)) == 25
    assert sum(counts[row] for row in range(10, 30)) == 5
    assert max(counts[row] for row in range(10, 30)) == 1
    other = plan_epoch(lengths, lengths, seed=1, epoch=2, max_tokens=40, draws=draws)
    assert Counter(np.concatenate(list(other)).tolist()) != counts


def test_joined_corpora_hold_what_each_of_them_does() -> None:
    rng = np.random.default_rng(1)

    def corpus(size: int, kind: str) -> EncodedPairs:
        lengths = rng.integers(1, 9, size)
        ids = rng.integers(4, 90, lengths.sum()).astype(kind)
        return EncodedPairs(RaggedIds(ids, lengths), RaggedIds(ids[::-1], lengths[::-1]))

    corpora = [corpus(70, "<u2"), corpus(1, "<i4"), corpus(130, "<i4")]
    whole = joined(corpora, [0.5, 0.1, 0.4])
    assert [draw.size for draw in whole.draws] == [70, 1, 130]
    assert [draw.taken for draw in whole.draws] == [100, 20, 80]
    assert [draw.taken for draw in joined(corpora, [0.499, 0.001, 0.5]).draws] == [100, 1, 100]
    expected = [side.tolist() for pairs in corpora for side in pairs.tgt.take(range(len(pairs)))]
    assert [side.tolist() for side in whole.tgt.take(range(len(whole)))] == expected
    assert whole.src[199].tolist() == corpora[2].src[128].tolist()


def test_sources_are_tagged_and_blank_ones_stay_blank(two_languages: MixtureData) -> None:
    assert list(tagged(["a dog", " ", ""], "<2de>")) == ["<2de> a dog", " ", ""]
    text = load(two_languages, Split.validation)
    assert text.src == [f"<2de> {line}" for line in SRC] + [f"<2fr> {line}" for line in SRC]
    assert text.tgt == DE + FR
    assert load(two_languages, Split.test).tgt == DE
    assert set(streams(two_languages, Split.train)) == {"german", "french"}


def test_a_tag_of_origin_is_seen_in_training_alone(two_languages: MixtureData) -> None:
    two_languages.corpora["german"]["tag"] = "bt"
    assert two_languages.origin_tags == {"german": "<bt>"}
    texts = {name: source.read() for name, source in training_streams(two_languages).items()}
    assert texts["german"].src == [f"<2de> <bt> {line}" for line in SRC]
    assert texts["french"].src == [f"<2fr> {line}" for line in SRC]
    for split in (Split.validation, Split.test, Split.train):  # of which the last may be scored, too
        assert load(two_languages, split).src[:9] == [f"<2de> {line}" for line in SRC]
    assert list(untagged(load(two_languages, Split.train).src[:9])) == SRC
    two_languages.target_tags = False
    assert training_streams(two_languages)["german"].read().src == [f"<bt> {line}" for line in SRC]
    stamps = {name: source.stamp() for name, source in training_streams(two_languages).items()}
    two_languages.corpora["german"]["tag"] = "synthetic2"
    assert training_streams(two_languages)["german"].stamp() != stamps["german"]
    assert training_streams(two_languages)["french"].stamp() == stamps["french"]


def test_a_domain_is_told_wherever_the_model_reads_a_source(two_languages: MixtureData) -> None:
    two_languages.corpora["german"] |= {"domain": "med", "tag": "bt"}
    assert two_languages.domains == {"german": "med"}
    assert two_languages.symbols == ["<2de>", "<2fr>", "<domain:med>", "<bt>"]
    assert two_languages.tags_in_front("german") == ["<2de>", "<domain:med>", "<bt>"]
    texts = {name: source.read() for name, source in training_streams(two_languages).items()}
    assert texts["german"].src == [f"<2de> <domain:med> <bt> {line}" for line in SRC]
    assert texts["french"].src == [f"<2fr> {line}" for line in SRC]
    for split in (Split.validation, Split.test):
        scored = load(two_languages, split).src
        assert scored[:9] == [f"<2de> <domain:med> {line}" for line in SRC]
        assert scored[9:] == [f"<2fr> {line}" for line in SRC] * (split is Split.validation)
        assert list(without_front(scored))[:9] == SRC
    found = chains(two_languages, {"test": load(two_languages, Split.test)}, None)["german"]
    assert found.bare(texts["german"], np.arange(9)).src == found.context.scored_on["test"].src == SRC


@pytest.mark.parametrize(
    ("line", "front", "in_med"),
    [
        ("a b", "", "<domain:med> a b"),
        ("<2de> a", "<2de> ", "<2de> <domain:med> a"),
        ("<2de> <domain:law> a", "<2de> <domain:law> ", "<2de> <domain:law> a"),
        ("<domain:law> a <domain:x> b", "<domain:law> ", "<domain:law> a <domain:x> b"),
        ("<domain:Law> a", "", "<domain:med> <domain:Law> a"),
        ("<2de> <domain:xx> a", "<2de> <domain:xx> ", "<2de> <domain:med> <domain:xx> a"),
        ("<b> <2de> a", "", "<domain:med> <b> <2de> a"),
        (" ", "", " "),
        ("", "", ""),
    ],
)
def test_tags_in_front_are_told_from_text(line: str, front: str, in_med: str) -> None:
    assert split_front(line) == (front, line.removeprefix(front))
    assert list(in_domain([line], "<domain:med>", {"<domain:med>", "<domain:law>"})) == [in_med]


def test_only_some_corpora_are_scored(two_languages: MixtureData) -> None:
    two_languages.scored = ["french"]
    assert load(two_languages, Split.validation).tgt == FR
    assert not has_split(two_languages, Split.test)
    assert stream(two_languages, Split.train).read().tgt == DE + FR


def test_words_are_those_of_the_language_that_is_scored(two_languages: MixtureData) -> None:
    assert two_languages.scored_language == "de"  # there are two; then data.tgt
    two_languages.scored = ["french"]
    assert two_languages.scored_language == "fr"


def test_errors_name_the_keys_of_the_corpus(two_languages: MixtureData, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text('{"en": "a", "de": "b"}\n')

    def with_german(**keys: str) -> MixtureData:
        german = {"path": str(tmp_path / "hub"), **keys}
        return replace(two_languages, corpora={**two_languages.corpora, "german": german})

    with pytest.raises(UserError, match=r"^data\.corpora\.german\.train=trian: .* has no split 'trian'"):
        stream(with_german(train="trian"), Split.train).read()
    with pytest.raises(
        UserError, match=r"set data\.corpora\.german\.tgt or data\.corpora\.german\.tgt_column"
    ):
        stream(with_german(tgt="fr"), Split.train).read()


@dataclass
class CountedData(DataConfig):
    """A source of its own, with a key of its own."""

    name: str = "counted"
    pairs: int = 3


def stream_counted(cfg: CountedData, split: Split) -> PairStream:
    lines = [f"{split.value} {number}" for number in range(cfg.pairs)]
    return PairStream(lambda: f"{cfg.pairs} {split}", lambda: iter([ParallelText(lines, lines)]))


def test_a_source_is_its_row_alone_and_in_a_mixture(
    two_languages: MixtureData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "counted", (CountedData, stream_counted))
    assert load(CountedData(), Split.test).src == ["test 0", "test 1", "test 2"]
    corpora = {**two_languages.corpora, "mine": {"name": "counted", "pairs": "2", "tgt": "pt", "weight": 2}}
    mixed = MixtureData(corpora=corpora, target_tags=True)
    assert load(mixed, Split.test).src[-2:] == ["<2pt> test 0", "<2pt> test 1"]
    assert len(load(mixed, Split.train)) == 20
    assert mixed.corpora["mine"]["weight"] == 2.0


def test_bundled_corpora_can_be_parts() -> None:
    mixed = MixtureData(corpora={"a": {"name": "demo"}, "b": {"name": "toy", "tgt": "fr"}}, scored=["b"])
    assert [len(part.read()) for part in streams(mixed, Split.train).values()] == [24_000, 10]
    assert load(mixed, Split.test) == load(ToyData(), Split.test)


def test_keys_that_are_null_say_nothing(two_languages: MixtureData) -> None:
    """As in configs that were stored by earlier versions."""
    corpora = {
        name: dict.fromkeys(("dataset", "path", "revision", "src", "test")) | entry
        for name, entry in two_languages.corpora.items()
    }
    assert MixtureData(corpora=corpora, target_tags=True) == two_languages


def test_one_corpus_is_a_mixture_of_one(tmp_path: Path) -> None:
    part = known(ParallelText(["a b"] * 90, ["c"] * 90))
    text = TrainingText({"only": part}, [1.0])
    assert (text.sha256, len(text), text.shared("test")) == (part.sha256, 90, 1)
    assert concatenated(text.samples(20, seed=3)) == part.sample(20, seed=3)
    assert text.sampling_key(20, seed=3) == (20, 3)
    alone, mixed = FilesData(train="x"), MixtureData(corpora={"only": {"train": "x"}})
    for cfg in (alone, mixed):
        assert cfg.shares([90]) == [1.0]
        assert [part.place(Split.train) for part in cfg.parts(Split.train).values()] == ["x"]


def test_the_stamp_depends_on_the_tags(two_languages: MixtureData) -> None:
    before = stream(two_languages, Split.train).stamp()
    assert stream(two_languages, Split.train).stamp() == before
    two_languages.target_tags = False
    assert stream(two_languages, Split.train).stamp() != before


def test_an_error_names_the_corpus(two_languages: MixtureData, tmp_path: Path) -> None:
    def with_french(**train: str) -> MixtureData:
        french = {key: value for key, value in two_languages.corpora["french"].items() if key != "train"}
        return replace(two_languages, corpora={**two_languages.corpora, "french": french | train})

    with pytest.raises(UserError, match=r"^data\.corpora\.french\.train: there is no file"):
        streams(with_french(train="nowhere/at/all"), Split.train)
    with pytest.raises(UserError, match=r"data\.corpora\.french: a corpus needs train"):
        with_french()
    (tmp_path / "train-fr.fr").write_text("un\ndeux\n")
    with pytest.raises(UserError, match=r"^data\.corpora\.french\.train: .* has 9 lines but .* has 2"):
        stream(with_french(train=f"{tmp_path}/train-fr"), Split.train).read()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": 0.0}, "data.temperature must be positive"),
        (
            {"corpora": {"a": {"weight": -1.0}}},
            r"data.corpora.a.weight must be positive, but is -1.0",
        ),
        ({"corpora": {"news": {"train": "x"}}, "scored": ["new"]}, "did you mean 'news'"),
        (
            {"corpora": {"a": {"name": "mixture"}}},
            "data.corpora.a.name must be one of demo, toy, hub, files",
        ),
        *(
            (
                {"corpora": {"a": {"train": "x", key: tag}}},
                f"data.corpora.a.{key} must be a word of small letters a to z and digits, such as bt, and "
                f"none of s, pad, unk, but is {tag!r}",
            )
            for key in ("tag", "domain")
            for tag in ("", "BT", "b t", "<bt>", "2de", "s", "pad", "unk", "b-t", "b/t", "ü", 5, True)
        ),
        ({"corpora": {"a": 5}}, "data.corpora.a must be a group of keys, such as {train: PATH}, but is 5"),
        ({"corpora": {"a": {"name": "fils"}}}, "but is 'fils'; did you mean 'files'"),
        (
            {"corpora": {"a": {"train": "x", "wieght": 2}}},
            "unknown key data.corpora.a.wieght; did you mean 'weight'.$",
        ),
        (
            {"corpora": {"a": {"train": "x", "max_chars": 9}}},
            "max_chars; the keys of name=files are weight, loss_weight, tag, domain, fixers, filters, "
            "augment, document_column, documents, references, src",
        ),
        ({"corpora": {"a": {"train": {"x": 1}}}}, "^data.corpora.a.train must be a path, or a list of paths"),
        (
            {"corpora": {"a": {"path": "x", "validation": {}}}},
            "^data.corpora.a.validation cannot be {}; docs",
        ),
        (
            {"corpora": {"a": {"name": "toy"}}},
            "the languages en and fr, not data.corpora.a.src=en data.corpora.a.tgt=de",
        ),
        (
            {"corpora": {"a": {"train": "x", "tgt": "en"}}},
            "^data.corpora.a.src and data.corpora.a.tgt must be two languages, not 'en' and 'en'",
        ),
        (
            {"corpora": {"a": {"train": "x", "tgt": "d e"}}, "target_tags": True},
            "without spaces and brackets, not 'd e'",
        ),
    ],
)
def test_what_makes_no_mixture_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        MixtureData(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TokenizerKind)
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_tag_is_one_piece(kind: TokenizerKind, lowercase: bool) -> None:
    text = ParallelText([*tagged(SRC, "<2de> <bt>"), *tagged(SRC, "<2zh_TW>")], DE + FR)
    cfg = TokenizerConfig(kind, vocab_size=47, lowercase=lowercase)
    tokenizer = Tokenizer.train(cfg, text, ["<2de>", "<2zh_TW>", "<bt>"])
    for tag in ("<2de>", "<2zh_TW>", "<bt>"):
        pieces = [
            piece.text.strip("\N{LOWER ONE EIGHTH BLOCK}")
            for piece in tokenizer.src_pieces([f"{tag} the dog runs"])[0]
        ]
        assert (tag.lower() if lowercase else tag) in pieces


def test_a_tokenizer_sees_the_shares_of_a_mixture(tmp_path: Path) -> None:
    large, small = (
        known(ParallelText(["a b"] * 900, ["c"] * 900)),
        known(ParallelText(["x y"] * 100, ["z"] * 100)),
    )
    parts = {"large": large, "small": small}
    mixed = TrainingText(parts, [0.4, 0.6])
    assert len(mixed) == 1000
    assert mixed.shared("test") == 2
    drawn = Counter(concatenated(mixed.samples(100, seed=1)).tgt)
    assert drawn == {"c": 40, "z": 60}
    assert Counter(concatenated(mixed.samples(5000, seed=1)).tgt) == {"c": 900, "z": 100}
    cfg = TokenizerConfig(TokenizerKind.char, max_sentences=200)
    tokenizer = train_tokenizer(cfg, mixed, seed=1, cache=tmp_path, log=print)
    assert train_tokenizer(cfg, mixed, seed=1, cache=tmp_path, log=print).fingerprint == tokenizer.fingerprint
    assert len(list(tmp_path.iterdir())) == 1
    train_tokenizer(cfg, TrainingText(parts, [0.5, 0.5]), seed=1, cache=tmp_path, log=print)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_tokenizer_sees_each_corpus_as_its_pairs_are_modified(tmp_path: Path) -> None:
    parts = {name: known(ParallelText(["i"] * 50, ["i"] * 50)) for name in ("turkish", "german")}
    upper = (UpperCaseConfig("upper_case", rate=1.0),)
    cfg = TokenizerConfig(TokenizerKind.char, joint=False)
    text = TrainingText(parts, [0.5, 0.5])
    modify = [Augmentation(upper, ("en", "tr")), Augmentation(upper, ("en", "de"))]
    tokenizer = train_tokenizer(cfg, text, seed=1, cache=tmp_path, log=print, modify=modify)
    both = [
        sum(UNK_ID in ids for ids in encode(["İ", "I"]))
        for encode in (tokenizer.encode_src, tokenizer.encode_tgt)
    ]
    assert both == [1, 0]  # no English capital has a dot
    other = train_tokenizer(cfg, text, seed=1, cache=tmp_path, log=print, modify=modify[1:] * 2)
    assert UNK_ID in other.encode_tgt(["İ"])[0]
