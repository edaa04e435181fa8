"""The benchmarks apart from their timings: records and tables, batches for the peers, converted weights.

A conversion is tested where the toolkit is installed: `NMT_BENCH_PEERS` names the folder that
scripts/bench_peers.py filled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from nmt import cli
from nmt.config.compose import compose
from nmt.errors import UserError
from nmt.layers.choices import NormOrder
from nmt.models.configs import RnnConfig
from nmt.runs.opening import open_run
from nmt.verbs import VERBS

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def script(name: str, folder: Path = SCRIPTS) -> ModuleType:
    """Import a script as a module; its neighbours can be imported, as when it is run."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


benchmarking = script("benchmarking")
bench_train = script("bench_train")
bench_decode = script("bench_decode")
bench_peers = script("bench_peers")
bench_gpu = script("bench_gpu")
bench_filters = script("bench_filters")
ablation = script("ablation")


def runs(system: str, speeds: list[float], **more: Any) -> list[dict[str, Any]]:
    """Results of a training, one a round."""
    about = {"kind": "result", "size": "small", "precision": "bf16", "system": system, "peak_rss_mb": 2048}
    about |= {"settings": {"allocator": "tuned"} if system != "nmt" else {}, "loss": 6.5}
    return [
        {**about, "round": number, "tgt_tokens_per_second": speed, "parameters": 9_000_000, **more}
        for number, speed in enumerate(speeds, start=1)
    ]


def test_a_ratio_is_taken_within_each_round() -> None:
    ours, other = runs("nmt", [200.0, 100.0, 400.0]), runs("peer", [100.0, 50.0, 100.0])
    assert benchmarking.median_ratio(ours, other, "tgt_tokens_per_second") == 2.0
    assert benchmarking.median_ratio(ours[:1], other[1:], "tgt_tokens_per_second") is None


def test_systems_alternate_and_one_that_fails_is_not_run_again() -> None:
    order: list[str] = []

    def runs_well() -> dict[str, Any]:
        order.append("good")
        return {"speed": 1.0}

    def fails() -> dict[str, Any]:
        order.append("bad")
        return {"error": "no"}

    written: list[dict[str, Any]] = []
    benchmarking.alternate({"good": runs_well, "bad": fails}, 3, written.append)
    assert order == ["good", "bad", "good", "good"]
    assert [(record["system"], record["round"]) for record in written] == [
        ("good", 1),
        ("bad", 1),
        ("good", 2),
        ("good", 3),
    ]
    benchmarking.alternate({"good": runs_well, "bad": lambda: runs_well()}, 2, written.append)
    assert [record["system"] for record in written[4:]] == ["good", "bad", "bad", "good"]


def test_a_process_is_measured_by_its_last_line() -> None:
    code = (
        "import json, time; print('noise'); x = bytearray(200 << 20); time.sleep(0.5); "
        "print(json.dumps({'speed': 2.5}))"
    )
    ours = bytearray(400 << 20)  # what this process holds is not what the other one needs
    result = benchmarking.measured([sys.executable, "-c", code], os.environ)
    assert result["speed"] == 2.5
    assert 200 < result["peak_rss_mb"] < len(ours) >> 20


def test_a_process_that_fails_gives_its_last_words() -> None:
    result = benchmarking.measured(
        [sys.executable, "-c", "import sys; sys.exit('no such model')"], os.environ
    )
    assert result == {"error": "exit code 1: no such model"}


def test_peers_get_the_allocator_of_the_project() -> None:
    assert "GLIBC_TUNABLES" not in benchmarking.environment(threads=2)
    tuned = benchmarking.environment(threads=2, allocator="tuned")["GLIBC_TUNABLES"]
    source = (SCRIPTS.parent / "nmt" / "runtime.py").read_text(encoding="utf-8")
    for name, value in (setting.split("=") for setting in tuned.split(":")):
        shown = {2**31 - 1: "2**31 - 1", 64 << 20: "64 << 20"}.get(int(value), value)
        call = "madvise(" if name.endswith("hugetlb") else f"mallopt({name.rpartition('.')[2]}, {shown})"
        assert call in source


