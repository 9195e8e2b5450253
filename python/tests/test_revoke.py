"""Celery's revoke: what it does to tasks that wait and to tasks that run, beside plain ones; and that it outlives none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from bed import HEADER, Bed, Worker, starts
from proxy import Proxy
from servers import wait_for

TASKS = """
from celery import signals

@signals.task_revoked.connect
def revoked(sender=None, request=None, terminated=None, signum=None, expired=None, **_):
    said = [sender.name, request.id, terminated, signum, expired]
    store.rpush("events:" + NAME, json.dumps({"what": "revoked", "said": said}))

def wait_at_gate(self):
    while not store.lpop("gate:" + self.request.id):
        time.sleep(0.05)

def gated(self):
    note("start", self)
    wait_at_gate(self)
    note("end", self)
    return "through"

free = vtrr.task(name=NAME + ".free")(gated)
limited = vtrr.task(name=NAME + ".limited", time_limit=300)(gated)
plain = app.task(name=NAME + ".plain", bind=True)(gated)

def gated_retry(self):
    note("start", self)
    if not self.request.retries:
        wait_at_gate(self)
        raise self.retry(countdown=1)
    note("end", self)

retried = vtrr.task(name=NAME + ".retried")(gated_retry)
retried_limited = vtrr.task(name=NAME + ".retried_limited", time_limit=300)(gated_retry)
plain_retried = app.task(name=NAME + ".plain_retried", bind=True)(gated_retry)
"""


@pytest.fixture(autouse=True)
def nothing_of_other_tests(bed: Bed) -> None:
    """Ids are the same in all of them."""
    bed.store.flushall()


def begin(app: ModuleType, bed: Bed, task: str, id: str, times: int = 1) -> Any:
    """Queues a task and waits until it runs."""
    result = queue(app, task, id)
    wait_for(lambda: len(starts(bed, id)) == times)
    return result


def queue(app: ModuleType, task: str, id: str) -> Any:
    called = getattr(app, task)
    if task.startswith("plain"):
        return called.apply_async(task_id=id, queue=app.vtrr.celery_queue)
    return called.queue("u", [{"id": id}])[0]


def go_on(bed: Bed, id: str) -> None:
    bed.store.rpush(f"gate:{id}", 1)


def heard(app: ModuleType, id: str, workers: int = 1, **options: Any) -> None:
    """Revokes by Celery's remote control, and waits until all workers have heard it."""
    assert len(app.app.control.revoke(id, reply=True, timeout=10, limit=workers, **options)) == workers


def applied(worker: Worker, id: str, times: int = 1) -> None:
    """Waits until a worker has found that a revoked task runs."""
    wait_for(lambda: worker.log().count(f"{id} is revoked, but runs") >= times)


@pytest.mark.parametrize("terminate", [False, True], ids=["", "terminate"])
@pytest.mark.parametrize("how", ["result", "control"])
def test_a_running_task_that_is_revoked_ends_as_a_plain_one_does(bed: Bed, how: str, terminate: bool) -> None:
    """It goes on; ``terminate`` ends what has a message of its own: a plain one, and one under a limit."""
    app = bed.load(TASKS, sweep_interval=0.5)
    worker = bed.worker()
    ended = {}
    for task in ("plain", "free", "limited"):
        result = begin(app, bed, task, task)
        if how == "result":
            result.revoke(terminate=terminate)
        else:
            heard(app, task, terminate=terminate)
        if not terminate:
            wait_for(lambda task=task: f"Tasks flagged as revoked: {task}" in worker.log())
        if task != "plain" and not (task == "limited" and terminate):
            applied(worker, task)
        if terminate and task != "free":
            with pytest.raises(TaskRevokedError):
                result.get(timeout=20)
        else:
            assert result.state == states.PENDING
            go_on(bed, task)
            assert result.get(timeout=20) == "through"
        ended[task] = result.state
    terminated = states.REVOKED if terminate else states.SUCCESS
    assert ended == {"plain": terminated, "free": states.SUCCESS, "limited": terminated}
    bed.drained()


def test_a_task_that_runs_is_not_marked_by_other_workers(bed: Bed) -> None:
    """These hear of the revoke too, and know nothing of the task."""
    app = bed.load(TASKS, sweep_interval=0.5)
    workers = [bed.worker(concurrency=1), bed.worker(concurrency=1), bed.worker("threads", 1)]
    result = begin(app, bed, "free", "runs")
    heard(app, "runs", 3)
    for worker in workers:
        applied(worker, "runs")
    assert result.state == states.PENDING
    go_on(bed, "runs")
    assert result.get(timeout=20) == "through"


