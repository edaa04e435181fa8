"""A classifier through the command line: trained, scored, asked; and what it is not asked for."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nmt.cli import main
from nmt.data.special_ids import EOS_ID
from nmt.errors import UserError
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.verbs.configs import ClassifyConfig
from tests.exchange.test_export import program
from tests.runs.untrained import untrained

CPU = RuntimeConfig(device="cpu", threads=1)
WORDS = {"neg": ["bad", "awful", "poor"], "pos": ["good", "great", "fine"], "so so": ["some", "maybe", "hmm"]}
ENCODER = (
    "model=encoder",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "tokenizer=word",
    "runtime.device=cpu",
)
TRAINING = (
    "trainer.max_steps=40",
    "trainer.eval_every_steps=20",
    "trainer.save_every_steps=20",
    "schedule=linear",
    "schedule.peak_rate=0.02",
    "schedule.warmup_steps=5",
)
Capture = pytest.CaptureFixture[str]


def table(path: Path, number: int) -> Path:
    """Write rows of two texts each, whose label both tell."""
    rows = [(i, label) for i in range(number) for label in WORDS]
    lines = [f"the {WORDS[label][i % 3]} film\t{label}\ta {WORDS[label][i % 2]} one" for i, label in rows]
    path.write_text("\n".join(["first\tlabel\tsecond", *lines, ""]))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("labels")
    places = {"train": 60, "validation": 5, "test": 4}
    files = [f"data.{split}={table(folder / f'{split}.tsv', n)}" for split, n in places.items()]
    return ["data=labels", "data.text_column=first", "data.pair_column=second", *files]


@pytest.fixture(scope="module")
def trained(data: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "labels"
    assert main(["train", f"run={run}", *data, *ENCODER, *TRAINING]) == 0
    return run


def error_of(capsys: Capture, arguments: Sequence[str]) -> str:
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def asked(monkeypatch: pytest.MonkeyPatch, capsys: Capture, text: str, *arguments: str) -> list[str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["classify", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_classifier_learns_and_reports_by_label(trained: Path, capsys: Capture) -> None:
    results = json.loads((trained / "results.json").read_text())
    assert results["test"]["accuracy"] == results["test"]["macro_f1"] == 100.0
    assert results["details"]["test"]["confusion"]["so so"] == {"neg": 0, "pos": 0, "so so": 4}
    assert results["details"]["test"]["labels"]["neg"]["recall"] == 100.0
    assert main(["evaluate", f"run={trained}"]) == 0
    printed = capsys.readouterr().out
    assert "accuracy 100.00  macro F1 100.00  micro F1 100.00" in printed
    assert "so so" in printed
    assert (trained / "hypotheses" / "test.label").read_text().split("\n")[:2] == ["neg", "pos"]
    assert main(["evaluate", f"run={trained}", "metrics=[chrf]"]) == 2
    assert "metrics: chrf is a score of translations, but task is classification" in capsys.readouterr().err
    with pytest.raises(UserError, match="bleu is a score of translations"):
        open_run(trained, runtime_cfg=CPU).evaluate(metrics=["accuracy", "bleu"])


def test_a_classifier_is_exported_as_plain_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of the card has the weights, the pieces and the labels."""
    folder = tmp_path / "weights"
    assert main(["export", f"run={trained}", "format=safetensors", f"output={folder}"]) == 0
    names, run = program(folder, monkeypatch), open_run(trained, runtime_cfg=CPU)
    expected = run.model.state_dict()
    assert names["weights"].keys() == expected.keys()
    assert all(torch.equal(names["weights"][name], expected[name]) for name in expected)
    assert names["config"]["task"] == "classification"
    assert names["labels"] == dict(enumerate(["neg", "pos", "so so"], start=EOS_ID + 1))
    text = "the bad film <sep> a bad one"
    pieces = [names["source"].piece_to_id(f"▁{word}") for word in text.split()]
    assert [*pieces, EOS_ID] == run.tokenizer.encode_src([text.replace(" <sep> ", "\t")])[0]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "A model that finds the label of two texts (neg, pos, so so), trained with" in card
    assert "- accuracy: `metric:accuracy|labels:3`" in card
    assert "Two texts are one line, with the piece <sep> between." in card
    assert "pipeline_tag: text-classification" in card
    assert not (folder / "target.spm").exists()


