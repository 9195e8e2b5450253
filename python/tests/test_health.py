"""Whether a worker is live, as a probe sees it: while its Redis answers, hangs, answers again; killed and stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from bed import HEADER, PACKAGE, Bed
from docs import block
from servers import RedisServer, wait_for
from vtrr_queue import InvalidArgument, InvalidArgumentType, VTRRQueue
from vtrr_queue.health import HealthFile, trouble

LEASE = 2
HELD = """
@vtrr.task
def held(self):
    note("start", self)
    while not store.exists("gate:" + NAME):
        time.sleep(0.05)
    note("end", self)
"""


def probe(path: Path, command: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    words = command or [sys.executable, "-m", "vtrr_queue.health", str(path)]
    # Its `python` is the one that has the package.
    path_of_programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path_of_programs, "PYTHONPATH": str(PACKAGE)}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env)


def is_live(path: Path) -> bool:
    return probe(path).returncode == 0


@pytest.fixture
def bed(server: RedisServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[Bed]:
    with Bed(server, tmp_path, "healthy") as bed:
        bed.broker, bed.backend = redis_server.url(10), redis_server.url(11)
        redis_server.client(10).flushdb()
        yield bed


def load(bed: Bed) -> Any:
    """The sweep is rarer than the lease."""
    header = HEADER.replace("from_url({store!r})", "from_url({store!r}, socket_timeout=1)")
    return bed.load(HELD, header=header, lease=LEASE, sweep_interval=60, health_file=str(bed.folder / "run" / "%n"))


def beats(path: Path, n: int) -> None:
    """Waits until the file was written so often; each time after a third of a lease."""
    for _ in range(n):
        last = path.read_text()
        wait_for(lambda last=last: path.read_text() != last)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_is_live_while_its_redis_answers(bed: Bed, server: RedisServer, pool: str) -> None:
    app = load(bed)
    path = bed.folder / "run" / "healthy-1"
    assert "no such file" in probe(path).stderr
    worker = bed.worker(pool, 1)
    assert probe(path).stdout == "ok\n"
    # Idle for more than two leases, and again with a task in hand.
    beats(path, 7)
    app.held.queue("u", [{"id": "t0"}])
    wait_for(lambda: bed.events("start"))
    beats(path, 7)
    assert bed.events("end") == []
    bed.store.set(f"gate:{bed.name}", 1)
    bed.drained()
    wait_for(lambda: is_live(path))
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: not is_live(path))
        told = probe(path)
        assert (told.returncode, told.stdout) == (1, "")
        assert re.fullmatch(rf"{path}: Redis has not answered healthy-1@\S+ for \d+\.\d s; its lease is 2 s\n", told.stderr)
    finally:
        server.process.send_signal(signal.SIGCONT)
    wait_for(lambda: is_live(path))
    server.stop()
    wait_for(lambda: not is_live(path))
    server.start()
    wait_for(lambda: is_live(path))
    assert worker.stop() == 0
    assert "no such file" in probe(path).stderr


def test_a_worker_that_is_paused_or_killed_is_not_live(bed: Bed) -> None:
    load(bed)
    worker, other = bed.worker(concurrency=1), bed.worker("threads", 1)
    path, of_other = (bed.folder / "run" / f"healthy-{n}" for n in (1, 2))
    worker.signal(signal.SIGSTOP)
    wait_for(lambda: not is_live(path))
    worker.signal(signal.SIGCONT)
    wait_for(lambda: is_live(path))
    worker.kill()
    wait_for(lambda: not is_live(path))
    assert path.exists()
    wait_for(lambda: is_live(of_other))
    both = probe(path, [sys.executable, "-m", "vtrr_queue.health", str(of_other), str(path)])
    assert (both.returncode, both.stderr.count("\n")) == (1, 1)
    assert other.process.poll() is None


def test_a_worker_that_stops_is_live_while_it_keeps_leases(bed: Bed) -> None:
    app = load(bed)
    worker = bed.worker(concurrency=1)
    path = bed.folder / "run" / "healthy-1"
    app.held.queue("u", [{"id": "t0"}])
    wait_for(lambda: bed.events("start"))
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in worker.log())
    beats(path, 7)
    assert bed.events("end") == []
    bed.store.set(f"gate:{bed.name}", 1)
    assert worker.ended() == 0
    assert not path.exists()


def test_an_idle_worker_whose_broker_is_gone_is_not_live(bed: Bed, tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    with RedisServer(folder) as broker:
        bed.broker = broker.url(0)
        load(bed)
        bed.worker(concurrency=1)
        path = bed.folder / "run" / "healthy-1"
        broker.stop()
        wait_for(lambda: not is_live(path))
        broker.start()
        wait_for(lambda: is_live(path))


def test_a_worker_of_other_queues_writes_no_file(bed: Bed) -> None:
    load(bed)
    bed.worker("solo", 1, queues="others")
    bed.worker("solo", 1)
    wait_for(lambda: is_live(bed.folder / "run" / "healthy-2"))
    assert os.listdir(bed.folder / "run") == ["healthy-2"]


def test_a_file_that_cannot_be_written_is_told_and_stops_nobody(bed: Bed) -> None:
    app = load(bed)
    (bed.folder / "run").write_text("a file where a folder must be")
    worker = bed.worker("threads", 1)
    wait_for(lambda: worker.log().count("could not be written: ") >= 2)
    bed.store.set(f"gate:{bed.name}", 1)
    app.held.queue("u", [{}])
    bed.drained()
    assert worker.stop() == 0


def test_the_probe_imports_nothing_heavy() -> None:
    source = "import sys, vtrr_queue.health; print({'celery', 'kombu', 'redis', 'vtrr_queue._core'} & set(sys.modules))"
    told = probe(Path(), [sys.executable, "-c", source])
    assert (told.stdout, told.stderr) == ("set()\n", "")


def test_what_is_no_file_of_a_live_worker(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    file = HealthFile(str(path), worker="w@host", queue="q", lease=60)
    file.beat()
    assert trouble(str(path)) is None
    said = json.loads(path.read_text())
    for change, words in [
        ({"at": time.monotonic() - 61}, "Redis has not answered w@host for 61."),
        ({"at": time.monotonic() + 60}, "before this machine was started"),
        ({"at": None}, "is no health file"),
    ]:
        path.write_text(json.dumps({**said, **change}))
        assert words in str(trouble(str(path)))
    for text in ("", "[]", "{}", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert "is no health file" in str(trouble(str(path)))
    assert "is no health file" in str(trouble(str(tmp_path)))
    file.end()
    file.beat()
    assert os.listdir(path.parent) == []
    file.end()
    told = probe(path, [sys.executable, "-m", "vtrr_queue.health"])
    assert (told.returncode, told.stderr[:6]) == (1, "usage:")


def test_a_health_file_that_is_none_is_refused(redis_server: RedisServer) -> None:
    app = Celery("health", broker="memory://", set_as_current=False)

    def queue(health_file: Any, name: str = "q") -> VTRRQueue:
        return VTRRQueue(redis_server.client(3), app, name=name, health_file=health_file)

    with pytest.raises(InvalidArgumentType, match=r"^health_file must be a path, text or Path, or None, not 5 \(int\)$"):
        queue(5)
    with pytest.raises(InvalidArgumentType, match=r"^health_file must be a path"):
        queue(b"/run/x")
    with pytest.raises(InvalidArgument, match=r"^health_file must be text of at least one character"):
        queue("")
    with pytest.raises(InvalidArgument, match=r"^health_file must be a path with no % but Celery's %n, .*, not '/run/%x'$"):
        queue("/run/%x")
    assert queue(Path("/run/%n")).health_file == "/run/%n"
    with pytest.raises(InvalidArgument, match=r"^health_file must be another one than that of <VTRRQueue 'q'>, not '/run/%n'$"):
        queue("/run/%n", "r")


def test_the_probes_of_the_documents(bed: Bed) -> None:
    """Kubernetes' and Docker's, word for word but for the path."""
    kubernetes = re.search(r"command: (\[.*\])", block("docs/production.md", "livenessProbe:"))
    docker = re.search(r" CMD (.*)", block("docs/production.md", "HEALTHCHECK"))
    assert kubernetes is not None
    assert docker is not None
    load(bed)
    bed.worker("solo", 1)
    live = bed.folder / "run" / "healthy-1"
    for command in (json.loads(kubernetes[1]), ["sh", "-c", docker[1]]):
        for path, code in ((live, 0), (bed.folder / "run" / "nobody", 1)):
            words = [word.replace("/tmp/vtrr-celery", str(path)) for word in command]
            assert words != command
            wait_for(lambda words=words, path=path, code=code: probe(path, words).returncode == code)
