"""A user's day: train, look at the scores, evaluate, translate, move the run, make mistakes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import ToyData
from nmt.data.reading.sources import load
from nmt.training.trainer import Trainer
from tests.integration.conftest import COPYING

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def read_metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def sacrebleu(reference: Path, hypothesis: Path) -> float:
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(reference),
        "-i",
        str(hypothesis),
        "--score-only",
        "--width",
        "10",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_learns_to_copy(trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    assert results["test"]["bleu"] > 90
    assert results["validation"]["bleu"] > 90


def test_the_toy_recipe_learns_its_sentences_by_heart(nmt: Command, tmp_path: Path) -> None:
    """Words, lower-cased and without punctuation: a user may write either, and words never seen."""
    run = tmp_path / "toy"
    done = nmt("train", "experiment=toy_en_fr", f"run={run}", "runtime.device=cpu")
    assert done.returncode == 0, done.stderr
    assert "10 pairs read, 10 kept" in done.stderr
    toy = load(ToyData(), Split.train)
    translated = nmt("translate", f"run={run}", stdin="".join(f"{line}\n" for line in toy.src))
    assert translated.returncode == 0, translated.stderr
    assert translated.stdout.splitlines() == toy.tgt
    assert (run / "hypotheses" / "test.fr").read_text(encoding="utf-8").splitlines() == toy.tgt
    written = nmt("translate", f"run={run}", stdin="The cat sleeps, in the HOUSE!\n...\nQuokkas\n")
    first, second, third = written.stdout.splitlines()
    assert (first, second) == ("le chat dort dans la maison", "")
    assert third


def test_run_directory_holds_what_the_readme_lists(trained: Path) -> None:
    files = {path.name for path in trained.iterdir()}
    assert files >= {
        *("config.yaml", "environment.json", "tokenizer.model", "data", "checkpoints", "metrics.jsonl"),
        *("tb", "hypotheses", "results.json", "train.log"),
    }
    results = json.loads((trained / "results.json").read_text())
    assert set(results) == {
        "step",
        "validation",
        "test",
        "signatures",
        "parameters",
        "learnt_parameters",
        "train_seconds",
        "tgt_tokens_per_second",
    }
    assert (trained / "checkpoints" / f"step_{results['step']:08d}" / "model.safetensors").exists()


def test_metrics_name_each_step_once(trained: Path) -> None:
    lines = read_metrics(trained)
    steps = [line["step"] for line in lines if "train/loss" in line]
    assert steps == list(range(20, 301, 20))
    assert all(line["train/tgt_tokens_per_second"] > 0 for line in lines if "train/loss" in line)
    assert [line["step"] for line in lines if "valid/bleu" in line] == [150, 300]


def test_validation_equals_evaluate_equals_sacrebleu(trained: Path, nmt: Command) -> None:
    """A validation, `nmt evaluate` and the `sacrebleu` command give one score for a checkpoint."""
    line = next(line for line in read_metrics(trained) if line.get("valid/bleu", 0) and line["step"] == 300)
    done = nmt("evaluate", f"run={trained}", "checkpoint=300", "data.scored_split=validation")
    assert done.returncode == 0, done.stderr
    assert f"BLEU {line['valid/bleu']:.2f}" in done.stdout
    written = Path(done.stdout.rsplit("written", 1)[1].strip())
    assert sacrebleu(trained / "data" / "validation.b", written) == pytest.approx(
        line["valid/bleu"], abs=1e-6
    )


def test_the_same_command_again_reports(trained: Path, nmt: Command, tiny: list[str]) -> None:
    before = (trained / "metrics.jsonl").read_bytes()
    done = nmt("train", f"run={trained}", *tiny, *COPYING)
    assert done.returncode == 0, done.stderr
    assert "is finished" in done.stdout
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_a_moved_run_scores_the_same_without_its_data(trained: Path, nmt: Command, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(trained, moved)
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("/train", "/gone").replace("/test", "/gone"))
    recorded = json.loads((moved / "results.json").read_text())
    done = nmt("evaluate", f"run={moved}")
    assert done.returncode == 0, done.stderr
    assert f"BLEU {recorded['test']['bleu']:.2f}  chrF {recorded['test']['chrf']:.2f}" in done.stdout
    assert recorded["signatures"]["bleu"] in done.stdout


@pytest.mark.fault(29)
def test_translate_keeps_lines_and_order(trained: Path, nmt: Command) -> None:
    source = "\n1 2 3\n   \n9 8 7 6\n\n"
    done = nmt("translate", f"run={trained}", stdin=source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n1 2 3\n\n9 8 7 6\n\n"


def test_translate_n_best(trained: Path, nmt: Command) -> None:
    done = nmt("translate", f"run={trained}", "decoding.n_best=2", stdin="1 2 3\n")
    first, second = done.stdout.splitlines()
    assert first.startswith("0 ||| 1 2 3 ||| -")
    assert second.startswith("0 ||| ")
    assert float(first.split("|||")[2]) > float(second.split("|||")[2])


@pytest.fixture(scope="module")
def attention(trained: Path, nmt: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `nmt attention` for ten digit strings, a blank line and a pair, by default; return its folder."""
    output = tmp_path_factory.mktemp("attention") / "new"
    lines = (trained / "data" / "test.a").read_text().splitlines()[:10]
    stdin = "\n".join([*lines, "", "1 2 3\t1 2 3", ""])
    done = nmt("attention", f"run={trained}", f"output={output}", "max_sentences=2", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        str(output / name)
        for name in (
            "attention.html",
            "alignments.jsonl",
            "alignments.pharaoh",
            "cross_0001.png",
            "cross_0002.png",
        )
    ]
    assert done.stderr == "warning: page and images show the first 2 lines; max_sentences=... shows more\n"
    return output


