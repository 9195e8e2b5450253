"""No-op tasks from call to end, with 4 prefork processes: ours, 0.1.0 and plain Celery, in one run, one after the other; then
ours and plain Celery with a time limit of each task.

Usage: python benches/end_to_end.py [--tasks 4000] [--rounds 3] [--reference PYTHON_WITH_0_1_0]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from servers import RedisServer, wait_for  # noqa: E402

APP = """
import os, sys
import redis
from celery import Celery

app = Celery("bench_app", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

limits = {"time_limit": 600} if os.environ["LIMITED"] else {}

if os.environ["KIND"] == "celery":
    @app.task(bind=True, **limits)
    def noop(self, n):
        os.write(done, b".")
else:
    from vtrr_queue import VTRRQueue
    vtrr = VTRRQueue(redis_client=redis.from_url(os.environ["STORE"]), celery_app=app, name="bench", max_concurrency=4)

    task = vtrr.task(**limits) if limits else vtrr.task

    @task
    def noop(self, n):
        os.write(done, b".")

if __name__ == "__main__":
    import time
    n, kind = int(sys.argv[1]), os.environ["KIND"]
    from bench_app import noop
    start = time.perf_counter()
    if kind == "celery":
        for i in range(n):
            noop.apply_async((i,), queue="vtrr_queue")
    else:
        for first in range(0, n, 1000):
            noop.queue("u%d" % (first // 1000 % 4), [{"args": [i]} for i in range(first, min(first + 1000, n))])
    print(time.perf_counter() - start)
"""


class Side:
    """One of them, with a worker of its own."""

    def __init__(self, number: int, kind: str, limited: str, python: str, server: RedisServer, folder: Path) -> None:
        self.python = python
        self.done = folder / f"{number}.done"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "KIND": kind,
            "LIMITED": limited,
            "BROKER": server.url(3 * number),
            "STORE": server.url(3 * number + 1),
            "DONE": str(self.done),
        }
        self.folder = folder
        log = folder / f"{number}.log"
        words = [python, "-m", "celery", "-A", "bench_app", "worker", "-Q", "vtrr_queue", "-c", "4", "-l", "warning"]
        with log.open("wb") as out:
            self.worker = subprocess.Popen(
                [*words, "--without-gossip", "--without-mingle", "--without-heartbeat"],
                cwd=folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def run(self, n: int) -> tuple[float, float]:
        """Seconds for the calls, and until the last task has ended."""
        self.done.write_bytes(b"")
        start = time.perf_counter()
        producer = subprocess.Popen([self.python, "bench_app.py", str(n)], cwd=self.folder, env=self.env, stdout=subprocess.PIPE)
        # From the first task on: starting Python is not measured.
        wait_for(lambda: self.done.stat().st_size > 0, 60, 0.0005)
        start = time.perf_counter()
        wait_for(lambda: self.done.stat().st_size >= n, 600, 0.002)
        took = time.perf_counter() - start
        calls = float(producer.communicate()[0])
        return calls, took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", default=str(HERE.parents[1] / "target/reference/bin/python"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as server:
        folder = Path(name)
        (folder / "bench_app.py").write_text(APP)
        sides = [("ours", ""), ("0.1.0", ""), ("celery", ""), ("ours", "limited"), ("celery", "limited")]
        for number, (kind, limited) in enumerate(sides):
            took = []
            python = options.reference if kind == "0.1.0" else sys.executable
            side = Side(number, kind, limited, python, server, folder)
            try:
                side.run(200)
                for _ in range(options.rounds):
                    took.append(side.run(options.tasks))
            finally:
                side.worker.terminate()
                side.worker.wait()
            calls = statistics.median(it[0] for it in took)
            whole = statistics.median(it[1] for it in took)
            rates = ", ".join(f"{options.tasks / it[1]:,.0f}" for it in took)
            what = f"{kind} {limited}"
            print(
                f"{what:14} calls {options.tasks / calls:10,.0f}/s   tasks {options.tasks / whole:8,.0f}/s   ({rates})",
                flush=True,
            )


if __name__ == "__main__":
    main()
