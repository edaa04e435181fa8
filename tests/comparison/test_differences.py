"""Keys that differ among runs."""

from __future__ import annotations

from nmt.comparison.differences import differing, shown, system_of


def test_only_keys_that_differ_are_told() -> None:
    a = {"run": "a", "seed": 1, "model.d_model": 8, "model.heads": 2}
    b = {"run": "b", "seed": 2, "model.d_model": 8}
    assert differing([a, b]) == {"seed": [1, 2]}  # heads is of another version, or of another family
    assert differing([a, b, {**b, "model.heads": 4}]) == {"seed": [1, 2, 2], "model.heads": [2, None, 4]}


def test_true_is_not_one() -> None:
    assert differing([{"a": True}, {"a": 1}]) == {"a": [True, 1]}


def test_runs_of_a_system_differ_in_the_seed_alone() -> None:
    first = {"run": "a", "seed": 1, "tracking.sinks": ["jsonl"], "model.d_model": 8}
    assert system_of(first) == system_of({**first, "run": "b", "seed": 2, "tracking.sinks": []})
    assert system_of(first) != system_of({**first, "model.d_model": 9})
    assert system_of(first) == system_of({**first, "trainer.epoch_steps": 15, "trainer.update_tokens": 712})


def test_values_are_shown_as_on_a_command_line() -> None:
    assert [shown(x) for x in (True, None, 1e-9, [1, "a"], "en")] == ["true", "-", "1e-09", "[1,a]", "en"]