def test_classifiers_are_compared(trained: Path, capsys: Capture) -> None:
    last = trained / "hypotheses" / "validation" / "step_00000020.label"
    keys = ("bootstrap_samples=100", "randomisation_trials=100", f"output={trained.parent / 'two.html'}")
    assert main(["compare", str(trained), str(last), *keys]) == 0
    out = capsys.readouterr().out
    assert "signature  macro_f1|metric:macro_f1|labels:3" in out
    assert "2 of 2 runs compared on 15 sentences of validation" in out
    assert "is left out" not in out


def test_a_finished_classifier_tells_its_results_again(
    trained: Path, tmp_path: Path, data: list[str], capsys: Capture
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    capsys.readouterr()
    assert main(["train", f"run={run}", *data, *ENCODER, *TRAINING]) == 0
    assert "accuracy 100.00" in (out := capsys.readouterr().out)
    assert "true \\ predicted" in out
    file = run / "results.json"
    content = json.loads(file.read_text())
    del content["details"]["test"]["confusion"]["neg"]["so so"]
    file.write_text(json.dumps(content))
    told = error_of(capsys, ["train", f"run={run}", *data, *ENCODER, *TRAINING])
    assert "results.json is damaged: details of test are not scores of labels" in told


def test_lines_are_classified(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    text = "the bad film\ta bad one\nthe maybe film\ta some one\n"
    lines = asked(monkeypatch, capsys, text, f"run={trained}")
    assert [line.split("\t")[0] for line in lines] == ["neg", "so so"]
    records = list(map(json.loads, asked(monkeypatch, capsys, text, f"run={trained}", "format=jsonl")))
    assert [f"{one['label']}\t{one['probabilities'][one['label']]:.4f}" for one in records] == lines
    assert [sum(one["probabilities"].values()) for one in records] == pytest.approx([1.0, 1.0], abs=1e-5)
    file, output = trained / "in.txt", trained / "out.jsonl"
    file.write_text(text)
    assert main(["classify", f"run={trained}", f"input={file}", f"output={output}", "workers=1"]) == 0
    assert list(map(json.loads, output.read_text().splitlines())) == records


def test_a_batch_gives_what_one_by_one_gives(trained: Path) -> None:
    run = open_run(trained, runtime_cfg=CPU)
    lines = ["the bad film\ta", "good\tgood film a one the film film", "\t", "unknown words\there"]
    together = list(run.classify(lines))
    for line, (label, probabilities) in zip(lines, together, strict=True):
        ((own_label, own),) = run.classify(line)
        assert own_label == label
        assert own == pytest.approx(probabilities, abs=1e-5)


def test_attention_is_that_of_the_encoder_and_the_pooling(trained: Path) -> None:
    run = open_run(trained, runtime_cfg=CPU)
    (maps,) = run.attend("the bad film\ta bad one")
    assert (maps.tgt_text, len(maps.encoder), len(maps.cross)) == ("neg", 1, 1)
    assert maps.cross[0].shape == (1, 1, len(maps.src))
    assert maps.cross[0].sum() == pytest.approx(1.0)


def test_what_a_classifier_does_not_do(trained: Path, capsys: Capture, tmp_path: Path) -> None:
    for verb in ("translate", "score"):
        told = error_of(capsys, [verb, f"run={trained}"])
        assert f"translates nothing, but classifies texts: nmt classify run={trained}" in told
    told = error_of(capsys, ["generate", f"run={trained}", "decoding=sampling"])
    assert "is no language model, but classifies texts" in told
    told = error_of(capsys, ["export", f"run={trained}", "format=huggingface", f"output={tmp_path / 'x'}"])
    assert "has model.name=encoder and task=classification; format=safetensors holds any model" in told
    other = untrained(tmp_path / "translator")
    assert f"finds no labels, but translates: nmt translate run={other}" in (
        error_of(capsys, ["classify", f"run={other}"])
    )
    told = error_of(capsys, ["classify", f"run={trained}", "tgt=zz"])
    assert "tgt=zz: the run translates nothing, and is asked for no language; leave it out" in told
    with pytest.raises(UserError, match=r"^line 8 of the input has no TAB, but the run classifies two texts"):
        list(open_run(trained, runtime_cfg=CPU).classify(["a\tb", "c"], first_line=7))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["metrics=[bleu,chrf]"], "metrics: bleu is a score of translations, but task is classification"),
        (["model=transformer_tiny"], "labels share no matrix with text, but model.name=transformer"),
        (["task=translation"], "data=labels has labels; add task=classification"),
        (["data.streaming=true"], "data.streaming=true does not know all labels at the start"),
        (
            ["trainer.best_metric=bleu"],
            "trainer.best_metric=bleu is not computed: metrics is [accuracy, macro_f1",
        ),
    ],
)
def test_configs_that_do_not_fit(data: list[str], given: list[str], message: str, capsys: Capture) -> None:
    assert message in error_of(capsys, ["train", *data, *ENCODER, *given])


