"""From arguments to configs: run directories, sweeps, what `evaluate` and `translate` take from their run."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, Node, OmegaConf, open_dict

from nmt.attention_views.configs import View
from nmt.config.compose import compose, outline
from nmt.config.composed import Composed
from nmt.config.explain import leaves
from nmt.config.overrides import choices, parse_flags, parse_overrides, usable
from nmt.config.registry import config_keys
from nmt.config.renames import SYNONYMS
from nmt.config.roots import TrainConfig, TranslateConfig
from nmt.config.schemas import compose_with_hydra, copied, set_up
from nmt.config.stored import difference, fingerprint, load_config, save_config, warn_of_edits
from nmt.config.sweeps import MAX_NAME, file_name, sweep_folder
from nmt.config.trials import plan
from nmt.data.parallel_text import Split
from nmt.data.reading.hub import HubData
from nmt.decoding.configs import BeamConfig, LengthPenalty
from nmt.errors import UserError
from nmt.verbs import VERBS
from nmt.verbs.configs import AttentionVerbConfig, EvaluateConfig

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def training(*arguments: str) -> tuple[TrainConfig, Path]:
    (composed,) = compose(VERBS["train"], arguments)
    return composed.to_training()


def store(run: str, *overrides: str) -> TrainConfig:
    """Make a run directory with the config of `overrides`."""
    cfg, _ = training(*overrides)
    Path(run).mkdir(parents=True)
    save_config(cfg, Path(run) / "config.yaml")
    return cfg


def evaluation(*arguments: str) -> EvaluateConfig:
    (composed,) = compose(VERBS["evaluate"], arguments)
    return composed.to_config(EvaluateConfig)


@pytest.mark.parametrize(
    ("verb", "argument", "meant"),
    [
        ("train", "run=2024_01_02", "2024_01_02"),
        ("train", "run=2024", 2024),
        ("train", "run=00_1", "00_1"),
        ("train", "run=null", None),
        ("train", "run='1e3'", "1e3"),
        ("train", "run= 1e3 ", "1e3"),
        ("train", "run=runs/1e3", "runs/1e3"),
        ("train", "init=1e3", "1e3"),
        ("train", "data.train=[1_0, b/1_0,+1,TRUE]", ["1_0", "b/1_0", "+1", "TRUE"]),
        ("train", "objective.teachers=[1_0]", ["1_0"]),
        ("train", "trainer.max_steps=1_000", 1000),
        ("train", "trainer.compile=true", True),
        ("train", "tracking.project=int(1e3)", 1000),
        (
            "train",
            "sets={n: {train: 1e3, references: [1_0]}}",
            {"n": {"train": "1e3", "references": ["1_0"]}},
        ),
        ("train", "sets.n={name: files, train: 1e3}", {"name": "files", "train": "1e3"}),
        ("train", "sets.n.train=1e3", "1e3"),
        (
            "train",
            "sets={1e3: {}, true: {}, null: {}, 1.10: {}, 01: {}}",
            {"1e3": {}, "true": {}, "null": {}, "1.10": {}, "01": {}},
        ),
        ("train", "data.stages=[{weights: {2024: 1, 1_0: 2}}]", [{"weights": {"2024": 1, "1_0": 2}}]),
        (
            "train",
            "data.corpora={a.b: {train: 1e3, weight: 1e3}}",
            {"a.b": {"train": "1e3", "weight": 1000.0}},
        ),
        ("train", "data.corpora.a.filters=[{file: 1e3, min: 1e-3}]", [{"file": "1e3", "min": 0.001}]),
        ("train", "data.corpus={train: 1e3}", {"train": "1e3"}),
        ("train", "data.filters=[length,{pattern: true}]", ["length", {"pattern": "true"}]),
        ("train", "data.augment=[{characters: 1_0, rate: 1e-1}]", [{"characters": "1_0", "rate": 0.1}]),
        ("train", "validation_decoding={allowed: 1e3}", {"allowed": "1e3"}),
        (
            "train",
            "tuned_decoding={allowed: [1e3,1_0], length_penalty_alpha: [1e-1]}",
            {"allowed": ["1e3", "1_0"], "length_penalty_alpha": [0.1]},
        ),
        ("distil", "teacher=[1.10,b]", ["1.10", "b"]),
        ("translate", "run=[2024_01_02,b]", ["2024_01_02", "b"]),
        ("translate", "output=true", "true"),
        ("evaluate", "sets={n: {train: 1e3}}", {"n": {"train": "1e3"}}),
        ("serve", "models={a: 2024_01_02, b: [1e3,c]}", {"a": "2024_01_02", "b": ["1e3", "c"]}),
        ("serve", "models={a: {run: 1e3, workers: 1_0}}", {"a": {"run": "1e3", "workers": 10}}),
        (
            "serve",
            "models={a: {run: 1e3, decoding.allowed: 1_0}}",
            {"a": {"run": "1e3", "decoding.allowed": "1_0"}},
        ),
        ("runs", "folder=1e3", "1e3"),
    ],
)
def test_what_is_text_stays_as_it_is_typed(verb: str, argument: str, meant: object) -> None:
    flags = parse_flags(VERBS[verb], [argument])
    assert usable(VERBS[verb], flags.overrides[0], flags).value() == meant


def files_of(*arguments: str) -> list[Any]:
    """Return the training files of each trial of a sweep."""
    chosen = plan(VERBS["train"], ["-m", "sweep.dir=1_0", *RECIPE, *arguments])
    assert chosen.folder == Path("1_0")
    return [trial.to_config(TrainConfig).data.train for trial in chosen.trials]  # type: ignore[attr-defined]


RECIPE = (
    *("data=files", "data.validation=v", "data.test=t"),
    *("tokenizer.vocab_size=40", "model=transformer_small"),
)


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ("a,1e3 , true", ["a", "1e3", "true"]),
        ("[1e3,b],[c]", [["1e3", "b"], ["c"]]),
        ("choice(1e3,2e3)", ["1e3", "2e3"]),
        ("choice('1e3',b)", ["1e3", "b"]),
        ("sort(2e3,1e3,reverse=false)", ["1e3", "2e3"]),
        ("range(0.1,0.4,0.1)", [0.1, 0.2, 0.3]),
    ],
)
def test_texts_of_trials_stay_as_they_are_typed(values: str, meant: list[object]) -> None:
    assert files_of(f"data.train={values}") == meant


def test_names_of_trials_stay_as_they_are_typed() -> None:
    names = "data.corpora={1e3: {name: demo}, true: {name: demo}},{1.10: {name: demo}}"
    words = ["-m", "sweep.dir=names", "data=mixture", "model=transformer_small", "tokenizer.vocab_size=40"]
    trials = plan(VERBS["train"], [*words, names, "sets={2024: {name: demo}}"]).trials
    configs: list[Any] = [trial.to_training()[0] for trial in trials]
    assert [list(cfg.data.corpora) for cfg in configs] == [["1e3", "true"], ["1.10"]]
    assert [list(cfg.sets) for cfg in configs] == [["2024"], ["2024"]]


def test_texts_of_a_search_stay_as_they_are_typed() -> None:
    words = ["-m", "sweep.trials=2", *RECIPE, "data.train=tag(choice(1e3,b))"]
    (space,) = plan(VERBS["train"], words).space.values()
    assert space.choices == ("'1e3'", "b")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run=é1e3",), "'run=é1e3' is not understood"),
        (("tokenizer.symbols=[1e3,true,<x>]",), "'tokenizer.symbols=[1e3,true,<x>]' is not understood"),
        (("data.train=1e3,b",), "'data.train=1e3,b' names several values"),
        (("-m", "data.train=interval(0.1,1.0)"), "'data.train=interval(0.1,1.0)' has infinitely many values"),
        (
            ("-m", "sweep.trials=2", "data.train=tag(x,choice(1e3,b))"),
            "'data.train=tag(x,choice(1e3,b))': the only tag",
        ),
    ],
)
def test_an_argument_is_told_as_it_is_typed(words: tuple[str, ...], told: str) -> None:
    called: Any = plan if "-m" in words else compose
    with pytest.raises(UserError, match=re.escape(told)):
        called(VERBS["train"], [*words, *RECIPE])


def test_a_training_is_called_again_whatever_its_texts_look_like() -> None:
    store("1e6")
    words = [*RECIPE, "data.train=[1e3,true,.5]", "init=1e6"]
    cfg = store("1e4", *words, "run=1e4")
    assert (cfg.run, cfg.init.run) == ("1e4", "1e6")
    assert load_config(Path("1e4", "config.yaml")) == cfg
    assert training("run=1e4") == training(*words, "run=1e4") == (cfg, Path("1e4"))
    for _ in range(2):
        for trial in plan(VERBS["train"], ["-m", "sweep.dir=1_0", *RECIPE, "data.train=1e3,true"]).trials:
            cfg, folder = trial.to_training()
            if (folder / "config.yaml").exists():
                assert difference(load_config(folder / "config.yaml"), cfg) == []
            else:
                store(str(folder), *trial.arguments)


def test_values_that_were_edited_in_a_stored_config_are_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once, by what opens the run; what nmt writes, other spellings and runs of earlier versions pass."""
    store("own", *RECIPE, "data.train=a")
    file = Path("own", "config.yaml")
    written = file.read_text()
    body, seal = written.rsplit("\n", 2)[:2]
    edited = written.replace("seed: 1\n", "seed: 2\n")

    def warnings(text: str) -> int:
        file.write_text(text)
        warn_of_edits(file)
        return capsys.readouterr().err.count("warning: own/config.yaml was edited after nmt wrote it, and")

    assert seal.startswith("# SHA-256 of the values: ")
    assert [warnings(text) for text in (written, body, f"# of mine\n{written}\n# more\n")] == [0, 0, 0]
    assert [warnings(text) for text in (edited, f"{written}more: 3\n")] == [1, 1]
    assert warnings(edited.replace(seal, "")) == 0  # as the warning says
    file.write_text(edited.replace("seed: 2", "seed: 3"))
    assert training("run=own")[0].seed == 3
    assert evaluation("run=own").run == "own"
    assert capsys.readouterr().err.count("was edited") == 1
    save_config(load_config(file), file)  # as a training that goes on does
    assert training("run=own")[0].seed == 3
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("run=~/a", "run=/home/me/a"),
        ("teacher=[~/a,b~/c, ~/d]", "teacher=[/home/me/a,b~/c, /home/me/d]"),
        ("data.filters=[{name: scores, file: ~/x}]", "data.filters=[{name: scores, file: /home/me/x}]"),
        ("run='~/a'", "run='~/a'"),
        ("run=a~/b", "run=a~/b"),
        ("tokenizer.path=~nobody/x", "tokenizer.path=~nobody/x"),
    ],
)
def test_the_home_directory_is_meant_where_a_value_begins(
    argument: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_flags(VERBS["train"], [argument]).overrides == [meant]


def test_prose_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_flags(VERBS["generate"], ["prompt=~/a, ~/b"]).overrides == ["prompt='~/a, ~/b'"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=multi30k", "model.d_model=64", "schedule=cosine", "optimizer=muon", "seed=7"],
        [
            *("task=language_model", "data=text", "data.train='$a b.en'", "tokenizer.vocab_size=500"),
            *("model=gpt", "trainer.best_metric=loss"),
        ],
        [
            "objective=r_drop",
            "decoding=sampling",
            "trainer.batch_tokens=auto",
            "trainer.auto_batch_tokens=999",
        ],
        ["sets={news: {name: demo}, wmt22: {name: sacrebleu, test: wmt22}}", "trainer.max_steps=2 epochs"],
    ],
)
def test_the_directory_of_a_run_alone_stands_for_its_config(
    overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = store("old", *overrides)
    Path("old").rename("moved")  # before a checkpoint is there, too
    assert training("run=moved") == (dataclasses.replace(stored, run="moved"), Path("moved"))
    assert f"with the config of moved: data={stored.data.name}" in capsys.readouterr().err
    longer, _ = training("run=moved", "trainer.patience=9", "runtime.threads=2")
    assert (longer.trainer.patience, longer.runtime.threads) == (9, 2)
    assert (longer.model, longer.data) == (stored.model, stored.data)
    capsys.readouterr()
    for verb, key in (
        ("prepare", "prepare.workers=2"),
        ("doctor", "doctor.examples=1"),
        ("train", "dry_run=true"),
    ):
        (trial,) = compose(VERBS[verb], ["run=moved", key])  # which is none of a run
        assert trial.cfg.data.name == stored.data.name
    capsys.readouterr()
    assert training("run=moved", "seed=5")[0].seed == 5  # a whole command
    assert "with the config" not in capsys.readouterr().err


def test_the_directory_of_a_run_of_a_stranger_is_read_as_plain_data() -> None:
    store("old")
    Path("old/checkpoints/step_00000010").mkdir(parents=True)
    file = Path("old/config.yaml")
    file.write_text(file.read_text().replace("seed: 1", "seed: ${oc.env:HOME}"))
    with pytest.raises(UserError, match=r"old/config\.yaml"):
        training("run=old")


@pytest.mark.parametrize(
    ("verb", "lines"),
    [
        ("train", []),
        ("train", ["model=conv", "model.dropout=0.3", "experiment=none", "data=toy"]),
        ("train", ["experiment=multi30k_record", "+data.corpora={}", "seed=3"]),
        ("distil", ["decoding@distil.decoding=sampling", "distil.decoding.n_best=3", "teacher=[a]"]),
        ("evaluate", ["decoding=greedy"]),
    ],
)
def test_a_config_is_the_one_that_hydra_composes(verb: str, lines: list[str]) -> None:
    with set_up(VERBS[verb], None):
        expected = hydra.compose(verb, lines, return_hydra_config=True)
        chosen = {group: name for group, name in expected.hydra.runtime.choices.items() if "/" not in group}
        with open_dict(expected):
            del expected["hydra"]
        for _ in range(2):  # the second time of what is kept
            cfg, choices = compose_with_hydra(VERBS[verb], lines)
            assert (choices, cfg) == (chosen, expected)
            assert OmegaConf.is_struct(cfg)
            choices.clear()
            cfg.runtime.threads = 7


@dataclasses.dataclass
class OfAllKinds:
    whole: int | float = 1
    numbers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    view: View | None = None
    cfg: dict[str, Any] = dataclasses.field(default_factory=lambda: {"a": {"b": [{"c": "${whole}"}]}})


def contents(node: Node, parent: Node | None) -> dict[str, Any]:
    """Return all that a node has, and what is below it, whose parent must be `parent`."""
    own = dict(vars(node), kind=type(node), _metadata=vars(vars(node)["_metadata"]))
    assert own.pop("_parent") is parent
    del own["_flags_cache"]  # made when it is asked for
    below = own.get("_content")
    if isinstance(below, dict):
        own["_content"] = {key: contents(child, node) for key, child in below.items()}
    elif isinstance(below, list):
        own["_content"] = [contents(child, node) for child in below]
    elif isinstance(below, Node):
        own["_content"] = contents(below, node)
    return own


def test_a_copy_is_one_of_deepcopy() -> None:
    cfg = OmegaConf.structured(OfAllKinds)
    OmegaConf.set_readonly(cfg.numbers, True)
    own = copied(cfg)
    assert isinstance(own, DictConfig)
    assert contents(own, None) == contents(copy.deepcopy(cfg), None)
    own.cfg.a.b.append(OmegaConf.create({"c": 3}))
    OmegaConf.set_readonly(own, True)
    assert cfg == OmegaConf.structured(OfAllKinds)
    cfg.whole = 2
    assert (own.cfg.a.b[0].c, cfg.cfg.a.b[0].c) == (1, 2)


@pytest.mark.parametrize("group", VERBS["train"].groups)
@pytest.mark.parametrize("verb", ["prepare", "distil", "doctor"])
def test_every_group_of_a_verb_can_be_chosen(verb: str, group: str) -> None:
    choice = choices(VERBS[verb], group, parse_flags(VERBS[verb], []))[-1]
    assert outline(VERBS[verb], [f"{group}={choice}"])


def test_names_of_other_toolkits_lead_to_keys_that_exist() -> None:
    composed = [compose(VERBS["train"], [f"schedule={name}"])[0] for name in ("noam", "linear")]
    known = {key for one in composed for key in leaves(one.cfg)}
    assert SYNONYMS.keys() <= known
    assert known.isdisjoint(itertools.chain.from_iterable(SYNONYMS.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["lr=0.1"],
            "unknown key lr; schedule.peak_rate is meant: inverse_sqrt or linear or cosine or wsd or "
            "exponential or step or plateau or constant has it, but schedule.name=noam: "
            "choose another with schedule=..., such as schedule=inverse_sqrt schedule.peak_rate=...",
        ),
        (
            ["schedule=linear", "optimizer.lr=0.1"],
            "unknown key optimizer.lr; did you mean schedule.peak_rate?",
        ),
        (
            ["max_tokens=4096"],
            "unknown key max_tokens; did you mean data.max_tokens or trainer.max_tokens or "
            "trainer.batch_tokens?",
        ),
        (
            ["share_all_embeddings=true"],
            "unknown key share_all_embeddings; did you mean model.tying?",
        ),
        (["layers=2"], "unknown key layers; did you mean model.encoder_layers or model.decoder_layers?"),
    ],
)
def test_the_name_of_another_toolkit_in_any_part(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        training(*arguments)
    assert str(error.value) == message


def test_composing_writes_nothing(tmp_path: Path) -> None:
    training("model=transformer_base")
    assert list(tmp_path.iterdir()) == []


def test_the_run_directory_is_the_one_named() -> None:
    assert training("run=runs/a b")[1] == Path("runs/a b")


def test_the_run_directory_is_named_after_the_config() -> None:
    cfg, run_dir = training("data.src=de", "data.tgt=en")
    assert run_dir == Path("outputs", "demo-de-en", f"transformer_tiny-{fingerprint(cfg)}")
    _, other = training("data=multi30k", "model=transformer_base")
    assert other.parent == Path("outputs/multi30k-en-de")
    assert other.name.startswith("transformer_base-")


def test_the_same_arguments_name_the_same_directory_and_others_another() -> None:
    again = [training("seed=1")[1], training()[1], training("experiment=demo")[1]]
    assert len(set(again)) == 1
    assert training("seed=2")[1] != again[0]


def test_a_run_is_found_again_after_its_keys_were_renamed() -> None:
    """The name of a directory has a hash of all keys: version 0.1, which had others, gave it another name."""
    cfg, new = training("experiment=demo")
    stored = new.with_name("transformer_tiny-0a1b2c3d")
    for name, text in (
        (new.with_name("transformer_tiny-00000000"), "no: config"),
        (stored, (FIXTURES / "configs_0_1" / "demo.yaml").read_text(encoding="utf-8")),
    ):
        name.mkdir(parents=True)
        (name / "config.yaml").write_text(text, encoding="utf-8")
    assert "split:" in (stored / "config.yaml").read_text(encoding="utf-8")  # scored_split today
    assert training("experiment=demo")[1] == stored
    assert training("experiment=demo", "decoding=greedy")[1] == stored
    assert training("experiment=demo", "seed=2")[1] == new.with_name(
        f"transformer_tiny-{fingerprint(dataclasses.replace(cfg, seed=2))}"
    )
    new.mkdir()  # two of them: the one under the name of today
    assert training("experiment=demo")[1] == new


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model.num_heads-2+schedule.factor-0.5", "model.num_heads-2+schedule.factor-0.5"),
        ("metrics=[bleu,chrf]", "metrics__bleu_chrf_-"),
        ("data.path-../a b", "data.path-.._a_b-"),
        ("..", "_-"),
        ("x" * 200, "x" * (MAX_NAME - 9) + "-"),
    ],
)
def test_names_of_directories_are_safe_and_not_too_long(text: str, name: str) -> None:
    made = file_name(text)
    assert made == name if name == text else made.startswith(name)
    assert len(made) <= MAX_NAME
    assert Path(made).name == made
    assert [override.value() for override in parse_overrides([f"run=outputs/{made}"])] == [f"outputs/{made}"]


