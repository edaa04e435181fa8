"""The rules of experiment=small_data: sane at every size, in any script, and never against the user."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.config import small_data
from nmt.config.compose import compose
from nmt.config.composed import Composed
from nmt.config.misfits import check
from nmt.config.overrides import config_dir
from nmt.config.roots import TrainConfig, to_config
from nmt.config.small_data import (
    KEYS,
    NOMINAL,
    OPEN,
    VOCABULARY,
    WITHOUT_RECIPE,
    filled,
    open_keys,
    remarks,
    settings_for,
)
from nmt.config.stored import fingerprint, load_config
from nmt.config.trials import plan
from nmt.data.cleaning import census
from nmt.data.cleaning.census import Census, SideCensus, count
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import Case, Normalization, TokenizerConfig, TokenizerKind
from nmt.errors import UserError
from nmt.models.configs import TransformerConfig
from nmt.verbs import VERBS
from nmt.verbs.configs import TrainVerbConfig
from tests.runs.untrained import untrained

RECIPE = "experiment=small_data"
NUMBERS = sorted({round(10 ** (e / 8)) for e in range(8, 56)} | {50, 500, 29_000, 500_000})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when data is read."""
    monkeypatch.setattr(census, "take", lambda *arguments: pytest.fail("the data was read"))


def english(pairs: int) -> Census:
    """Return the counts of a corpus like Multi30k."""
    side = SideCensus(12 * pairs, 30 * round(pairs**0.6), 55 * pairs, 0, NOMINAL.src.alphabet)
    return Census(pairs, side, side)


@functools.cache
def recipe(*overrides: str) -> Composed:
    (only,) = compose(VERBS["train"], [RECIPE, *overrides])
    return only


def chosen(counts: Census, *overrides: str) -> dict[str, Any]:
    return {setting.key: setting.value for setting in settings_for(counts, recipe(*overrides).cfg)}


def test_every_key_is_open_in_the_recipe_and_has_one_reason(unread: None) -> None:
    assert open_keys(recipe().cfg) == [*KEYS]
    settings = settings_for(NOMINAL, recipe().cfg)
    assert sorted(setting.key for setting in settings) == sorted(KEYS)
    assert all(setting.reason for setting in settings)
    assert (config_dir() / "experiment/small_data.yaml").read_text(encoding="utf-8").count(
        f": {OPEN}\n"
    ) == len(KEYS)


def test_at_29000_pairs_the_rules_say_what_the_recipe_of_multi30k_says(unread: None) -> None:
    pieces = ["tokenizer.vocab_size=8000", "tokenizer.case=markup"]
    (known,) = compose(VERBS["train"], ["experiment=multi30k_en_de", "data=demo", *pieces])
    assert recipe().to_config(TrainConfig) == known.to_config(TrainConfig)


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key not in ("tokenizer.case", "tokenizer.normalization")]
)
def test_more_pairs_mean_larger_sizes_and_less_regularisation(key: str, unread: None) -> None:
    values = [chosen(english(pairs))[key] for pairs in NUMBERS]
    falls = key in ("model.dropout", "objective.label_smoothing")
    assert values == sorted(values, reverse=falls)
    assert len(set(values)) > 1


@pytest.mark.parametrize("pairs", NUMBERS)
def test_at_every_size_the_config_is_a_valid_one(pairs: int, unread: None) -> None:
    closed = filled(recipe().cfg, settings_for(english(pairs), recipe().cfg))
    assert open_keys(closed) == []
    cfg = to_config(closed, TrainVerbConfig)
    check(cfg)
    target_tokens = cfg.trainer.max_steps * cfg.trainer.tokens_per_batch  # type: ignore[operator]
    assert 200 <= cfg.trainer.max_steps <= 10_000  # type: ignore[operator]
    assert target_tokens < 40e6


@pytest.mark.parametrize("counts", [Census(), english(1)], ids=["nothing", "one"])
def test_a_corpus_of_nearly_nothing_has_settings(counts: Census, unread: None) -> None:
    check(to_config(filled(recipe().cfg, settings_for(counts, recipe().cfg)), TrainVerbConfig))


