"""Every file under configs/: it composes into the right dataclass and repeats no default of the code."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from nmt.config.compose import compose
from nmt.config.composed import Composed
from nmt.config.help import field_docs
from nmt.config.misfits import check
from nmt.config.overrides import config_dir
from nmt.config.registry import VARIANTS
from nmt.config.roots import TrainConfig
from nmt.config.stored import fingerprint, flat, to_plain
from nmt.data.reading.sources import open_group
from nmt.verbs import VERBS
from tests.runs.untrained import untrained

FILES = {
    f"{group}={file.stem}": file
    for group in VERBS["train"].groups
    for file in sorted((config_dir() / group).glob("*.yaml"))
}
_LABELLED = ("model=encoder", "task=classification")
_LABELS = ("data=labels", "data.train=a.tsv", "data.validation=b.tsv", "data.test=c.tsv", *_LABELLED)
_HUB_LABELS = ("data=hub_labels", "data.dataset=owner/name", *_LABELLED)
NEEDED = {
    "data=labels": _LABELS[1:],
    "data=hub_labels": _HUB_LABELS[1:],
    "model=encoder": (*_LABELS[:-2], "task=classification"),
    "experiment=labels": _LABELS,
    "experiment=hub_labels": _HUB_LABELS,
    "experiment=classification": (*_LABELS[:-2], "task=classification"),
    "data=hub": ("data.dataset=owner/name",),
    "data=files": ("data.train=train", "data.validation=dev", "data.test=test"),
    "experiment=documents": ("data.train=train", "data.validation=dev", "data.test=test"),
    "data=mixture": ("data.corpora={all: {train: train, validation: dev, test: test}}",),
    "data=alignment": ("data.corpus={train: train, validation: dev}", "task=classification", "model=encoder"),
    "experiment=alignment": (
        "data=alignment",
        "data.corpus={train: train, validation: dev}",
        "task=classification",
        "model=encoder",
    ),
    "experiment=misaligned_pairs": ("data.corpus={train: train, validation: dev}", "task=classification"),
    "data=text": ("data.train=train.txt", "task=language_model", "model=gpt"),
    "adapt=lora": ("init.run=OLD",),
    "optimizer=schedule_free": ("schedule=constant",),
    "adapt=adapters": ("init.run=OLD",),
    "objective=distillation": ("objective.teachers=[outputs/teacher]",),
}
"""What a choice leaves to the user."""
UNCHOSEN = {"sacrebleu"}
"""Rows that no file chooses: `nmt evaluate testset=...` does."""
every_choice = pytest.mark.parametrize("choice", FILES)


FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def old_run() -> str:
    """Return a run to start from."""
    return str(untrained(Path(FOLDER.name, "old")))


@functools.cache
def composed(*overrides: str) -> Composed:
    (only,) = compose(
        VERBS["train"], [one.replace("OLD", old_run()) if "OLD" in one else one for one in overrides]
    )
    return only


def stated(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the values of a YAML file, and its defaults list."""
    plain = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return dict(flat({name: value for name, value in plain.items() if name != "defaults"})), plain.get(
        "defaults", []
    )


def without(choice: str) -> tuple[str, ...]:
    """Return the overrides that compose the config that the file of `choice` starts from."""
    group, _, _ = choice.partition("=")
    _, defaults = stated(FILES[choice])
    if group == "experiment":
        recipe = next((entry for entry in defaults if isinstance(entry, str)), "none")
        pairs = [next(iter(entry.items())) for entry in defaults if entry != recipe]
        return (
            f"experiment={recipe}",
            *(f"{key.removeprefix('override /')}={value}" for key, value in pairs),
        )
    return ("experiment=none", f"{group}={next((d for d in defaults if d != '_self_'), 'base')}")


@every_choice
def test_every_choice_makes_a_config_that_can_be_trained(choice: str) -> None:
    trial = composed(choice, *NEEDED.get(choice, ()))
    trial.checked(VERBS["train"])
    assert isinstance(trial.to_config(TrainConfig), TrainConfig)


@pytest.mark.parametrize("choice", [choice for choice in FILES if choice.startswith("experiment=")])
def test_a_config_is_stored_as_hydra_would_write_it(choice: str) -> None:
    cfg = composed(choice, *NEEDED.get(choice, ())).to_config(TrainConfig)
    assert to_plain(cfg) == OmegaConf.to_container(OmegaConf.structured(cfg), enum_to_str=True)
    cfg.sets = open_group()  # as of a config that is made by hand
    assert to_plain(cfg)["sets"] == {}


