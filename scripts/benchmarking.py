"""Tools for comparisons with other toolkits: the machine, settings, alternating runs, medians, tables.

A system has settings: for each of them some values, of which the fastest are found first, in short trials.
Then every system runs at its best, in a process of its own, one after the other, round by round, so that what
the machine does meanwhile falls on all of them; a ratio is taken within each round, and medians over the
rounds. Results are lines of JSON: one `session` (machine, versions, command), then a `trial` or a `result`
for every single run, failed ones included. Tables are made of these lines alone. Knows no toolkit, no model
and no text.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ALLOCATOR = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("mmap_max=0", "trim_threshold=2147483647", "top_pad=67108864", "hugetlb=1")
)
"""$GLIBC_TUNABLES that sets the allocator of a peer as `nmt.runtime.prepare` sets ours."""
PEER_PACKAGES = (
    "torch",
    "transformers",
    "ctranslate2",
    "eole",
    "OpenNMT-py",
    "joeynmt",
    "fairseq",
)

SAMPLE_SECONDS = 0.05
"""Time between two measurements of the memory of a system."""
MATRIX_UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
ALLOCATORS = ("default", "tuned")
"""Values of the setting `allocator` of a peer."""

Record = dict[str, Any]
Settings = Mapping[str, Sequence[str]]
"""Names of settings -> their values; the first ones are tried together."""


class System(NamedTuple):
    """A toolkit in a comparison."""

    environment: str | None
    """The folder of its interpreter among the peers; None for this interpreter."""
    script: str
    """The adapter, below scripts/, that is run with the file of a job."""
    job: Record
    """What the name of the system stands for."""
    settings: Settings


def machine() -> Record:
    """Return the facts that speed depends on: processor, its cores and matrix units, memory, kernel."""
    info = Path("/proc/cpuinfo")
    fields = dict(
        line.replace("\t", "").split(":", 1)
        for line in (info.read_text(encoding="utf-8") if info.exists() else "").splitlines()
        if ":" in line
    )
    units = [unit for unit in MATRIX_UNITS if unit in fields.get("flags", "").split()]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": fields.get("model name", platform.processor()).strip(),
        "cores": os.cpu_count(),
        "units": units,
        "memory_gb": round(pages / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those `packages` that are installed for the interpreter `python`."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({p: found[p.lower()] for p in sys.argv[1:] if p.lower() in found}))"
    )
    answer = subprocess.run([str(python), "-c", code, *packages], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def session(benchmark: str, peers: Path, facts: Mapping[str, Any]) -> Record:
    """Return the record of a session: the first line of a file of results."""
    interpreters = {"here": Path(sys.executable), **environments(peers)}
    return {
        "kind": "session",
        "benchmark": benchmark,
        "machine": machine(),
        "versions": {name: versions(python, PEER_PACKAGES) for name, python in interpreters.items()},
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **facts,
    }


def environments(peers: Path) -> dict[str, Path]:
    """Return the interpreters of the peers, by the name of their environment."""
    return {python.parents[1].name: python for python in sorted(peers.glob("*/bin/python"))}


def environment(*, threads: int, allocator: str = "default") -> dict[str, str]:
    """Return the environment variables of a system; `allocator` is default or tuned."""
    variables = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    variables |= {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return variables | ({"GLIBC_TUNABLES": ALLOCATOR} if allocator == "tuned" else {})


def ways(threads: int) -> tuple[str, ...]:
    """Return the values of the setting `parallel`: one worker of all threads, and a worker for each."""
    return (f"1 x {threads}", f"{threads} x 1") if threads > 1 else ("1 x 1",)


def require_installed(systems: Mapping[str, System], peers: Path) -> None:
    """End the program when the environment of a system is not among the peers."""
    for name, system in systems.items():
        if system.environment and not (peers / system.environment / "bin" / "python").exists():
            sys.exit(f"{name} is not installed in {peers}; see scripts/bench_peers.py")


def run_once(system: System, peers: Path, job: Record, stem: Path) -> Record:
    """Run a system on a job, which has its settings; the job is written beside `stem`."""
    file = stem.with_suffix(".json")
    file.write_text(json.dumps(job), encoding="utf-8")
    python = peers / system.environment / "bin" / "python" if system.environment else Path(sys.executable)
    arguments = [str(python), str(ROOT / "scripts" / system.script)]
    arguments += [str(file)] if system.environment else ["ours", str(file)]
    _, _, threads = job["parallel"].partition(" x ")
    variables = environment(threads=int(threads), allocator=job.get("allocator", "default"))
    return measured(arguments, variables | job.get("variables", {}))


def measured(command: Sequence[str], variables: Mapping[str, str], *, timeout: float = 3600.0) -> Record:
    """Run a system; return the JSON of its last line, and its peak memory as `peak_rss_mb`.

    For a system that fails, return `error`, the last line of its output, so that a comparison goes on.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(variables), stdout=out, stderr=subprocess.STDOUT
        )
        peak, end = 0, time.monotonic() + timeout
        while process.poll() is None:
            peak = max(peak, peak_rss_mb(process.pid))
            if time.monotonic() > end:
                process.kill()
            time.sleep(SAMPLE_SECONDS)
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.strip()] or ["nothing was printed"]
    if process.returncode:
        return {"error": f"exit code {process.returncode}: {lines[-1].strip()}"}
    # What libraries print at the end of a process may come after it.
    answers = [line for line in lines if line.startswith("{")]
    if not answers:
        return {"error": f"no result: {lines[-1].strip()}"}
    result: Record = json.loads(answers[-1])
    return result | {"peak_rss_mb": peak}


