"""All facts of a comparison, its table, and what it says before it is believed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from nmt.cli import main
from nmt.comparison import significance
from nmt.comparison.comparing import Comparison, _system_key, compared
from nmt.comparison.configs import CompareConfig
from nmt.comparison.summary import summary, verdict
from nmt.comparison.translations import entries_of
from nmt.errors import UserError
from nmt.files import digest_of_lines
from tests.comparison.made import BAD, BLEU, CHRF, GOOD, REFERENCES, lined, made_export, made_run, write
from tests.metrics.test_scoring import stand_in


def comparison(*paths: Path, words: dict[str, int] | None = None, **keys: Any) -> Comparison:
    cfg = CompareConfig(bootstrap_samples=100, randomisation_trials=100, **keys)
    entries = entries_of(list(map(str, paths)), cfg.split, warn=pytest.fail)
    return compared(cfg, entries, words, log=lambda text: None)


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """Two settings with two seeds each."""
    for dropout, lines in ((0.1, GOOD), (0.3, BAD)):
        for seed in (1, 2):
            own = [*lines[:4], REFERENCES[4]] if seed == 2 else lines
            config = {"seed": seed, "model.dropout": dropout}
            made_run(tmp_path / f"d{dropout}-s{seed}", config=config, hypotheses=own)
    return tmp_path


def test_seeds_are_one_system_with_mean_and_spread(seeds: Path) -> None:
    found = comparison(seeds)
    assert [(system.name, system.members) for system in found.systems] == [
        ("dropout=0.1", [0, 1]),
        ("dropout=0.3", [2, 3]),
    ]
    values = [row.value for row in found.columns[0].rows if row is not None]
    mean, spread, low, high = found.systems[0].scores["bleu"]
    assert mean == pytest.approx((values[0] + values[1]) / 2)
    assert spread == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert (low, high) == (min(values[:2]), max(values[:2]))
    assert any("3 runs are tested against d0.1-s1: by chance alone" in note for note in found.notes)


def test_what_each_seed_has_found_and_where_it_was_computed_make_no_other_system(tmp_path: Path) -> None:
    """The search by tuned_decoding, and keys such as runtime.device, which name no system either."""
    for number, (tuned, seed) in enumerate(((True, 1), (True, 2), (False, 1), (False, 2))):
        config: dict[str, Any] = {"seed": seed, "decoding.beam_size": 5, "decoding.length_penalty": 1.0}
        config |= {"tuned_decoding.beam_size": [4, 8] if tuned else None, "runtime.threads": seed}
        plain = {name.partition(".")[0]: dict[str, Any]() for name in config if "." in name}
        found = {"tuned_decoding": {"beam_size": 4 * seed}} if tuned else {}
        made_run(tmp_path / f"r{number}", config={**plain, **config}, results=found)
    systems = comparison(tmp_path).systems
    assert [(system.name, system.members) for system in systems] == [
        ("tuned_decoding.beam_size=[4,8]", [0, 1]),
        ("decoding.beam_size=5 tuned_decoding.beam_size=-", [2, 3]),
    ]


def test_a_seed_that_has_not_yet_tuned_its_search_is_of_the_system_of_the_others(tmp_path: Path) -> None:
    """Their translations of one validation are compared; the second seed is still training."""
    for seed in (1, 2):
        config = {"seed": seed, "decoding": {"beam_size": 5}, "tuned_decoding": {"beam_size": [5, 8]}}
        results = {"tuned_decoding": {"beam_size": 8}}
        made_run(tmp_path / f"r{seed}", config=config, results=results, finished=seed == 1)
    files = sorted(tmp_path.glob("r*/hypotheses/validation/*"))
    (system,) = comparison(*files, split="validation").systems
    assert system.members == [0, 1]


def test_runs_that_state_another_search_are_other_systems(tmp_path: Path) -> None:
    """Also where tuned_decoding tries the same, which need not come to its end."""
    for seed, beam_size in ((1, 1), (2, 12)):
        search = {"decoding": {"beam_size": beam_size}, "tuned_decoding": {"beam_size": [5, 8]}}
        made_run(tmp_path / f"r{seed}", config={"seed": seed, **search})
    assert len({_system_key(entry) for entry in comparison(tmp_path).entries}) == 2


@pytest.mark.parametrize("told", ["abc", "-1", "1.5", ""])
def test_a_seed_of_the_tests_that_is_none_is_named(
    told: str, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", told)
    with pytest.raises(UserError, match=r"^SACREBLEU_SEED must be a whole number of at least 0, or none"):
        comparison(seeds)


def test_systems_of_several_seeds_are_tested_against_the_first(seeds: Path) -> None:
    for seed in (1, 2):
        config = {"seed": seed, "model.dropout": 0.2}
        made_run(seeds / f"d0.2-s{seed}", config=config, hypotheses=REFERENCES)
    made_run(seeds / "d0.4-s1", config={"model.dropout": 0.4}, hypotheses=BAD)
    found = comparison(seeds)
    first, best, worst, single = found.systems
    assert [first.tests, single.tests] == [{}, {}]
    for system in (best, worst):
        test = system.tests["bleu"]
        assert test.difference == pytest.approx(system.scores["bleu"][0] - first.scores["bleu"][0])
    known = [system.tests["bleu"].p_value for system in (best, worst)]
    assert [system.tests["bleu"].holm for system in (best, worst)] == significance.holm(known) != known
    rows = [line.split() for line in summary(found).splitlines() if line.startswith("dropout=")]
    assert rows[0][1:] == [
        "2",
        *f"{first.scores['bleu'][0]:.2f} ± {first.scores['bleu'][1]:.2f}".split(),
        "first",
    ]
    difference = f"{worst.tests['bleu'].difference:+.2f}"
    assert rows[2][:2] == ["dropout=0.3", "2"]
    assert rows[2][5] == difference
    assert difference.startswith("-")


@pytest.mark.parametrize(
    ("bootstrap", "randomisation", "star"),
    [(0.01, 0.02, "*"), (0.01, 0.06, ""), (0.06, 0.01, ""), (0.01, None, "*"), (None, None, "")],
)
def test_a_star_needs_all_corrected_tests(
    bootstrap: float | None, randomisation: float | None, star: str
) -> None:
    tested = significance.Tested(
        20.0, 1.0, 2.0, 0.001, 0.001, bootstrap_holm=bootstrap, randomisation_holm=randomisation
    )
    assert verdict(tested) == star


def test_one_run_is_tested_against_no_seeds(seeds: Path) -> None:
    found = comparison(seeds / "d0.1-s1", seeds / "d0.3-s1", seeds / "d0.3-s2")
    assert [system.tests for system in found.systems] == [{}, {}]


def test_a_star_and_the_correction_are_explained_where_there_are_tests(seeds: Path) -> None:
    alone, two, all_of_them = (seeds / "d0.1-s1",), (seeds / "d0.1-s1", seeds / "d0.3-s1"), (seeds,)
    line = "*  significant: every p value below 0.05"
    shown = [
        [x for x in summary(comparison(*runs)).splitlines() if x.startswith(line)]
        for runs in (alone, two, all_of_them)
    ]
    assert shown == [[], [line], [f"{line}, corrected for 3 comparisons (Holm)", line]]


def test_rows_fit_the_terminal_and_names_are_cut_for_it_alone(
    seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a-long-name-" * 5
    made_run(seeds / name, config={"model.dropout": 0.2})
    found = comparison(seeds, seeds / name)
    monkeypatch.setenv("COLUMNS", "80")
    scores = summary(found).partition("config")[0].splitlines()
    assert max(map(len, scores)) <= 80
    assert any("…" in line for line in scores)
    monkeypatch.setenv("COLUMNS", "160")
    assert name in summary(found).partition("config")[0]


def test_the_keys_of_a_sweep_name_its_systems(seeds: Path) -> None:
    trials = [
        {"name": f"d{x}-s{seed}", "values": {"model": f"big{x}", "seed": str(seed)}}
        for x in (0.1, 0.3)
        for seed in (1, 2)
    ]
    (seeds / "sweep.json").write_text(json.dumps({"version": 1, "trials": trials}))
    found = comparison(seeds)
    assert [system.name for system in found.systems] == ["model=big0.1", "model=big0.3"]
    (seeds / "sweep.json").write_text("{")
    found = comparison(seeds)
    assert [system.name for system in found.systems] == ["dropout=0.1", "dropout=0.3"]
    assert any("the swept keys do not name the systems: " in note for note in found.notes)


def test_no_two_systems_have_one_name(tmp_path: Path) -> None:
    """Two sweeps over one key, other keys that differ after the first four, and other training data."""
    for folder, steps in (("short", 20), ("long", 40)):
        for seed in (1, 2):
            made_run(tmp_path / folder / f"d-s{seed}", config={"seed": seed, "trainer.max_steps": steps})
        values = {"model.dropout": "0.1"}
        trials = [{"name": f"d-s{seed}", "values": values | {"seed": str(seed)}} for seed in (1, 2)]
        write(tmp_path / folder / "sweep.json", json.dumps({"version": 1, "trials": trials}))
    names = [system.name for system in comparison(tmp_path / "short", tmp_path / "long").systems]
    assert names == ["dropout=0.1 max_steps=20", "dropout=0.1 max_steps=40"]

    for folder, most, last in (("a", 0, 0), ("b", 0, 1), ("c", 1, 1)):
        config = {**{f"model.k{number}": most for number in range(5)}, "model.k5": last}
        for seed in (1, 2):
            made_run(tmp_path / "keys" / f"{folder}{seed}", config={**config, "seed": seed})
    names = [system.name for system in comparison(tmp_path / "keys").systems]
    assert names == ["k0=0 k1=0 k2=0 k3=0 k5=0", "k0=0 k1=0 k2=0 k3=0 k5=1", "k0=1 k1=1 k2=1 k3=1"]

    for number in (1, 2, 3, 4):
        run = made_run(tmp_path / "data" / f"r{number}", config={"seed": number})
        write(run / "data" / "train.json", json.dumps({"training_pairs": 3, "sha256": str(number // 3)}))
    names = [system.name for system in comparison(tmp_path / "data").systems]
    assert names == ["data (r1)", "data (r3)"]


def test_seeds_of_one_setting_have_the_name_of_their_folder(seeds: Path) -> None:
    assert [system.name for system in comparison(seeds / "d0.1-s1", seeds / "d0.1-s2").systems] == [
        seeds.name
    ]


def test_another_search_of_several_seeds_is_told_from_that_of_the_runs(seeds: Path) -> None:
    files = []
    for seed in (1, 2):
        run = seeds / f"d0.1-s{seed}"
        files.append(run / "hypotheses" / "validation-0123abcd.de")
        write(files[-1], (run / "hypotheses" / "validation.de").read_text())
        evaluation = {
            "hypotheses": f"hypotheses/{files[-1].name}",
            "scores": {},
            "signatures": {},
            "sha256": {"tgt": digest_of_lines(REFERENCES)},
            "changed": {"decoding.beam_size": 8},
        }
        write(run / "evaluations" / "validation-0123abcd.json", json.dumps(evaluation))
    found = comparison(seeds / "d0.1-s1", seeds / "d0.1-s2", *files)
    assert [system.name for system in found.systems] == [seeds.name, f"{seeds.name}:beam_size=8"]


def test_a_copy_of_a_run_is_no_further_seed(seeds: Path) -> None:
    shutil.copytree(seeds / "d0.1-s1", seeds / "d0.1-s1-again")
    members = [system.members for system in comparison(seeds).systems]
    assert members == [[0, 2], [1], [3, 4]]


def test_runs_on_other_data_are_no_seeds(seeds: Path) -> None:
    write(seeds / "d0.1-s2" / "data" / "train.json", json.dumps({"training_pairs": 9, "sha256": "1"}))
    assert [system.members for system in comparison(seeds).systems] == [[0], [1], [2, 3]]


def test_translations_of_one_run_are_no_seeds(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    found = comparison(run, run / "hypotheses" / "validation" / "step_00000040.de")
    assert [system.members for system in found.systems] == [[0], [1]]
    assert found.curves[0]
    assert not found.curves[1]
    assert any("no system has several runs" in note for note in found.notes)


def test_scores_are_of_validation_unless_test_is_asked_for(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name) for name in ("a", "b")]
    for run in runs:
        write(run / "hypotheses" / "test.de", "".join(f"{line}\n" for line in BAD))
    scores = {split: comparison(*runs, split=split).columns[0].rows[0] for split in ("validation", "test")}
    assert scores["validation"] is not None
    assert scores["test"] is not None
    assert scores["validation"].value > scores["test"].value


def test_a_run_with_another_test_set_is_named_and_has_no_score(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "a"), made_run(tmp_path / "b", references=BAD), made_run(tmp_path / "c")]
    found = comparison(*runs)
    assert [row is None for row in found.columns[0].rows] == [False, True, False]
    assert found.comparable == [0, 2]
    assert list(found.differences) == [2]
    assert "b is not compared: its references differ from those of a, first in line 1" in found.notes


def test_signatures_that_differ_are_named_and_scores_computed_anew(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a")
    other = BLEU.replace("13a", "char")
    scores = {"loss": 1.0, "bleu": 77.0}
    b = made_run(tmp_path / "b", results={"signatures": {"bleu": other}, "validation": scores})
    found = comparison(a, b)
    assert [column.signature for column in found.columns] == [BLEU, CHRF]
    rows = found.columns[0].rows
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[0].value == rows[1].value
    (note,) = [note for note in found.notes if "is not comparable" in note]
    assert note.startswith(f"the stored BLEU of b is not comparable: its signature is {other}")


def test_a_stored_score_that_is_not_that_of_the_translations_is_named(tmp_path: Path) -> None:
    found = comparison(made_run(tmp_path / "a", results={"validation": {"bleu": 12.0}}))
    assert any("a has stored BLEU 12.00, but its translations" in note for note in found.notes)


def test_losses_of_other_tokenizers_are_said_to_be_incomparable(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name) for name in ("a", "b")]
    assert comparison(*runs).same_tokenizer
    write(runs[1] / "tokenizer.model", "other pieces")
    assert any("the tokenizers differ" in note for note in comparison(*runs).notes)


def test_an_earlier_step_has_cost_what_it_took_to_get_there(tmp_path: Path) -> None:
    speeds = {"train/tgt_tokens_per_second": 10.0, "train/tflops_per_second": 2.0}
    records = [
        {"step": 20, "train/tokens": 100, "train/seconds": 21.0, **speeds},
        {"step": 40, "train/tokens": 300, "train/seconds": 60.0, **speeds},
    ]
    run = made_run(tmp_path / "a", records=records)
    steps = [run / "hypotheses" / "validation" / f"step_{step:08d}.de" for step in (10, 20, 30, 40)]
    for file in steps:
        write(file, (run / "hypotheses" / "validation.de").read_text())
    costs = [cost for cost in comparison(run, *steps).costs if cost is not None]
    assert [(cost.steps, cost.seconds, cost.tokens) for cost in costs] == [
        (40, 62.5, 300),
        (10, 10.5, 50),
        (20, 21.0, 100),
        (30, 40.5, 200),
        (40, 62.5, 300),
    ]
    assert [cost.operations for cost in costs] == pytest.approx(
        [tokens * 2.0e12 / 10.0 for tokens in (300, 50, 100, 200, 300)]
    )


def test_the_cost_of_a_step_behind_the_last_record_is_known_of_a_finished_run_alone(tmp_path: Path) -> None:
    records = [{"step": 20, "train/tokens": 100, "train/seconds": 21.0}, {"step": 40, "valid/bleu": 10.0}]
    for finished, expected in ((True, (41.75, 200)), (False, (None, None))):
        run = made_run(tmp_path / str(finished), records=records, finished=finished)
        file = run / "hypotheses" / "validation" / "step_00000030.de"
        write(file, (run / "hypotheses" / "validation" / "step_00000040.de").read_text())
        (cost,) = comparison(file).costs
        assert cost is not None
        assert (cost.seconds, cost.tokens) == expected


def test_an_earlier_step_has_the_loss_of_its_validation(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    folder = run / "hypotheses" / "validation"
    write(folder / "step_00000020.de", (folder / "step_00000040.de").read_text())
    whole = comparison(run).losses
    assert comparison(folder / "step_00000020.de").losses == [2.0] != whole


def test_a_step_of_a_named_set_has_the_loss_of_that_set(tmp_path: Path) -> None:
    records = [{"step": 20, "valid/loss": 2.0, "valid/news/loss": 3.0}]
    run = made_run(tmp_path / "run", records=records)
    for side in ("en", "de"):
        write(run / "data" / "news" / f"validation.{side}", lined(REFERENCES))
    file = run / "hypotheses" / "news" / "validation" / "step_00000020.de"
    write(file, lined(GOOD))
    assert comparison(file, split="validation-news").losses == [3.0]


def test_costs_and_curves(tmp_path: Path) -> None:
    found = comparison(made_run(tmp_path / "a"))
    (cost,) = found.costs
    assert cost is not None
    assert (cost.steps, cost.seconds, cost.tokens, cost.parameters) == (40, 62.5, 300, 32)
    assert cost.operations == pytest.approx(300 * 2.0e12 / 10.0)  # tokens x operations per token
    (curves,) = found.curves
    assert curves["train loss"] == [(20, 100.0, 10.0, 2.5), (40, 300.0, 30.0, 1.5)]
    assert curves["bleu"] == [(20, 100.0, 10.0, 10.0), (40, 300.0, 30.0, 20.0)]


def test_a_model_that_was_not_trained_here_has_cost_nothing_that_is_known(tmp_path: Path) -> None:
    text = summary(comparison(made_run(tmp_path / "a"), made_export(tmp_path / "b")))
    costs = text.partition("\ncost ")[2].partition("\n\n")[0].splitlines()
    assert costs[2].split() == ["b", "-", "-", "-", "32", "-", "-"]


def test_curves_of_a_version_that_stored_no_tokens(tmp_path: Path) -> None:
    speed = {"train/tgt_tokens_per_second": 15.0}
    records = [{"step": step, "train/nll": 1.0, **speed} for step in (20, 40)]
    (curves,) = comparison(made_run(tmp_path / "a", records=records)).curves
    assert curves["train loss"] == [(20, 150.0, 10.0, 1.0), (40, 300.0, 20.0, 1.0)]


def test_only_differences_of_config_and_environment_are_told(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", config={"model.dropout": 0.3})
    write(b / "environment.json", json.dumps({"python": "3.11", "packages": {"torch": "2.14.0"}}))
    found = comparison(a, b)
    assert found.config == {"model.dropout": [0.1, 0.3]}
    assert found.environment == {"packages.torch": ["2.13.0", "2.14.0"]}


def test_a_language_model_is_compared_without_translations(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name, config={"task": "language_model"}) for name in ("a", "b")]
    shutil.rmtree(runs[0] / "hypotheses")  # the other has texts there
    assert (runs[1] / "hypotheses").is_dir()
    found = comparison(*runs)
    assert found.losses == [1.0, 1.0]
    assert not found.columns
    for name in ("a", "b"):
        note = f"{name} is not compared: it has no translations of validation: it is a language model"
        assert note in found.notes
    assert "no translations of validation to compare" in summary(found)


def made_classifiers(folder: Path, **signatures: str) -> list[Path]:
    true = ["good", "bad", "good", "so so", "bad"]
    systems = {"a": ["good", "bad", "bad", "bad", "good"], "b": ["good", "bad", "good", "bad", "bad"]}
    config = {"task": "classification", "metrics": ["accuracy", "macro_f1"]}
    results: dict[str, Any] = {"signatures": signatures, "validation": {"accuracy": 40.0}}
    return [
        made_run(folder / name, config=config, hypotheses=lines, references=true, results=results)
        for name, lines in systems.items()
    ]


@pytest.mark.parametrize(
    "signatures",
    [
        {"accuracy": "labels:3", "macro_f1": "labels:3"},  # of version 0.1
        {"accuracy": "metric:accuracy|labels:3", "macro_f1": "metric:macro_f1|labels:3"},
        {},
    ],
)
def test_classifiers_are_compared_by_their_labels(tmp_path: Path, signatures: dict[str, str]) -> None:
    found = comparison(*made_classifiers(tmp_path, **signatures))
    columns = {column.metric: column for column in found.columns}
    assert list(columns) == ["accuracy", "macro_f1"]
    assert columns["accuracy"].signature == "metric:accuracy|labels:3"
    assert [row and row.value for row in columns["accuracy"].rows] == [40.0, 80.0]
    rows = columns["macro_f1"].rows
    assert rows[1] is not None
    assert rows[1].value == pytest.approx((100 + 80 + 0) / 3)
    assert rows[1].randomisation_p is not None
    assert rows[1].randomisation_p > 0.2
    by_label = found.buckets["label"]["accuracy"]
    assert [(one.label, one.scores) for one in by_label] == [
        ("bad", [50.0, 100.0]), ("good", [50.0, 100.0]), ("so so", [0.0, 0.0])
    ]  # fmt: skip
    assert [(one.line, one.scores) for one in found.differences[1]] == [(3, (0.0, 100.0)), (5, (0.0, 100.0))]
    assert found.sentence_metric == "accuracy"
    assert not any("sacreBLEU" in note or "is not comparable" in note for note in found.notes)
    disagreements = [note for note in found.notes if "the file or the score has changed" in note]
    assert len(disagreements) == bool(signatures)  # b has stored that of a
    assert "metric:accuracy|labels:3" in summary(found)


@pytest.mark.parametrize(
    ("language", "scoring", "signature"),
    [
        ("zh-CN", {}, "nrefs:2|case:mixed|eff:no|tok:zh|smooth:exp"),
        ("de", {"tokenize": "char", "lowercase": True}, "nrefs:2|case:lc|eff:no|tok:char|smooth:exp"),
        ("de", {"tokenize": "nonsense"}, "bleu is left out: scoring.tokenize must be one of"),
    ],
)
def test_an_unfinished_run_is_scored_by_its_config(
    tmp_path: Path, language: str, scoring: dict[str, Any], signature: str
) -> None:
    config = {"data.tgt": language, "scoring": scoring, "metrics": ["comet", "bleu"]}
    run = made_run(tmp_path / "a", config=config, finished=False)
    write(run / "data" / "validation.ref2.de", lined(BAD))
    for file in run.rglob("*.de"):
        file.rename(file.with_suffix(f".{language}"))
    found = comparison(run)
    told = [significance.rules_of(column.signature) for column in found.columns] or found.notes
    assert told[0].startswith(signature)


def test_labels_of_another_system_are_compared(tmp_path: Path) -> None:
    runs = made_classifiers(tmp_path)
    write(tmp_path / "majority.txt", lined(["good", "good", "good", "good", "fine"]))
    found = comparison(tmp_path / "majority.txt", *runs)
    assert [row and row.value for row in found.columns[0].rows] == [40.0, 40.0, 80.0]
    assert "1 of 5 lines of majority.txt, first line 5, are labels that no reference has" in found.notes


def test_files_of_other_systems_have_scores_and_nothing_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = BLEU.replace("tok:13a", "tok:char").replace("nrefs:1", "nrefs:2")
    run = made_run(tmp_path / "a", results={"signatures": {"bleu": signature}})
    write(run / "data" / "validation.ref2.de", lined(BAD))
    for name, lines in (("good.de", GOOD), ("bad.de", BAD)):
        write(tmp_path / name, lined(lines))
    found = comparison(tmp_path / "bad.de", run, tmp_path / "good.de")
    (column,) = found.columns
    bad, own, good = column.rows
    assert column.signature == signature
    assert bad is not None
    assert own is not None
    assert good is not None
    assert bad.value == pytest.approx(100.0)  # it is the second reference
    assert bad.difference is None
    assert own.difference == pytest.approx(own.value - 100.0)
    assert (good.value, good.bootstrap_p) == (own.value, own.bootstrap_p)
    assert list(found.differences) == [1, 2]
    assert [len(bucket.scores) for bucket in found.buckets["length"]["bleu"]] == [3] * 2
    assert [cost is None for cost in found.costs] == [True, False, True]
    assert (found.config, found.environment, found.losses) == ({}, {}, [None, 1.0, None])
    assert [bool(curves) for curves in found.curves] == [False, True, False]
    assert [system.name for system in found.systems] == ["bad.de", "a", "good.de"]
    assert not any("tokenizers differ" in note for note in found.notes)
    monkeypatch.setenv("COLUMNS", "80")
    text = summary(found)
    assert text.startswith("3 of 3 runs and files compared on 5 sentences of validation")
    costs = text.partition("\ncost ")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in costs] == ["a"]


def test_words_are_counted_where_it_is_said(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    own = comparison(run).buckets["frequency"]["bleu"]
    given = comparison(run, words={"men": 5, "two": 900}).buckets["frequency"]["bleu"]
    assert [bucket.label for bucket in own] == ["1"]
    assert [bucket.label for bucket in given] == ["0"]


def test_the_command(
    seeds: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    keys = ["bootstrap_samples=100", "randomisation_trials=100"]
    assert main(["compare", str(seeds), *keys]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 runs compared on 5 sentences of validation" in out
    assert f"signature  bleu|{BLEU}" in out
    assert "system (over seeds)" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert (seeds / "comparison.html").is_file()
    a, b = sorted(seeds.glob("d*-s1"))
    assert main(["compare", f"run=[{a},{b}]", f"output={seeds}/two.html", *keys]) == 0
    out = capsys.readouterr().out
    assert "model.dropout" in out
    assert f"written     {seeds}/two.html" in out
    other = seeds / "other.de"
    write(other, lined(BAD))
    assert main(["compare", str(other), str(a), str(b), *keys]) == 0
    out = capsys.readouterr().out
    assert "3 of 3 runs and files compared on 5 sentences of validation" in out
    assert f"{seeds.name}/comparison.html" in out
    assert main(["compare", str(a), str(b), f"output={other}/page.html", *keys]) == 2
    problem = f"cannot write to the directory {other}: it is a file; name a file elsewhere: output=FILE"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"error: {problem}\n")  # before the work
    assert main(["compare", str(a), str(b), f"output={seeds}", *keys]) == 2
    problem = f"output={seeds} is a directory; name a file in it: output={seeds}/comparison.html"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"error: {problem}\n")
    (config,) = [line.split()[1:] for line in out.splitlines() if line.startswith("config ")]
    assert config == [a.name, b.name]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "run is missing"),
        (
            ["nowhere"],
            "run=nowhere is neither a run, a folder of runs, nor a file of translations",
        ),
        (["run=a", "b"], "'b' is a value of run, which is given, too; write all in one place"),
        (["-m", "x"], "nmt compare starts no training, and is not swept; leave out -m"),
        (["x", "bootstrap_samples=1"], "bootstrap_samples must be at least 100"),
    ],
)
def test_mistakes(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert problem in capsys.readouterr().err


COMET = "nrefs:1|model:my/model|scale:100|version:9.9"
BY_LENGTH = (
    "words = [len(row['mt'].split()) / len(row['ref'].split()) for row in question['data']]\n"
    "print(json.dumps({'version': '9.9', 'scores': words}))\n"
    "open(__file__ + '.asked', 'a').write(f\"{question['model']} {len(words)}\\n\")"
)
"""A COMET of no model: the words of a translation in the place of how good it is."""


@pytest.fixture
def comet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two runs that have stored their COMET, and another system."""
    monkeypatch.setenv("NMT_COMET_PYTHON", stand_in(tmp_path, BY_LENGTH))
    monkeypatch.setenv("NMT_COMET_MODEL", "my/model")
    results = {"signatures": {"comet": COMET}, "validation": {"comet": 100.0}}
    runs = [
        made_run(tmp_path / name, hypotheses=lines, results=results)
        for name, lines in (("a", GOOD), ("b", BAD))
    ]
    write(tmp_path / "other.de", lined(REFERENCES))
    return [*runs, tmp_path / "other.de"]


