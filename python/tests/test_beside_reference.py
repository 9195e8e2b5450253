"""0.1.0 and this package on one queue and one broker at once, and a live backlog of 0.1.0."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded

import reference
from bed import Bed, Worker
from servers import PATIENCE, wait_for

# Importable with either package; `TAGGING` is what only this one takes.
HEADER = """
import json, os, time
import redis
import vtrr_queue
from celery import Celery
from vtrr_queue import VTRRQueue

NAME = {name!r}
OURS = hasattr(vtrr_queue, "__version__")
app = Celery(NAME, broker={broker!r}, backend={backend!r})
app.conf.update({conf!r})
store = redis.Redis.from_url({store!r})
vtrr = VTRRQueue(store, app, name=NAME, celery_queue={celery_queue!r}, **({options!r} if OURS else {{}}))

def note(what, self, **more):
    more.update(what=what, ours=OURS, id=self.request.id, retries=self.request.retries, at=time.time())
    store.rpush("events:" + NAME, json.dumps(more))
"""

TASKS = """
@vtrr.task
def work(self, n, pause=0.02):
    time.sleep(pause)
    note("work", self, n=n)

@vtrr.task(max_retries=3)
def flaky(self, n, times=1):
    note("flaky", self, n=n, times=times)
    if self.request.retries < times:
        raise self.retry(countdown=0.3)
    note("done", self, n=n)

@vtrr.task
def loose(self, **kwargs):
    note("loose", self, **kwargs)
    if self.request.retries < 1:
        raise self.retry(countdown=0.3)

@vtrr.task(soft_time_limit=60, max_retries=1)
def limited(self, n):
    note("limited", self, n=n)
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)

@vtrr.task(time_limit=1)
def slow(self):
    time.sleep(60)
"""

BESIDE = {"tagging": "all", "retry_through": "broker"}


def theirs(bed: Bed, source: str) -> None:
    """Runs a script with 0.1.0 in the bed's folder."""
    subprocess.run(
        [reference.python(), "-c", f"from {bed.name} import *\n{source}"],
        cwd=bed.folder,
        env={"PYTHONPATH": str(bed.folder)},
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )


def their_worker(bed: Bed, concurrency: int = 2) -> Worker:
    return bed.worker("prefork", concurrency, python=reference.python(), env={"PYTHONPATH": str(bed.folder)})


def calls(numbers: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"args": [n], "kwargs": more} for n in numbers]


def wait_for_all(bed: Bed, what: str, numbers: Any) -> list[dict[str, Any]]:
    """Waits until each number was noted, then until nothing is left anywhere; answers all notes, sorted by number."""
    numbers = list(numbers)

    def all_noted() -> bool:
        return {event["n"] for event in bed.events(what)} >= set(numbers)

    try:
        wait_for(all_noted)
    except AssertionError:
        missing = sorted(set(numbers) - {event["n"] for event in bed.events(what)})
        raise AssertionError(f"no {what!r} of {missing}; {bed.state()}; {bed.logs()}") from None
    bed.drained()
    broker = bed.server.client(0)
    wait_for(lambda: not broker.llen(bed.celery_queue) and not unacknowledged(bed))  # all messages are worked off
    events = sorted(bed.events(what), key=lambda event: (event["n"], event["at"]))
    assert [event["n"] for event in events] == numbers
    return events


def wait_for_number(bed: Bed, what: str, number: int) -> None:
    """Waits for so many notes."""
    try:
        wait_for(lambda: len(bed.events(what)) >= number)
    except AssertionError:
        raise AssertionError(f"{attempts(bed, what)}; {bed.state()}; {bed.logs()}") from None


def unacknowledged(bed: Bed) -> list[str]:
    """Messages of the bed's queue in workers' hands, ETA messages among them."""
    held = [json.loads(value) for value in bed.server.client(0).hvals("unacked")]
    return [message for message, _exchange, key in held if key == bed.celery_queue]