@pytest.mark.parametrize("by", ["mingle", "statedb"])
@pytest.mark.parametrize("task", ["free", "limited"])
def test_an_id_that_was_revoked_while_its_task_ran_can_be_used_again(bed: Bed, task: str, by: str, tmp_path: Path) -> None:
    """At once, while it waits beside workers that look at what they have heard, and where a worker joins that was told."""
    app = bed.load(TASKS, sweep_interval=0.3)
    options = ["--statedb", str(tmp_path / "revoked")] if by == "statedb" else []
    first = bed.worker("prefork", 1, *options)
    result = begin(app, bed, task, "again")
    heard(app, "again")
    applied(first, "again")
    go_on(bed, "again")
    assert result.get(timeout=20) == "through"
    bed.drained()
    # It waits behind another one.
    begin(app, bed, "free", "blocker")
    result.forget()
    result = queue(app, task, "again")
    two_turns(bed)
    assert app.vtrr.find("again").state in ("tagged", "delayed")
    go_on(bed, "blocker")
    wait_for(lambda: len(starts(bed, "again")) == 2)
    go_on(bed, "again")
    assert result.get(timeout=20) == "through"
    bed.drained()
    # A worker that joins was told by the others, or by a file.
    if by == "mingle":
        bed.worker("prefork", 1)
    first.stop()
    result.forget()
    result = queue(app, task, "again")
    if by == "statedb":
        bed.worker("prefork", 1, *options)
    wait_for(lambda: len(starts(bed, "again")) == 3)
    assert "again" in [id for ids in app.app.control.inspect().revoked().values() for id in ids]
    two_turns(bed)
    assert result.state == states.PENDING
    go_on(bed, "again")
    assert result.get(timeout=20) == "through"
    bed.drained()
    assert bed.events("revoked") == []


def two_turns(bed: Bed) -> None:
    """Waits until some worker has swept twice from now on: each time it says anew that it is the one that does."""
    left = [bed.store.pttl(bed.key("sweeper"))]

    def turned() -> bool:
        """Swept twice."""
        left.append(bed.store.pttl(bed.key("sweeper")))
        return sum(after > before for before, after in pairwise(left)) >= 2

    wait_for(turned)


@pytest.mark.parametrize("task", ["free", "limited", "plain"])
def test_a_revoke_takes_out_what_waits(bed: Bed, task: str) -> None:
    """Long before the next sweep; with the signal that a plain one's gets, once, though several workers hear it."""
    app = bed.load(TASKS, sweep_interval=600)
    for n in range(2):
        bed.worker(concurrency=1)
        begin(app, bed, "free", f"blocker{n}")
    result = queue(app, task, "waits")
    heard(app, "waits", 2)
    if task != "plain":
        wait_for(lambda: app.vtrr.find("waits") is None)
    go_on(bed, "blocker0")
    go_on(bed, "blocker1")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    bed.drained()
    (event,) = wait_for(lambda: bed.events("revoked"))
    assert event["said"] == [f"{bed.name}.{task}", "waits", False, None, False]
    assert starts(bed, "waits") == []


@pytest.mark.parametrize("task", ["retried", "retried_limited", "plain_retried"])
def test_the_retry_of_a_task_that_was_revoked_while_it_ran_does_not_run(bed: Bed, task: str) -> None:
    app = bed.load(TASKS, sweep_interval=0.2)
    worker = bed.worker(concurrency=2)
    result = begin(app, bed, task, "retried")
    heard(app, "retried")
    if task != "plain_retried":
        applied(worker, "retried")
    go_on(bed, "retried")
    wait_for(lambda: bed.events("revoked"))
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    bed.drained()
    assert len(starts(bed, "retried")) == 1
    assert len(bed.events("revoked")) == 1


def test_an_id_that_no_queue_has_is_marked_as_plain_celery_does(bed: Bed) -> None:
    """From 5.6 on at once; older ones mark a message when they receive it."""
    app = bed.load(TASKS)
    bed.worker("threads", 1)
    heard(app, "unknown")
    result = app.plain.AsyncResult("unknown")
    if marks_at_once():
        wait_for(lambda: result.state == states.REVOKED)
    queue(app, "plain", "unknown")
    wait_for(lambda: result.state == states.REVOKED)
    assert starts(bed, "unknown") == []


def marks_at_once() -> bool:
    import celery

    return celery.VERSION[:2] >= (5, 6)


def test_a_revoke_that_is_heard_while_redis_is_away_is_applied_later(bed: Bed) -> None:
    with Proxy(bed.server.port) as proxy:
        client = f"redis_client=redis.Redis.from_url('redis://127.0.0.1:{proxy.port}/3')"
        app = bed.load(TASKS, header=HEADER.replace("redis_client=store", client), sweep_interval=600)
        worker = bed.worker("prefork", 1)
        begin(app, bed, "free", "blocker")
        result = queue(app, "free", "waits")
        proxy.dead = True
        proxy.break_all()
        heard(app, "waits")
        wait_for(lambda: "a revoke could not be applied" in worker.log())
        assert result.state == states.PENDING
        proxy.dead = False
        with pytest.raises(TaskRevokedError):
            result.get(timeout=20)
    assert starts(bed, "waits") == []
