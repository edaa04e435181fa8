"""Teachers translate, a student learns: whole, killed anywhere, with other inputs, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig, TranslateConfig
from nmt.config.stored import load_config
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.lines import decoded
from nmt.data.reading.sources import MixtureData
from nmt.errors import UserError
from nmt.files import publish
from nmt.runs import synthetic
from nmt.runs.opening import open_runs
from nmt.verbs import VERBS, distil
from nmt.verbs.configs import DistilConfig
from nmt.verbs.translate import output_lines
from tests.integration.conftest import Command
from tests.runs.untrained import untrained

STUDENT = [
    "tokenizer=word",
    "tokenizer.vocab_size=14",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "decoding=greedy",
    "distil.decoding=greedy",
    "trainer.batch_tokens=512",
    "trainer.max_steps=4",
    "trainer.eval_every_steps=4",
    "runtime.device=cpu",
]


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Translate in this process, which saves the seconds that a worker takes; return the runs that did."""
    calls: list[str] = []

    def translate_here(cfg: TranslateConfig) -> None:
        assert cfg.input is not None
        assert cfg.output is not None
        calls.append("+".join(Path(run).name for run in cfg.runs))
        run = open_runs(cfg)
        found = run.translate(decoded(io.BytesIO(Path(cfg.input).read_bytes())), cfg.decoding, cfg.tgt)
        shape = cfg.decoding.n_best, cfg.scores
        lines = [line for i, one in enumerate(found) for line in output_lines(i, one, *shape)]
        Path(cfg.output).write_text("".join(f"{line}\n" for line in lines))

    monkeypatch.setattr(distil, "translate_file", translate_here)
    return calls


