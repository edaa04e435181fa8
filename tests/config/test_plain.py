"""Files of strangers: plain data or one error with file and line; no code runs and nothing is touched."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
import yaml

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.plain import UserFiles, named, parsed, read_plain
from nmt.config.roots import TrainConfig
from nmt.config.stored import to_plain
from nmt.errors import UserError
from nmt.verbs import VERBS

GLOBAL = "# @package _global_\n"
CALLBACK = """\
{header}{indent}callbacks:
{indent}  canary:
{indent}    _target_: shutil.copyfile
{indent}    src: {folder}/source
{indent}    dst: {folder}/canary
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file.absolute()


def training(*arguments: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], arguments)
    return composed.to_config(TrainConfig)


PLAIN = "a config is plain values, and has no key"
OUTSIDE = "a config in a file is plain values, but here is"


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CALLBACK, f"line 2: {PLAIN} hydra, which sets up Hydra; remove it"),
        (f"{GLOBAL}hydra:\n  run:\n    dir: canary\n", f"line 2: {PLAIN} hydra"),
        (f"{GLOBAL}hydra:\n  job_logging:\n    (): os.system\n", f"line 2: {PLAIN} hydra"),
        (
            f"{GLOBAL}model:\n  _target_: os.system\n",
            f"line 3: {PLAIN} _target_, which names code; remove it",
        ),
        (f"{GLOBAL}model:\n  x: [{{_args_: [1]}}]\n", f"line 3: {PLAIN} _args_"),
        ("# @package hydra\nrun:\n  dir: canary\n", "or, after `# @package _global_`, to all, but the"),
        ("# @package _name_\nrun:\n  dir: canary\n", "line 1: the keys of a file belong to its group"),
        (f"{GLOBAL}defaults:\n  - override /hydra/launcher: x\n", "line 3: a config chooses nothing of"),
        (f"{GLOBAL}defaults: [/hydra/callbacks/canary]\n", "line 2: a config chooses nothing of Hydra's own"),
        (f"{GLOBAL}defaults: [/model/canary@hydra.callbacks]\n", "line 2: a config chooses nothing"),
        (f"{GLOBAL}defaults: {{model: rnn}}\n", "`defaults` is a list of NAME and GROUP: NAME, such as ["),
        (f"{GLOBAL}defaults: [null]\n", "such as [base_transformer, _self_], but here is null"),
        (f"{GLOBAL}defaults:\n- model: 1e9\n", "such as [base_transformer, _self_], but here is model: 1e9"),
        (f"{GLOBAL}defaults:\n- model: 5\n", "such as [base_transformer, _self_], but here is model: 5"),
        (f"{GLOBAL}data:\n  src: ${{oc.env:HOME}}\n", f"line 3: {OUTSIDE} ${{oc.env:HOME}}; write it out"),
        (f"{GLOBAL}data:\n  src: '${{${{run}}:HOME}}'\n", f"line 3: {OUTSIDE} '${{${{run}}:HOME}}'"),
        (f"{GLOBAL}seed: !!int abc\n", f"line 2: {OUTSIDE} !!int abc"),
        (f"{GLOBAL}seed: !!timestamp 2001-99-99\n", f"line 2: {OUTSIDE} !!timestamp 2001-99-99"),
        (f"{GLOBAL}seed: !!python/object/apply:os.system [x]\n", f"line 2: {OUTSIDE} !!python/object"),
        (f"{GLOBAL}seed: 0x_\n", "a value cannot be read: invalid literal for int() with base 16: ''"),
        (f"{GLOBAL}seed: {'9' * 5000}\n", "a value cannot be read: Exceeds the limit"),
        (f"{GLOBAL}seed: {'[' * 9}\n", "line 2: a config is nested less than 8 deep"),
        (f"{GLOBAL}? [a]\n: 1\n", "is not YAML: while constructing a mapping"),
        (
            "defaults: [small_data, _self_]\n",
            "line 1 must be `# @package _global_`: a recipe sets keys of all",
        ),
        (
            f"{GLOBAL}defaults:\n- override /model: trnsformer_base\n",
            ".yaml: there is no model=trnsformer_base; did you mean 'transformer_base'?; model can be ",
        ),
        (f"{GLOBAL}defaults:\n- override /modl: conv\n", "there is no group modl; did you mean 'model'?"),
        (
            f"{GLOBAL}model: {{name: rnn}}\ndata: {{name: files, train: x}}\n",
            "model.name and data.name cannot be set by themselves: choose with "
            "`defaults: [override /model: base_rnn, override /data: base_files, _self_]`",
        ),
        ("5\n", "a config is a mapping of keys to values, but this file is not"),
    ],
)
def test_a_choice_is_plain_data(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text is CALLBACK:
        text = text.format(header=f"{GLOBAL}hydra:\n", indent="  ", folder=Path.cwd())
    write("source", "secret")
    write("mine/hydra/callbacks/canary.yaml", CALLBACK.format(header="", indent="", folder=Path.cwd()))
    write("mine/model/canary.yaml", CALLBACK.format(header="", indent="", folder=Path.cwd()))
    file = write("mine/experiment/evil.yaml", text)
    assert main(["train", "-cd", "mine", "experiment=evil"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {file}")
    assert message in shown
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["mine", "source"]


def test_a_choice_of_hydras_own_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    write("mine/hydra/run.yaml", "dir: canary\n")
    write("elsewhere.yaml", "seed: 7\n")
    for default in ("/hydr\\x61/run", "../../elsewhere"):
        write("mine/experiment/evil.yaml", f'{GLOBAL}defaults: ["{default}"]\n')
        assert main(["train", "-cd", "mine", "experiment=evil"]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_no_is_norwegian_and_a_truth_value_where_one_is_asked_for() -> None:
    assert parsed("tgt: no\nsrc: on\nlowercase: true\n") == {"tgt": "no", "src": "on", "lowercase": True}
    keys = "tgt: no\ntrain: a\nvalidation: a\ntest: a\nstreaming: yes\n"
    write("mine/data/mine.yaml", f"defaults: [base_files, _self_]\n{keys}")
    (composed,) = compose(VERBS["train"], ["--config-dir", "mine", "data=mine"])
    assert (composed.cfg.data.tgt, composed.cfg.data.streaming) == ("no", True)


def test_a_key_is_text_whatever_it_looks_like() -> None:
    names = ["1e3", "true", "2024", "01", "1_000", "null", "~", "1:30", "2024-01-01"]
    text = "".join(f"{name}: {{name: demo}}\n" for name in names)
    assert list(parsed(text)) == names
    indented = text.replace("~", "a").replace("1:30", "b").replace("\n", "\n  ")
    chosen = "defaults: [override /model: transformer_small]\n"
    write("mine/experiment/mine.yaml", f"{GLOBAL}{chosen}tokenizer: {{vocab_size: 40}}\nsets:\n  {indented}")
    cfg = training("--config-dir", "mine", "experiment=mine", "data=demo")
    assert list(cfg.sets) == ["1e3", "true", "2024", "01", "1_000", "null", "a", "b", "2024-01-01"]
    with pytest.raises(yaml.YAMLError, match="found duplicate key 1"):
        parsed("1: a\n1: b\n")


def test_the_config_of_a_run_is_a_recipe_where_its_choices_are_made() -> None:
    stored = training("data=toy", "model=rnn_plain", "decoding=greedy", "experiment=none")
    plain = {part: value for part, value in to_plain(stored).items() if part != "run"}
    write("mine/experiment/again.yaml", GLOBAL + yaml.safe_dump(plain))
    with pytest.raises(UserError) as refused:
        training("-cd", "mine", "experiment=again")
    write(
        "mine/experiment/again.yaml", f"{GLOBAL}{str(refused.value).split('`')[1]}\n{yaml.safe_dump(plain)}"
    )
    assert training("-cd", "mine", "experiment=again") == stored
    write("mine/model/own.yaml", "defaults: [base_convolutional, _self_]\n")
    write("mine/experiment/of_own.yaml", f"{GLOBAL}defaults: [override /model: own, _self_]\n")
    assert training("-cd", "mine", "experiment=of_own").model.name == "convolutional"


def test_a_folder_of_one_group_is_not_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("mine/experiment/good.yaml", f"{GLOBAL}seed: 3\n").parent
    assert training("-cd", "mine", "experiment=good").seed == 3
    told = "has the files of a group, experiment, and no groups; name the folder above it: --config-dir"
    with pytest.raises(UserError, match=rf"^--config-dir mine/experiment {told} mine$"):
        training("-cd", "mine/experiment", "experiment=good")
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=rf"^--config-dir \. {told} {folder.parent}$"):
        training("-cd", ".", "experiment=good")


def test_all_that_is_wrong_with_a_recipe_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "model: {num_head: 4, dropout: 3}\ntrainer: {max_step: 9}\nseed: ${trainer.max_steps}\n"
    write("mine/experiment/wrong.yaml", f"{GLOBAL}defaults: [override /schedule: linear, _self_]\n{wrong}")
    command = ["train", "-cd", "mine", "experiment=wrong", "schedule.final_rate=x"]
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: 4 settings cannot be used:",
        "  - experiment/wrong.yaml: unknown key model.num_head; did you mean model.num_heads?",
        "  - experiment/wrong.yaml: unknown key trainer.max_step; did you mean trainer.max_steps?",
        "  - schedule.final_rate must be a number, but is 'x'",
        "  - experiment/wrong.yaml: model.dropout must be in [0, 1), but is 3.0",
    ]
    write("mine/experiment/wrong.yaml", f"{GLOBAL}model: {{name: rnn}}\n")
    assert main([*command, "seed=x"]) == 2
    assert "there is no" not in (told := capsys.readouterr().err)
    assert "wrong.yaml: model.name cannot be set by itself: choose with" in told


def test_a_choice_may_refer_to_other_keys() -> None:
    write("mine/experiment/good.yaml", f"{GLOBAL}decoding:\n  beam_size: ${{trainer.accumulate}}\n")
    (composed,) = compose(VERBS["train"], ["-cd", "mine", "experiment=good", "trainer.accumulate=3"])
    assert composed.cfg.decoding.beam_size == 3
    assert composed.to_config(TrainConfig).decoding.rows_per_sentence == 3


@pytest.mark.fault(35)
def test_mutated_yaml_is_read_or_refused(tmp_path: Path) -> None:
    """Tokens of YAML at random places: no other exception, whatever the constructors make of them."""
    text = f"{GLOBAL}a: 1\nb: {{c: 2.5, d: [x, null, true]}}\ne: 'f'\ng: ${{a}}\n"
    tokens = [
        "!!int ",
        "!!float x",
        "!!bool maybe",
        "0x_",
        "0b",
        "0o9",
        "!!timestamp 2001-99-99",
        "1_",
        "&x ",
    ]
    tokens += [
        "*x ",
        "? ",
        "- ",
        "{",
        "]",
        "${",
        "}",
        ":",
        "\n",
        "%",
        "|",
        ">",
        "<<: ",
        "é",
        "\x1b",
        "1e999",
        ".",
    ]
    rng = random.Random(1)
    file = tmp_path / "config.yaml"
    for _ in range(1000):
        changed = text
        for _ in range(rng.randint(1, 3)):
            place = rng.randint(0, len(changed))
            changed = changed[:place] + rng.choice(tokens) + changed[place + rng.randint(0, 2) :]
        file.write_text(changed, encoding="utf-8")
        with contextlib.suppress(UserError), named(file):
            read_plain(file)
        with contextlib.suppress(UserError):
            UserFiles("tests", f"nmt-user://{tmp_path}").load_config("config")
