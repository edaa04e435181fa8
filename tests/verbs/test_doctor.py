"""`nmt doctor` on corpora with known faults: what it counts, says, shows and writes."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import Task, TrainConfig
from nmt.config.stored import save_config
from nmt.data.parallel_text import Split
from nmt.doctor import corpus, judging, language
from nmt.doctor.configs import DoctorConfig
from nmt.doctor.page import TEMPLATE
from nmt.errors import UserError
from nmt.verbs import VERBS

HOSTILE = "</script><script>document.title = 'pwned'</script><img src=x onerror=\"document.title='pwned'\">"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WORDS = [
    "the",
    "red",
    "cat",
    "and",
    "old",
    "dog",
    "near",
    "green",
    "house",
    "saw",
    "many",
    "small",
    "birds",
    "on",
    "high",
    "trees",
]


def sentences(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return pairs whose sides have about the same length and no common word; all are different."""
    rng = random.Random(seed)
    pairs = []
    for index in range(number):
        words = [rng.choice(WORDS) for _ in range(rng.randrange(4, 15))]
        pairs.append((" ".join([*words, f"x{index}x"]), " ".join([f"y{index}y", *(w[::-1] for w in words)])))
    return pairs


def written(folder: Path, **splits: list[tuple[str, str]]) -> list[str]:
    """Write splits as files, and return the arguments that name them."""
    arguments = ["data=files", "data.src=en", "data.tgt=de"]
    for split, pairs in splits.items():
        for side, language_ in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language_}").write_bytes(text.encode())
        arguments.append(f"data.{split}={folder / split}")
    return arguments


def examined(folder: Path, arguments: list[str], code: int = 0) -> dict[str, Any]:
    """Run the verb and return its JSON."""
    assert main(["doctor", *arguments, f"doctor.json={folder / 'report.json'}"]) == code
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.fixture
def faulty(tmp_path: Path) -> list[str]:
    """Return the arguments of a corpus with known faults; 300 of its training pairs are good."""
    good = sentences(300)
    faults = [
        good[0],
        good[0],
        (good[1][0].upper() + "!", good[1][1]),
        (good[2][0], "something else altogether"),
        ("", "no source here"),
        ("a copy of itself", "a copy of itself"),
        ("schÃ¶n", "nice one"),
        ("zero\u200bwidth", "bell\x07"),
        (HOSTILE, "&amp; &lt;"),
        ("in 1999 there", "in 1998 there"),
        ("short", "far too long for so short a source, " * 4),
        ("жук", "beetle"),
    ]
    test = [*sentences(20, seed=1), good[5], (good[6][0].title(), good[6][1])]
    test[:20] = [(f"{src} t", f"{tgt} t") for src, tgt in test[:20]]
    return written(
        tmp_path, train=[*good, *faults], validation=[("v " + a, "v " + b) for a, b in good[:9]], test=test
    )


def test_every_fault_is_counted_and_told(
    faulty: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "languages_of", lambda lines, name: language.Languages(name))
    report = examined(tmp_path, [*faulty, "doctor.sample=0"])
    train = next(one for one in report["splits"] if one["name"] == "train")
    assert {kind: count for kind, count in train["findings"].items() if count} == {
        "invisible": 1, "control": 1, "mojibake": 1, "html": 1, "empty": 1, "identical": 1, "numbers": 1,
        "lopsided": 2, "foreign": 1,
    }  # fmt: skip
    assert (train["pairs"], train["repeated"]["pair"], train["near_duplicates"]) == (312, 2, 1)
    (overlap,) = [one for one in train["overlaps"] if one["split"] == "test"]
    assert (overlap["pairs"], overlap["plain_pairs"], overlap["sources"], overlap["targets"]) == (1, 2, 1, 2)
    assert train["dropped_by_the_filter"] == {"empty": 1, "too long": 0, "uneven": 2}
    out = capsys.readouterr().out
    assert "train: 2 (0.64%) pairs are repetitions of one before them" in out
    assert "pair 301, 3 times" not in out
    assert "pair 1, 3 times" in out
    assert "zero<U+200B>width" in out
    assert "\x07" not in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    told = [(one["where"], one["kind"], one["text"]) for one in report["findings"]]
    assert len(told) == len(set(told))
    severities = [one["severity"] for one in report["findings"]]
    assert severities == sorted(severities, key=["breaks", "costs", "note"].index)