def test_names_of_directories_differ_where_the_texts_do() -> None:
    texts = ["a b", "a/b", "a:b", "a_b", "x" * 200, "x" * 201, ".a", "a", ""]
    assert len({file_name(text) for text in texts}) == len(texts)


def sweep(*arguments: str) -> list[Composed]:
    return plan(VERBS["train"], ["-m", *arguments]).trials


def test_a_sweep_is_every_combination_in_directories_of_their_own() -> None:
    trials = sweep("model.num_heads=2,4", "schedule.factor=0.5,1.0", "seed=3")
    names = [trial.name for trial in trials]
    assert names == [
        "num_heads-2+factor-0.5",
        "num_heads-2+factor-1.0",
        "num_heads-4+factor-0.5",
        "num_heads-4+factor-1.0",
    ]
    configs, run_dirs = zip(*(trial.to_training() for trial in trials), strict=True)
    assert [(c.model.num_heads, c.schedule.factor) for c in configs] == [
        (2, 0.5),
        (2, 1.0),
        (4, 0.5),
        (4, 1.0),
    ]
    assert {cfg.seed for cfg in configs} == {3}
    assert [run_dir.name for run_dir in run_dirs] == names
    assert {run_dir.parent for run_dir in run_dirs} == {Path("outputs/multirun/num_heads+factor+seed-3")}