def peak_rss_mb(process: int) -> int:
    """Return the sum of the peaks of resident memory of a process and those that it has started.

    `getrusage` would begin with the peak of the process that started it.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        threads = list(Path(f"/proc/{process}/task").iterdir())
        children = {child for thread in threads for child in (thread / "children").read_text().split()}
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)  # no such line in a process that has just ended
    return (int(found[1]) // 1024 if found else 0) + sum(peak_rss_mb(int(child)) for child in children)


def best_settings(
    settings: Settings, speed: str, trial: Callable[[Record], Record], write: Callable[[Record], None]
) -> Record:
    """Return the fastest settings: one after the other is varied, with the best values of those before.

    Raises:
        RuntimeError: the first values do not work; the text is the error.
    """
    best = {name: values[0] for name, values in settings.items()}

    def tried(chosen: Record) -> Record:
        result = trial(chosen)
        write({"kind": "trial", "settings": chosen, **result})
        return result

    if all(len(values) == 1 for values in settings.values()):
        return best
    result = tried(best)
    if "error" in result:
        raise RuntimeError(result["error"])
    fastest = result[speed]
    for name, values in settings.items():
        for value in values[1:]:
            chosen = best | {name: value}
            result = tried(chosen)
            if result.get(speed, 0.0) > fastest:
                best, fastest = chosen, result[speed]
    return best


def compare(
    systems: Mapping[str, System],
    speed: str,
    rounds: int,
    run: Callable[[str, Record, bool], Record],
    write: Callable[[Record], None],
    earlier: Sequence[Record] = (),
) -> None:
    """Find the best settings of every system, then run all of them round by round.

    `run` takes the name of a system, its settings, and whether the run is a trial, and returns a result.
    Trials that are among the records `earlier`, of a comparison that was interrupted, are not run again.
    """
    trials = {
        (record["system"], str(record["settings"])): record for record in earlier if record["kind"] == "trial"
    }

    def tried(name: str, settings: Record) -> Record:
        known = trials.get((name, str(settings)))
        return run(name, settings, True) if known is None else known

    chosen: dict[str, Record] = {}
    for name, system in systems.items():

        def keep(record: Record, name: str = name) -> None:
            if (name, str(record["settings"])) not in trials:
                write({"system": name, **record})

        try:
            trial = functools.partial(tried, name)
            chosen[name] = best_settings(system.settings, speed, trial, keep)
        except RuntimeError as error:
            write({"kind": "result", "system": name, "round": 1, "error": str(error)})
    alternate(
        {name: functools.partial(run, name, best, False) for name, best in chosen.items()}, rounds, write
    )


def in_words(settings: Record) -> str:
    """Return settings as a cell of a table."""
    words = {"parallel": "{}", "allocator": "{} allocator", "batch": "{}", "attention": "{} attention"}
    return ", ".join(words.get(name, name + " {}").format(value) for name, value in settings.items())


def alternate(runs: Mapping[str, Callable[[], Record]], rounds: int, write: Callable[[Record], None]) -> None:
    """Run all systems once a round, every other round in reverse; a system that failed is not run again."""
    failed: set[str] = set()
    for number in range(1, rounds + 1):
        names = list(runs) if number % 2 else list(runs)[::-1]
        for name in names:
            if name in failed:
                continue
            started = time.perf_counter()
            result = runs[name]()
            if "error" in result:
                failed.add(name)
            wall = round(time.perf_counter() - started, 1)
            write({"kind": "result", "system": name, "round": number, **result, "wall_seconds": wall})


class Results:
    """A file that grows by one line of JSON for each record, shown on stderr as well."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: Record) -> None:
        """Append `record` at once, so that it survives an interruption."""
        line = json.dumps(record, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, file=sys.stderr, flush=True)


def read(paths: Iterable[Path]) -> list[Record]:
    """Return the records of files, in order."""
    return [
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line
    ]


def median(records: Iterable[Record], key: str) -> float:
    """Return the median of the values of `key`."""
    return float(statistics.median(record[key] for record in records))


def median_ratio(records: Sequence[Record], others: Sequence[Record], key: str) -> float | None:
    """Return the median over the rounds of records / others, or None without a common round."""
    base = {record["round"]: record[key] for record in others}
    ratios = [record[key] / base[record["round"]] for record in records if record["round"] in base]
    return float(statistics.median(ratios)) if ratios else None


def grouped(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return groups of records with equal values of `keys`, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.get(key) for key in keys), []).append(record)
    return groups


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `|` in a cell is escaped."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def described(record: Record) -> str:
    """Return a session in words: machine, versions and command."""
    facts = record["machine"]
    packages = sorted(
        {f"{name} {version}" for found in record["versions"].values() for name, version in found.items()}
    )
    hardware = (
        f"{facts['processor']}, {facts['cores']} cores ({', '.join(facts['units'])}), {facts['memory_gb']} GB"
    )
    software = ", ".join([*packages, f"Python {facts['python']}"])
    return f"{hardware}; {software}.\n\n    python scripts/{record['command']}"