def test_the_table_of_trainings(tmp_path: Path) -> None:
    session = benchmarking.session("train", tmp_path, {})
    records = [
        session,
        *runs("nmt", [200.0, 100.0, 410.0]),
        *runs("peer", [100.0, 50.0, 100.0]),
        {**runs("broken", [0.0])[0], "error": "exit code 1: no | such thing"},
    ]
    file = tmp_path / "results.jsonl"
    results = benchmarking.Results(file)
    for record in records:
        results.write(record)
    *_, header, _, ours, peer, broken = bench_train.table([file]).split("\n")
    assert header.startswith("| size | precision | system | settings | target tokens/s | range |")
    assert header.endswith("| peak memory | parameters | loss |")
    assert ours == "| small | bf16 | nmt |  | 200 | 100 to 410 |  | 2.0 GB | 9.00 M | 6.500 |"
    assert peer.startswith("| small | bf16 | peer | tuned allocator | 100 | 50 to 100 | 2.00 times as fast |")
    assert broken == "| small | bf16 | broken | failed: exit code 1: no \\| such thing |  |  |  |  |  |  |"


def test_the_table_of_translations(tmp_path: Path) -> None:
    about = {"kind": "result", "search": "beam", "mode": "batch", "mean_length": 13.5, "bleu": 32.04}
    about |= {"peak_rss_mb": 512, "same_as_nmt": 0.998, "settings": {"parallel": "2 x 1"}}
    file = tmp_path / "results.jsonl"
    results = benchmarking.Results(file)
    for number, speed in enumerate((100.0, 120.0), start=1):
        results.write({**about, "system": "nmt", "round": number, "sentences_per_second": 2 * speed})
        results.write({**about, "system": "peer", "round": number, "sentences_per_second": speed})
    *_, ours, peer = bench_decode.table([file]).split("\n")
    assert (
        ours == "| beam | batch | nmt | 2 x 1 | 220.0 | 200.0 to 240.0 |  | 13.50 | 32.04 | 99.8% | 0.5 GB |"
    )
    assert peer.startswith("| beam | batch | peer | 2 x 1 | 110.0 | 100.0 to 120.0 | 2.00 times as fast |")


@pytest.mark.parametrize("name", list(bench_peers.ENVIRONMENTS))
def test_the_environments_hold_one_torch(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "interpreter", lambda version: f"python{version or ''}")
    wanted = bench_peers.ENVIRONMENTS[name]
    make, *steps = bench_peers.commands(name, tmp_path)
    assert make == [f"python{wanted.python or ''}", "-m", "venv", str(tmp_path / name)]
    pinned = f"torch=={torch.__version__.partition('+')[0]}"
    assert [step[-2:] == [pinned, "numpy"] for step in steps].count(True) == 1
    assert (tmp_path / f"{name}.txt").read_text(encoding="utf-8") == f"{pinned}\n"
    (packages,) = (step for step in steps if str(tmp_path / f"{name}.txt") in step)
    assert set(wanted.packages) <= set(packages)
    assert ("--no-deps" in steps[-1]) == bool(wanted.alone)


def test_every_peer_has_an_adapter_and_an_environment() -> None:
    args = bench_decode.parser().parse_args(["run", "run", "peers", "--output", "file"])
    for system in (*bench_train.SYSTEMS.values(), *bench_decode.systems(args).values()):
        assert (SCRIPTS / system.script).exists()
        assert system.environment is None or system.environment in bench_peers.ENVIRONMENTS
        assert all(values for values in system.settings.values())


def test_settings_are_varied_one_after_the_other_and_the_fastest_are_kept() -> None:
    speeds = {("1 x 2", "a"): 1.0, ("2 x 1", "a"): 3.0, ("2 x 1", "b"): 2.0, ("2 x 1", "c"): 4.0}

    def trial(settings: dict[str, str]) -> dict[str, Any]:
        if settings["batch"] == "d":
            return {"error": "no memory"}
        return {"speed": speeds[settings["parallel"], settings["batch"]]}

    written: list[dict[str, Any]] = []
    settings = {"parallel": ("1 x 2", "2 x 1"), "batch": ("a", "b", "c", "d")}
    best = benchmarking.best_settings(settings, "speed", trial, written.append)
    assert best == {"parallel": "2 x 1", "batch": "c"}
    assert [record["kind"] for record in written] == ["trial"] * 5
    assert benchmarking.in_words(best | {"allocator": "tuned"}) == "2 x 1, c, tuned allocator"