def test_a_sweep_is_found_again_when_it_grows_and_not_when_it_changes() -> None:
    def parents(*arguments: str) -> set[Path]:
        return {trial.to_training()[1].parent for trial in sweep(*arguments)}

    assert parents("seed=1,2") == parents("seed=1,2,3")
    assert parents("seed=1,2") != parents("seed=1,2", "data.src=de", "data.tgt=en")


def test_sweeps_over_files_of_one_name_have_folders_of_their_own() -> None:
    folders = {
        plan(VERBS["train"], ["-m", "seed=1,2", f"data.path={path}", "data=multi30k"]).folder
        for path in ("news/corpus", "web/corpus", "corpus")
    }
    assert len(folders) == 3


def test_sweeps_over_keys_of_one_last_name_have_folders_of_their_own() -> None:
    def folder(*arguments: str) -> str:
        return str(plan(VERBS["train"], ["-m", *arguments]).folder)

    assert folder("data.max_tokens=50,100") == "outputs/multirun/max_tokens"
    assert folder("trainer.max_tokens=50,100") == "outputs/multirun/trainer.max_tokens"
    assert folder("seed=1,2", "data.max_tokens=50") != folder("seed=1,2", "trainer.max_tokens=50")
    for verb in VERBS.values():
        keys = config_keys(verb.config_class())
        for folders in (
            {sweep_folder(verb.name, [key], {}, keys) for key in keys},
            {sweep_folder(verb.name, ["x"], {key: "1"}, keys) for key in keys},
        ):
            assert len(folders) == len(keys)
    assert len({sweep_folder("train", [f"sets.{name}.path"], {}, keys) for name in "ab"}) == 2


