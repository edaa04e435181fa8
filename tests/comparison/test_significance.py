"""Scores, intervals and p values are those of sacreBLEU; Holm's rule, and equal systems."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import bleu
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from nmt.comparison.paired_tests import Lines
from nmt.comparison.significance import holm, rules_of, scorer_of
from nmt.errors import UserError
from tests.comparison.made import BAD, BLEU, GOOD, REFERENCES, scored


@pytest.mark.parametrize(
    "metric",
    [
        bleu.BLEU(),
        bleu.BLEU(lowercase=True, tokenize="char", smooth_method="floor", smooth_value=0.2),
        bleu.BLEU(tokenize="none", smooth_method="add-k", effective_order=True),
        bleu.BLEU(trg_lang="zh"),
        CHRF(),
        CHRF(word_order=2, char_order=4, whitespace=True, lowercase=True, eps_smoothing=True),
        TER(),
        TER(normalized=True, no_punct=True, case_sensitive=True),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_a_signature_makes_its_metric_again(metric: bleu.BLEU | CHRF | TER) -> None:
    score = metric.corpus_score(BAD, [REFERENCES]).score
    signature = metric.get_signature().format()
    again = scorer_of(signature)
    assert again.corpus_score(BAD, [REFERENCES]).score == score
    assert again.get_signature().format() == signature


@pytest.mark.parametrize("signature", ["comet:22", "nrefs:1|case:mixed|eff:no|tok:nothing|smooth:exp", ""])
def test_a_signature_of_no_known_metric_is_refused(signature: str) -> None:
    with pytest.raises(UserError, match="the signature"):
        scorer_of(signature)


def test_scores_and_tests_are_those_of_sacrebleu() -> None:
    systems = [GOOD, BAD, REFERENCES]
    rows = scored(BLEU, systems, [REFERENCES], samples=200, trials=300)
    for kind, number in (("bs", 200), ("ar", 300)):
        named: list[tuple[str, Lines]] = [(str(place), system) for place, system in enumerate(systems)]
        _, found = PairedTest(named, {"m": bleu.BLEU()}, [REFERENCES], test_type=kind, n_samples=number)()
        ours = [row.bootstrap_p if kind == "bs" else row.randomisation_p for row in rows[1:]]
        least = [2.0 ** (1 - sum(a != b for a, b in zip(GOOD, x, strict=True))) for x in systems[1:]]
        theirs = [result.p_value for result in found["BLEU"][1:]]  # type: ignore[union-attr]
        assert ours == [max(p or 0.0, q) for p, q in zip(theirs, least, strict=True)]
        assert [row.value for row in rows] == [x.score for x in found["BLEU"]]  # type: ignore[union-attr]
    assert rows[0].difference is None
    assert rows[0].bootstrap_p is None
    assert rows[1].difference == rows[1].value - rows[0].value
    assert rows[2].value == pytest.approx(100.0)
    for kind in ("bootstrap", "randomisation"):
        known, corrected = ([getattr(row, f"{kind}_{x}") for row in rows] for x in ("p", "holm"))
        assert corrected == holm(known) != known


def test_equal_translations_do_not_differ_significantly() -> None:
    rows = scored(BLEU, [GOOD, list(GOOD)], [REFERENCES], samples=200, trials=200)
    assert (rows[1].difference, rows[1].bootstrap_p, rows[1].randomisation_p) == (0.0, 1.0, 1.0)


def test_a_difference_of_few_sentences_is_not_significant() -> None:
    """One sentence that differs is swapped in two ways, which differ as much: p is 1; for two it is 1/2."""
    for number, p in ((1, 1.0), (2, 0.5)):
        other = [*BAD[:number], *GOOD[number:]]
        rows = scored(BLEU, [GOOD, other], [REFERENCES], samples=200, trials=200)
        assert rows[1].difference
        assert min(rows[1].bootstrap_p or 0, rows[1].randomisation_p or 0) >= p


def test_one_run_has_an_interval_and_no_test() -> None:
    (row,) = scored(BLEU, [GOOD], [REFERENCES], samples=100, trials=100)
    assert row.interval > 0
    assert row.randomisation_p is None


def test_without_randomisation() -> None:
    rows = scored(BLEU, [GOOD, BAD], [REFERENCES], samples=100, trials=0)
    assert rows[1].bootstrap_p is not None
    assert rows[1].randomisation_p is None


def test_several_processes_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = [GOOD, BAD, REFERENCES]
    alone = scored(BLEU, systems, [REFERENCES], samples=100, trials=100)
    monkeypatch.setattr("nmt.comparison.significance.PARALLEL_FROM", 1)
    assert scored(BLEU, systems, [REFERENCES], samples=100, trials=100) == alone


def test_holm_by_hand() -> None:
    assert holm([None, 0.01, 0.04, 0.03, 0.005]) == [None, 0.03, 0.06, 0.06, 0.02]
    assert holm([None, 0.6, 0.7]) == [None, 1.0, 1.0]
    assert holm([]) == []


def test_rules_are_a_signature_without_its_version() -> None:
    assert rules_of(BLEU) == "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp"
