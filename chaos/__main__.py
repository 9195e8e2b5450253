"""The command line: runs rows of the table, shows how far it is, prints the table."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import ROOT
from .check import Findings
from .rows import ROWS, Row
from .scene import Scene

FOLDER = ROOT / "target/chaos"


@dataclass
class Result:
    row: Row
    findings: Findings
    recoveries: list[float]
    seconds: float
    drained: float
    stopped: float

    @property
    def worst(self) -> float:
        return max(self.recoveries, default=0)


def run(row: Row, seed: str, folder: Path, progress: Progress | None = None, rounds: int | None = None) -> Result:
    """One row, in a folder of its own, which stays if something was found."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rounds = rounds or row.rounds
    bar = progress.add_task(row.name, total=rounds) if progress else None
    begin = time.monotonic()
    scene = Scene(folder, row.kind, row.store(folder), f"{seed}/{row.name}", row.setting)
    try:
        with scene:
            for _ in range(rounds):
                scene.inject(row.inject)
                if progress and bar is not None:
                    progress.advance(bar)
            findings = scene.finish()
        most = rounds * (row.again or row.in_flight) + findings.stalls * row.in_flight
        if findings.redelivered > most:
            findings.wrong.append(f"{findings.redelivered} were delivered again, more than {most}")
    except Exception:
        findings = Findings(wrong=[traceback.format_exc(), *scene.troubles])
    finally:
        if progress and bar is not None:
            progress.remove_task(bar)
    if findings.good:
        shutil.rmtree(folder)
    return Result(row, findings, scene.recoveries, time.monotonic() - begin, scene.drained, scene.stopped)


COLUMNS = [
    "fault",
    "workers",
    "server",
    "faults",
    "tasks",
    "redelivered",
    "lost",
    "stuck",
    "settled twice",
    "apart",
    "ahead",
    "worst recovery",
    "promised",
]


def cells(result: Result) -> list[str]:
    row, findings = result.row, result.findings
    lost = str(len(findings.lost))
    if row.unless:
        lost += f" (+ {findings.forgotten} {row.unless})"
    return [
        row.fault,
        row.kind,
        row.server,
        str(len(result.recoveries)),
        f"{findings.tasks:,}",
        f"{findings.redelivered:,}",
        lost,
        str(len(findings.stuck)),
        str(len(findings.settled_twice)),
        str(findings.fair.apart) if findings.fair else "",
        str(findings.fair.ahead) if findings.fair else "",
        f"{result.worst:.1f} s",
        f"{row.promised:g} s",
    ]


def markdown(results: list[Result]) -> str:
    lines = [COLUMNS, ["---"] * 3 + ["---:"] * (len(COLUMNS) - 3), *map(cells, results)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", default=os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--only", default=os.environ.get("CHAOS_ONLY", ""), help="rows whose name has these words")
    parser.add_argument("--rounds", type=int, help="faults per row, instead of the table's")
    parser.add_argument("--jobs", type=int, default=3, help="rows at once")
    parser.add_argument("--list", action="store_true", help="list the rows")
    options = parser.parse_args()
    rows = [row for row in ROWS if all(word in row.name for word in options.only.split())]
    console = Console()
    if options.list:
        for row in rows:
            console.print(f"{row.name}: {row.rounds}", highlight=False)
        return 0
    console.print(f"CHAOS_SEED={options.seed}", highlight=False)
    results: dict[str, Result] = {}
    with progress_on(console) as progress, ThreadPoolExecutor(options.jobs) as pool:
        total = progress.add_task("all rows", total=len(rows))
        futures = {}
        for number, row in enumerate(rows):
            if why := row.missing():
                console.print(f"not run: {row.name}: {why}", highlight=False)
                progress.advance(total)
                continue
            futures[pool.submit(run, row, options.seed, FOLDER / str(number), progress, options.rounds)] = row
        for future in as_completed(futures):
            result = results[futures[future].name] = future.result()
            progress.advance(total)
            report(console, result)
    done = [results[row.name] for row in rows if row.name in results]
    console.print(table(done))
    faults, tasks = sum(len(it.recoveries) for it in done), sum(it.findings.tasks for it in done)
    bad = [it for it in done if not it.findings.good]
    slow = [it for it in done if it.worst > it.row.promised]
    console.print(f"{faults} faults over {tasks:,} tasks; CHAOS_SEED={options.seed} repeats it.", highlight=False)
    for result in slow:
        console.print(f"slower than promised: {result.row.name}: {result.worst:.1f} s", highlight=False)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "table.md").write_text(markdown(done))
    (FOLDER / "results.json").write_text(json.dumps([dict(zip(COLUMNS, cells(it), strict=True)) for it in done], indent=1))
    return 1 if bad or slow else 0


def progress_on(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def report(console: Console, result: Result) -> None:
    findings = result.findings
    if findings.good:
        took = f"{result.seconds:.0f} s; drained in {result.drained:.1f} s, stopped in {result.stopped:.1f} s"
        if findings.fair:
            took += f"; {findings.fair}"
        text = f"ok    {result.row.name}: {len(result.recoveries)} faults, {findings.tasks:,} tasks, {took}"
        console.print(text, highlight=False)
        return
    console.print(f"WRONG {result.row.name}", style="red", highlight=False)
    for what in ("lost", "stuck", "settled_twice", "wrong"):
        found = getattr(findings, what)
        for text in found[:5]:
            console.print(f"      {what}: {text}", highlight=False, markup=False)
        if len(found) > 5:
            console.print(f"      {what}: and {len(found) - 5} more", highlight=False)


def table(results: list[Result]) -> Table:
    made = Table(title="Faults and what became of the tasks")
    for number, column in enumerate(COLUMNS):
        made.add_column(column, justify="left" if number < 3 else "right")
    for result in results:
        bad = not result.findings.good or result.worst > result.row.promised
        made.add_row(*cells(result), style="red" if bad else None)
    return made


if __name__ == "__main__":
    sys.exit(main())