def test_sweeps_with_choices_of_other_folders_have_folders_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    plans = [
        plan(VERBS["train"], ["-m", "seed=1,2", *options])
        for options in ([], ["-cd", f"{tmp_path}/one"], [f"--config-dir={tmp_path}/two/"])
    ]
    assert len({one.folder for one in plans}) == 3
    assert plans[1].folder == plan(VERBS["train"], ["-m", "seed=3,4", "-cd", f"{tmp_path}/one"]).folder
    assert plans[2].trials[0].arguments[:2] == ("--config-dir", f"{tmp_path}/two")


def test_a_choice_of_the_user_does_not_hide_behind_one_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "mine/experiment/demo.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ntrainer: {max_steps: 77}\n")
    told = f"{file}: experiment=demo is a choice of nmt itself, which comes first; give the file another name"
    with pytest.raises(UserError, match=re.escape(told)):
        training("--config-dir", str(tmp_path / "mine"))
    file.rename(file.with_name("own.yaml"))
    cfg, _ = training("--config-dir", str(tmp_path / "mine"), "experiment=own")
    assert cfg.trainer.max_steps == 77


def test_the_folder_of_a_long_sweep_has_a_short_name() -> None:
    path = "/".join(["a_folder_with_a_long_name"] * 20)
    typed = [
        "model.num_heads=2,4",
        "schedule.factor=0.5,1",
        "trainer.max_steps=10,20",
        "trainer.keep_last=5",
    ]
    names = [
        plan(VERBS["train"], ["-m", *typed, "data=multi30k", f"data.path={path}/{end}"]).folder.name
        for end in ("a", "b")
    ]
    assert names[0] != names[1]
    assert all(name.startswith("num_heads+factor+max_steps+data-multi30k") for name in names)
    assert max(len(name.encode()) for name in names) <= 80