SCRIPTS: dict[str, Callable[[str], str]] = {
    "latin": str,
    "capitals": str.title,
    "greek": lambda line: "".join(chr(ord("α") + ord(char) % 24) if char != " " else " " for char in line),
    "no spaces": lambda line: line.replace(" ", ""),
    "ideographs": lambda line: "".join(
        chr(0x4E00 + zlib.crc32(word.encode()) % 3000) for word in line.split()
    ),
    "full width": lambda line: "".join(chr(ord(char) + 0xFEE0) for char in line if char != " "),
}


def sentences(number: int, rng: random.Random) -> list[str]:
    """Return lines of words that are drawn as in a language: a few often, most of them once."""
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(4000)]
    return [
        " ".join(words[min(int(rng.paretovariate(0.6)), 3999)] for _ in range(rng.randint(4, 14)))
        for _ in range(number)
    ]


@pytest.mark.parametrize("kind", [TokenizerKind.bpe, TokenizerKind.unigram], ids=lambda kind: kind.value)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("pairs", [2, 50, 400])
def test_a_tokenizer_of_the_size_chosen_can_be_trained(
    pairs: int, script: str, kind: TokenizerKind, unread: None
) -> None:
    rng = random.Random(pairs)
    src, tgt = sentences(pairs, rng), [SCRIPTS[script](line) for line in sentences(pairs, rng)]
    text = ParallelText(src, tgt)
    values = chosen(count([text]), f"tokenizer={kind.value}")
    size, normalization = (
        int(values["tokenizer.vocab_size"]),
        Normalization(values["tokenizer.normalization"]),
    )
    assert (normalization is Normalization.identity) == (script == "full width")
    cfg = TokenizerConfig(kind=kind, vocab_size=size, normalization=normalization)
    tokenizer = Tokenizer.train(cfg, text)
    assert tokenizer.tgt_vocab_size == size
    if script == "full width":
        assert [tokenizer.decode(ids[:-1]) for ids in tokenizer.encode_tgt(tgt)] == tgt
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_tgt(tgt)] == tgt  # no character is unknown


@pytest.mark.parametrize("line", ["a", "ja ja ja", "no no\tyes"])
def test_a_corpus_that_repeats_itself_has_few_pieces(line: str, unread: None) -> None:
    text = ParallelText([line] * 500, [line] * 500)
    size = int(chosen(count([text]))["tokenizer.vocab_size"])
    assert (
        Tokenizer.train(TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=size), text).tgt_vocab_size == size
    )


def test_large_alphabets_have_room(unread: None) -> None:
    many = SideCensus(100, 100, 0, 50_000, "".join(map(chr, range(0x4E00, 0x4E00 + 3000))))
    assert chosen(Census(3000, english(3000).src, many))["tokenizer.vocab_size"] > 3000
    assert chosen(english(500), "tokenizer.byte_fallback=true")["tokenizer.vocab_size"] > 256 + 500


def test_without_spaces_a_text_has_as_many_different_words_as_another(unread: None) -> None:
    """Whole sentences between spaces are no words: half of them said how many pieces there are."""
    for pairs in (300, 3000, 30_000):
        spaced = english(pairs).src
        thai = SideCensus(pairs, pairs, spaced.narrow + spaced.runs * 2, 0, spaced.alphabet)
        sizes = [chosen(Census(pairs, side, side))["tokenizer.vocab_size"] for side in (spaced, thai)]
        assert 0.7 * sizes[0] < sizes[1] < 1.5 * sizes[0]


def test_few_passes_need_little_dropout(unread: None) -> None:
    dropouts = [chosen(english(pairs))["model.dropout"] for pairs in (29_000, 160_000, 500_000)]
    assert dropouts == [0.3, 0.15, 0.1]
    assert chosen(english(29_000), "trainer.max_steps=2000")["model.dropout"] == 0.1


