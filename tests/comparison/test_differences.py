"""Keys that differ among runs."""

from __future__ import annotations

from nmt.comparison.differences import differing, shown, system_of, telling


def test_only_keys_that_differ_are_told() -> None:
    a = {"run": "a", "seed": 1, "model.d_model": 8, "model.heads": 2}
    b = {"run": "b", "seed": 2, "model.d_model": 8}
    assert differing([a, b]) == {"seed": [1, 2]}  # heads is of another version, or of another family
    assert differing([a, b, {**b, "model.heads": 4}]) == {"seed": [1, 2, 2], "model.heads": [2, None, 4]}


def test_a_run_is_told_from_those_of_its_task_and_model() -> None:
    common = {"task": "translation", "model.name": "rnn", "runtime.threads": 1, "seed": 1}
    runs = [common, {**common, "seed": 2}, {**common, "task": "language_model", "runtime.threads": 2, "a": 1}]
    runs += [{**runs[2], "model.name": "gpt", "a": 2}]
    assert telling(runs[:2]) == [["seed"], ["seed"]]
    *two, third, last = telling(runs)
    assert two == [["task", "model.name", "seed"]] * 2
    assert third == last == ["task", "model.name", "seed", "a", "runtime.threads"]


def test_true_is_not_one() -> None:
    assert differing([{"a": True}, {"a": 1}]) == {"a": [True, 1]}


def test_runs_of_a_system_differ_in_the_seed_alone() -> None:
    first = {"run": "a", "seed": 1, "tracking.sinks": ["jsonl"], "model.d_model": 8}
    assert system_of(first) == system_of({**first, "run": "b", "seed": 2, "tracking.sinks": []})
    assert system_of(first) != system_of({**first, "model.d_model": 9})
    assert system_of(first) == system_of({**first, "trainer.epoch_steps": 15, "trainer.update_tokens": 712})
    assert system_of(first) == system_of({**first, "runtime.device": "cuda", "runtime.requeue": True})
    assert system_of(first) != system_of({**first, "runtime.precision": "bf16"})


def test_values_are_shown_as_on_a_command_line() -> None:
    assert [shown(x) for x in (True, None, 1e-9, [1, "a"], "en")] == ["true", "-", "1e-09", "[1,a]", "en"]