def test_the_last_value_of_a_key_counts_in_a_sweep_too() -> None:
    assert len(sweep("seed=1", "seed=1,2,3")) == 3
    (single,) = sweep("seed=1,2,3", "seed=2", "model.dropout=0.1")
    assert single.to_training()[0].seed == 2
    assert len(sweep("seed=1,2,1")) == 2


def test_what_a_training_takes_from_another_run_may_have_any_spelling() -> None:
    symbols = ["\\num", "a,b", "x=1", ">>fra<<"]
    cfg = store("first", "data=demo")
    tokenizer = dataclasses.replace(cfg.tokenizer, symbols=symbols)
    save_config(dataclasses.replace(cfg, tokenizer=tokenizer), Path("first/config.yaml"))
    assert training("init=first", "data=demo")[0].tokenizer.symbols == symbols


def test_a_mapping_that_is_typed_twice_is_refused() -> None:
    lines = ["sets={a: {validation: x}}", "sets={b: {validation: y}}"]
    for arguments in (lines, ["-m", "seed=1,2", *lines]):
        with pytest.raises(
            UserError, match=r"^sets is typed with 2 mappings; write one: sets=\{A: ..., B: ...\}"
        ):
            (plan if "-m" in arguments else compose)(VERBS["train"], arguments)


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("sets={a: {test: x}, a: {test: y}}", "a"),
        ("data.corpora={a: {name: demo}, b: {test: '{', tag: c:d}, a: {name: toy}}", "a"),
        ("data.corpora={a: {augment: [x, {name: y, least: 1, least: 2}]}}", "least"),
        ("sets={1.10: {name: demo}, 1.1: {name: demo}, 1.10 : {name: toy}}", "1.10"),
    ],
)
def test_of_two_entries_of_one_name_none_is_dropped(argument: str, name: str) -> None:
    for arguments in ([argument], ["-m", "seed=1,2", argument]):
        with pytest.raises(UserError) as refused:
            (plan if "-m" in arguments else compose)(VERBS["train"], ["data=mixture", *arguments])
        assert f"{argument!r}: two entries have one name: {name}; give each its own" in refused.value.problems