def test_targets_that_normalising_rewrites_are_left_alone(unread: None) -> None:
    pairs = english(1000)
    pairs.tgt.rewritten = 10
    assert chosen(pairs)["tokenizer.normalization"] == "nmt_nfkc"
    pairs.tgt = dataclasses.replace(pairs.tgt, rewritten=11)
    assert chosen(pairs)["tokenizer.normalization"] == "identity"
    assert chosen(pairs, "tokenizer.path=a.model")["tokenizer.normalization"] == "nmt_nfkc"
    files = ("data.train=a.tsv", "data.validation=b.tsv", "data.test=c.tsv")
    labels = ("task=classification", "data=labels", "model=encoder", *files)
    assert chosen(pairs, *labels)["tokenizer.normalization"] == "nmt_nfkc"
    pairs.dropped = 500
    cfg = recipe().cfg
    first, *_ = remarks(pairs, cfg, settings_for(pairs, cfg))
    assert first.startswith("chosen for 1,000 training pairs of 1,500 (the rest is beyond data.max_ratio, ")


def test_settings_follow_what_the_user_states(unread: None) -> None:
    short = chosen(english(29_000), "trainer.max_steps=100")
    assert (short["trainer.eval_every_steps"], short["schedule.warmup_steps"]) == (20, 6)
    usual = chosen(english(29_000))["trainer.max_steps"]
    assert chosen(english(29_000), "trainer.batch_tokens=4096")["trainer.max_steps"] == usual / 2
    assert chosen(english(29_000), "trainer.accumulate=2")["trainer.max_steps"] == usual / 2
    assert chosen(english(29_000), "trainer.batch_tokens=auto")["trainer.max_steps"] == usual
    assert chosen(english(500), "data.max_tokens=1500")["trainer.batch_tokens"] == 1500


@pytest.mark.parametrize(
    "override",
    [
        "tokenizer=word",
        "tokenizer.lowercase=true",
        "tokenizer.normalization=nfkc_cf",
        "tokenizer.source_factors=[case]",
        "tokenizer.symbols=[NUM]",
        "tokenizer.path=ready.json",
    ],
)
def test_case_is_marked_where_that_is_possible(override: str, unread: None) -> None:
    assert chosen(english(500))["tokenizer.case"] == "markup"
    assert chosen(english(500), "tokenizer.symbols=['⟨num⟩']")["tokenizer.case"] == "markup"
    assert chosen(english(500), override)["tokenizer.case"] == "keep"
    closed = filled(recipe(override).cfg, settings_for(english(500), recipe(override).cfg))
    check(to_config(closed, TrainVerbConfig))
    kanji = SideCensus(1000, 500, 0, 5000, "一二三")
    assert chosen(Census(500, kanji, kanji))["tokenizer.case"] == "keep"


def test_a_value_that_is_stated_wins_and_is_said_to_be_stated(unread: None) -> None:
    cfg = recipe("tokenizer.vocab_size=2000").cfg
    settings = settings_for(NOMINAL, cfg)
    assert filled(cfg, settings).tokenizer.vocab_size == 2000
    lines = list(remarks(NOMINAL, cfg, settings))
    assert lines[0] == "chosen for 29,000 training pairs, 345,000 words on the longer side:"
    assert "  tokenizer.vocab_size=2000, as you say; the rules say 8000: " in lines[1]
    assert "  model.dropout=0.3: 0.3 at 29,000 pairs" in lines[4]
    assert len(lines) == 1 + len(KEYS)


@pytest.mark.parametrize(
    "choice",
    [
        "model=rnn_bahdanau",
        "model=conv optimizer=adam",
        "model=gpt",
        "objective=simcut",
        "schedule=cosine",
        "optimizer=adam",
    ],
)
def test_other_choices_go_with_the_rules(choice: str, unread: None) -> None:
    composed = recipe(*choice.split(" "))
    check(composed.to_config(TrainConfig))
    assert open_keys(composed.cfg) == [*KEYS]


def test_a_recipe_of_the_user_can_build_on_this_one(tmp_path: Path, unread: None) -> None:
    file = tmp_path / "mine" / "experiment" / "short.yaml"
    file.parent.mkdir(parents=True)
    text = "# @package _global_\ndefaults: [small_data, _self_]\nmodel:\n  dropout: 0.5\n"
    file.write_text(text, encoding="utf-8")
    (composed,) = compose(VERBS["train"], ["-cd", "mine", "experiment=short"])
    assert "model.dropout" not in open_keys(composed.cfg)
    assert composed.to_config(TrainConfig).model.dropout == 0.5  # type: ignore[attr-defined]