def test_other_tasks_refuse_labels(capsys: Capture) -> None:
    told = error_of(capsys, ["train", "data=toy", "metrics=[accuracy]"])
    assert "metrics: accuracy is a score of labels, but task is translation; choose among bleu" in told
    assert "model.name=encoder finds labels; add task=classification" in (
        error_of(capsys, ["train", "data=toy", "model=encoder"])
    )
    told = error_of(capsys, ["train", "data=toy", "task=classification", "model=encoder"])
    assert "task=classification needs labels, but data=toy has none; choose data=labels" in told


def test_a_label_without_training_texts_is_refused(data: list[str], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "dev.tsv").write_text("first\tlabel\tsecond\nx\tpos\ty\nx\tposs\ty\n")
    told = error_of(
        capsys,
        ["train", f"run={tmp_path / 'run'}", *data, *ENCODER, f"data.validation={tmp_path / 'dev.tsv'}"],
    )
    assert (
        "validation text 2 has the label 'poss', which no training text has; these have neg, pos, so so"
        in told
    )


def test_an_encoder_begins_as_that_of_a_translation_model(
    data: list[str], tmp_path: Path, capsys: Capture
) -> None:
    start = untrained(
        tmp_path / "start", "model.d_model=16", "model.d_ff=16", lines=["the good film", "a bad one"]
    )
    given = [f"init={start}", "init.weights=[encoder*,src_embedding.*]", "init.vocabulary=extend"]
    train = ["train", f"run={tmp_path / 'run'}", *data, *ENCODER[:-2], "runtime.device=cpu", *given]
    assert main([*train, "task=classification", "trainer.max_steps=1", "schedule.factor=0.0000001"]) == 0
    first, second = (open_run(path, runtime_cfg=CPU) for path in (start, tmp_path / "run"))
    weights, begun = first.model.state_dict(), second.model.state_dict()
    taken = [name for name in weights if name.startswith("encoder.")]
    assert taken
    for name in taken:
        torch.testing.assert_close(begun[name], weights[name], atol=1e-3, rtol=0)
    assert second.tokenizer.labels == sorted(WORDS)
    assert "weights that begin anew: output.weight, output.bias" in (tmp_path / "run/train.log").read_text()


def test_the_config_of_the_verb_tells_its_format() -> None:
    assert ClassifyConfig(run="x", input="a.txt", output="b.jsonl.gz").writes_json
    assert not ClassifyConfig(run="x").writes_json