def by(events: list[dict[str, Any]]) -> tuple[int, int]:
    """How many this package ran, and how many 0.1.0."""
    ours = sum(event["ours"] for event in events)
    return ours, len(events) - ours


def attempts(bed: Bed, what: str) -> list[tuple[int, int]]:
    """The number and the retries of each run, sorted."""
    return sorted((run.get("n", -1), run["retries"]) for run in bed.events(what))


def each(numbers: Any, retries: int) -> list[tuple[int, int]]:
    return [(n, retry) for n in numbers for retry in range(retries + 1)]


def test_their_producer_and_our_worker(bed: Bed) -> None:
    bed.load(TASKS, header=HEADER, **BESIDE)
    bed.worker()
    theirs(bed, f"work.queue('u', {calls(range(20))!r})\nwork.queue('v', {calls(range(20, 30))!r})")
    theirs(bed, f"flaky.queue('u', {calls(range(5), times=2)!r})")
    assert by(wait_for_all(bed, "work", range(30))) == (30, 0)
    wait_for_all(bed, "done", range(5))
    assert attempts(bed, "flaky") == each(range(5), 2)


def test_messages_of_theirs_are_no_calls_of_a_task_that_takes_any_names(bed: Bed) -> None:
    bed.load(TASKS, header=HEADER, **BESIDE)
    bed.worker()
    theirs(bed, "loose.queue('u', [dict(kwargs=dict(n=n)) for n in range(5)])")
    wait_for_number(bed, "loose", 10)
    bed.drained()
    assert attempts(bed, "loose") == each(range(5), 1)


def test_our_producer_and_their_worker(bed: Bed) -> None:
    app = bed.load(TASKS, header=HEADER, **BESIDE)
    their_worker(bed)
    app.work.queue("u", calls(range(20)))
    app.work.queue("v", calls(range(20, 30)))
    app.flaky.queue("u", calls(range(5), times=2))
    assert by(wait_for_all(bed, "work", range(30))) == (0, 30)
    wait_for_all(bed, "done", range(5))
    assert attempts(bed, "flaky") == each(range(5), 2)


def test_tasks_under_a_limit_run_once_whoever_takes_their_messages(bed: Bed) -> None:
    """0.1.0 takes any message for a ticket, so none is for one task."""
    app = bed.load(TASKS, header=HEADER, lease=30, sweep_interval=1, **BESIDE)
    bed.worker("prefork", 2)
    their_worker(bed)
    for start in range(0, 40, 10):
        app.limited.queue(f"o{start}", calls(range(start, start + 5)))
        theirs(bed, f"limited.queue('t{start}', {calls(range(start + 5, start + 10))!r})")
        app.work.queue("mixed", calls(range(100 + start, 103 + start)))
    wait_for_number(bed, "limited", 80)
    bed.drained()
    assert attempts(bed, "limited") == each(range(40), 1)
    assert min(by(bed.events("limited"))) > 0


def test_a_hard_limit_beside_0_1_0_fails_the_task(bed: Bed) -> None:
    app = bed.load(TASKS, header=HEADER, sweep_interval=1, **BESIDE)
    bed.worker("prefork", 1)
    (slow,) = app.slow.queue("a", [{}])
    with pytest.raises(TimeLimitExceeded):
        slow.get(timeout=120)
    (letter,) = app.vtrr.dead_letters()
    assert letter.id == slow.id
    bed.drained()


