"""The teachers of distillation: which are refused, when, and what a run remembers of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.errors import UserError
from nmt.runs.requirements import require_all
from nmt.runs.teachers import require_teachers
from nmt.verbs import VERBS
from tests.runs.untrained import GPT, TRANSFORMER, untrained, untrained_classifier

TINY = [
    *(
        "data=toy",
        "experiment=none",
        "tokenizer=char",
        "runtime.device=cpu",
        "runtime.threads=1",
        *TRANSFORMER,
    ),
    *("schedule=constant", "schedule.warmup_steps=0", "decoding=greedy", "decoding.max_length_ratio=1"),
]
MORE_PAIRS = (
    "data=mixture",
    "data.target_tags=true",
    "data.corpora={a: {src: en, tgt: fr, train: a, validation: a, test: a}, b: {src: fr, tgt: en, train: b}}",
)


def config(*overrides: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], [*TINY, *overrides])
    return composed.to_config(TrainConfig)


def student(*teachers: Path, more: tuple[str, ...] = ()) -> TrainConfig:
    return config("objective=distillation", f"objective.teachers=[{','.join(map(str, teachers))}]", *more)


@pytest.mark.parametrize(
    ("teacher", "more", "message"),
    [
        (
            ("data.src=fr", "data.tgt=en"),
            (),
            "objective.teachers: RUN translates fr to en, but this training en to fr",
        ),
        (
            ("model.positions=learned", "model.max_positions=100", "data.max_tokens=50"),
            ("data.max_tokens=120",),
            "objective.teachers: RUN has learned positions for 100 tokens, but data.max_tokens=120; lower "
            "that, or choose another teacher",
        ),
        (
            ("data.src=en",),
            MORE_PAIRS,
            "objective.teachers: RUN translates en to fr, but this training en to fr and fr to en",
        ),
    ],
)
def test_a_teacher_that_predicts_something_else_is_refused(
    teacher: tuple[str, ...], more: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    run = untrained(tmp_path / "run", *teacher)
    with pytest.raises(UserError) as error:
        require_teachers(student(run, more=more))
    assert str(error.value) == message.replace("RUN", str(run))


def test_a_teacher_of_more_languages_is_asked_in_the_same_way(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", data=MORE_PAIRS)
    with pytest.raises(
        UserError, match=r"is asked for a language by <2fr> <2en>, but this training does so by no"
    ):
        require_teachers(student(run))
    require_teachers(student(run, more=MORE_PAIRS))


def test_teachers_of_other_tasks_and_missing_ones_are_told_together_by_their_key(tmp_path: Path) -> None:
    runs = (
        untrained(tmp_path / "lm", "task=language_model", model=GPT),
        untrained_classifier(tmp_path / "labels"),
    )
    with pytest.raises(UserError) as error:
        require_all(student(*runs, tmp_path / "nowhere"))
    text = str(error.value)
    for run, task in zip(runs, ("language_model", "classification"), strict=True):
        assert f"objective.teachers: {run} was trained with task={task}, but task is translation" in text
    assert f"objective.teachers={tmp_path}/nowhere is not a directory" in text


def test_a_run_does_not_go_on_with_a_teacher_that_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, run = tmp_path / "teacher", tmp_path / "run"
    steps = ["trainer.eval_every_steps=2", "trainer.save_every_steps=2"]
    assert main(["train", *TINY, *steps, f"run={teacher}", "trainer.max_steps=2"]) == 0
    taught = [*TINY, *steps, "objective=distillation", f"objective.teachers=[{teacher}]", f"run={run}"]
    assert main(["train", *taught, "trainer.max_steps=2"]) == 0
    assert main(["train", *taught, "trainer.max_steps=4"]) == 0
    record = json.loads((run / "teachers.json").read_text())[str(teacher)]
    assert record["checkpoint"] == "2"

    assert main(["train", *TINY, *steps, f"run={teacher}", "trainer.max_steps=4"]) == 0
    capsys.readouterr()
    commands = ["train", *taught, "trainer.max_steps=6"], ["reproduce", f"run={run}"]
    for refused, anew in zip(commands, (", or start anew with another run=...", ""), strict=True):
        assert main(refused) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"error: {run} was taught by other weights than objective.teachers has now: checkpoint 2 of "
            f"{teacher} then, 4 now; restore that one{anew}"
        )
    assert not (tmp_path / "run-reproduced").exists()