def test_a_system_that_fails_in_its_first_trial_is_in_the_results() -> None:
    systems = {
        name: benchmarking.System(None, "script", {}, {"batch": ("a", "b")}) for name in ("good", "bad")
    }
    written: list[dict[str, Any]] = []

    def run(name: str, settings: dict[str, str], is_trial: bool) -> dict[str, Any]:
        assert name == "good" or is_trial
        return {"speed": 1.0} if name == "good" else {"error": "no such processor"}

    benchmarking.compare(systems, "speed", 2, run, written.append)
    results = [(r["system"], r["round"], r.get("error")) for r in written if r["kind"] == "result"]
    assert results == [("bad", 1, "no such processor"), ("good", 1, None), ("good", 2, None)]


def test_peers_train_on_the_batches_of_nmt_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    (composed,) = compose(
        VERBS["train"],
        [
            "experiment=none",
            "data=toy",
            "tokenizer=bpe",
            "tokenizer.vocab_size=60",
            f"run={tmp_path / 'run'}",
        ],
    )
    cfg, _ = composed.to_training()
    tokenizer, tokens = bench_train.dump(cfg, tmp_path / "batches.npz", 10)
    job = script("job", SCRIPTS / "peers")
    both = list(job.batches({"batches": str(tmp_path / "batches.npz"), "pad_id": 0}))
    batches, again = both[: len(both) // 2], both[len(both) // 2 :]
    assert all((x[1] == y[1]).all() for x, y in zip(batches, again, strict=True))
    assert [int((tgt != 0).sum()) for _, tgt in batches] == tokens
    assert sum(len(src) for src, _ in batches) == 10
    texts = {tokenizer.decode(row[row != 0][:-1].tolist()) for _, tgt in batches for row in tgt}
    assert "" not in texts
    assert all((row[row != 0][-1] == 3).all() for src, _ in batches for row in src)


def test_the_clock_counts_the_second_half_of_the_updates() -> None:
    clock = script("job", SCRIPTS / "peers").Clock({"updates": 2})
    updates = ((5, 9.0), (5, 9.0), (10, 3.0), (30, 2.0))
    assert [clock.update(number, loss) for number, loss in updates] == [False, False, False, True]
    assert (clock.tokens, clock.loss / clock.tokens) == (40, 2.25)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("2 sentences", [[[5, 5, 5, 3], [6, 7, 3, 0]], [[4, 3]]]),
        ("4 tokens", [[[5, 5, 5, 3]], [[6, 7, 3]], [[4, 3]]]),
    ],
)
def test_a_search_gets_batches_of_like_lengths_and_is_read_up_to_eos(batch: str, expected: list[Any]) -> None:
    seen = []

    def search(src: Any) -> list[list[int]]:
        seen.append(src.tolist())
        return [[*row[:1], 3, 9] if row[0] > 5 else [*row[:1], 0] for row in src.tolist()]

    job = {"pad_id": 0, "eos_id": 3, "batch": batch}
    translate = script("job", SCRIPTS / "peers").by_length(job, search)
    assert translate([[6, 7, 3], [4, 3], [5, 5, 5, 3]]) == [[6], [4], [5]]
    assert seen == expected


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a small Transformer on ten sentences until it knows them by heart; return its run directory."""
    folder = tmp_path_factory.mktemp("run") / "run"
    sizes = ["tokenizer.vocab_size=60", "model.d_model=16", "model.d_ff=32", "model.num_heads=2"]
    limits = ["trainer.max_steps=100", "trainer.batch_tokens=256", "decoding.max_length_ratio=1"]
    rate = ["schedule=constant", "schedule.peak_rate=0.01", "schedule.warmup_steps=0"]
    settings = ["experiment=none", "data=toy", "tokenizer=bpe", *sizes, *limits, *rate]
    assert cli.main(["train", *settings, f"run={folder}"]) == 0
    return folder


@pytest.mark.slow
def test_what_is_exported_for_the_peers(run: Path, tmp_path: Path) -> None:
    opened = open_run(run)
    job = bench_decode.export(opened, tmp_path, 4)
    assert json.loads(json.dumps(job)) == job
    weights = np.load(job["weights"])
    assert {name for name in weights if name != "positions"} == set(opened.model.state_dict())
    assert len(job["pieces"]) == job["vocab_size"] == len(weights["src_embedding.tokens.weight"])
    assert [job["pieces"][job[key]] for key in ("bos_id", "eos_id")] == ["<s>", "</s>"]
    for name in ("source", "reference"):
        assert len((tmp_path / f"{name}.txt").read_text(encoding="utf-8").splitlines()) == 4


def test_every_weight_of_a_layer_gets_the_name_that_a_peer_has_for_it(run: Path) -> None:
    states = script("states", SCRIPTS / "peers")
    weights = {name: tensor.numpy() for name, tensor in open_run(run).model.state_dict().items()}
    encoder = states.feed_forward("f", "g", "fn") | states.attention("self_attention", "qkvo", "n")
    cross = states.attention("cross_attention", ("xq", "xk", "xv", "xo"), "xn")
    state = states.renamed(weights, {"encoder": encoder, "decoder": encoder | cross})
    embeddings = ("src_embedding.tokens.weight", "tgt_embedding.tokens.weight", "output.weight")
    stacks = sum(value.size for name, value in weights.items() if name not in embeddings)
    assert sum(value.numel() for value in state.values()) == stacks
    both = weights["decoder.0.cross_attention.attention.key_value.weight"]
    assert state["decoder.layers.0.xk.weight"].tolist() == both[: len(both) // 2].tolist()
    assert state["decoder.layers.0.xv.weight"].tolist() == both[len(both) // 2 :].tolist()
    assert state["encoder.layer_norm.bias"].tolist() == weights["encoder_norm.bias"].tolist()
    with pytest.raises(KeyError, match="cross_attention"):
        states.renamed(weights, {"encoder": encoder, "decoder": encoder})


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("model", "norm_order", NormOrder.post, "model.norm_order must be NormOrder.pre to be converted"),
        ("model", "d_k", 4, "model.d_k must be None to be converted, but is 4"),
        ("tokenizer", "lowercase", True, "without tokenizer.kind=word, tokenizer.lowercase and"),
    ],
)
def test_models_that_peers_cannot_express_are_refused(
    run: Path, part: str, key: str, value: object, message: str
) -> None:
    opened = open_run(run)
    setattr(getattr(opened.cfg, part), key, value)
    with pytest.raises(UserError, match=message):
        bench_decode.require_convertible(opened)


def test_a_recurrent_model_is_refused(run: Path) -> None:
    opened = open_run(run)
    opened.cfg.model = RnnConfig()
    with pytest.raises(UserError, match=r"the run must be of model\.name=transformer to be converted"):
        bench_decode.require_convertible(opened)


@pytest.mark.skipif("NMT_BENCH_PEERS" not in os.environ, reason="NMT_BENCH_PEERS names no folder of peers")
@pytest.mark.parametrize("system", ["ctranslate2 float32", "hf", "joeynmt"])
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_converted_model_is_the_same_function(run: Path, tmp_path: Path, system: str, search: str) -> None:
    file = tmp_path / "results.jsonl"
    where = [str(run), os.environ["NMT_BENCH_PEERS"], "--output", str(file), "--lines", "10"]
    what = ["--systems", system, "--searches", search, "--modes", "batch", "--rounds", "1", "--threads", "1"]
    what += ["--ours", "--trial-lines", "0"]
    bench_decode.run(bench_decode.parser().parse_args(["run", *where, *what]))
    _, peer = benchmarking.read([file])
    assert "error" not in peer, peer
    # Beams may differ where one search goes on for longer than the other.
    assert peer["same_as_nmt"] >= (1.0 if search == "greedy" else 0.7)


def test_every_mode_on_a_gpu_gets_a_verdict_beside_the_first() -> None:
    def row(mode: str, **found: Any) -> dict[str, Any]:
        made = {"kind": "train", "what": "train big", "mode": mode, **found}
        return made | bench_gpu.verdict(made, results)

    results: list[dict[str, Any]] = []
    for mode, speed, loss in (("eager", 100.0, 6.0), ("compiled", 150.0, 6.01), ("fp16", 90.0, 7.0)):
        results.append(row(mode, tokens_per_second=speed, loss=loss))
    results.append(row("muon", tokens_per_second=80.0, loss=5.0))  # it does more, and learns in another way
    results.append(row("muon", error="exit code 1: out of memory"))
    assert [one["verdict"] for one in results] == [
        "ok",
        "ok, 1.50 times eager",
        "slower than eager, 0.90 times; loss 7.000 instead of 6.000",
        "ok, 0.80 times eager",
        "failed: exit code 1: out of memory",
    ]
    assert len(bench_gpu.table(results).splitlines()) == 2 + len(results)


def test_rows_of_a_gpu_are_of_both_models_in_modes_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_BENCH_FOLDER", str(tmp_path))
    rows = bench_gpu.rows(bench_gpu.parser().parse_args([]))
    assert {one["model"] for one in rows} == {"", "transformer_base", "transformer_big"}
    assert {one["mode"] for one in rows[1:]} == {*bench_gpu.MODES, *bench_gpu.SEARCHES}
    modes = [override for overrides in bench_gpu.MODES.values() for override in overrides]
    cfg = bench_gpu.config({**rows[1], "overrides": [*modes, *bench_gpu.SEARCHES["greedy, graphs"]]})
    assert cfg.runtime.compile
    assert cfg.decoding.cuda_graphs
    assert bench_gpu.config(next(one for one in rows if one["mode"] == "beam 5, fp32")).decoding.precision


def test_a_level_of_damage_is_spread_over_all_kinds_and_told_line_by_line() -> None:
    german = [
        f"Hund {number} läuft schnell zu Katze {number} am Zaun , wo er laut bellt" for number in range(600)
    ]
    french = [f"chien {number}" for number in range(600)]
    lines = bench_filters.Lines(french, german, french, ["Hund", "Katze", "Zaun", "Haus"])
    targets, done = bench_filters.damaged(lines, 40)
    assert [tgt != true for tgt, true in zip(targets, german, strict=True)] == [kind != "" for kind in done]
    counts = {kind: done.count(kind) for kind in bench_filters.DAMAGES}
    assert 230 <= sum(counts.values()) <= 240
    assert min(counts.values()) >= 35
    assert all(tgt == french[row] for row, tgt in enumerate(targets) if done[row] == "language")
    assert bench_filters.damaged(lines, 40) == (targets, done)


def test_a_study_judges_each_filter_once(tmp_path: Path) -> None:
    study = bench_filters.Study(tmp_path, 10, [])
    text = [f"a dog number {number} barks at night" for number in range(40)]
    bench_filters.write_pairs(study.level(30) / "train", text, [*text[:30], *["ja " * 40] * 10])
    (study.level(30) / "damage").write_text("\n" * 25 + "order\n" * 5 + "facts\n" * 10)
    for _ in range(2):
        study.judge(30, "length")
    (record,) = study.records
    assert (record["dropped"], record["precision"], record["recall"]) == (10, 1.0, 0.6667)
    assert record["recall_by_kind"] == dict.fromkeys(bench_filters.DAMAGES, 0.0) | {"facts": 1.0}
    scored = [
        {"kind": "bleu", "level": 30, "filter": "length", "seed": seed, "updates": 10, "pairs": 30}
        | {"validation_bleu": bleu, "test_bleu": bleu}
        for seed, bleu in enumerate((20.0, 22.0))
    ]
    assert "| 30% | length | 10 | 30 | 2 | 21.00 ± 1.41 | 21.00 ± 1.41 |" in bench_filters.table(
        [record, *scored]
    )


def test_the_area_under_a_curve_counts_ties_by_half() -> None:
    positive = np.array([True, False, True, False])
    assert bench_filters.area_under_curve(np.array([3.0, 1.0, 2.0, 0.0]), positive) == 1.0
    assert bench_filters.area_under_curve(np.zeros(4), positive) == 0.5


def test_a_study_takes_overrides_behind_any_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = list[Any]()

    def run(*arguments: Any) -> int:
        asked.append(arguments)
        return 0

    monkeypatch.setattr(ablation, "run", run)
    shared = ["data.path=corpus", "trainer.max_steps=5"]
    assert ablation.main(["run", str(tmp_path), "--methods", "baseline", "ema", *shared]) == 0
    assert ablation.main(["run", str(tmp_path), *shared, "--seeds", "4", "--jobs", "1"]) == 0
    assert asked[0][:3] == (tmp_path, ["baseline", "ema"], [1, 2, 3])
    assert asked[1] == (tmp_path, list(ablation.METHODS), [4], 1, shared)
    assert asked[0][4] == shared
    with pytest.raises(SystemExit):
        ablation.main(["run", str(tmp_path), "--method_of_none"])


def test_the_methods_of_a_study_are_configs_that_hold(tmp_path: Path) -> None:
    for method in ablation.METHODS:
        line = ablation.command(tmp_path, method, 2, ["data.path=corpus"])
        composed = compose(VERBS["train"], line[line.index("train") + 1 :])[0]
        composed.checked(VERBS["train"])
        assert composed.cfg.run == str(tmp_path / method / "seed_2")
    line = ablation.command(tmp_path, "self_distillation", 2, [])
    assert f"objective.teachers=[{tmp_path}/baseline/seed_2]" in line
