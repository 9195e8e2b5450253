"""What a hostile reader found, each with the value to assert."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bed import GATED, Bed
from servers import RedisServer, wait_for
from vtrr_queue import InvalidArgumentType

TASKS = """
from celery.signals import before_task_publish

@vtrr.task
def work(self, seconds=0):
    note("start", self, tenant=getattr(self.request, "tenant", None))
    time.sleep(seconds)
    note("end", self)

@vtrr.task(time_limit=60)
def limited(self):
    note("start", self)
"""


def test_while_results_cannot_be_stored_nothing_dies(bed: Bed, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    with RedisServer(folder) as results:
        bed.backend = results.url()
        app = bed.load(TASKS, sweep_interval=0.5)
        bed.worker(concurrency=2)
        results.stop()
        app.work.queue("u", [{"id": str(n)} for n in range(3)])
        wait_for(lambda: len({event["id"] for event in bed.events("end")}) == 3)
        wait_for(lambda: bed.state() == {"queued": 0, "leased": 0, "delayed": 3, "dead": 0})
        results.start()
        bed.drained()
        assert app.vtrr.stats().dead == 0


def test_tasks_longer_than_a_lease_run_once_beside_tasks_under_a_limit(bed: Bed) -> None:
    app = bed.load(TASKS, lease=4, sweep_interval=0.5)
    bed.worker(concurrency=2)
    for n in range(4):
        app.limited.queue("a", [{"id": f"limited{n}"}])
        app.work.queue("b", [{"id": f"long{n}", "args": [6]}])
    bed.drained()
    assert set(Counter(event["id"] for event in bed.events("start")).values()) == {1}


def test_a_waiting_task_revoked_by_celery_does_not_run(bed: Bed) -> None:
    app = bed.load(TASKS, sweep_interval=0.5)
    bed.worker(concurrency=1)
    app.work.queue("a", [{"args": [3]}])
    app.work.queue("b", [{"id": "unwanted"}, {"id": "wanted"}])
    wait_for(lambda: bed.events("start"))
    app.app.control.revoke("unwanted")
    bed.drained()
    assert "unwanted" not in {event["id"] for event in bed.events()}
    assert "wanted" in {event["id"] for event in bed.events("end")}


def test_a_task_has_no_headers_of_the_ticket_that_took_it(bed: Bed) -> None:
    hook = """
@before_task_publish.connect
def tenant(headers=None, **_):
    headers["tenant"] = "somebody"
"""
    app = bed.load(TASKS + hook)
    bed.worker(concurrency=1)
    app.work.queue("a", [{} for _ in range(3)])
    bed.drained()
    assert [event["tenant"] for event in bed.events("start")] == [None] * 3


def test_all_free_processes_get_work_soon(bed: Bed) -> None:
    """`max_concurrency` is how many tickets wait, not how many tasks run."""
    app = bed.load(TASKS + GATED, max_concurrency=2, sweep_interval=600)
    bed.worker("threads", 12)
    app.gated.queue("a", [{} for _ in range(12)])
    # Long before the next sweep, and before any of them ends.
    wait_for(lambda: len(bed.events("start")) == 12)
    assert not bed.events("end")


def test_two_queues_that_share_tickets_are_warned_of(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    app = bed.load(TASKS)
    app.VTRRQueue(app.store, app.app, name="other", celery_queue=bed.celery_queue)
    assert "share the celery_queue" in caplog.text


def test_what_is_no_task_function_is_refused_at_once(bed: Bed) -> None:
    app = bed.load(TASKS)
    with pytest.raises(InvalidArgumentType, match="first parameter"):
        app.vtrr.task(lambda: None)
    with pytest.raises(InvalidArgumentType, match="given a function"):
        app.vtrr.task("name")
