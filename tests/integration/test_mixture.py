"""One model for two target languages, through the command line: trained, scored, told which to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU

from tests.integration.conftest import Command

SRC = ["a dog sleeps", "a cat sleeps", "a dog eats", "a cat eats", "the dog sleeps", "the cat eats"]
TARGETS = {
    "de": ["ein Hund schläft", "eine Katze schläft", "ein Hund isst", "eine Katze isst", "der Hund schläft"],
    "fr": ["un chien dort", "un chat dort", "un chien mange", "un chat mange", "le chien dort"],
}
LAST = {"de": "die Katze isst", "fr": "le chat mange"}


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("languages")
    corpora = []
    for language, lines in TARGETS.items():
        for side, text in (("en", SRC), (language, [*lines, LAST[language]])):
            (folder / f"{language}.{side}").write_text("".join(f"{line}\n" for line in text))
        place = folder / language
        splits = ", ".join(f"{split}: {place}" for split in ("train", "validation", "test"))
        corpora.append(f"{language}: {{tgt: {language}, {splits}}}")
    return [
        "data=mixture",
        f"data.corpora={{{', '.join(corpora)}}}",
        "data.corpora.fr.weight=2",
        "data.temperature=null",
        "data.target_tags=true",
        "tokenizer=word",
        "model=transformer_tiny",
        "model.d_model=64",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "model.dropout=0",
        "schedule=constant",
        "schedule.peak_rate=0.002",
        "schedule.warmup_steps=20",
        "decoding=greedy",
        "data.max_tokens=16",
        "trainer.batch_tokens=32",
        "trainer.max_steps=100",
        "trainer.eval_every_steps=50",
        "trainer.best_metric=macro_chrf",
        "decoding.max_length_ratio=0",
        "tuned_decoding={max_length_offset: [1, 20]}",
        "runtime.device=cpu",
    ]


@pytest.fixture(scope="module")
def trained(nmt: Command, overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "both"
    done = nmt("train", f"run={run}", *overrides)
    assert done.returncode == 0, done.stderr
    assert "training data of de: 6 pairs read, 6 kept" in done.stderr
    assert "shares: de 33.3%, fr 66.7%" in done.stderr
    assert f"nmt translate run={run} tgt=de < source.txt" in done.stdout
    return run


@pytest.mark.slow
def test_the_tag_decides_the_language(nmt: Command, trained: Path, tmp_path: Path) -> None:
    assert json.loads((trained / "results.json").read_text())["test"]["chrf"] == pytest.approx(100.0)
    text = "".join(f"{line}\n" for line in SRC)
    (tmp_path / "source").write_text(text)
    for language, lines in TARGETS.items():
        done = nmt("translate", f"run={trained}", f"tgt={language}", stdin=text)
        assert done.stdout.splitlines() == [*lines, LAST[language]], done.stderr
        file = tmp_path / language
        nmt(
            "translate", f"run={trained}", f"tgt={language}", f"input={tmp_path / 'source'}", f"output={file}"
        )
        assert file.read_text() == done.stdout


def test_a_language_must_be_one_of_the_run(nmt: Command, trained: Path) -> None:
    done = nmt("translate", f"run={trained}", stdin="a dog sleeps\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the run translates into de, fr; say which one with tgt=..." in done.stderr
    done = nmt("translate", f"run={trained}", "tgt=en", stdin="a dog sleeps\n")
    assert "tgt=en: the run translates into de, fr" in done.stderr


def test_each_target_language_is_scored(nmt: Command, trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    hypotheses = (trained / "hypotheses" / "test.de").read_text().splitlines()
    done = nmt("evaluate", f"run={trained}", "read_corpus=true")
    assert results["languages"]["test"].keys() == TARGETS.keys()
    for number, (language, lines) in enumerate(TARGETS.items()):
        found, own = results["languages"]["test"][language], hypotheses[6 * number : 6 * number + 6]
        references = [[*lines, LAST[language]]]
        assert found["bleu"] == BLEU(trg_lang=language).corpus_score(own, references).score
        assert f"  into {language}   BLEU {found['bleu']:.2f}  chrF {found['chrf']:.2f}" in done.stdout
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    (last,) = (row for row in rows if row["step"] == results["step"] and "valid/into_fr/chrf" in row)
    assert last["valid/macro_chrf"] == (last["valid/into_de/chrf"] + last["valid/into_fr/chrf"]) / 2
    assert results["tuned_decoding"] == {"max_length_offset": 20}  # by the mean, too
    mean = sum(found["chrf"] for found in results["languages"]["test"].values()) / 2
    assert results["test"]["macro_chrf"] == mean
    assert f"  macro chrF {mean:.2f}  perplexity" in done.stdout
    assert "valid macro chrF" in nmt("runs", f"folder={trained}").stdout
    (record,) = (trained / "evaluations").glob("*.json")
    assert json.loads(record.read_text())["languages"] == results["languages"]["test"]


def test_one_corpus_is_scored_alone_and_so_are_files(
    nmt: Command, trained: Path, overrides: list[str]
) -> None:
    done = nmt("evaluate", f"run={trained}", "data.scored=[fr]", "read_corpus=true")
    assert "chrF 100.00" in done.stdout, done.stderr
    place = overrides[1].partition("test: ")[2].partition("}")[0]
    done = nmt("evaluate", f"run={trained}", "data=files", "data.src=en", "data.tgt=de", f"data.test={place}")
    assert "chrF 100.00" in done.stdout, done.stderr
    done = nmt("evaluate", f"run={trained}", "data=files", "data.src=en", "data.tgt=es", f"data.test={place}")
    assert "the run translates en to de and en to fr, but data is en to es" in done.stderr


def test_the_same_command_reports_the_finished_run(nmt: Command, trained: Path, overrides: list[str]) -> None:
    done = nmt("train", f"run={trained}", *overrides)
    assert "is finished" in done.stdout, done.stderr
    done = nmt("train", f"run={trained}", *overrides, "data.corpora.fr.weight=3")
    assert "data.corpora.fr.weight: 2.0 -> 3.0" in done.stderr


def test_a_misspelt_key_of_a_corpus_is_refused(nmt: Command, overrides: list[str], tmp_path: Path) -> None:
    done = nmt("train", f"run={tmp_path / 'run'}", *overrides, "data.corpora.fr.wieght=3")
    assert "unknown key data.corpora.fr.wieght; did you mean 'weight'?" in done.stderr
    done = nmt("train", f"run={tmp_path / 'run'}", *overrides, "data.corpora.es.weight=3")
    assert "data.corpora.es: a corpus needs train (files), or dataset or path (a dataset)" in done.stderr
