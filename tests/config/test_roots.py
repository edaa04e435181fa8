"""The root configs: config.yaml written and read, checks across components, what may change in a run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import string
from itertools import pairwise
from pathlib import Path
from typing import Any

import omegaconf
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.comparison.record import read_config
from nmt.config.compose import compose
from nmt.config.composed import Composed
from nmt.config.misfits import check
from nmt.config.plain import Loader, dumped, parsed
from nmt.config.roots import TrainConfig, TranslateConfig, with_batch_tokens
from nmt.config.schemas import set_up
from nmt.config.stored import difference, fingerprint, load_config, refuse_difference, save_config, to_plain
from nmt.data.configs import ColumnsConfig, DataConfig
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.sources import SOURCES, MixtureData
from nmt.errors import UserError
from nmt.models.configs import MODELS
from nmt.training.optimizers.optimizer_configs import OPTIMIZERS
from nmt.training.optimizers.schedule_configs import SCHEDULES, CosineConfig
from nmt.verbs import VERBS
from nmt.verbs.configs import ClassifyConfig, EvaluateConfig, RerankConfig, ScoreConfig

BILLION_LAUGHS = b"a: &a [x, x]\n" + b"".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n".encode() for before, name in pairwise("abcdefghij")
)
FILES = (
    "data=files",
    *(f"data.{split}=corpus/{split}.{{lang}}" for split in ("train", "validation", "test")),
)
ONE_CORPUS = "{all: {train: train, validation: dev, test: test}}"


def config(*overrides: str) -> TrainConfig:
    """Return the config of `nmt train` with `overrides`; a fresh copy at every call."""
    return composed(overrides).to_config(TrainConfig)


@functools.cache
def composed(overrides: tuple[str, ...]) -> Composed:
    (only,) = compose(VERBS["train"], overrides)
    return only


@functools.cache
def default_text() -> str:
    return yaml.safe_dump(to_plain(config()))


def stored(path: Path, **changes: Any) -> Path:
    """Write the default config with some dotted keys changed (`...` removes a key); return the file."""
    plain = yaml.safe_load(default_text())
    for key, value in changes.items():
        *parts, leaf = key.split("__")
        node = plain
        for part in parts:
            node = node[part]
        if value is ...:
            del node[leaf]
        else:
            node[leaf] = value
    file = path / "config.yaml"
    file.write_text(yaml.safe_dump(plain), encoding="utf-8")
    return file


def test_null_takes_back_the_sets_of_an_experiment(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config("sets=null"))), encoding="utf-8")
    assert load_config(file).sets == {}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model=transformer_big", "model.norm_order=post", "tokenizer=bpe", "seed=7", "run=outputs/mine"),
        ("experiment=multi30k_en_de", "data.path=/data/größe: 1 # x", "metrics=[ter,bleu]"),
        (*FILES, "optimizer.eps=1e-12", "trainer.max_minutes=0.5"),
        *((f"optimizer={name}", "schedule=constant") for name in OPTIMIZERS),
        *((f"schedule={name}",) for name in SCHEDULES),
    ],
    ids=lambda overrides: " ".join(overrides) or "default",
)
def test_a_config_is_read_as_it_was_written(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    written = config(*map(quoted, overrides))
    save_config(written, tmp_path / "config.yaml")
    read = load_config(tmp_path / "config.yaml")
    assert read == written
    assert type(read.optimizer) is type(written.optimizer)
    assert type(read.schedule) is type(written.schedule)
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    file, dates = tmp_path / "config.yaml", ["2024_05", "2024-05-06", "1:30", "1:30.5"]
    numbers = ["1e3", "1__0e3", "1_000", "0x10", "010", "0b1", ".5", "5.", "+1", "1e", ".inf", ".NaN"]
    words = ["true", "True", "null", "~", "no", "on", "=", "<<", "- a", "a: b", " a ", "größe\n"]
    words += ["\x85a", "a\x85b\n", "a\u2028", "a\r"]
    written = config(*map(quoted, FILES))
    assert isinstance(written.data, FilesData)
    written = dataclasses.replace(
        written, run="1e4", data=dataclasses.replace(written.data, train=[*dates, *numbers, *words])
    )
    save_config(written, file)
    assert load_config(file) == written
    assert read_config(file)["data.train"] == [*dates, *numbers, *words]
    named = dict.fromkeys([*dates, *numbers, *words, "\x85"], "\x85")
    assert parsed(dumped(named)) == named


def test_a_config_that_is_read_again_is_a_copy_of_its_own(tmp_path: Path) -> None:
    """What one reader changes no other sees; a file that has changed is read again."""
    file = tmp_path / "config.yaml"
    save_config(config("data=mixture", f"data.corpora={ONE_CORPUS}"), file)
    first, second = load_config(file), load_config(file)
    assert first == second
    assert isinstance(first.data, MixtureData)
    first.data.corpora["all"]["train"] = "another"
    assert load_config(file) == second != first
    save_config(config("seed=7"), file)
    assert load_config(file).seed == 7


def test_hydra_reads_with_our_loader_and_others_as_before() -> None:
    before = omegaconf._utils.get_yaml_loader
    with set_up(VERBS["train"], None):
        assert omegaconf._utils.get_yaml_loader() is Loader
    assert omegaconf._utils.get_yaml_loader is before


def quoted(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{key}='{value}'" if {" ", "{"} & set(value) else override


def test_a_stored_config_is_plain_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPUS", "/data")
    save_config(config("data=multi30k", "data.path=${oc.env:CORPUS}/multi30k"), tmp_path / "config.yaml")
    plain = yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8"))
    assert plain["data"]["path"] == "/data/multi30k"
    assert plain["model"]["norm_order"] == "pre"
    assert list(plain) == [field.name for field in dataclasses.fields(TrainConfig)]


def test_a_key_that_an_older_version_did_not_write_has_its_default(tmp_path: Path) -> None:
    assert load_config(stored(tmp_path, trainer__patience=..., data__max_ratio=...)) == dataclasses.replace(
        config(), trainer=dataclasses.replace(config().trainer, patience=10)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__d_modle": 1}, "unknown key model.d_modle; did you mean model.d_model?"),
        (
            {"model___target_": "os.system"},
            "a config is plain values, and has no key _target_, which names code; remove it",
        ),
        ({"colour": "red"}, "unknown key colour; the keys here are run, task, seed, "),
        ({"model__d_model": "many"}, "model.d_model must be a whole number, but is 'many'"),
        ({"trainer": 5}, "trainer must be a group of keys, but is 5"),
        ({"metrics": ["chrf", ["bleu"]]}, 'metrics[1] must be text, but is ["bleu"]'),
        ({"metrics": ["???"]}, "metrics[0] is missing"),
        ({"decoding__avoid": [["a"]]}, 'decoding.avoid[0] must be text, but is ["a"]'),
        ({"model__norm_order": "prae"}, "model.norm_order must be one of pre, post, but is 'prae'"),
        ({"model__d_model": -1}, "model.d_model must be at least 1, but is -1"),
        ({"model__name": "rnnn"}, f"model.name must be one of {', '.join(MODELS)}, but is 'rnnn'"),
        ({"data__name": 5}, f"data.name must be one of {', '.join(SOURCES)}, but is 5"),
        ({"schedule__name": "noma"}, "but is 'noma'; did you mean 'noam'?"),
        ({"optimizer": ...}, "optimizer.name must be one of adam, "),
        ({"optimizer": [1]}, "optimizer.name must be one of adam, "),
        (
            {"run": "${oc.env:HOME}"},
            "a config in a file is plain values, but here is ${oc.env:HOME}; write it out",
        ),
    ],
    ids=str,
)
def test_a_stored_config_is_read_strictly(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = stored(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        load_config(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a: &x 1\nb: *x\n",
            "{file}: line 2: a config in a file is plain values, but here is *x; write it out",
        ),
        (BILLION_LAUGHS, "{file}: line 2: a config in a file is plain values, but here is *a; write it out"),
        (b"[" * 900, "{file}: line 1: a config is nested less than 8 deep"),
        (b"- 1\n", "{file}: a config is a mapping of keys to values, but this file is not"),
        (b"a: [1\n", "{file} is not YAML: while parsing"),
        (
            b"a: !!python/object:os.system 1\n",
            "line 1: a config in a file is plain values, but here is !!python/",
        ),
        (
            b"a: 1\nb: !x 1\n",
            "{file}: line 2: a config in a file is plain values, but here is !x 1; write it out",
        ),
        (b"a: \xff\n", "{file}: a config is UTF-8 text, but byte 3 is not"),
        (b"#" * 1_000_001, "{file}: a config is smaller than 1,000,000 bytes, but this file is not"),
        (None, "{file} cannot be read: No such file or directory"),
    ],
    ids=["alias", "laughs", "depth", "list", "syntax", "tag", "short tag", "encoding", "size", "missing"],
)
@pytest.mark.fault(35)
def test_a_file_that_is_no_plain_config_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_config(file)
    assert message.format(file=file) in str(error.value)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_config_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = default_text()
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(begin + 40, len(text))))
    patch = data.draw(st.text(alphabet=string.printable, max_size=8))
    file = tmp_path_factory.mktemp("damaged") / "config.yaml"
    file.write_text(text[:begin] + patch + text[end:], encoding="utf-8")
    with contextlib.suppress(UserError):
        assert isinstance(load_config(file), TrainConfig)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("tokenizer.joint=false",),
            "model.name=transformer shares one matrix between source and target, which needs "
            "tokenizer.joint=true; set that, or model.tying=tgt_output",
        ),
        (
            ("model=gpt", "tokenizer.joint=false"),
            "model.name=decoder_only shares one matrix between source and target, which needs "
            "tokenizer.joint=true; set that",
        ),
        (
            ("model=conv", "optimizer=muon"),
            "optimizer=muon is for plain matrices besides the vocabulary, but model.name=convolutional has "
            "none; choose optimizer=adam or optimizer=adamw",
        ),
        (
            ("model=rnn_plain", "validation_decoding.coverage_penalty=0.2"),
            "validation_decoding.coverage_penalty needs a model that attends to the source, but "
            "model.name=rnn has no attention; leave it out",
        ),
        (
            ("model=rnn_plain", "tuned_decoding={coverage_penalty: [0, 0.2]}"),
            "tuned_decoding.coverage_penalty needs a model that attends to the source, but "
            "model.name=rnn has no attention; leave it out",
        ),
        (
            ("model=rnn_plain", "decoding.coverage_penalty=0.2"),
            "decoding.coverage_penalty needs a model that attends to the source, but model.name=rnn has no "
            "attention; leave it out",
        ),
        (
            ("model.positions=learned", "model.max_positions=100"),
            "data.max_tokens must not exceed 100, which is what model.max_positions leaves with learned "
            "positions, but is 256; lower the one or raise the other",
        ),
        (
            ("experiment=none", "trainer.max_steps=null"),
            "training would never end; set one of trainer.max_steps, trainer.max_epochs, trainer.max_tokens, "
            "trainer.max_minutes",
        ),
        (
            (
                "data=mixture",
                "data.corpora={all: {train: train, validation: dev, test: test, tgt: pt-BR}}",
                "data.target_tags=true",
                "tokenizer.strip_punctuation=true",
            ),
            "tokenizer.strip_punctuation=true takes the tag <2pt-BR> of data.target_tags=true apart; "
            "name the language without punctuation, not 'pt-BR'",
        ),
        (
            (
                "data=files",
                "data.train=a",
                "data.validation=b",
                "data.test=c",
                "data.context=1",
                "tokenizer.strip_punctuation=true",
            ),
            "tokenizer.strip_punctuation=true takes <brk> apart, which data.context, data.augment or "
            "data.corpora puts into sources; leave out one of the two",
        ),
        (
            (
                "data=mixture",
                "data.corpora={all: {train: train, validation: dev, test: test, tag: term}}",
                "data.augment=[{name: terms}]",
            ),
            "data.corpora.all.tag is <term> in sources, as a mark of theirs is; choose another word",
        ),
        (
            ("data=demo", "data.augment=[{name: terms}]", "tokenizer=word"),
            "tokenizer.kind=word has no words for the marks <term> and </term> of data.augment; choose "
            "another, such as tokenizer=bpe",
        ),
        (
            (
                "data=demo",
                "data.augment=[{name: matches}]",
                "tokenizer.joint=false",
                "model.tying=tgt_output",
            ),
            "tokenizer.joint=false has no pieces for text of the target language in sources, which <match> "
            "of data.augment offer; set tokenizer.joint=true",
        ),
        (
            ("data=demo", "data.augment=[{name: matches}]", "data.streaming=true", "trainer.max_steps=3"),
            "data.augment has matches, translations of similar sources, but a stream (data.streaming=true) "
            "is not searched; leave matches out",
        ),
        (
            ("data=demo", "data.augment=[typos, {name: matches}]"),
            "data.augment[1] (matches) is behind data.augment[0] (typos), which changes the source that it "
            "looks up; put matches first",
        ),
        (
            ("data=demo", "data.augment=[{name: terms}, noise]"),
            "data.augment[1] (noise) is behind data.augment[0] (terms), whose terms it would change; put "
            "terms last",
        ),
        (
            (
                *("data=mixture", "data.augment=[terms]"),
                "data.corpora={a: {train: a, validation: b, test: c}, b: {train: a, augment: [drop_words]}}",
            ),
            "data.corpora.b.augment[0] (drop_words) is behind data.augment[0] (terms), whose terms it would "
            "change; put terms last: in data.corpora.b.augment, and in that of each other corpus",
        ),
        (
            ("data.streaming=true", "trainer.max_epochs=3"),
            "trainer.max_epochs counts passes over the training split, but data.streaming=true has none; "
            "set trainer.max_steps instead",
        ),
        (
            (
                *("data=mixture", f"data.corpora={ONE_CORPUS}", "trainer.max_epochs=3"),
                "data.stages=[{until: 5, weights: {all: 1}}, {weights: {all: 1}}]",
            ),
            "trainer.max_epochs=3 counts whole passes over the training split, but data.stages end some of "
            "them early; set trainer.max_epochs=null, and trainer.max_steps",
        ),
        (
            ("task=language_model", "model=gpt", "data=text", "data.train=a", "data.streaming=true"),
            "data.streaming=true is for task=translation; set it to false",
        ),
        (
            (
                *("task=language_model", "model=gpt", "data=text", "data.train=a"),
                *("decoding=sampling", "decoding.n_best=2"),
            ),
            "decoding.n_best=2 is for task=translation; leave it out",
        ),
        (
            ("task=language_model", "model=gpt", *map(quoted, FILES), "data.weights=w"),
            "data.weights is for task=translation; with task=language_model set it to null",
        ),
        (
            ("model=gpt", "model.prefix=causal", "model.loss_on=both", "objective=minimum_risk"),
            "objective=minimum_risk is about targets behind their sources, but model.loss_on=both makes one "
            "text of a pair; set model.loss_on=target",
        ),
        (
            ("task=language_model", "model=gpt", "data=mixture", f"data.corpora={ONE_CORPUS}"),
            "data=mixture is for task=translation; choose data=text",
        ),
        (
            ("trainer.batch_tokens=100",),
            "trainer.batch_tokens must hold the longest sentence, data.max_tokens=256, but is 100; "
            "set trainer.batch_tokens higher or data.max_tokens lower",
        ),
        (
            ("trainer.batch_tokens=auto", "trainer.auto_batch_tokens=100"),
            "trainer.auto_batch_tokens must hold the longest sentence, data.max_tokens=256, but is 100; "
            "set trainer.auto_batch_tokens higher or data.max_tokens lower",
        ),
        (
            ("trainer.batch_tokens=auto", "runtime.parallel=fsdp"),
            "trainer.batch_tokens=auto cannot be found with runtime.parallel=fsdp; set it "
            "to a number, or trainer.auto_batch_tokens to the one in the config.yaml of the run",
        ),
        (
            ("optimizer=muon", "runtime.parallel=fsdp"),
            "optimizer=muon needs whole matrices, but runtime.parallel=fsdp splits them; "
            "set runtime.parallel=ddp, or optimizer=adamw",
        ),
        (
            ("trainer.gradient_checkpointing=true", "runtime.compile=true"),
            "trainer.gradient_checkpointing=true is for layers as they are, but runtime.compile=true makes "
            "other code of them; set one of the two to false",
        ),
        (
            ("schedule=cosine", "trainer.max_steps=null", "trainer.max_epochs=3"),
            "schedule=cosine must know where its decay ends; set trainer.max_steps or schedule.decay_steps",
        ),
        (
            ("schedule=linear", "trainer.max_steps=100", "schedule.warmup_steps=100"),
            "schedule=linear decays until trainer.max_steps=100, which must be above "
            "schedule.warmup_steps=100; lower schedule.warmup_steps",
        ),
        (
            ("metrics=[chrf]", "trainer.best_metric=bleu"),
            "trainer.best_metric=bleu is not computed: metrics is [chrf]; "
            "set trainer.best_metric to one of them or to loss",
        ),
        (
            ("metrics=[chrf]", "trainer.best_metric=chr"),
            "trainer.best_metric=chr is not computed: metrics is [chrf]; "
            "set trainer.best_metric to one of them or to loss; did you mean 'chrf'?",
        ),
        (
            ("trainer.best_metric=macro_bleu",),
            "trainer.best_metric=macro_bleu is a mean over target languages, but data.target_tags tells no "
            "two apart; set trainer.best_metric=bleu",
        ),
        (
            ("trainer.best_metric=macro_ter",),
            "trainer.best_metric=macro_ter is a mean over target languages, but data.target_tags tells no "
            "two apart; set trainer.best_metric=ter metrics=[bleu,chrf,ter]",
        ),
        (
            ("model=gpt", "data.max_tokens=512"),
            "data.max_tokens must not exceed 511, which is what model.max_positions leaves with learned "
            "positions, but is 512; lower the one or raise the other",
        ),
        (
            ("validation_decoding.beam_sizes=1",),
            "unknown key validation_decoding.beam_sizes; did you mean validation_decoding.beam_size?",
        ),
        (
            ("validation_decoding={beam_size: 0}",),
            "validation_decoding.beam_size must be at least 1, but is 0",
        ),
        (
            ("decoding=mbr", "validation_decoding.strategy=beam"),
            "validation_decoding.strategy cannot be 'beam': validations search by decoding=mbr, with other "
            "values of its keys; that of mbr is greedy with {num_samples: 0, beam_size: 1}",
        ),
        (
            ("task=language_model", "model=gpt", "data=text"),
            "data.train is not set, but the train split is needed; set it",
        ),
        (
            ("data=files", "data.validation=a", "data.test=a", "sets={news: {test: a}}"),
            "data.train is not set, but the train split is needed; set it",
        ),
        (("sets=1",), "sets must be a group of names, such as {news: {test: PATH}}, but is 1"),
        (
            ("tuned_decoding={beam_sizes: [1, 2]}",),
            "tuned_decoding (null tries nothing): unknown key decoding.beam_sizes; "
            "did you mean decoding.beam_size?",
        ),
        (
            ("tuned_decoding={strategy: [mbr]}",),
            "tuned_decoding.strategy cannot be tried: a strategy is chosen by decoding=...; leave it out",
        ),
        (
            ("tuned_decoding={beam_size: [5, 0]}",),
            "tuned_decoding (null tries nothing): decoding.beam_size must be at least 1, but is 0",
        ),
        (
            ("tuned_decoding={length_penalty_alpha: 1.5}",),
            "tuned_decoding must be a group of keys with a list of values each, such as "
            "{length_penalty_alpha: [0.6, 1.0, 1.4]}, but is {'length_penalty_alpha': 1.5}",
        ),
        (
            ("tuned_decoding={avoid: [1.0,[b]]}",),
            "tuned_decoding.avoid must list the lists to try, as [[A, B], [C]], but is ['1.0', ['b']]",
        ),
        (
            ("tuned_decoding={min_length: [0,1,2,3,4,5,6,7,8,9], max_length_offset: [1,2,3,4,5,6,7]}",),
            "tuned_decoding has 70 combinations, and 64 are the most; leave some out",
        ),
        (
            ("decoding.n_best=5", "validation_decoding={beam_size: 1}"),
            "validation_decoding.n_best must not exceed validation_decoding.beam_size, but 5 > 1; try "
            "validation_decoding.beam_size=5",
        ),
        (
            ("validation_decoding={beam_size: 5000}",),
            "validation_decoding.beam_size must be at most 1,000, but is 5000; the time and memory of a "
            "search grow with it, and translations get worse with very wide beams (Koehn and Knowles 2017)",
        ),
        (
            (*map(quoted, FILES), "sets={n: {src: fr, test: b}}"),
            "sets.n is fr to de, but the training is en to de; set sets.n.src and sets.n.tgt to these, or "
            "leave them out",
        ),
        (
            (
                *("data=mixture", "data.target_tags=true"),
                "data.corpora={a: {name: demo, src: en, tgt: de}, b: {name: demo, src: de, tgt: en}}",
                "sets={zero: {src: fr, tgt: en, test: b}, n: {src: en, tgt: fr, test: b}}",
            ),
            "sets.n is en to fr, but the training is en to de and de to en; set sets.n.src and sets.n.tgt to "
            "these, or leave them out",
        ),
        (
            ("sets={n: {name: labels, test: b}}",),
            "sets.n has labels, and the training has translations; choose another name=... there",
        ),
        (
            ("data=mixture", "data.corpora=5"),
            "data.corpora must be a group of names, such as {a: {train: PATH}}, but is 5",
        ),
        (
            ("validation_decoding=1",),
            "validation_decoding must be a group of keys, such as {beam_size: 1}, but is 1",
        ),
        (
            ("validation_decoding={avoid: [[a]]}",),
            'validation_decoding.avoid[0] must be text, but is ["a"]',
        ),
        (
            ("task=language_model", "model=gpt", "num_validation_pairs=5"),
            "num_validation_pairs are for translations, and task=language_model has none; leave them out",
        ),
        (
            ("task=language_model",),
            "task=language_model needs a model without a source, but model.name=transformer has an encoder; "
            "choose model=gpt",
        ),
        (
            ("task=language_model", "model=gpt", "trainer.best_metric=bleu"),
            "trainer.best_metric=bleu scores translations; with task=language_model set it to loss",
        ),
        (
            (
                "task=language_model",
                "model=gpt",
                "data=files",
                "data.train=x",
                "data.validation=x",
                "data.test=x",
                "data.context=2",
            ),
            "data.context=2 is for task=translation: a language model reads its text in order; "
            "set data.context=0 data.context_target=false",
        ),
        (
            ("task=language_model", "model=gpt", "tokenizer.sampling_alpha=0.1"),
            "tokenizer.sampling_alpha is for task=translation; set it to 0",
        ),
        (
            ("task=language_model", "model=gpt", "tokenizer.right_to_left=true"),
            "tokenizer.right_to_left=true is for task=translation; set it to false",
        ),
        (
            ("objective=guided_alignment", "model.layer_drop=0.2"),
            "objective=guided_alignment teaches a layer in every update, but model.layer_drop=0.2 leaves "
            "layers out; set it to 0",
        ),
        (
            (
                *map(quoted, FILES),
                "objective=guided_alignment",
                "objective.alignments=x",
                "data.streaming=true",
            ),
            "objective.alignments names the lines of one corpus that is read before the training, but the "
            "training data is a mixture or a stream; set objective.alignments=null to estimate alignments",
        ),
        (
            ("objective=simcut", "objective.teacher=ema"),
            "objective.teacher=ema is the moving average of the weights, but trainer.ema_decay is 0; set "
            "trainer.ema_decay=0.999, or objective.teacher=self",
        ),
        (
            ("optimizer=schedule_free", "schedule=constant", "objective=simcut", "objective.teacher=ema"),
            "objective.teacher=ema is the moving average of the weights, but trainer.ema_decay is 0; set "
            "objective.teacher=self",
        ),
        (
            (
                *("optimizer=schedule_free", "schedule=constant", "trainer.ema_decay=0.9"),
                *("objective=simcut", "objective.teacher=ema"),
            ),
            "optimizer=schedule_free averages the weights itself, but trainer.ema_decay is 0.9; set it to 0 "
            "and objective.teacher=self",
        ),
        (
            ("objective=minimum_risk", "objective.metric=comet"),
            "objective.metric must be one of bleu, spbleu, chrf, chrf++, ter, which score sentences, but is "
            "'comet'",
        ),
        (
            (*map(quoted, FILES), "objective=guided_alignment", "objective.alignments=x", "data.context=2"),
            "objective.alignments counts the words of each pair alone, but data.context=2 puts sentences "
            "before them; leave out one of the two, or set objective.alignments=null to estimate alignments",
        ),
        (
            ("init.optimizer=keep",),
            "init.optimizer=keep is about the model of another run, but there is none; name it with "
            "init=RUN, or leave init.optimizer out",
        ),
        (
            ("data=text", "data.train=x.txt"),
            "data=text has one language; add task=language_model, or choose data with two",
        ),
    ],
)
def test_combinations_that_no_component_can_see(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as error:
        config(*overrides)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("tokenizer.joint=false", "model.tying=tgt_output"),
        ("model.positions=learned", "model.max_positions=256"),
        ("schedule=cosine", "trainer.max_steps=null", "trainer.max_epochs=3", "schedule.decay_steps=900"),
        ("metrics=[chrf]", "trainer.best_metric=loss"),
        ("metrics=[chrf]",),
        ("task=language_model", "model=gpt", "data.max_tokens=1024"),
        ("task=language_model", "model=gpt", "data=text", "data.train=x.txt"),
        (
            *("data=mixture", "data.target_tags=true", "tokenizer.case=markup"),
            "data.corpora={all: {train: train, validation: dev, test: test, tgt: pt_BR}}",
        ),
    ],
)
def test_combinations_that_are_right(overrides: tuple[str, ...]) -> None:
    check(config(*overrides))


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(UserError) as error:
        config("model.dropout=2", "runtime.threads=-1", "seed=3", "trainer.accumulate=0")
    assert str(error.value).splitlines() == [
        "3 settings cannot be used:",
        "  - runtime.threads must not be negative, but is -1",
        "  - model.dropout must be in [0, 1), but is 2.0",
        "  - trainer.accumulate must be at least 1, but is 0",
    ]
    with pytest.raises(UserError, match="2 settings cannot be used"):
        config("tokenizer.joint=false", "metrics=[chrf]", "trainer.best_metric=bleu")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainConfig(run=" "), "run must name a directory, but is empty"),
        (lambda: TrainConfig(metrics=[]), "metrics must name at least one score, and each once, but is []"),
        (lambda: EvaluateConfig(metrics=["ter", "ter"]), "each once, but is [ter, ter]"),
        (
            lambda: EvaluateConfig(checkpoint="bset"),
            "checkpoint must be one of final, best, last, average or the number of a step, but is 'bset'; "
            "did you mean 'best'?",
        ),
        (
            lambda: ScoreConfig(input="a.jsonl.gz", output="b.txt"),
            "input=a.jsonl.gz is a name for lines of JSON, but this verb has lines of text there; "
            "name a file of text",
        ),
        (
            lambda: ClassifyConfig(input="a.jsonl", output="b.jsonl"),
            "input=a.jsonl is a name for lines",
        ),
        (
            lambda: RerankConfig(scorers=["x"], metrics=["bleu"], input="a", output="b.jsonl"),
            "output=b.jsonl is a name for lines of JSON",
        ),
        (lambda: TranslateConfig(checkpoint="-1"), "or the number of a step, but is '-1'"),
        (lambda: TranslateConfig(checkpoint="²"), "or the number of a step, but is '²'"),
    ],
)
def test_values_out_of_range(call: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)


def test_a_step_is_a_checkpoint() -> None:
    assert TranslateConfig(checkpoint="1000").checkpoint == "1000"


def test_the_fingerprint_stands_for_what_decides_the_weights() -> None:
    same = [
        config("run=a"),
        config("decoding=greedy"),
        config("validation_decoding.beam_size=1", "num_validation_pairs=5"),
        config("metrics=[ter,bleu]"),
        config("runtime.threads=1"),
        config("tracking.sinks=[jsonl]"),
        config("trainer.best_metric=bleu"),
    ]
    assert {fingerprint(cfg) for cfg in same} == {fingerprint(config())}
    auto = config("trainer.batch_tokens=auto")
    assert fingerprint(with_batch_tokens(auto, 768)) == fingerprint(auto) != fingerprint(config())
    others = [
        "seed=2",
        "trainer.max_steps=7",
        "schedule=constant",
        "trainer.accumulate=2",
        "model.dropout=0.3",
    ]
    others += [
        "data.max_tokens=9",
        "tokenizer.vocab_size=99",
        "optimizer.weight_decay=0.3",
        "objective=r_drop",
    ]
    assert len({fingerprint(cfg) for cfg in [config(), *map(config, others)]}) == 10
    assert len(fingerprint(config())) == 8


def test_what_an_objective_learns_from_decides_the_weights() -> None:
    risk, rules = "objective=minimum_risk", ("scoring.lowercase=true", "decoding.max_length_ratio=0.5")
    for rule in rules:
        assert fingerprint(config(risk, rule)) != fingerprint(config(risk))
        assert fingerprint(config(rule)) == fingerprint(config())
        assert refuse_difference(config(), config(rule), Path("runs/a"), 0)
        with pytest.raises(UserError, match=re.escape(rule.partition("=")[0])):
            refuse_difference(config(risk), config(risk, rule), Path("runs/a"), 0)
    assert fingerprint(config(risk, "decoding.beam_size=7")) == fingerprint(config(risk))


def test_the_difference_names_each_value() -> None:
    old, new = config(), config("seed=2", "metrics=[bleu]", "model.norm_order=post", "run=x")
    assert difference(old, old) == []
    assert difference(old, new) == [
        "seed: 1 -> 2",
        "model.norm_order: pre -> post",
        "metrics: ['bleu', 'chrf'] -> ['bleu']",
    ]


def test_the_difference_of_other_dataclasses_names_what_one_of_them_lacks() -> None:
    lines = difference(config("schedule=noam"), config("schedule=constant"))
    assert lines == [
        "schedule.name: noam -> constant",
        "schedule.factor: 1.0 -> unset",
        "schedule.peak_rate: unset -> 0.0005",
    ]


def test_a_run_goes_on_with_other_limits_and_another_search() -> None:
    new = config(
        "run=elsewhere",
        "trainer.max_steps=9000",
        "trainer.eval_every_steps=10",
        "trainer.keep_last=9",
        "trainer.average=2",
        "decoding=greedy",
        "data.scored_split=validation",
        "metrics=[bleu]",
        "runtime.threads=1",
        "tracking.sinks=[]",
    )
    assert len(refuse_difference(config(), new, Path("runs/a"), 0)) == 9
    assert refuse_difference(config(), config(), Path("runs/a"), 0) == []


def test_a_run_does_not_go_on_as_another_one() -> None:
    with pytest.raises(UserError) as error:
        refuse_difference(config(), config("model.d_model=256", "trainer.max_steps=9"), Path("runs/a"), 0)
    assert str(error.value).splitlines() == [
        "runs/a belongs to a run with another config:",
        "  model.d_model: 128 -> 256",
        "say nmt train run=runs/a alone to go on with the config there, give its values, or start a new run "
        "with another run=...",
    ]


def test_what_holds_from_an_update_on_may_change_until_that_update() -> None:
    first, second = "{step: 50, accumulate: 2}", "{step: 101, rate_factor: 0.5, dropout_factor: 0}"
    old, new = (config(f"trainer.changes=[{listed}]") for listed in (first, f"{first},{second}"))
    assert len(refuse_difference(old, new, Path("runs/a"), 100)) == 1
    assert len(refuse_difference(new, old, Path("runs/a"), 100)) == 1
    assert refuse_difference(config(), old, Path("runs/a"), 49)
    for before, after, step in ((old, new, 101), (config(), old, 50), (old, config(), 50)):
        with pytest.raises(UserError, match=rf"up to update {step}, the newest checkpoint, must stay\)"):
            refuse_difference(before, after, Path("runs/a"), step)
    kept = f"trainer.changes=[{first}]"
    begun = config("model.dropout=0.1", kept)
    other = config("model.dropout=0.3", "model.attention_dropout=0.1", "trainer.accumulate=2", kept)
    with pytest.raises(UserError) as error:
        refuse_difference(begun, other, Path("runs/a"), 100)
    values = "{step: 50, accumulate: 2}, {step: 101, dropout_factor: ..., accumulate: ...}"
    assert str(error.value).endswith(f"from the next update on, 'trainer.changes=[{values}]' changes it")


def test_what_is_typed_is_told_before_what_a_command_leaves_to_its_defaults() -> None:
    stored, new = config("model.d_ff=64", "seed=7", "schedule=cosine"), config("model.dropout=0.2")
    typed = ["model.dropout", "run", "schedule"]
    with pytest.raises(UserError) as error:
        refuse_difference(stored, new, Path("runs/a"), 0, typed=typed)
    told = str(error.value).splitlines()
    assert {line.partition(":")[0] for line in told[1:-2]} == {
        "  model.dropout",
        *(f"  schedule.{key}" for key in ("name", "peak_rate", "final_rate", "decay_steps", "factor")),
    }
    assert told[-2] == "  and what this command leaves to its defaults: seed, model.d_ff"
    with pytest.raises(UserError) as all_of_it:
        refuse_difference(stored, new, Path("runs/a"), 0, typed=["experiment", *typed])
    assert "defaults" not in str(all_of_it.value)
    with pytest.raises(UserError, match=r"  seed: 7 -> 1\n"):
        refuse_difference(stored, new, Path("runs/a"), 0, typed=["run"])


def test_a_run_that_has_ended_has_no_updates_to_change(tmp_path: Path) -> None:
    later = "trainer.changes=[{step: 101, rate_factor: 0.5}]"
    assert refuse_difference(config(), config(later), tmp_path, 100)
    (tmp_path / "results.json").touch()
    assert refuse_difference(config(), config(later, "trainer.max_steps=200"), tmp_path, 100)
    with pytest.raises(
        UserError, match=r"\(update 100 was the last; set trainer\.max_steps, too, for updates"
    ):
        refuse_difference(config(), config(later), tmp_path, 100)
    with pytest.raises(UserError) as error:
        refuse_difference(config(), config("model.dropout=0.3"), tmp_path, 100)
    assert "trainer.changes" not in str(error.value)
    assert str(error.value).endswith(f"; with init={tmp_path}, too, that starts from its model")


def test_the_limit_is_fixed_where_the_learning_rate_depends_on_it() -> None:
    old = config("schedule=cosine", "trainer.max_steps=1000")
    new = dataclasses.replace(old, trainer=dataclasses.replace(old.trainer, max_steps=2000))
    with pytest.raises(UserError, match=r"trainer\.max_steps: 1000 -> 2000") as error:
        refuse_difference(old, new, Path("runs/a"), 1000)
    assert " -> 2000 (schedule=cosine decays by it, from the first update on)\n" in str(error.value)
    assert str(error.value).endswith(
        "start a new run with another run=...; with init=runs/a, too, that starts from its model"
    )
    assert isinstance(old.schedule, CosineConfig)
    old.schedule.decay_steps = 1000
    new.schedule = old.schedule
    assert refuse_difference(old, new, Path("runs/a"), 0) == ["trainer.max_steps: 1000 -> 2000"]


def test_configs_are_instances_of_the_chosen_dataclasses() -> None:
    assert isinstance(config("data=multi30k").data, HubData)
    assert isinstance(config(*map(quoted, FILES)).data, FilesData)


@pytest.mark.parametrize(
    ("overrides", "best"),
    [
        ((), "bleu"),
        (("metrics=[chrf,bleu]",), "chrf"),
        (("metrics=[ter,chrf]",), "chrf"),
        (("metrics=[ter]",), "loss"),
        (("task=language_model", "model=gpt"), "loss"),
        (("trainer.best_metric=loss",), "loss"),
    ],
)
def test_the_best_checkpoint_is_that_of_the_first_metric(overrides: tuple[str, ...], best: str) -> None:
    assert config(*overrides).trainer.best_metric == best


def test_other_metrics_may_not_change_how_the_best_checkpoint_is_chosen() -> None:
    assert refuse_difference(config(), config("metrics=[bleu,ter]"), Path("runs/a"), 0)
    with pytest.raises(UserError) as error:
        refuse_difference(config(), config("metrics=[chrf,bleu]"), Path("runs/a"), 0)
    assert str(error.value).splitlines()[1] == (
        "  trainer.best_metric: bleu -> chrf (of metrics, unless it is set: the first of them whose higher "
        "values are better)"
    )
    with pytest.raises(UserError, match=r"bleu -> loss\n"):
        refuse_difference(
            config(), config("metrics=[chrf,bleu]", "trainer.best_metric=loss"), Path("runs/a"), 0
        )
    old, new = (config("trainer.best_metric=bleu", f"metrics={m}") for m in ("[bleu]", "[chrf,bleu]"))
    assert refuse_difference(old, new, Path("runs/a"), 0)
    assert fingerprint(config("metrics=[chrf]")) != fingerprint(config())
    assert fingerprint(config("metrics=[bleu]")) == fingerprint(config())


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"src_column": "de"}, "data.src_column=de and data.tgt=de"),
        ({"tgt_column": "en"}, "data.src=en and data.tgt_column=en"),
        ({"src_column": "1", "tgt_column": "1"}, "data.src_column=1 and data.tgt_column=1"),
    ],
)
@pytest.mark.parametrize("source", [FilesData, HubData])
def test_the_sides_are_two(source: type[ColumnsConfig], columns: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as caught:
        source(**columns)
    assert str(caught.value) == (
        f"{named} name the same text for both sides; name two different columns or files"
    )


@pytest.mark.parametrize("language", ["/../x", "a/b", "a\\b", ".", ".hidden"])
def test_a_language_is_no_path(language: str) -> None:
    with pytest.raises(UserError, match=r"^data\.tgt must be the name of a language"):
        DataConfig(src="en", tgt=language)
