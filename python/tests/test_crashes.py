"""Workers that die, stop or hang: nothing is lost, nothing is stuck, nothing runs twice while its worker lives."""

from __future__ import annotations

import os
import signal
from typing import Any

from bed import Bed, ends, letter_of, starts
from servers import wait_for

TASKS = '''
@vtrr.task
def work(self, seconds=0):
    note("start", self, deliveries=vtrr.find(self.request.id).deliveries, parent=os.getppid())
    time.sleep(seconds)
    note("end", self)

@vtrr.task
def first_time_long(self, seconds=60):
    """Long, until it is given to a second worker."""
    redelivered = self.request.delivery_info["redelivered"]
    note("start", self, deliveries=vtrr.find(self.request.id).deliveries, parent=os.getppid())
    time.sleep(0 if redelivered else seconds)
    note("end", self)

@vtrr.task
def gated(self):
    note("start", self, parent=os.getppid())
    gates.blpop("gate:" + self.request.id, timeout=600)
    note("end", self)
    return "through"

@vtrr.task
def hogging(self):
    """C code that holds the GIL: no other thread of this process runs."""
    note("start", self)
    begin = time.monotonic()
    sum(range(100_000_000))
    while time.monotonic() - begin < 8:
        sum(range(100_000_000))
    note("end", self)

@vtrr.task(max_retries=0)
def poison(self):
    note("start", self)
    os.kill(os.getpid(), 9)
'''

SHORT_LEASE = """
brief = VTRRQueue(
    redis_client=store, celery_app=app, name=NAME + "brief", celery_queue=vtrr.celery_queue, lease=4, sweep_interval=0.5
)

@brief.task
def briefly(self):
    note("start", self)
    time.sleep(8)
    note("end", self)
"""

# What may be there when nothing is queued, leased, delayed or dead.
LASTING = {"meta", "current_virtual_time", "request", "sweeper"}


def test_a_killed_worker_loses_nothing(bed: Bed) -> None:
    """C01."""
    app = bed.load(TASKS, lease=3, sweep_interval=1)
    app.work.queue("A", [{"id": "t0"}])
    app.first_time_long.queue("A", [{"id": "t1"}])
    app.work.queue("A", [{"id": "t2"}, {"id": "t3"}])
    worker = bed.worker(concurrency=1)
    wait_for(lambda: starts(bed, "t1"))
    worker.kill()
    assert app.vtrr.find("t1").state == "leased"
    bed.worker(concurrency=1)
    bed.drained()
    assert sorted(ends(bed)) == ["t0", "t1", "t2", "t3"]
    assert [event["deliveries"] for event in starts(bed, "t1")] == [1, 2]


def test_a_lost_child_is_seen_at_once(bed: Bed) -> None:
    """Long before its lease has run out; whatever Celery is told about late acknowledgement, its ticket does not come again."""
    app = bed.load(TASKS, conf={"task_acks_late": True, "task_reject_on_worker_lost": True}, lease=600, sweep_interval=1)
    bed.worker(concurrency=1)
    app.first_time_long.queue("u", [{"id": "long"}])
    (start,) = wait_for(lambda: starts(bed, "long"))
    # The ticket that runs it is acknowledged.
    (ticket,) = [
        request["id"] for active in app.app.control.inspect(timeout=120, limit=1).active().values() for request in active
    ]
    wait_for(lambda: not any(ticket in message for message in bed.unacknowledged()))
    os.kill(start["pid"], signal.SIGKILL)
    wait_for(lambda: len(starts(bed, "long")) == 2)
    bed.drained()
    assert sorted(ends(bed)) == ["long"]


def test_a_task_that_kills_its_worker_each_time(bed: Bed) -> None:
    """C17."""
    app = bed.load(TASKS, lease=600, max_deliveries=3, sweep_interval=1)
    (poison,) = app.poison.queue("A", [{}])
    good = app.work.queue("B", [{"id": f"b{i}"} for i in range(5)])
    bed.worker(concurrency=1)
    bed.drained()
    # max_retries=0 is about errors, not about workers.
    assert len(starts(bed, poison.id)) == 3
    letter = letter_of(app, poison.id)
    assert "worker lost" in letter.error
    assert letter.deliveries == 3
    assert sorted(ends(bed)) == [result.id for result in good]