@pytest.mark.parametrize(("number", "severity"), [(100, "costs"), (101, "note")])
def test_duplicates_but_for_case_cost_quality_from_one_in_a_hundred_on(
    tmp_path: Path, number: int, severity: str
) -> None:
    good = sentences(number - 1)
    arguments = written(tmp_path, train=[*good, (good[0][0].upper(), good[0][1])])
    report = examined(tmp_path, [*arguments, "doctor.sample=0"])
    (found,) = [one for one in report["findings"] if one["kind"] == "near_duplicates"]
    assert found["severity"] == severity


def test_sentences_are_judged_without_their_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "languages_of", lambda lines, name: language.Languages(name))
    good = sentences(60)
    train = [*good[:30], ("", ""), *good[30:], good[4], ("a <b> tag", "gat <b> a")]
    arguments = written(tmp_path, train=train, test=[*sentences(5, seed=1), good[7]])
    context = ["data.context=2", "data.context_target=true", "data.context_short=0"]
    (known, looked_at) = (
        next(one for one in examined(tmp_path, [*arguments, *more])["splits"] if one["name"] == "train")
        for more in ([], context)
    )
    assert (known["findings"].pop("empty"), known["dropped_by_the_filter"].pop("empty")) == (1, 1)
    assert (looked_at["findings"].pop("empty"), looked_at["dropped_by_the_filter"].pop("empty")) == (0, 0)
    for key in ("findings", "repeated", "overlaps", "dropped_by_the_filter"):
        assert looked_at[key] == known[key], key
    assert [side["words"] for side in looked_at["sides"]] == [side["words"] for side in known["sides"]]
    assert (known["pairs"], looked_at["pairs"]) == (63, 62)


def test_a_split_that_is_not_scored_is_not_missing(tmp_path: Path) -> None:
    arguments = written(tmp_path, train=sentences(20), validation=sentences(5, seed=1))
    shown = ["doctor.sample=0", "doctor.examples=0"]

    def missing(*more: str) -> list[str]:
        report = examined(tmp_path, [*arguments, *shown, *more])
        return [one["where"] for one in report["findings"] if one["kind"] == "missing"]

    assert missing() == ["test"]
    assert missing("data.scored_split=validation") == []
    assert missing("data.scored_split=validation", "data.validation=null") == ["validation"]


def test_a_split_without_a_pair_to_learn_from_breaks_training(tmp_path: Path) -> None:
    arguments = written(tmp_path, train=[("", " "), (" ", "")], validation=sentences(5, seed=1))
    report = examined(tmp_path, [*arguments, "doctor.sample=0", "data.scored_split=validation"], code=2)
    assert [one["kind"] for one in report["findings"] if one["severity"] == "breaks"] == ["filtered"]


def test_the_report_is_the_same_each_time(faulty: list[str], tmp_path: Path) -> None:
    first = examined(tmp_path, faulty)
    assert examined(tmp_path, faulty) == first


def test_shifted_sides_break_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = sentences(2_000)
    src, tgt = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    arguments = written(tmp_path, train=list(zip(src, [*tgt[1:], "lost"], strict=True)))
    report = examined(tmp_path, [*arguments, "doctor.sample=0"], code=2)
    assert [one["kind"] for one in report["findings"] if one["severity"] == "breaks"] == ["shifted"]
    told = capsys.readouterr().err
    assert "the source fits the target 1 line earlier, judging by lengths (2 of 2 parts" in told


def test_what_cannot_be_read_is_told_beside_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = written(tmp_path, train=sentences(20), validation=sentences(5, seed=2))
    (tmp_path / "validation.de").write_bytes(b"zu wenig\n")
    report = examined(tmp_path, arguments, code=2)
    assert [split["name"] for split in report["splits"]] == ["train"]
    captured = capsys.readouterr()
    assert "has 5 lines but" in captured.out
    assert (
        "error: training would fail, or learn nothing, until this is mended: validation: cannot"
        in captured.err
    )