def test_help_reads_no_data(unread: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", RECIPE, "--help"]) == 0
    assert f"tokenizer.vocab_size={OPEN}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.num_heads=3"], "model.num_heads"),
        (["data=files"], "data.train is not set"),
        (["trainer.max_steps=-1", "seed=x"], "trainer.max_steps must be positive"),
        (["data.streaming=true"], "data.streaming=true has no sentence pairs to count before the training"),
        (
            ["task=language_model", "model=gpt", "tokenizer.sampling_alpha=0", "trainer.best_metric=loss"],
            "task=language_model has no sentence pairs to count before the training",
        ),
    ],
)
def test_mistakes_are_refused_before_any_data_is_read(
    arguments: list[str], message: str, unread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", RECIPE, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_all_values_stated_need_no_data(unread: None) -> None:
    stated = [f"{setting.key}={setting.value}" for setting in settings_for(NOMINAL, recipe().cfg)]
    (composed,) = compose(VERBS["train"], [RECIPE, "data.streaming=true", *stated])
    assert composed.to_training()[0].trainer.max_steps == 5000


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    """Return the arguments for fifty pairs of two languages without a common letter."""
    rng = random.Random(1)
    for split, number in (("train", 50), ("dev", 1)):
        src = sentences(number, rng)
        tgt = [SCRIPTS["greek"](line) for line in src]
        for side, lines in (("xx", src), ("yy", tgt)):
            (tmp_path / f"{split}.{side}").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )
    places = ["data.train=train", "data.validation=dev", "data.scored_split=validation"]
    return [RECIPE, "data=files", "data.src=xx", "data.tgt=yy", *places]


def test_cfg_shows_the_values_chosen(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *corpus, "objective.label_smoothing=0.05", "--cfg", "job"]) == 0
    shown = capsys.readouterr()
    assert OPEN not in shown.out
    assert "\n  dropout: 0.4\n" in shown.out
    assert shown.err.startswith("chosen for 50 training pairs, ")
    assert "  objective.label_smoothing=0.05, as you say; the rules say 0.2: " in shown.err
    assert "longer side:\n" in shown.err