def test_what_a_refused_argument_would_have_set_is_not_missing() -> None:
    with pytest.raises(UserError) as refused:
        compose(VERBS["train"], ["data=files", "data.train=a=1/train", "data.scored_split=validation"])
    problems = refused.value.problems
    assert any("'data.train=a=1/train' is not understood" in problem for problem in problems)
    assert any(problem.startswith("data.validation is not set") for problem in problems)
    assert not any(problem.startswith("data.train is not set") for problem in problems)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("data.context=x", "data.context must be a whole number, but is 'x'"),
        ("data.context=-1", "data.context must not be negative, but is -1"),
        ("data.context=1,2", "'data.context=1,2' names several values; add -m to try each"),
        ("data.contxt=2", "unknown key data.contxt; did you mean data.context?"),
    ],
)
def test_what_needs_a_refused_argument_is_not_wrong(argument: str, problem: str) -> None:
    files = ["data=files", "data.train=a", "data.validation=a", "data.test=a"]
    with pytest.raises(UserError) as refused:
        compose(VERBS["train"], [*files, argument, "data.context_target=true"])
    (told,) = refused.value.problems
    assert told.startswith(problem)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["distil.decoding.n_best=7"],
            "distil.decoding.n_best must not exceed distil.decoding.beam_size, but 7 > 5; "
            "try distil.decoding.beam_size=7",
        ),
        (["decoding.n_best=7"], "decoding.n_best must not exceed decoding.beam_size, but 7 > 5; "),
        (["distil.decoding.beam_size=0"], "distil.decoding.beam_size must be at least 1, but is 0"),
        (
            ["distil.ensemble.lm_weight=0.3"],
            "distil.ensemble.lm_weight=0.3 is the weight of a language model, but there is none; "
            "set distil.ensemble.lm, too",
        ),
        (
            ["distil.ensemble.weights=[1]"],
            "distil.ensemble.weights must have one number for each of 2 runs, but has 1",
        ),
        (["distil.checkpoint=bst"], "distil.checkpoint must be one of final, best, last, average or "),
    ],
)
def test_a_part_of_a_part_is_named_wholly(arguments: list[str], problem: str) -> None:
    store("first", "data=demo")
    save_config(training("data=demo")[0], Path("second/config.yaml"))
    with pytest.raises(UserError) as refused:
        compose(VERBS["distil"], ["teacher=[first,second]", *arguments])
    (told,) = refused.value.problems
    assert told.startswith(problem)