def test_comet_has_intervals_and_tests(comet_runs: list[Path], tmp_path: Path) -> None:
    found = comparison(*comet_runs)
    (column,) = found.columns
    shares = [len(hyp.split()) / len(ref.split()) for hyp, ref in zip(BAD, REFERENCES, strict=True)]
    values = [row.value for row in column.rows if row is not None]
    assert values == pytest.approx([100.0, 100.0 * sum(shares) / len(shares), 100.0])
    first, bad, same = column.rows
    assert first is not None
    assert bad is not None
    assert same is not None
    assert (first.interval, bad.interval > 0) == (0.0, True)
    assert same.bootstrap_p == same.randomisation_p == 1.0
    assert bad.randomisation_p is not None
    assert bad.randomisation_p < 0.2
    buckets = found.buckets["length"]["comet"]
    assert sum(bucket.sentences for bucket in buckets) == len(REFERENCES)
    assert (tmp_path / "stand_in.py.asked").read_text() == "my/model 11\n"  # each different line, once
    assert [note for note in found.notes if "sacreBLEU" in note] == []
    results = {"signatures": {"comet": COMET.replace("9.9", "9.8")}, "validation": {}}
    older = comparison(made_run(tmp_path / "older", results=results))
    assert older.columns[0].signature == COMET
    assert "stored scores are of COMET 9.8, those here of 9.9" in older.notes
    assert any(note.startswith("b has stored COMET 100.00, but its translations") for note in found.notes)
    assert f"comet|{COMET}" in summary(found)


