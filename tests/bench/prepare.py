"""What preparing costs: rows a second and peak memory, beside plain ``datasets.map``.

    python -m tests.bench.prepare [--rows 1000000] [--workers 2] [--json FILE]

One file of synthetic rows in six schemas; a tenth of it first, then all of it, so that what
grows with the rows is told from what does not. ``conversion only`` leaves duplicates alone and
keeps a thousand prompts: what ``datasets.map`` does with the same function, in the same
processes. Memory is the sum over all processes of what each has to itself (USS); CPU seconds
are those of all processes, and say the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
RUNS = ("conversion only", "datasets.map", "exact and near", "all kept")

MAP = """
import sys
from pathlib import Path

import datasets
import msgspec

from remote.prepare import recipe
from remote.prepare.budget import Bound
from remote.prepare.convert import Candidate, Converter, Place

ONE = recipe.parse({"dedup": {"level": "off"}, "sources": [{"name": "rows", "path": "unused"}]})
CONVERTER = Converter(ONE, ONE.sources[0], Bound())


def convert(batch):
    columns = list(batch)
    count = len(batch[columns[0]])
    rows = []
    for n in range(count):
        # The loader gives every row the columns of all schemas; what is null was not there.
        row = {c: batch[c][n] for c in columns if batch[c][n] is not None}
        rows.append((Place("rows", n), row))
    found = CONVERTER.convert(rows)[0]
    return {"line": [r.line.decode() for _, r in found if isinstance(r, Candidate)]}


if __name__ == "__main__":
    datasets.disable_progress_bars()
    path, workers, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    data = datasets.load_dataset("json", data_files=path, split="train", cache_dir=out + ".cache")
    data = data.map(
        convert, batched=True, remove_columns=data.column_names, num_proc=workers,
        load_from_cache_file=False,
    )
    with open(out, "wb") as file:
        for batch in data.iter(batch_size=1000):
            file.write("".join(line + "\\n" for line in batch["line"]).encode())
"""


@dataclass
class Measured:
    """One run."""

    what: str
    rows: int
    seconds: float
    rows_per_second: float
    cpu_seconds: float
    rows_per_cpu_second: float
    peak_mib: float
    prompts: int
    detail: str = ""


def watch(command: list[str], folder: Path) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MiB) of a command with all its children."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    log = folder / "bench.log"
    with log.open("wb") as out:
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        process, peak = psutil.Process(running.pid), 0
        while running.poll() is None:
            total = 0
            for one in [process, *_children(process)]:
                try:
                    total += one.memory_full_info().uss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            peak = max(peak, total)
            time.sleep(0.1)
    if running.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{log.read_text()[-2000:]}")
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, peak / 2**20


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def prepare(folder: Path, what: str, rows: int, recipe: str, workers: int) -> Measured:
    """One build by a recipe over ``rows`` rows."""
    (folder / "recipe.toml").write_text(recipe)
    command = [sys.executable, "-m", "remote.prepare", "recipe.toml", "-o", "prompts.jsonl"]
    seconds, cpu, peak = watch([*command, "--workers", str(workers)], folder)
    document = json.loads((folder / "prompts.manifest.json").read_text())
    (source,) = document["sources"]
    dropped = ", ".join(f"{cause} {n:,}" for cause, n in source["dropped"].items())
    prompts = document["output"]["lines"]
    return Measured(what, rows, seconds, rows / seconds, cpu, rows / cpu, peak, prompts, dropped)


def plain_map(folder: Path, path: Path, rows: int, workers: int) -> Measured:
    """The same conversion by ``datasets.map``, from loading the file to written lines."""
    script = folder / "plain_map.py"
    script.write_text(MAP)
    out = folder / "mapped.jsonl"
    command = [sys.executable, str(script), str(path), str(workers), str(out)]
    seconds, cpu, peak = watch(command, folder)
    with out.open("rb") as file:
        prompts = sum(1 for _ in file)
    return Measured("datasets.map", rows, seconds, rows / seconds, cpu, rows / cpu, peak, prompts)


def recipe(rows: int, level: str, quota: int) -> str:
    """The recipe of one run; the first ``rows`` rows of the file."""
    return (
        f'[dedup]\nlevel = "{level}"\n[[sources]]\nname = "rows"\npath = "rows.jsonl"\n'
        f"limit = {rows}\nquota = {quota}\n"
    )


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from tests.remote.prepare import synthetic

    rows, tenth = options.rows, options.rows // 10
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "rows.jsonl"
        synthetic.write(path, rows)
        size = path.stat().st_size
        few = folder / "few.jsonl"
        with path.open("rb") as whole, few.open("wb") as out:
            for _ in range(tenth):
                out.write(whole.readline())
        for count, file in ((tenth, few), (rows, path)):
            for what in options.runs:
                if what == "datasets.map":
                    found = plain_map(folder, file, count, options.workers)
                else:
                    level = "off" if what == "conversion only" else "near"
                    quota = count if what == "all kept" else 1000
                    text = recipe(count, level, quota)
                    found = prepare(folder, what, count, text, options.workers)
                results.append(found)
                print(_line(found), flush=True)
    print()
    growth = {}
    for small in results[: len(results) // 2]:
        large = next(r for r in results if r.what == small.what and r.rows == rows)
        growth[small.what] = (large.peak_mib - small.peak_mib) * 2**20 / (rows - tenth)
        print(f"{small.what}: {growth[small.what]:.0f} bytes more for each further row")
    if options.json:
        figures = {
            "rows": rows,
            "bytes": size,
            "workers": options.workers,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "runs": [asdict(r) for r in results],
            "bytes_per_further_row": growth,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _line(found: Measured) -> str:
    return (
        f"{found.what:16}  {found.rows:>9,} rows  {found.seconds:7.1f} s"
        f"  {found.rows_per_second:8,.0f} rows/s  {found.rows_per_cpu_second:7,.0f} rows/CPU-s"
        f"  {found.peak_mib:7,.0f} MiB"
        f"  {found.prompts:>9,} prompts"
    )


if __name__ == "__main__":
    main()