def test_attention_of_a_copied_string_is_diagonal(attention: Path, trained: Path) -> None:
    """What was copied is aligned with what it was copied from; a short training may leave a link aside."""
    found = (attention / "alignments.pharaoh").read_text().split("\n")
    lengths = [len(line.split()) for line in (trained / "data" / "test.a").read_text().splitlines()[:10]]
    lengths += [0, 3, 0]
    assert [len(line.split()) for line in found] == lengths
    diagonal = [f"{i}-{i}" for length in lengths for i in range(length)]
    same = [one == other for one, other in zip(" ".join(found).split(), diagonal, strict=True)]
    assert sum(same) >= 0.95 * len(same)


def test_soft_alignments_name_tokens_and_weights(attention: Path) -> None:
    last = json.loads((attention / "alignments.jsonl").read_text().splitlines()[-1])
    assert (last["line"], last["src"], last["tgt"]) == (12, "1 2 3", "1 2 3")
    assert last["src_tokens"] == last["tgt_tokens"] == ["▁1", "▁2", "▁3", "</s>"]
    assert [len(row) for row in last["weights"]] == [4] * 4
    assert all(sum(row) == pytest.approx(1.0, abs=1e-3) for row in last["weights"])


def test_attention_goes_into_the_run_directory_unless_told_otherwise(trained: Path, nmt: Command) -> None:
    done = nmt("attention", f"run={trained}", "views=[hard]", "layer=2", stdin="1 2 3\t1 2\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"written     {trained}/attention/alignments.pharaoh\n"
    assert (trained / "attention" / "alignments.pharaoh").read_text() == "0-0 1-1\n"


@pytest.mark.parametrize(
    ("option", "stdin", "message"),
    [
        (
            "layer=3",
            "",
            "layer must be from 1 to 2 in the model of {run} (model.name=transformer), but is 3",
        ),
        ("layer=1", "1\t2\t3\n", "line 1 of the input has 2 TABs; a line is SOURCE, or SOURCE TAB TARGET"),
    ],
)
def test_errors_of_attention(trained: Path, nmt: Command, option: str, stdin: str, message: str) -> None:
    done = nmt("attention", f"run={trained}", option, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {message.format(run=trained)}\n"


def test_every_validation_shows_attention_in_tensorboard(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(trained / "tb" / "valid")).Reload()
    assert events.Tags()["images"] == [f"samples/attention_{i}" for i in (1, 2, 3)]
    assert [event.step for event in events.Images("samples/attention_1")] == [150, 300]


@pytest.mark.fault(29)
def test_a_reader_that_leaves_is_no_error(trained: Path, environment: dict[str, str]) -> None:
    command = f'{shlex.quote(sys.executable)} -m nmt translate "run={trained}" | head -n 1'
    source = "1 2 3\n" * 9000
    done = subprocess.run(
        ["bash", "-c", command],
        input=source,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "1 2 3\n"
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("verb", "stdin", "stdout", "message"),
    [
        ("translate", None, "out", "error: standard input cannot be read: it is closed"),
        ("translate", "in", None, "error: standard output cannot be written: it is closed"),
        ("translate", "in", "/dev/full", "error: standard output cannot be written: No space left on device"),
        ("evaluate", None, "/dev/full", "error: standard output cannot be written: No space left on device"),
        ("evaluate", None, "out", ""),
    ],
)
def test_a_stream_that_fails_is_one_message(
    trained: Path, tmp_path: Path, verb: str, stdin: str | None, stdout: str | None, message: str
) -> None:
    """None stands for a stream that is closed. The process is a fork, which need not import torch."""
    (tmp_path / "in").write_text("1 2 3\n")

    def nmt() -> None:
        for descriptor, name in ((0, stdin), (1, stdout), (2, "err")):
            os.dup2(os.open(tmp_path / (name or "closed"), os.O_RDWR | os.O_CREAT), descriptor)
        for descriptor, name in ((0, stdin), (1, stdout)):
            if name is None:
                os.close(descriptor)
        sys.stdin = sys.stdout = sys.stderr = None
        sys.argv = ["nmt", verb, f"run={trained}", "runtime.device=cpu"]
        os._exit(main())

    process = multiprocessing.get_context("fork").Process(target=nmt)
    process.start()
    process.join()
    shown = (tmp_path / "err").read_text().splitlines()
    assert (process.exitcode, [line for line in shown if "error" in line]) == (
        (2, [message]) if message else (0, [])
    )
    assert not any("Traceback" in line for line in shown)


def test_another_config_in_the_same_directory_is_refused(
    trained: Path, nmt: Command, tiny: list[str]
) -> None:
    done = nmt("train", f"run={trained}", *tiny, "model.d_model=64", "trainer.max_steps=300")
    assert done.returncode == 2
    assert "model.d_model" in done.stderr
    assert "64" in done.stderr
    assert "32" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_checkpoint_is_named(trained: Path, nmt: Command, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(trained, damaged)
    weights = damaged / "checkpoints" / "step_00000300" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    done = nmt("evaluate", f"run={damaged}", "checkpoint=300")
    assert done.returncode == 2
    assert f"{weights.parent} is damaged: model.safetensors" in done.stderr


def test_a_missing_checkpoint_lists_those_there_are(trained: Path, nmt: Command) -> None:
    done = nmt("evaluate", f"run={trained}", "checkpoint=17")
    assert done.returncode == 2
    assert "300" in done.stderr


def test_a_loss_that_is_not_finite_stops_the_run(nmt: Command, tiny: list[str], tmp_path: Path) -> None:
    done = nmt(
        "train",
        f"run={tmp_path}/run",
        *tiny,
        "trainer.max_steps=50",
        "schedule.peak_rate=1e15",
        "schedule.warmup_steps=0",
    )
    assert done.returncode == 4, done.stderr
    assert "error: step " in done.stderr
    assert "runtime.precision=fp32" in done.stderr


@pytest.mark.slow
@pytest.mark.fault(34)
def test_a_sweep_goes_on_after_a_failed_trial(
    nmt: Command, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose process dies at step 5, two that are trained once, and values that are refused at once."""
    update = Trainer._update

    def dying(self: Trainer, *arguments: Any) -> Any:
        if self.gradients.seed == 3 and self.train_state.step == 5:
            self.saves.finish()  # else the checkpoint of step 4 may not be whole yet
            os._exit(9)
        return update(self, *arguments)

    monkeypatch.setattr(Trainer, "_update", dying)
    swept = ["train", "-m", *tiny, f"sweep.dir={tmp_path}/sweep", "seed=1,2,3", "trainer.max_steps=10"]
    done = nmt(*swept, "trainer.save_every_steps=2")
    assert done.returncode == 3, done.stderr
    assert "2 done, 1 failed" in done.stdout
    assert "failed      seed-3: exit code 9" in done.stdout
    results = [tmp_path / "sweep" / f"seed-{seed}" / "results.json" for seed in (1, 2, 3)]
    assert [file.exists() for file in results] == [True, True, False]
    times = [file.stat().st_mtime_ns for file in results[:2]]
    monkeypatch.setattr(Trainer, "_update", update)
    again = nmt(*swept, "trainer.save_every_steps=2")
    assert again.returncode == 0, again.stderr
    assert [file.stat().st_mtime_ns for file in results[:2]] == times
    assert "going on after step 4" in (results[2].parent / "train.log").read_text()
    refused = nmt(*swept, "model.num_heads=3,4", "seed=1")
    assert refused.returncode == 2
    assert "error: num_heads-3: model.d_model must be divisible by model.num_heads" in refused.stderr
