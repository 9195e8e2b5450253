"""The ACL users of docs/production.md, as they stand there, under Celery: what each role does works on every server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from bed import HEADER, Bed, ends
from servers import ROOT, RedisServer, programs, wait_for
from vtrr_queue import VTRRQueue, tickets

NAME = "files"
LINES = re.findall(r"^ACL SETUSER .*$", (ROOT / "docs/production.md").read_text(), re.MULTILINE)

TASKS = """
@vtrr.task
def work(self):
    note("end", self)

@vtrr.task
def more(self):
    work.queue("v", [{"id": "nested"}])
    note("end", self)

@vtrr.task(autoretry_for=(KeyError,), default_retry_delay=1, retry_jitter=False)
def again(self):
    if not self.request.retries:
        raise KeyError
    note("end", self)

@vtrr.task
def fails(self):
    raise ValueError("no")

@vtrr.task(time_limit=30)
def limited(self):
    note("end", self)
"""


@pytest.fixture(params=programs())
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "own"
    folder.mkdir()
    with RedisServer(folder, program=programs()[request.param]) as server:
        for line in LINES:
            assert server.client().execute_command(*line.split(" "))
        yield server


def refused(server: RedisServer) -> list[tuple[str, str]]:
    """What the server has refused, but for the name of the client library, which redis-py does without."""
    found = []
    for entry in server.client().execute_command("ACL", "LOG"):
        entry = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
        entry = {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
        what, who = (entry[it].decode() if isinstance(entry[it], bytes) else entry[it] for it in ("object", "username"))
        if not what.startswith("client"):
            found.append((what, who))
    return found


def url(server: RedisServer, role: str) -> str:
    return server.url(3).replace("//", f"//{NAME}-{role}:PASSWORD@")


def queue_of(server: RedisServer, role: str, name: str = NAME) -> Any:
    app = Celery("other", broker="memory://", backend="cache+memory://", set_as_current=False)
    return VTRRQueue(redis.Redis.from_url(url(server, role)), app, name=name)


def test_each_role_does_its_work(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "UNTAKEN_SECONDS", 0.0)  # a producer looks at once whether a worker consumes
    with Bed(server, tmp_path, NAME) as bed:
        bed.broker, bed.backend = (server.url(db).replace("//", "//celery:PASSWORD@") for db in (0, 1))
        bed.celery_queue = "vtrr_queue"
        client = f"redis.Redis.from_url(os.environ.get('STORE', {url(server, 'producer')!r}))"
        app = bed.load(TASKS, header=HEADER.replace("redis_client=store", f"redis_client={client}"), sweep_interval=1)
        names = ["work", "more", "again", "fails", "limited"]
        for name in names:
            for _ in range(2):
                results = getattr(app, name).queue("u", [{"id": name}])
            assert results.duplicates == [name]
        for priority in (0, 9):
            app.work.apply_async(queue="vtrr_queue", priority=priority, task_id=f"call{priority}")
        app.work.queue("u", [{"id": "last"}])
        worker = bed.worker(concurrency=2, env={"STORE": url(server, "worker")})
        assert results[0].get(timeout=120) is None
        assert len(app.app.control.ping(timeout=120, limit=1)) == 1
        bed.drained()
        wait_for(lambda: len(ends(bed)) == 8)
        assert {*ends(bed)} == {"work", "more", "nested", "again", "limited", "last", "call0", "call9"}, worker.log()
        wait_for(lambda: bed.store.exists(app.vtrr._core.sweeper_key))
        # It is told of tasks by the channel.
        (channel,) = [app.vtrr._core.wake_channel.encode()]
        wait_for(lambda: bed.store.pubsub_numsub(channel)[0][1] == 1)
        assert "not listening" not in worker.log()
        assert worker.stop() == 0

        operator = queue_of(server, "operator")
        assert [letter.id for letter in operator.dead_letters()] == ["fails"]
        assert operator.redrive(["fails"]) == [True]
        operator.set_share("u", 2)
        assert (operator.stats().queued, operator.find("fails").state) == (1, "tagged")
        app.work.queue("u", [{"id": f"t{i}"} for i in range(5)])

        viewer = queue_of(server, "viewer")
        assert (len(viewer), viewer.find("t4").state, viewer.dead_letters()) == (6, "waiting", [])
        assert [it[0] for it in viewer._run(viewer._core.peek(1))] == ["fails"]
        assert [it["queued"] for it in viewer._run(viewer._core.partitions())] == [6]
        assert refused(server) == []
        for change in (lambda: viewer.cancel(["t4"]), viewer.purge, lambda: viewer.set_share("u", 3), viewer.flatten):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)noperm|permission|can't run"):
                change()
        server.client().execute_command("ACL", "LOG", "RESET")

        assert operator.cancel(["t4", "none"]) == {"t4": "done", "none": "gone"}
        assert operator.flatten() == {"in_lanes": 0, "leased": 0}
        operator.unflatten()
        assert operator.purge("u").purged == 5
        assert operator.purge().purged == 0
        assert operator.discard(["none"]) == [False]
        assert refused(server) == []


def test_the_user_of_the_broker_reaches_no_queue(server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url(3).replace("//", "//celery:PASSWORD@"))
    script = "return redis.call('DEL', 'vtrr:files:queue')"
    calls: list[tuple[object, ...]] = [("GET", "vtrr:files:queue"), ("EVAL", script, 0), ("KEYS", "*"), ("FLUSHALL",)]
    for words in calls:
        with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)noperm|permission|can't"):
            client.execute_command(*words)


def test_no_role_reaches_another_queue(server: RedisServer) -> None:
    others = queue_of(server, "worker", "filesystem")
    mine = redis.Redis.from_url(server.url(3))
    others.redis_client = mine

    @others.task
    def work(self: Any) -> None: ...

    work.queue("u", [{"id": "t0"}])
    before = {key: mine.dump(key) for key in mine.keys("*")}
    for role in ("producer", "worker", "operator", "viewer"):
        others.redis_client = redis.Redis.from_url(url(server, role))
        for call in (others.stats, others.purge, lambda: work.queue("u", [{}]), lambda: others.find("t0")):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)noperm|permission|can't"):
                call()
    assert {key: mine.dump(key) for key in mine.keys("*")} == before