def test_what_filters_leave_is_counted(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = "{name: length, max: 45},{name: cross_entropy, run: RUN, share: 0.5}"  # the run is not there yet
    assert main(["train", *corpus, f"data.filters=[{rows}]", "--cfg", "job"]) == 0
    found = re.search(
        r"chosen for (\d+) training pairs, (\d+) words on the longer side, "
        "after data.filters but those with models:\n",
        capsys.readouterr().err,
    )
    lines = [line for line in Path("train.xx").read_text(encoding="utf-8").splitlines() if len(line) <= 45]
    assert found
    assert 0 < int(found[1]) == len(lines) < 50
    assert int(found[2]) == sum(len(line.split()) for line in lines)


def test_a_sweep_chooses_for_each_trial(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = plan(VERBS["train"], ["-m", *corpus, "trainer.max_steps=100,1000"]).trials
    assert capsys.readouterr().err == ""
    assert [trial.to_training()[0].schedule.warmup_steps for trial in (first, second)] == [6, 60]


TINY = [
    *("model.d_model=16", "model.d_ff=16", "model.num_heads=2", "model.encoder_layers=1"),
    *("model.decoder_layers=1", "trainer.max_steps=1", "decoding=greedy", "decoding.max_length_ratio=1"),
    *("runtime.device=cpu", "tracking.sinks=[]"),
]


def test_the_same_command_finds_its_run(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *corpus, *TINY]
    assert main(command) == 0
    (run,) = (tmp_path / "outputs" / "files-xx-yy").iterdir()
    capsys.readouterr()
    stored = load_config(run / "config.yaml")
    assert (stored.tokenizer.case, stored.model.dropout) == (Case.keep, 0.05)  # type: ignore[attr-defined]
    assert main(command) == 0
    assert "is finished:" in capsys.readouterr().out
    with (tmp_path / "train.xx").open("a") as src, (tmp_path / "train.yy").open("a") as tgt:
        src.write("ba ba\n" * 200)
        tgt.write("αβ αβ\n" * 200)
    (composed,) = compose(VERBS["train"], [*corpus, *TINY])
    assert fingerprint(composed.to_training()[0]) != fingerprint(stored)  # other data, other values


def test_the_rules_are_not_for_other_missing_values() -> None:
    with pytest.raises(UserError, match="cannot be resolved"):
        compose(VERBS["train"], ["trainer.log_every_steps='${small_data}'"])
    assert small_data.OPEN == "${small_data}"


def test_without_a_recipe_vocabulary_and_model_follow_the_pairs(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (composed,) = compose(VERBS["train"], corpus[1:])
    assert open_keys(composed.cfg) == [*WITHOUT_RECIPE]
    cfg, folder = composed.to_training()
    said = capsys.readouterr().err
    words = "[0-9]+ words"
    size = cfg.tokenizer.vocab_size
    assert size < 200
    assert re.match(
        rf"without a recipe: tokenizer.vocab_size={size} \(for 50 training pairs, {words}\) and "
        rf"model=transformer_tiny \(for {words}\); set tokenizer.vocab_size and model for others, or take ",
        said,
    )
    assert said.count("\n") == 1
    assert folder.name.startswith("transformer_tiny-")
    (tiny,) = compose(VERBS["train"], [*corpus[1:], "model=transformer_tiny"])
    assert tiny.to_training()[0] == cfg


def test_without_a_recipe_targets_that_would_be_rewritten_are_not_normalised(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = Path("train.yy")
    target.write_text("".join(f"{line}，\n" for line in target.read_text().splitlines()))
    (composed,) = compose(VERBS["train"], corpus[1:])
    assert composed.to_training()[0].tokenizer.normalization is Normalization.identity
    said = capsys.readouterr().err
    assert "tokenizer.normalization=identity (nmt_nfkc rewrites 50 target lines" in said
    assert "; set tokenizer.vocab_size and tokenizer.normalization and model for others" in said
    for known in ("tokenizer.normalization=nmt_nfkc", "tokenizer.vocab_size=99"):
        (stated,) = compose(VERBS["train"], [*corpus[1:], known])
        assert stated.to_training()[0].tokenizer.normalization is Normalization.nmt_nfkc
    for others in (["task=language_model", "model=gpt"], ["tokenizer=word"], ["tokenizer=char"]):
        (composed,) = compose(VERBS["train"], [*others, *corpus[1:]])
        assert composed.to_training()[0].tokenizer.normalization is Normalization.identity


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (["data=files", "data.src=xx", "data.tgt=yy", "data.train=train", "data.validation=dev"], 50),
        (["data=text", "data.tgt=yy", "data.train=train.yy", "data.held_out=0.2"], 40),
    ],
)
def test_the_vocabulary_of_a_language_model_follows_its_text(
    data: list[str], lines: int, corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["task=language_model", "model=gpt", *data, "data.scored_split=validation"]
    (composed,) = compose(VERBS["train"], arguments)
    size = composed.to_training()[0].tokenizer.vocab_size
    assert size < 200
    assert re.fullmatch(
        rf"without a recipe: tokenizer.vocab_size={size} \(for {lines} lines of text, [0-9]+ words\); "
        "set tokenizer.vocab_size for others\n",
        capsys.readouterr().err,
    )
    Path("train.xx").write_text("".join(f"{line}\n" for line in sentences(50, random.Random(2))))
    (composed,) = compose(VERBS["train"], arguments)
    assert composed.to_training()[0].tokenizer.vocab_size == size  # of the targets alone


def test_a_choice_of_data_of_the_user_has_the_recipe_of_what_it_is_built_on(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own" / "data").mkdir(parents=True)
    for name, base in (("greek", "base_files"), ("more", "greek"), ("other", "multi30k"), ("bad", "missing")):
        (tmp_path / "own" / "data" / f"{name}.yaml").write_text(f"defaults: [{base}, _self_]\n")
    mine = ["--config-dir", str(tmp_path / "own"), *corpus[2:]]
    (files,) = compose(VERBS["train"], corpus[1:])
    expected = files.to_training()[0]
    for name in ("greek", "more"):
        (composed,) = compose(VERBS["train"], [*mine, f"data={name}"])
        assert composed.to_training()[0] == expected
    capsys.readouterr()
    for chosen in ([*mine, "data=greek", "experiment=none"], [*mine[:2], "data=other"]):
        (composed,) = compose(VERBS["train"], chosen)
        assert composed.to_training()[0].tokenizer.vocab_size == 8000
    with pytest.raises(UserError, match="missing"):
        compose(VERBS["train"], [*mine, "data=bad"])
    run = untrained(tmp_path / "run")
    student = compose(VERBS["distil"], [*mine, "data=greek", f"teacher={run}"])[0]
    assert student.cfg == compose(VERBS["distil"], [*corpus[1:], f"teacher={run}"])[0].cfg  # of all data
    start = [f"init={run}", "init.vocabulary=remap"]
    assert VOCABULARY in open_keys(compose(VERBS["train"], [*mine, "data=greek", *start])[0].cfg)
    capsys.readouterr()
    (tmp_path / "own" / "experiment").mkdir()
    (tmp_path / "own" / "experiment" / "greek.yaml").write_text(
        "# @package _global_\ntokenizer:\n  vocab_size: 90\n"
    )
    (composed,) = compose(VERBS["train"], [*mine, "data=greek"])
    assert composed.to_training()[0].tokenizer.vocab_size == 90
    assert capsys.readouterr().err == ""


def test_a_stream_is_not_told_to_count_pairs(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (composed,) = compose(VERBS["train"], [*corpus[1:], "data.streaming=true"])
    assert composed.to_training()[0].tokenizer.vocab_size == 8000
    assert capsys.readouterr().err.endswith("set tokenizer.vocab_size and model for others\n")


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (999_999, "transformer_tiny"),
        (1_000_000, "transformer_small"),
        (19_999_999, "transformer_small"),
        (20_000_000, "transformer_base"),
    ],
)
def test_a_model_by_the_corpus_is_that_of_a_choice(
    words: int,
    model: str,
    corpus: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    side = SideCensus(words, 20_000, 5 * words, 0, "abc")
    monkeypatch.setattr(small_data, "counted", lambda cfg: Census(words // 20, side, side))
    (composed,) = compose(VERBS["train"], [*corpus[1:], "model.dropout=0.15", "tokenizer.vocab_size=900"])
    found = composed.to_training()[0].model
    assert capsys.readouterr().err == f"by the corpus: model={model} (for {words:,} words)\n"
    (chosen,) = compose(VERBS["train"], [*corpus[1:], "model.dropout=0.15", f"model={model}"])
    assert found == chosen.to_training()[0].model
    (composed,) = compose(VERBS["train"], [*corpus[1:], "model.d_model=64", "tokenizer.vocab_size=900"])
    found = composed.to_training()[0].model
    assert isinstance(found, TransformerConfig)
    assert (found.d_model, found.d_ff) == (64, chosen.to_training()[0].model.d_ff)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["data.streaming=true"], "not chosen by the corpus, which data.streaming=true does not count"),
        (["tokenizer=word", "model=transformer_tiny"], "at most, of tokenizer.kind=word"),
    ],
)
def test_without_a_recipe_nothing_is_refused_that_cannot_be_counted(
    arguments: list[str], reason: str, corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (composed,) = compose(VERBS["train"], [*corpus[1:], *arguments])
    assert composed.to_training()[0].tokenizer.vocab_size == 8000
    assert f"tokenizer.vocab_size=8000 ({reason})" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["data=files", "tokenizer.vocab_size=500", "model=conv"],
        ["data=files", "tokenizer.path=ready.json", "model=conv"],
        ["data=files", "experiment=none"],
        ["data=multi30k"],
    ],
)
def test_what_is_said_and_what_is_known_is_taken_without_a_word(
    arguments: list[str], unread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["data.train=a", "data.validation=b", "data.test=c"] if "data=files" in arguments else []
    (composed,) = compose(VERBS["train"], [*arguments, *places])
    composed.to_training()
    assert capsys.readouterr().err == ""