def test_comet_over_seeds_is_tested(comet_runs: list[Path]) -> None:
    folder = comet_runs[0].parent / "seeds"
    for dropout, lines in ((0.1, GOOD), (0.3, BAD)):
        for seed in (1, 2):
            config = {"seed": seed, "model.dropout": dropout}
            made_run(folder / f"{dropout}-{seed}", config=config, hypotheses=lines)
    found = comparison(folder, metrics=["comet"])
    assert [column.signature for column in found.columns] == [COMET]  # which no run has stored
    assert found.systems[1].tests["comet"].difference < -20


@pytest.mark.parametrize(
    ("variable", "value", "note"),
    [
        (
            "NMT_COMET_MODEL",
            "other/model",
            "comet is left out: it is that of the model my/model, but here the model is other/model; if you "
            "trust the first, set NMT_COMET_MODEL=my/model",
        ),
        (
            "NMT_COMET_PYTHON",
            "",
            "comet is left out: metrics has comet, which runs in an environment of its own",
        ),
    ],
)
def test_comet_that_cannot_be_computed_is_left_out(
    comet_runs: list[Path], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, note: str
) -> None:
    monkeypatch.setenv(variable, value)
    found = comparison(*comet_runs)
    assert found.columns == []
    assert [known for known in found.notes if known.startswith(note)]


def test_metrics_that_are_asked_for_are_those_of_the_table(tmp_path: Path) -> None:
    results = {"signatures": {"bleu": BLEU, "chrf": CHRF}, "validation": {}}
    run = made_run(tmp_path / "a", results=results, config={"scoring": {"lowercase": True}})
    found = comparison(run, metrics=["chrf", "ter"])
    assert [column.signature for column in found.columns] == [
        CHRF,  # as it is stored
        f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{sacrebleu.__version__}",
    ]
    with pytest.raises(UserError, match=r"metrics: accuracy is a score of labels, but task is translation"):
        comparison(run, metrics=["accuracy"])
    with pytest.raises(UserError, match=r"metrics\[0\] must be one of"):
        comparison(run, metrics=["blue"])