def test_both_producers_and_both_workers(bed: Bed) -> None:
    """Each task runs once, each attempt of one that retries once, wherever it comes from and whoever takes it."""
    app = bed.load(TASKS, header=HEADER, **BESIDE)
    bed.worker("prefork", 2)
    their_worker(bed)
    script = """
for start in range(0, 100, 20):
    work.queue(f"t{start}", [dict(args=[n]) for n in range(start, start + 20)])
    flaky.queue("t", [dict(args=[start + n], kwargs=dict(times=2)) for n in range(4)])
"""
    producer = subprocess.Popen(
        [reference.python(), "-c", f"from {bed.name} import *\n{script}"],
        cwd=bed.folder,
        env={"PYTHONPATH": str(bed.folder)},
        stdin=subprocess.DEVNULL,
    )
    flaky = [start + n for start in range(0, 200, 20) for n in range(4)]
    for start in range(100, 200, 20):
        app.work.queue(f"o{start}", calls(range(start, start + 20)))
        app.flaky.queue("o", calls(range(start, start + 4), times=2))
    assert producer.wait(PATIENCE) == 0
    ours, their = by(wait_for_all(bed, "work", range(200)))
    assert ours >= 20 <= their, (ours, their)
    wait_for_all(bed, "done", flaky)
    assert attempts(bed, "flaky") == each(flaky, 2)
    # Both kinds of retries have crossed over.
    assert min(by([run for run in bed.events("flaky") if run["retries"]])) > 0


def test_retries_through_the_queue_end_too_when_0_1_0_may_take_them(bed: Bed) -> None:
    """0.1.0 does not read how often a task was retried: where it takes a retry out of the queue it counts anew."""
    app = bed.load(TASKS, header=HEADER, tagging="all", sweep_interval=1)
    bed.worker("prefork", 2)
    their_worker(bed)
    app.flaky.queue("u", calls(range(10), times=2))
    wait_for_all(bed, "done", range(10))
    for n in range(10):
        runs = [run for run in bed.events("flaky") if run["n"] == n]
        assert 3 <= len(runs) <= 5, runs


def backlog(bed: Bed) -> None:
    theirs(bed, f"work.queue('u', {calls(range(12))!r})\nwork.queue('v', {calls(range(12, 18))!r})")
    theirs(bed, f"flaky.queue('w', {calls([18])!r})")
    assert bed.store.zcard(bed.key("queue")) == 19
    assert bed.server.client(0).llen(bed.celery_queue) == 4


@pytest.mark.parametrize("messages", ["there", "lost"])
def test_a_live_backlog_is_worked_off_in_their_order(bed: Bed, messages: str) -> None:
    """In the default mode, without any call or preparation; also when 0.1.0's messages were lost."""
    app = bed.load(TASKS, header=HEADER, sweep_interval=1)
    backlog(bed)
    order = bed.store.zrange(bed.key("queue"), 0, -1)
    expected = [json.loads(bed.store.hget(bed.key("task"), id))["args"][0] for id in order]
    if messages == "lost":
        bed.server.client(0).delete(bed.celery_queue)
    worker = bed.worker("prefork", 1)
    # Ours queued meanwhile are served beside it.
    app.work.queue("x", calls(range(19, 22)))
    wait_for_all(bed, "work", [n for n in range(22) if n != 18])
    wait_for_all(bed, "done", [18])
    assert [event["n"] for event in bed.events() if event["n"] < 19 and event["retries"] == 0] == expected
    assert sorted(run["retries"] for run in bed.events("flaky")) == [0, 1]
    assert all(event["ours"] for event in bed.events())
    assert "Traceback" not in worker.log().replace("Retry in 0.3s", "")
    assert len({event["id"] for event in bed.events("work")}) == 21


def test_retries_that_0_1_0_has_sent_are_run(bed: Bed) -> None:
    """And a backlog that its worker, killed, had begun with."""
    bed.load(TASKS.replace("countdown=0.3", "countdown=8"), header=HEADER)
    worker = their_worker(bed)
    theirs(bed, f"flaky.queue('u', {calls(range(3))!r})")
    wait_for(lambda: len(bed.events("flaky")) == 3)
    # A warm shutdown puts messages with an ETA back into the broker.
    wait_for(lambda: len(unacknowledged(bed)) == 3)
    worker.stop()
    theirs(bed, f"work.queue('u', {calls(range(3, 9))!r})")
    bed.worker()
    wait_for_all(bed, "work", range(3, 9))
    wait_for_all(bed, "done", range(3))
    assert [event["ours"] for event in bed.events("flaky")] == [False] * 3 + [True] * 3
    assert [event["retries"] for event in bed.events("done")] == [1] * 3