def test_a_mixture_and_a_text_in_one_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, train=sentences(30), other=sentences(40, seed=2))
    corpora = f"{{a:{{train:{tmp_path / 'train'}}},b:{{train:{tmp_path / 'other'},tag:bt}}}}"
    report = examined(tmp_path, ["data=mixture", f"data.corpora={corpora}", "doctor.max_pairs=35"])
    assert [(one["name"], one["pairs"], one["is_whole"]) for one in report["splits"]] == [
        ("a: train", 30, True),
        ("b: train", 35, False),
    ]
    limited = examined(tmp_path, ["data=mixture", f"data.corpora={corpora}", "data.max_chars=60"])
    texts = {name: (tmp_path / f"{name}.en").read_text().splitlines() for name in ("train", "other")}
    others = {name: (tmp_path / f"{name}.de").read_text().splitlines() for name in texts}
    kept = [
        sum(max(map(len, pair)) <= 60 for pair in zip(texts[name], others[name], strict=True))
        for name in texts
    ]
    assert [one["kept_by_the_filter"] for one in limited["splits"]] == kept  # by the limits of the data
    assert 0 < kept[0] < 30
    capsys.readouterr()
    text = examined(
        tmp_path, ["data=text", "data.blocks=1", f"data.train={tmp_path / 'train.en'}", "doctor.sample=0"]
    )
    (train,) = [one for one in text["splits"] if one["name"] == "train"]
    assert [side["language"] for side in train["sides"]] == ["en"]
    assert train["ratios"] is None
    shown = capsys.readouterr().out
    assert f"train: {train['pairs']:,} texts" in shown
    assert "small_data" not in shown  # which is for pairs
    assert "has lines of" not in shown  # as there is no source that all have in common


def test_labelled_texts_are_filtered_as_training_filters_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what is wrong with texts, not with pairs: a label is much shorter than its text."""
    for split, number in (("train", 40), ("validation", 10), ("test", 11)):
        rows = "".join(
            f"{'good' if i % 2 else 'bad'}\t{src}\n" for i, (src, _) in enumerate(sentences(number, number))
        )
        (tmp_path / f"{split}.tsv").write_text(f"label\ttext\n{rows}")
    files = [f"data.{split}={tmp_path / split}.tsv" for split in ("train", "validation", "test")]
    task = ["task=classification", "model=encoder", "data.filters=[{name: length, min: 5}]"]
    report = examined(tmp_path, ["data=labels", *files, *task, "doctor.sample=0"])
    train = next(one for one in report["splits"] if one["name"] == "train")
    assert train["dropped_by_data_filters"] == {"empty": 0, "too long": 0, "length": 0}
    shown = capsys.readouterr().out
    for words in (
        "would fail",
        "knows no language",
        "different numbers",
        "has lines of",
        "different targets",
    ):
        assert words not in shown


def test_lengths_of_labels_say_nothing_and_labels_that_cannot_be_learnt_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def labelled(name: str, labels: list[str]) -> str:
        texts = [src for src, _ in sentences(len(labels), len(labels))]
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return f"data.{name}={path}"

    labels = ["yes", "by no means at all"] * 150  # lengths that have nothing to do with those of the texts
    task = ["task=classification", "data=labels", "doctor.sample=0"]
    found = [labelled("train", labels), labelled("validation", ["yes", "by no means at all"])]
    report = examined(tmp_path, [*task, *found, "data.scored_split=validation"])
    (train,) = [one for one in report["splits"] if one["name"] == "train"]
    assert (train["correlation"], train["ratios"]) == (None, None)
    labelled("validation", ["yes", "no", "perhaps"])
    examined(tmp_path, [*task, *found, "data.scored_split=validation"], code=2)
    told = "the labels of 'no', 'perhaps' are those of no training text; text 2 has the first of them"
    assert told in " ".join(capsys.readouterr().err.split())
    labelled("train", ["yes"] * 30)
    examined(tmp_path, [*task, *found, "data.scored_split=validation"], code=2)
    assert "train: all texts have the same label, 'yes'" in capsys.readouterr().err


def test_labels_of_dropped_texts_are_not_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither where a text is too long, nor where a filter drops it."""
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "a b c\tyes\nd e f\tno\n" * 20 + f"{'x' * 200}\tperhaps\n")
    (tmp_path / "validation.tsv").write_text("text\tlabel\ng h\tyes\ni j\tperhaps\n")
    files = [f"data.{split}={tmp_path / split}.tsv" for split in ("train", "validation")]
    common = ["task=classification", "data=labels", *files, "doctor.sample=0", "data.scored_split=validation"]
    examined(tmp_path, common)
    for drops in (
        "data.max_chars=100",
        "data.filters=[{name: length, max: 100, unit: characters, sides: src}]",
    ):
        capsys.readouterr()
        examined(tmp_path, [*common, drops], code=2)
        told = "the labels of 'perhaps' are those of no training text; text 2 has the first of them"
        assert told in " ".join(capsys.readouterr().err.split())