@pytest.mark.slow
@every_choice
def test_no_value_repeats_the_default_of_the_code(choice: str) -> None:
    group, _, _ = choice.partition("=")
    values, _ = stated(FILES[choice])
    values = {key: value for key, value in values.items() if not key.startswith("data.corpora.")}  # new names
    if group in VARIANTS or group == "experiment":
        start = without(choice)
        has_data = any(one.startswith("data=") for one in start)  # else a model may need its own
        chosen = [one for one in start if not (has_data and one.startswith("model="))]
        needed = [*NEEDED.get(choice, ()), *(value for one in chosen for value in NEEDED.get(one, ()))]
        before: Any = composed(*start, *needed).cfg
        before = before if group == "experiment" else before[group]
    else:
        (default,) = [f.default_factory for f in dataclasses.fields(TrainConfig) if f.name == group]
        before = OmegaConf.structured(default() if callable(default) else None)
    if choice in NEEDED:  # what the user may leave out with this file alone
        values = {key: value for key, value in values.items() if f"{key}={value}" not in NEEDED[choice]}
    plain = OmegaConf.to_container(before, enum_to_str=True)
    assert isinstance(plain, dict)
    defaults = dict(flat({str(name): value for name, value in plain.items()}))
    assert values.keys() <= defaults.keys()
    assert {key: value for key, value in values.items() if defaults[key] == value} == {}


@every_choice
def test_every_file_says_what_it_is(choice: str) -> None:
    lines = FILES[choice].read_text(encoding="utf-8").splitlines()
    comment = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert comment.startswith("# ")
    assert len(comment) > 10


@pytest.mark.parametrize("part", VARIANTS)
def test_every_dataclass_can_be_chosen(part: str) -> None:
    name_field, classes = VARIANTS[part]
    defaults = [stated(file)[1] for choice, file in FILES.items() if choice.startswith(f"{part}=")]
    found = {name for names in defaults for name in names if name.startswith("base_")}
    assert found == {f"base_{name}" for name in classes if name not in UNCHOSEN}
    for name, cls in classes.items():
        (default,) = [field.default for field in dataclasses.fields(cls) if field.name == name_field]
        assert default == name


@pytest.mark.parametrize("root", VERBS)
def test_the_verbs_state_no_values_of_their_own(root: str) -> None:
    values, defaults = stated(config_dir() / f"{root}.yaml")
    assert defaults[0] == f"base_{root}"  # typed first, so that everything after it is checked
    assert values == {}


def test_no_file_is_left_out() -> None:
    top = {f"{name}.yaml" for name in VERBS} | set(VERBS["train"].groups)
    assert {path.name for path in config_dir().iterdir()} == top
    assert len(FILES) + len(VERBS) == len([*config_dir().rglob("*.yaml")])


def test_every_key_has_a_docstring() -> None:
    classes = [*(verb.config_class() for verb in VERBS.values())]
    classes += [*(cls for _, parts in VARIANTS.values() for cls in parts.values())]
    classes += [type(value) for value in vars(composed().to_config(TrainConfig)).values()]
    keys = [
        (cls.__name__, field.name)
        for cls in classes
        if dataclasses.is_dataclass(cls)
        for field in dataclasses.fields(cls)
        if not field_docs(cls).get(field.name)
    ]
    assert keys == []


def test_the_demo_recipe_is_for_the_demo_alone() -> None:
    demo = composed().to_config(TrainConfig)
    assert fingerprint(demo) == fingerprint(composed("experiment=demo").to_config(TrainConfig))
    other = composed("data=multi30k").to_config(TrainConfig)
    assert other.trainer == composed("experiment=none").to_config(TrainConfig).trainer != demo.trainer


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("transformer_tiny", (128, 256, 4, 4, 4)),
        ("transformer_shallow", (256, 512, 4, 3, 3)),
        ("transformer_small", (256, 1024, 4, 4, 4)),
        ("transformer_base", (512, 2048, 8, 6, 6)),
        ("transformer_big", (1024, 4096, 16, 6, 6)),
        ("transformer_original", (512, 2048, 8, 6, 6)),
        ("transformer_deep_encoder", (256, 1024, 4, 12, 1)),
        ("transformer_ssru", (256, 1536, 8, 6, 2)),
        ("transformer_average", (256, 1536, 8, 6, 2)),
    ],
)
def test_sizes_of_the_models(model: str, sizes: tuple[int, ...]) -> None:
    cfg = composed(f"model={model}").cfg.model
    assert (cfg.d_model, cfg.d_ff, cfg.num_heads, cfg.encoder_layers, cfg.decoder_layers) == sizes


def test_the_paper_recipe_is_that_of_the_paper() -> None:
    cfg = composed("experiment=wmt14_en_de").to_config(TrainConfig)
    check(cfg)
    plain = OmegaConf.to_container(OmegaConf.structured(cfg), enum_to_str=True)
    assert isinstance(plain, dict)
    assert plain["model"]["norm_order"] == "post"
    assert (plain["model"]["d_model"], plain["model"]["dropout"]) == (512, 0.1)
    assert plain["schedule"]["warmup_steps"] == 4000
    assert (plain["optimizer"]["beta1"], plain["optimizer"]["beta2"], plain["optimizer"]["eps"]) == (
        0.9,
        0.98,
        1e-9,
    )
    assert plain["trainer"]["batch_tokens"] * plain["trainer"]["accumulate"] == 25_000
    assert (plain["trainer"]["max_steps"], plain["trainer"]["average"]) == (100_000, 5)
    assert (plain["decoding"]["beam_size"], plain["decoding"]["length_penalty_alpha"]) == (4, 0.6)