def test_a_task_longer_than_its_lease_runs_once(bed: Bed) -> None:
    """C10: although its process cannot do anything else meanwhile, and another worker is idle."""
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    for _ in range(2):
        bed.worker(concurrency=1)
    (result,) = app.hogging.queue("u", [{}])
    wait_for(lambda: ends(bed))
    bed.drained()
    assert len(starts(bed, result.id)) == 1


def test_a_short_lease_beside_a_long_one(bed: Bed) -> None:
    """C10: leases of two queues in one worker; the shorter one is extended as often as it needs."""
    app = bed.load(TASKS + SHORT_LEASE, lease=60, sweep_interval=1)
    bed.worker(concurrency=2)
    app.gated.queue("u", [{"id": "long"}])
    wait_for(lambda: starts(bed, "long"))
    (result,) = app.briefly.queue("u", [{"id": "short"}])
    wait_for(lambda: "short" in ends(bed))
    bed.store.rpush("gate:long", 1)
    bed.drained()
    assert len(starts(bed, result.id)) == 1


def test_a_worker_that_was_paused_is_told(bed: Bed) -> None:
    """C10: what it settles too late is refused, and the new owner's run goes on."""
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    first = bed.worker(concurrency=1)
    (result,) = app.gated.queue("u", [{"id": "task"}])
    wait_for(bed.waits_at_gate)
    os.killpg(first.pid, signal.SIGSTOP)
    bed.worker(concurrency=1)
    wait_for(lambda: len(starts(bed, "task")) == 2)
    holder = app.vtrr.find("task").owner
    # The first run waits for longer: it gets the first push.
    bed.store.rpush("gate:task", 1)
    os.killpg(first.pid, signal.SIGCONT)
    wait_for(lambda: "the lease of task was lost" in first.log())
    found = app.vtrr.find("task")
    assert (found.state, found.owner) == ("leased", holder)
    bed.store.rpush("gate:task", 1)
    bed.drained()
    assert sorted(ends(bed)) == ["task", "task"]
    assert result.get(timeout=120) == "through"


def test_two_workers_of_one_name(bed: Bed) -> None:
    """C19: one is killed in the middle of a task and holds the sweeper's lock; the other one lives on."""
    app = bed.load(TASKS, lease=3, sweep_interval=1)
    names = ["-n", f"{bed.name}@same"]
    first = bed.worker("prefork", 1, *names)
    lock = app.vtrr._core.sweeper_key
    holder = wait_for(lambda: bed.store.get(lock))
    bed.worker("prefork", 1, *names)
    app.gated.queue("u", [{"id": "x"}])
    app.gated.queue("v", [{"id": "y"}])
    wait_for(lambda: len(bed.events("start")) == 2)
    lost = next(event["id"] for event in bed.events("start") if event["parent"] == first.pid)
    first.kill()
    bed.store.rpush("gate:x", 1, 1)
    bed.store.rpush("gate:y", 1, 1)
    bed.drained()
    assert sorted(ends(bed)) == ["x", "y"]
    assert len(starts(bed, lost)) == 2
    wait_for(lambda: bed.store.get(lock) not in (None, holder))


def test_nothing_is_left_behind(bed: Bed) -> None:
    """C20: after each round of crash and recovery the books are balanced."""
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    worker = bed.worker(concurrency=4)
    for turn in range(3):
        app.first_time_long.queue("A", [{"id": f"{turn}-{i}"} for i in range(4)])
        wait_for(lambda turn=turn: len(starts_of(bed, turn)) == 4)
        assert bed.store.hget(bed.key("running"), "A") == b"4"
        worker.kill()
        worker = bed.worker(concurrency=4)
        bed.drained()
        assert sorted(ends(bed))[-4:] == [f"{turn}-{i}" for i in range(4)]
        wait_for(lambda: left_behind(bed) == set())


def starts_of(bed: Bed, turn: int) -> list[dict[str, Any]]:
    return [event for event in bed.events("start") if event["id"].startswith(f"{turn}-")]


def left_behind(bed: Bed) -> set[str]:
    keys = {key.decode() for key in bed.store.keys(bed.key("*"))}
    return {key.removeprefix(bed.key("")) for key in keys} - LASTING