def test_copies_that_are_made_are_no_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, train=sentences(300), validation=sentences(20, seed=1))
    corpus = f"data.corpus={{train: {tmp_path / 'train'}, validation: {tmp_path / 'validation'}}}"
    examined(tmp_path, ["task=classification", "data=alignment", corpus, "doctor.sample=0"])
    assert "repetitions of" not in capsys.readouterr().out


def test_metrics_that_are_not_asked_for_need_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(name: str, *_: object) -> None:
        raise UserError(f"{name} needs MeCab")

    monkeypatch.setattr("nmt.extras.require", lacking)
    files = written(tmp_path, train=sentences(5), validation=sentences(5, seed=1))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.de").rename(tmp_path / f"{split}.ja")
    command = [*files, "data.tgt=ja", "data.scored_split=validation", "doctor.sample=0"]
    examined(tmp_path, command)
    assert "cannot be scored by metrics=[bleu,chrf]" in " ".join(capsys.readouterr().out.split())
    examined(tmp_path, [*command, "metrics=[chrf]"])
    assert "cannot be scored" not in capsys.readouterr().out


def test_what_is_nearly_equal_is_what_filters_drop(tmp_path: Path) -> None:
    """Compatibility forms, composed characters, ß and lines without letters are compared by one function."""
    good = sentences(20)
    near = [("ﬁnd １２ Straße", "x ½"), ("FIND 12 STRASSE!", "X 1⁄2"), ("e\u0301 a", "É…"), ("é A", "é...")]
    signs = [("!", "?"), ("!", "?"), ("！", "？")]
    copies = [("Ｂｅｒｌｉｎ ①", "Berlin 1"), ("…", "..."), ("A", "a."), ("the same", "the same")]
    test = [("find 12 strasse", "x 1⁄2"), ("！", "？"), ("A)", "(a)"), *sentences(3, seed=5)]
    arguments = written(tmp_path, train=[*good, *near, *signs, *copies, good[0]], test=test)

    def looked_at(name: str) -> tuple[dict[str, Any], int]:
        row = f"data.filters=[{{name: {name}, normalise: true}}]"
        report = examined(tmp_path, [*arguments, row, "doctor.sample=0"])
        train: dict[str, Any] = next(one for one in report["splits"] if one["name"] == "train")
        return train, train["dropped_by_data_filters"][name]

    train, dropped = looked_at("duplicates")
    assert (train["repeated"]["pair"], train["near_duplicates"], dropped) == (2, 3, 2 + 3)
    train, dropped = looked_at("identical")
    assert (train["findings"]["identical"], train["findings"]["copies"], dropped) == (1, 3, 1 + 3)
    train, dropped = looked_at("overlap")
    assert (train["overlaps"][0]["plain_pairs"], dropped) == (3, 2 + 3 + 1)


def test_the_corpus_of_a_recipe_is_looked_at_with_its_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = sentences(20)
    written(tmp_path, train=good, news=[*sentences(5, seed=2), good[3]])
    recipe = (
        "# @package _global_",
        "defaults: [{override /data: files}, {override /model: rnn_luong}, {override /tokenizer: word}]",
        f"data: {{train: {tmp_path / 'train'}}}",
        "trainer: {max_steps: 5}",
        f"sets: {{news: {{test: {tmp_path}/news}}, loud: {{test: {tmp_path}/news, augment: [noise]}}}}",
    )
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text("\n".join(recipe))
    report = examined(tmp_path, ["--config-dir", str(tmp_path), "experiment=own", "doctor.sample=0"])
    assert [(one["name"], one["pairs"]) for one in report["splits"]] == [
        ("train", 20),
        ("sets.news: test", 6),
    ]
    (found,) = [one for one in report["findings"] if one["kind"] == "overlap"]
    assert (found["where"], found["count"]) == ("train", 1)
    assert found["remedy"] == "scores on them measure memory"  # the filter does not know of sets
    assert (
        "not looked at, because they are other pairs with data.augment: sets loud" in capsys.readouterr().err
    )