def test_a_misspelt_choice_is_one_mistake_and_a_key_typed_beside_it_another() -> None:
    def problems(*arguments: str) -> list[str]:
        with pytest.raises(UserError) as refused:
            compose(VERBS["train"], [*arguments])
        return list(refused.value.problems)

    assert problems("adap=lora", "adapt.rank=4") == ["unknown key adap; did you mean adapt?"]
    assert problems("model.num_heds=4", "model.d_model=6") == [
        "unknown key model.num_heds; did you mean model.num_heads?"
    ]
    assert len(problems("model.num_heds=4", "model.num_heads=7")) == 2


def test_a_sweep_goes_where_it_is_told() -> None:
    trials = sweep("model=transformer_tiny,transformer_small", "sweep.dir=my/sweep")
    assert [trial.to_training()[1] for trial in trials] == [
        Path("my/sweep/model-transformer_tiny"),
        Path("my/sweep/model-transformer_small"),
    ]


def test_all_that_is_wrong_with_any_trial_is_said_before_one_begins() -> None:
    with pytest.raises(UserError) as refused:
        sweep("model.num_heads=2,3,x", "model.dropout=0.1,1.5", "trainer.max_step=7")
    assert refused.value.problems == (
        "unknown key trainer.max_step; did you mean trainer.max_steps?",
        "num_heads-2+dropout-1.5, num_heads-3+dropout-1.5, num_heads-x+dropout-1.5: "
        "model.dropout must be in [0, 1), but is 1.5",
        "num_heads-3+dropout-0.1, num_heads-3+dropout-1.5: "
        "model.d_model must be divisible by model.num_heads, but 128 % 3 = 2; try model.num_heads=4",
        "num_heads-x+dropout-0.1, num_heads-x+dropout-1.5: "
        "model.num_heads must be a whole number, but is 'x'",
    )


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        (("seed=range(1,4)",), ["seed-1", "seed-2", "seed-3"]),
        (("schedule.factor=range(0.1,0.4,0.1)",), ["factor-0.1", "factor-0.2", "factor-0.3"]),
        (("seed=choice(2,1)",), ["seed-2", "seed-1"]),
        (("model=glob(rnn_*,exclude=*_plain)",), ["model-rnn_bahdanau", "model-rnn_luong"]),
        (("schedule=glob([c*,n*])",), ["schedule-constant", "schedule-cosine", "schedule-noam"]),
        (("metrics=[bleu],[bleu,chrf]",), ["metrics-bleu", "metrics-bleu_chrf"]),
        (("seed=1,2", "seed=7"), ["trial"]),
        ((), ["trial"]),
    ],
    ids=str,
)
def test_values_are_named_listed_counted_or_matched(swept: tuple[str, ...], names: list[str]) -> None:
    found = [trial.name for trial in sweep(*swept)]
    assert found == names