@pytest.fixture(scope="module")
def small(copy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the first pairs of the corpus, so that little is to be translated."""
    folder = tmp_path_factory.mktemp("small")
    for split, number in (("train", 200), ("validation", 20), ("test", 20)):
        for side in "ab":
            lines = (copy_corpus / f"{split}.{side}").read_text().splitlines(keepends=True)
            (folder / f"{split}.{side}").write_text("".join(lines[:number]))
    return folder


@pytest.fixture(scope="module")
def teacher(trained: Path, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that copies, and says that it was trained on the small corpus."""
    run = tmp_path_factory.mktemp("teachers") / "forward"
    shutil.copytree(trained, run)
    edit(run, **{split: str(small / split) for split in ("train", "validation", "test")})
    return run


@pytest.fixture(scope="module")
def reverse(teacher: Path) -> Path:
    """Return a run that translates b to a: to copy is the same in both directions."""
    run = teacher.with_name("reverse")
    shutil.copytree(teacher, run)
    edit(run, src="b", tgt="a")
    return run


def edit(run: Path, **values: str) -> None:
    """Change keys of `data` in the config of a run."""
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    cfg["data"] |= values
    (run / "config.yaml").write_text(yaml.safe_dump(cfg, sort_keys=False))


def names(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


def pairs(folder: Path, which: int = 0) -> tuple[list[str], list[str]]:
    found = sorted(folder.glob("pairs-*"))[which]
    return (found / "pairs.a").read_text().splitlines(), (found / "pairs.b").read_text().splitlines()


def test_a_student_learns_from_its_teacher(
    nmt: Command, teacher: Path, small: Path, tmp_path: Path, translated: list[str]
) -> None:
    """The default: the pairs of the teacher, translated once; the same command again translates nothing."""
    command = ["distil", f"teacher={teacher}", "run=student", *STUDENT]
    done = nmt(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert translated == ["forward"]
    assert "forward: 200 lines by " in done.stderr
    assert "forward: 200 translations read, " in done.stderr
    assert "shares: original " in done.stderr
    assert "run         student" in done.stdout
    folder = tmp_path / "outputs/stages"
    assert names(folder) == ["pairs", "text", "translations"]
    src, tgt = pairs(folder)
    assert set(src) <= set((small / "train.a").read_text().splitlines())
    assert sum(a == b for a, b in zip(src, tgt, strict=True)) > 100  # it has learnt to copy
    data = load_config(tmp_path / "student/config.yaml").data
    assert [(part.name, part.src, part.tgt) for part in data.parts(Split.train).values()] == [
        ("files", "a", "b"),
        ("files", "a", "b"),
    ]
    again = nmt(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "student is finished" in again.stdout
    assert translated == ["forward"]


@pytest.mark.slow
def test_the_student_goes_on_as_an_ordinary_run(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    """`distil.train=false` prints the data with which `nmt train` makes the same student."""
    made = nmt("distil", f"teacher={teacher}", "distil.train=false", "run=student", *STUDENT, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert not (tmp_path / "student").exists()
    (line,) = made.stdout.splitlines()
    _, _, *data = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    own = [word for word in STUDENT if not word.startswith("distil.")]
    trained = nmt(
        "train", *data, "data.src=a", "data.tgt=b", "run=student", "experiment=none", *own, cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    again = nmt("distil", f"teacher={teacher}", "run=student", *STUDENT, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "student is finished" in again.stdout


class Killed(BaseException):
    """The end of a process."""


SLOW = pytest.mark.slow


@pytest.mark.parametrize("published", [pytest.param(0, marks=SLOW), 1, pytest.param(2, marks=SLOW)])
def test_killed_at_a_stage_the_same_command_goes_on(
    nmt: Command,
    teacher: Path,
    tmp_path: Path,
    translated: list[str],
    published: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["distil", f"teacher={teacher}", "run=student", "distil.train=false", *STUDENT]
    left = [published]

    def killing(draft: Path, final: Path) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        publish(draft, final)

    with monkeypatch.context() as patch:
        patch.setattr("nmt.runs.stages.publish", killing)
        with pytest.raises(Killed):
            nmt(*command, cwd=tmp_path)
    folder = tmp_path / "outputs/stages"
    whole = [path for path in folder.iterdir() if not path.name.endswith(".part")]
    assert len(whole) == published
    done = nmt(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(folder) == ["pairs", "text", "translations"]
    assert translated == ["forward"]  # also when the kill came after it
    elsewhere = nmt(*command, "distil.folder=other", cwd=tmp_path)
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert pairs(folder) == pairs(tmp_path / "other")
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "other").iterdir()}


@pytest.mark.slow
def test_killed_while_it_translates_a_process_goes_on(
    trained: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """The parts of the first process count; workers of its own translate, as they do for users."""
    command = [sys.executable, "-m", "nmt", "distil", f"teacher={trained}", "run=student", *STUDENT]
    command += ["distil.decoding=beam", "distil.decoding.n_best=2", "distil.workers=1"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("outputs/stages/*.part/translations.parts/block_*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert names(tmp_path / "outputs/stages") == ["text", "translations"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "going on: 1,024 of 2,000 lines are translated" in done.stderr
    assert "forward: 4,000 translations read" in done.stderr
    assert "run         student" in done.stdout


@pytest.mark.slow
def test_both_directions_and_each_teacher_diversify_the_data(
    nmt: Command, teacher: Path, reverse: Path, small: Path, tmp_path: Path, translated: list[str]
) -> None:
    second = tmp_path / "second"
    shutil.copytree(teacher, second)
    run = [f"teacher=[{teacher},{second},{reverse}]", "distil.combine=each", "distil.train=false"]
    done = nmt("distil", *run, "distil.checkpoint=last", "run=student", *STUDENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert translated == ["forward", "reverse"]  # the second has the weights, and so the stage, of the first
    assert "forward: 400 translations read, 200 kept (repeated 200)" in done.stderr
    assert "backward: 200 translations read" in done.stderr
    assert "original: {" in done.stdout
    assert "forward: {" in done.stdout
    assert "backward: {" in done.stdout
    found = [pairs(tmp_path / "outputs/stages", which) for which in (0, 1)]
    assert (small / "train.a").read_text().splitlines() in [src for src, _ in found]
    assert (small / "train.b").read_text().splitlines() in [tgt for _, tgt in found]


def test_text_in_one_language_is_translated_back(
    nmt: Command, reverse: Path, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    (tmp_path / "mono").write_text("1 2 x 4\n\n5 6 7\n")
    command = ["distil", f"teacher=[{teacher},{reverse}]", "distil.tgt_text=[mono]", "distil.train=false"]
    done = nmt(*command, "run=student", *STUDENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backward: 2 lines by " in done.stderr
    assert "forward: 200 lines by " in done.stderr
    found = [pairs(tmp_path / "outputs/stages", which)[1] for which in (0, 1)]
    assert ["1 2 x 4"] in found  # the other is a copy
    assert "backward: 2 translations read, 1 kept (copy of the source 1)" in done.stderr


def test_a_student_of_synthetic_pairs_alone(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    """As Kim and Rush do; the pairs to score on come along."""
    command = ["distil", f"teacher={teacher}", "run=student", "distil.original_weight=0", *STUDENT]
    done = nmt(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "outputs/stages") == ["pairs", "scored", "text", "translations"]
    assert "validation data: 20 pairs" in done.stderr
    assert "test data: 20 pairs" in done.stderr
    assert "shares" not in done.stderr
    assert "test        BLEU" in done.stdout


def test_further_references_are_not_lost_without_the_original_pairs(tmp_path: Path) -> None:
    text = ParallelText(["a"], ["b"], [["c"]])
    with pytest.raises(UserError, match="copies the pairs to score on with one reference each, but the data"):
        synthetic.stage_of_splits(tmp_path, {Split.validation: text}, ("en", "de"))


def test_the_content_of_files_of_the_search_names_the_translations(teacher: Path, tmp_path: Path) -> None:
    def made() -> Path:
        allowed = f"distil.decoding.allowed={tmp_path / 'allowed'}"
        cfg = config(f"teacher={teacher}", f"distil.folder={tmp_path}", allowed)
        (corpus,) = distil.planned(cfg)
        return corpus.selection.translated[0].folder

    (tmp_path / "allowed").write_text("a\n")
    first = made()
    assert made() == first
    (tmp_path / "allowed").write_text("b\n")
    assert made() != first
    with pytest.raises(UserError, match=r"^distil\.checkpoint=9 is not in"):
        list(distil.planned(config(f"teacher={teacher}", f"distil.folder={tmp_path}", "distil.checkpoint=9")))


@pytest.mark.slow
def test_other_inputs_are_other_stages(teacher: Path, reverse: Path, tmp_path: Path) -> None:
    """Another search, checkpoint, teacher or text is translated; another rule only chooses anew."""

    def made(*more: str) -> tuple[Path, Path]:
        (corpus,) = distil.planned(config(f"teacher={teacher}", f"distil.folder={tmp_path}", *more))
        (translated,) = corpus.selection.translated
        return translated.folder, corpus.selection.stage(tmp_path).folder

    copy = tmp_path / "copy"
    shutil.copytree(teacher, copy)
    translations, chosen = made()
    whole = "distil.decoding.split_lines=none"
    for same in ("distil.decoding.batch_tokens=100", whole, "distil.workers=3", "seed=2", f"teacher={copy}"):
        assert made(same) == (translations, chosen)
    assert made("distil.best_share=0.5")[0] == translations
    others = ["distil.decoding=beam", "distil.decoding.n_best=1", "distil.checkpoint=225", "data.max_chars=9"]
    found = [made(*more.split()) for more in ["distil.best_share=0.5", *others]]
    assert found[2] == (translations, chosen)  # the default, written out
    assert len({first for first, _ in found}) == len(others)
    assert len({translations, *(second for _, second in found), chosen}) == len(others) + 2
    both = config(f"teacher=[{teacher},{copy}]", f"distil.folder={tmp_path}")
    (corpus,) = distil.planned(both)
    assert corpus.selection.translated[0].folder != translations


@pytest.mark.slow
def test_a_damaged_stage_is_refused(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    command = ["distil", f"teacher={teacher}", "run=student", "distil.train=false", *STUDENT]
    assert nmt(*command, cwd=tmp_path).returncode == 0
    (file,) = tmp_path.glob("outputs/stages/pairs-*/pairs.b")
    file.write_text(file.read_text().replace("1", "2", 1))
    done = nmt(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert "pairs.b has changed since it was made" in done.stderr
    shutil.rmtree(file.parent)
    (listed,) = tmp_path.glob("outputs/stages/translations-*/translations")
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:-1]))
    done = nmt(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert "translations has changed since it was made" in done.stderr
    shutil.rmtree(listed.parent)
    assert nmt(*command, cwd=tmp_path).returncode == 0
    assert translated == ["forward", "forward"]


@pytest.mark.slow
def test_a_run_of_another_student_is_refused_before_anything_is_translated(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    command = ["distil", f"teacher={teacher}", "run=student", *STUDENT]
    assert nmt(*command, cwd=tmp_path).returncode == 0
    done = nmt(*command, "distil.decoding=beam", cwd=tmp_path)
    assert done.returncode == 2
    assert "student belongs to a run with another config" in done.stderr
    assert "data.corpora.forward.train: outputs/stages/pairs-" in done.stderr
    assert translated == ["forward"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "teacher is missing; say nmt distil teacher=DIR"),
        (["teacher=nowhere"], "teacher=nowhere is not a directory"),
        (["teacher=[]"], "teacher is missing"),
        (["teacher=[RUN,RUN]"], "error: teacher names RUN twice; name each run once"),
        (["teacher=a,b"], "'teacher=a,b': nmt distil reads one teacher, or one list of teachers, at a time"),
        (
            ["teacher=RUN", "objective=distillation", "objective.teachers=[RUN]"],
            "error: objective=distillation needs teachers with the tokenizer of the student, but nmt distil",
        ),
        (["teacher=RUN", "data.max_chars=0"], "error: data.max_chars must be at least 1, but is 0\n"),
        (["teacher=RUN", "data.streaming=true"], "the pairs to translate must be known at the start"),
        (
            ["teacher=RUN", "data.context=2", "data.context_target=true"],
            "error: data.context=2: nmt distil translates and teaches single sentences; set data.context=0 "
            "data.context_target=false\n",
        ),
        (["teacher=RUN", "task=language_model"], "nmt distil trains translation, but task is language_model"),
        (["teacher=RUN", "data=demo"], "translates a to b, but the data is en to de; name another teacher"),
        (["teacher=RUN", "data=text", "data.train=x"], "data=text has one language; choose data with two"),
        (["teacher=RUN", "distil.tgt_text=[x]"], "distil.tgt_text needs a teacher that translates b to a"),
        (["teacher=RUN", "distil.src_text=[x]"], "distil.src_text: there is no file x"),
        (
            ["teacher=RUN", "distil.src_text=[x]", "distil.min_chrf=10"],
            "compare translations with references, which a text in one language does not have",
        ),
        (["teacher=RUN", "distil.folder="], "error: distil.folder must name a folder, but is empty"),
        (["teacher=RUN", "distil.backward_tag=BT"], "distil.backward_tag must be a word of small letters"),
        (["teacher=RUN", "distil.backward_tag=bt"], "but no teacher translates b to a; leave it out"),
        (["teacher=RUN", "distil.best_share=0"], r"distil.best_share must be in (0, 1], but is 0.0"),
        (["teacher=RUN", "distil.min_chrf=101"], "distil.min_chrf must be in [0, 100], but is 101"),
        (["teacher=RUN", "distil.decoding=beem"], "there is no decoding=beem; did you mean 'beam'?"),
        (["teacher=RUN", "distil.decoding.beam_sise=2"], "did you mean distil.decoding.beam_size?"),
        (["teacher=RUN", "distil.checkpoint=7"], "checkpoint=7 is not in "),
        (["teacher=RUN", "distil.decoding.allowed=x"], "distil.decoding.allowed: x cannot be read"),
        (["teacher=RUN", "schedule=linear", "trainer.max_steps=10"], "must be above schedule.warmup_steps"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_translated(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str], arguments: list[str], words: str
) -> None:
    given = [argument.replace("RUN", str(teacher)) for argument in arguments]
    done = nmt("distil", *given, "model=transformer_tiny", "run=student", cwd=tmp_path)
    assert (done.returncode, translated) == (2, [])
    assert words.replace("RUN", str(teacher)) in done.stderr
    assert not (tmp_path / "student").exists()


def test_a_file_in_the_place_of_the_run_is_refused_before_anything_is_translated(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    (tmp_path / "file").touch()
    for run, what in (("file", "it"), ("file/student", tmp_path / "file")):
        done = nmt("distil", f"teacher={teacher}", "model=transformer_tiny", f"run={run}", cwd=tmp_path)
        assert (done.returncode, translated) == (2, [])
        assert f"cannot write to the directory {run}: {what} is a file; choose" in done.stderr


def config(*arguments: str) -> DistilConfig:
    (trial,) = compose(VERBS["distil"], [*STUDENT, *arguments])
    return trial.to_config(DistilConfig)


def test_several_processes_train_what_one_has_translated(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(f"teacher={teacher}", f"distil.folder={tmp_path}")
    (corpus,) = distil.planned(cfg)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"make them first: nmt distil .* distil.train=false"):
        corpus.make(cfg)


def test_teachers_translate_together(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str]
) -> None:
    """As an ensemble: one stage, whose translations are those of `nmt translate run=[A,B]`."""
    shutil.copytree(teacher, tmp_path / "second")
    command = ["distil", f"teacher=[{teacher},second]", "distil.ensemble.weights=[1,3]", "run=student"]
    done = nmt(*command, "distil.train=false", *STUDENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert translated == ["forward+second"]
    assert names(tmp_path / "outputs/stages") == ["pairs", "text", "translations"]


def test_an_ensemble_has_the_weights_of_its_members(teacher: Path, reverse: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "second")
    three = f"teacher=[{teacher},{reverse},{tmp_path}/second]"
    cfg = config(three, "distil.ensemble.weights=[1,2,3]")
    assert cfg.ensemble_of([str(teacher), f"{tmp_path}/second"]).weights == [1.0, 3.0]
    assert config(three).ensemble_of([str(reverse)]).weights is None
    with pytest.raises(UserError, match=r"ensemble.weights must have one number for each of 3 runs"):
        config(three, "distil.ensemble.weights=[1,2]")


def test_teachers_that_cannot_translate_together_are_refused_at_once(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str], tiny: list[str]
) -> None:
    other = ["tokenizer=char", "model.d_model=8", "model.d_ff=8", "model.num_heads=2"]
    assert nmt("train", f"run={tmp_path}/char", *tiny, *other, "trainer.max_steps=1").returncode == 0
    command = ["distil", f"teacher=[{teacher},char]", "run=student", *STUDENT]
    done = nmt(*command, cwd=tmp_path)
    assert (done.returncode, translated) == (2, [])
    assert "cannot predict together" in done.stderr


def test_a_checkpoint_that_changes_meanwhile_is_refused(
    nmt: Command, teacher: Path, tmp_path: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a teacher that is still in training."""
    shutil.copytree(teacher, tmp_path / "second")
    translate_here = vars(distil)["translate_file"]

    def meanwhile(cfg: TranslateConfig) -> None:
        translate_here(cfg)
        (manifest,) = (tmp_path / "second/checkpoints").glob(f"*{cfg.checkpoint}/MANIFEST.json")
        manifest.write_text(manifest.read_text() + " ")

    monkeypatch.setattr(distil, "translate_file", meanwhile)
    done = nmt("distil", "teacher=second", "run=student", *STUDENT, cwd=tmp_path)
    assert done.returncode == 2
    assert "a checkpoint of second has changed while it was translating" in done.stderr
    assert not list(tmp_path.glob("outputs/stages/*/translations"))


def test_a_mixture_is_translated_corpus_by_corpus(teacher: Path, small: Path, tmp_path: Path) -> None:
    """Where a teacher fits; the synthetic corpora have the weights of the original ones."""
    one = f"one: {{train: {small}/train, validation: {small}/validation, weight: 3}}"
    other = f"other: {{train: {small}/train, tgt: c, src_column: a, tgt_column: b}}"
    mixture = ["data=mixture", "data.src=a", "data.tgt=b", "data.scored_split=validation"]
    command = [f"teacher={teacher}", f"distil.folder={tmp_path}", *mixture]
    cfg = config(*command, f"data.corpora={{{one}, {other}}}", "distil.original_weight=0.5")
    corpora = list(distil.planned(cfg))
    data = distil.student_config(cfg, corpora).data
    assert isinstance(data, MixtureData)
    weights = {name: entry["weight"] for name, entry in data.corpora.items()}
    assert weights == {"one": 1.5, "other": 0.5, "one_forward": 3.0}
    assert list(data.parts(Split.validation)) == ["one"]
    alone = config(*command, f"data.corpora={{{one}, {other}}}", "distil.original_weight=0")
    with pytest.raises(UserError, match=r"original_weight=0 leaves out other, which no teacher translates"):
        distil.student_config(alone, list(distil.planned(alone)))
    taken = config(*command, f"data.corpora={{{one}, one_forward: {{train: {small}/train}}}}")
    with pytest.raises(UserError, match=r"data.corpora.one_forward: name it otherwise"):
        list(distil.planned(taken))


def test_pairs_that_are_scored_on_are_not_taught(teacher: Path, small: Path, tmp_path: Path) -> None:
    data = f"data=files data.src=a data.tgt=b data.train={small}/train data.validation={small}/train"
    filters = "data.filters=[{name: overlap}]"
    cfg = config(f"teacher={teacher}", f"distil.folder={tmp_path}", *data.split(), filters)
    with pytest.raises(UserError, match=r"no training pair is left: 200 pairs read, 0 kept \(overlap 200\)"):
        list(distil.planned(cfg))


def test_a_curriculum_has_the_synthetic_corpora_too(teacher: Path, small: Path, tmp_path: Path) -> None:
    """And what is printed with distil.train=false is all of the data, stages and tags included."""
    one = f"one: {{train: {small}/train, validation: {small}/validation, domain: med, augment: [typos]"
    one += ", fixers: [spaces]}"
    back = f"back: {{train: {small}/train, src: b, tgt: a}}"
    stages = "[{until: 0.5, weights: {one: 1, back: 4}}, {weights: {one: 2}}]"
    mixture = [
        "data=mixture",
        "data.src=a",
        "data.tgt=b",
        "data.scored_split=validation",
        "data.max_chars=99",
    ]
    mixture += [f"data.corpora={{{one}, {back}}}", f"data.stages={stages}", "data.target_tags=true"]
    mixture.append("data.fixers=[nfc]")
    cfg = config(
        f"teacher={teacher}", f"distil.folder='{tmp_path}/a, b'", *mixture, "distil.original_weight=3"
    )
    data = distil.student_config(cfg, list(distil.planned(cfg))).data
    assert isinstance(data, MixtureData)
    both = {"one": 3.0, "back": 12.0, "one_forward": 1.0, "back_backward": 4.0}
    assert data.stages == [
        {"until": 0.5, "weights": both},
        {"until": None, "weights": {"one": 6.0, "one_forward": 2.0}},
    ]
    assert data.domains == {"one": "med", "one_forward": "med"}
    found = {name: [row["name"] for row in part.fixers] for name, part in data.parts(Split.train).items()}
    assert found == {"one": ["nfc", "spaces"], "back": ["nfc"], "one_forward": [], "back_backward": []}
    (printed,) = compose(VERBS["train"], ["data=mixture", *distil.as_overrides(data)])
    assert printed.to_config(TrainConfig).data == data


def test_a_teacher_is_told_the_domain_that_it_knows(small: Path, teacher: Path, tmp_path: Path) -> None:
    mixture = ["data=mixture", "data.src=a", "data.tgt=b", "data.scored_split=validation"]
    mixture.append(f"data.corpora={{one: {{train: {small}/train, validation: {small}/train, domain: med}}}}")
    knowing = untrained(tmp_path / "run", data=mixture)
    for teachers, domain in ((knowing, "med"), (teacher, None), (f"[{knowing},{teacher}]", None)):
        cfg = config(f"teacher={teachers}", f"distil.folder={tmp_path}", "distil.combine=ensemble", *mixture)
        (corpus,) = distil.planned(cfg)
        assert [one.domain for one in corpus.groups] == [domain]
        assert corpus.selection.translated[0].inputs.get("domain") == domain


def test_the_choices_for_small_data_are_printed_without_training(
    nmt: Command, teacher: Path, tmp_path: Path
) -> None:
    done = nmt("distil", f"teacher={teacher}", "experiment=small_data", "--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trainer.max_steps=" in done.stderr
    assert "${small_data}" not in done.stdout


def test_the_vocabulary_follows_the_original_pairs(
    teacher: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trial,) = compose(VERBS["distil"], [f"teacher={teacher}"])
    cfg = distil._with_rules(trial).to_config(DistilConfig)
    assert cfg.tokenizer.vocab_size < 200
    told = f"without a recipe: tokenizer.vocab_size={cfg.tokenizer.vocab_size} (for 200 training pairs, "
    assert capsys.readouterr().err.startswith(told)