def test_sets_alone_and_unknown_recipes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sets={news: {test: x}}"]) == 2
    assert "sets=news: further corpora are looked at beside one; name it: data=..." in capsys.readouterr().err
    assert main(["doctor", "experiment=multi30k_en"]) == 2
    assert "there is no experiment=multi30k_en; did you mean 'multi30k_en_de'?" in capsys.readouterr().err


def test_without_py3langid_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ImportError("No module named 'py3langid'")

    monkeypatch.setattr(language, "_model", missing)
    report = examined(tmp_path, written(tmp_path, train=sentences(20)))
    told = [one["text"] for one in report["findings"] if one["kind"] == "language_unknown"]
    assert set(told) == {f"{side}: {language.MISSING}" for side in ("source", "target")}


def test_lines_in_another_language_are_found(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    good = ("A man is reading the newspaper near the window.", "Ein Mann liest am Fenster die Zeitung.")
    wrong = ("Two dogs are running through the park.", "Deux chiens courent à travers le grand parc.")
    pairs = [(f"{a} {i}", f"{b} {i}") for i in range(30) for a, b in [good]]
    report = examined(tmp_path, written(tmp_path, train=[*pairs, wrong]))
    (found,) = [one for one in report["findings"] if one["kind"] == "language"]
    assert (found["count"], found["severity"]) == (1, "costs")
    assert found["examples"][0]["line"] == 31
    assert found["examples"][0]["note"] == "de side: looks like fr"
    swapped = examined(tmp_path, written(tmp_path, train=[(b, a) for a, b in pairs]), code=2)
    assert {one["kind"] for one in swapped["findings"] if one["severity"] == "breaks"} == {"language"}
    (remedy,) = {one["remedy"] for one in swapped["findings"] if one["severity"] == "breaks"}
    assert remedy == (
        f"swap the names of the files {tmp_path}/train.en and {tmp_path}/train.de; where all splits are the "
        "other way round, or set data.src_column=de data.tgt_column=en"
    )


def test_validation_pairs_the_other_way_round_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "languages_of", lambda lines, name: language.Languages(name))
    validation = [(tgt, src) for src, tgt in sentences(20, seed=1)]
    arguments = written(tmp_path, train=sentences(300), validation=validation, test=sentences(20, seed=2))
    report = examined(tmp_path, arguments, code=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "breaks"]
    assert (found["where"], found["kind"]) == ("validation", "swapped")
    assert found["remedy"].startswith(
        f"swap the names of the files {tmp_path}/validation.en and {tmp_path}/validation.de; "
    )


def test_rows_of_strangers_are_text_on_the_page(faulty: list[str], tmp_path: Path) -> None:
    file = tmp_path / "doctor.html"
    assert main(["doctor", *faulty, f"doctor.page={file}", "doctor.sample=0"]) == 0
    text = file.read_text()
    assert text.count("<script") == TEMPLATE.read_text().count("<script") == 2
    assert "<img" not in text
    (found,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    assert HOSTILE in [row["src"] for one in json.loads(found)["findings"] for row in one["examples"]]
    template = TEMPLATE.read_text()
    assert "default-src 'none'" in template
    assert "innerHTML" not in template
    assert set(re.findall(r"https?://\S+?\"", template)) == {'http://www.w3.org/2000/svg"'}


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_page(faulty: list[str], tmp_path: Path) -> None:
    file = tmp_path / "doctor.html"
    assert main(["doctor", *faulty, f"doctor.page={file}", "doctor.sample=0"]) == 0
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    body = done.stdout.partition("<body>")[2].partition('<script type="application/json"')[0]
    assert body.count("<svg") == 9
    assert body.count("<article") > 5
    assert "pwned</title>" not in done.stdout
    assert "<img" not in body


def test_keys_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "doctor.page=' '"]) == 2
    assert "doctor.page must name a file, but is empty" in capsys.readouterr().err
    assert main(["doctor", "doctor.sample=-1"]) == 2
    assert "doctor.sample must not be negative, but is -1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("doctor.json=.", "doctor.json=. is a directory; name a file in it: doctor.json=doctor.json"),
        ("doctor.page=new", "doctor.page=new is a directory; name a file in it: doctor.page=new/doctor.html"),
        (
            "doctor.json=file/x",
            "cannot write to the directory file: it is a file; name a file elsewhere: doctor.json=FILE",
        ),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    setting: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new").mkdir()
    Path("file").touch()
    assert main(["doctor", setting]) == 2
    assert capsys.readouterr() == ("", f"error: {problem}\n")