def test_flags_may_stand_anywhere() -> None:
    assert len(plan(VERBS["train"], ["seed=1,2", "-m", "data.src=de", "data.tgt=en"]).trials) == 2


def test_evaluate_starts_from_the_config_of_its_run() -> None:
    cfg = store(
        "runs/a", "data=multi30k", "data.tgt=fr", "decoding.length_penalty_alpha=0.7", "metrics=[bleu,ter]"
    )
    found = evaluation("run=runs/a")
    assert found == EvaluateConfig(
        run="runs/a", data=cfg.data, decoding=cfg.decoding, metrics=["bleu", "ter"]
    )


def test_evaluate_overrides_what_it_took() -> None:
    store("runs/a", "data=multi30k", "decoding.length_penalty_alpha=0.7")
    found = evaluation(
        "run=runs/a",
        "decoding.beam_size=8",
        "data.scored_split=validation",
        "checkpoint=500",
        "metrics=[chrf]",
    )
    assert found.decoding == BeamConfig(beam_size=8, length_penalty_alpha=0.7)
    assert isinstance(found.data, HubData)
    assert (found.data.dataset, found.data.scored_split) == ("bentrevett/multi30k", Split.validation)
    assert (found.checkpoint, found.metrics) == ("500", ["chrf"])


def test_evaluate_chooses_anew() -> None:
    store("runs/a", "data=demo", "decoding.length_penalty=none")
    found = evaluation("run=runs/a", "data=wmt19", "data.path=elsewhere", "decoding=greedy")
    assert isinstance(found.data, HubData)
    assert (found.data.dataset, found.data.path) == ("wmt/wmt19", "elsewhere")
    assert found.decoding == BeamConfig(beam_size=1, length_penalty=LengthPenalty.gnmt)


def test_evaluate_reads_the_run_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    store("runs/a", "decoding.beam_size=3")
    monkeypatch.setenv("RUN", "runs/a")
    assert evaluation("run=${oc.env:RUN}").decoding == BeamConfig(beam_size=3)


@pytest.mark.parametrize(("device", "found"), [("cuda:3", "auto"), ("cpu", "cpu"), ("auto", "auto")])
def test_a_run_is_not_bound_to_its_gpu(device: str, found: str) -> None:
    store("runs/a", f"runtime.device={device}", "runtime.threads=2")
    cfg = evaluation("run=runs/a")
    assert (cfg.runtime.device, cfg.runtime.threads) == (found, 2)


def test_two_runs_in_one_process_do_not_mix() -> None:
    store("runs/a", "decoding.beam_size=3")
    store("runs/b", "data.src=de", "data.tgt=en")
    assert evaluation("run=runs/a").decoding == BeamConfig(beam_size=3)
    assert evaluation("run=runs/b").decoding == BeamConfig()
    assert evaluation("run=runs/b").data.src == "de"


def test_translate_starts_from_the_search_of_its_run() -> None:
    store("runs/a", "decoding.beam_size=3")
    (composed,) = compose(VERBS["translate"], ["run=runs/a", "decoding.length_penalty_alpha=0.5"])
    assert composed.to_config(TranslateConfig) == TranslateConfig(
        run="runs/a", decoding=BeamConfig(beam_size=3, length_penalty_alpha=0.5)
    )


def test_attention_starts_from_the_search_of_its_run() -> None:
    store("runs/a", "decoding.beam_size=3")
    (composed,) = compose(VERBS["attention"], ["run=runs/a", "layer=2", "views=[hard,page]"])
    assert composed.to_config(AttentionVerbConfig) == AttentionVerbConfig(
        run="runs/a", decoding=BeamConfig(beam_size=3), layer=2, views=[View.hard, View.page]
    )


def test_an_evaluation_is_swept_without_a_trace(tmp_path: Path) -> None:
    store("runs/a")
    trials = plan(VERBS["evaluate"], ["run=runs/a", "-m", "decoding.beam_size=1,5"]).trials
    assert [trial.name for trial in trials] == ["beam_size-1", "beam_size-5"]
    searches = [trial.to_config(EvaluateConfig).decoding for trial in trials]
    assert searches == [BeamConfig(beam_size=1), BeamConfig(beam_size=5)]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_choices_of_the_user_are_found(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "experiment" / "short.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ntrainer:\n  max_steps: 7\n", encoding="utf-8")
    cfg, _ = training("-cd", "mine", "experiment=short")
    assert cfg.trainer.max_steps == 7
    file.write_text("# @package _global_\ntrainer:\n  max_steps: 8\n", encoding="utf-8")
    cfg, _ = training("-cd", "mine", "experiment=short")
    assert cfg.trainer.max_steps == 8