def run_of(folder: Path, *arguments: str) -> str:
    """Make a run directory with nothing but its config."""
    (composed,) = compose(VERBS["train"], arguments)
    save_config(composed.to_config(TrainConfig), folder / "run" / "config.yaml")
    return str(folder / "run")


def test_the_corpus_of_a_run_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = written(tmp_path, train=sentences(20), validation=sentences(5, seed=2))
    run = run_of(tmp_path, *arguments, "data.scored_split=validation")
    report = examined(tmp_path, [f"run={run}", "doctor.sample=0", "doctor.max_pairs=7"])
    assert [(one["name"], one["pairs"]) for one in report["splits"]] == [("train", 7), ("validation", 5)]
    assert f"with the config of {run}: data=files" in capsys.readouterr().err
    for words in ([f"run={run}-2"], [f"run={run}", "model.dropout=0.2"]):
        assert main(["doctor", *words]) == 2
        problem = f"{words[0]} stands for its corpus once its training has begun"
        assert capsys.readouterr().err.startswith(f"error: {problem}")


def test_a_training_from_another_model_follows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So the metrics are those of its task."""
    labels = ["data=labels", *(f"data.{split.value}=x.tsv" for split in Split)]
    run = run_of(tmp_path, *labels, "task=classification", "model=encoder")
    (trial,) = compose(VERBS["doctor"], [f"init={run}", *labels])
    cfg = trial.to_config(DoctorConfig)
    assert (cfg.init.run, cfg.task, cfg.metrics[0]) == (run, Task.classification, "accuracy")
    assert main(["doctor", f"init={run}"]) == 2
    assert "a training from it needs a corpus to look at; name it: data=..." in capsys.readouterr().err


def test_parts_that_do_not_go_together_are_not_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose(VERBS["doctor"], ["data=multi30k", "tokenizer.joint=false"])
    assert main(["train", "data=multi30k", "tokenizer.joint=false"]) == 2
    assert main(["doctor", "data=multi30k", "model.dropout=2"]) == 2
    assert "model.dropout must be in [0, 1), but is 2" in capsys.readouterr().err


def test_a_corpus_is_cut_with_all_that_its_pairs_have(tmp_path: Path) -> None:
    arguments = written(tmp_path, train=sentences(9))
    (tmp_path / "weights").write_text("1\n" * 9)
    (trial,) = compose(VERBS["doctor"], [*arguments, f"data.weights={tmp_path / 'weights'}"])
    (chunk,) = corpus._limited(trial.to_config(DoctorConfig).data, Split.train, 4)
    assert (len(chunk), len(chunk.tgt), len(chunk.weights)) == (4, 4, 4)


@pytest.mark.parametrize("data", ["files", "mixture"])
def test_nothing_to_look_at_is_an_error(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", f"data={data}"]) == 2
    assert f"error: data={data} names nothing to look at; set data." in capsys.readouterr().err


def test_a_split_for_training_that_is_not_set_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *written(tmp_path, validation=sentences(20))]) == 0
    assert "train: is not set; training needs it" in capsys.readouterr().out


def test_every_kind_of_finding_about_pairs_is_looked_for_and_told() -> None:
    source = Path(corpus.__file__).read_text(encoding="utf-8")
    counted = {*re.findall(r"gallery\.add\(\s*\"(\w+)\"", source), *corpus.FLAGS}
    assert counted == {*judging.KINDS}
