"""How a run may end beside returning or raising: each end is stored once, and nothing is done again without a reason."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from celery.exceptions import Reject, TaskRevokedError

from bed import POOLS, WORK, Bed, ends, letter_of, starts
from servers import wait_for
from vtrr_queue import IdConflict, tickets

TASKS = (
    WORK
    + """
import sys
from celery import Task
from celery.exceptions import Ignore, Reject

class Clumsy(Task):
    def on_failure(self, *_):
        raise RuntimeError("the mail server is down")

    def on_success(self, *_):
        raise RuntimeError("the mail server is down")

@vtrr.task(base=Clumsy)
def clumsy(self, fails):
    note("start", self)
    if fails:
        raise ValueError("as told")
    return "fine"

@vtrr.task(base=Clumsy, ignore_result=True)
def silent(self):
    note("start", self)
    raise ValueError("as told")

@vtrr.task
def exits(self):
    note("start", self)
    sys.exit("the command is over")

@vtrr.task
def again(self, how):
    note("start", self)
    if self.request.retries:
        return "again"
    if how == "returns":
        self.retry(countdown=0, throw=False)
    elif how == "swallows":
        try:
            self.retry(countdown=0)
        except Exception:
            return "swallowed"
    elif how == "ignores":
        self.retry(countdown=0, throw=False)
        raise Ignore()
    return "first"

@vtrr.task
def asks(self, how):
    note("start", self)
    if how == "too much":
        raise self.retry(args=["x" * 5_000_000])
    if how == "no JSON":
        raise self.retry(args=[{1, 2}])
    raise self.retry(countdown=float("inf"))

@vtrr.task
def rejects(self):
    note("start", self)
    raise Reject("not mine", requeue=False)

@vtrr.task
def waits(self):
    note("start", self)
    gates.blpop("gate:" + NAME, timeout=600)
    if self.request.retries < 3:
        raise self.retry(countdown=1)

@vtrr.task(soft_time_limit=60, max_retries=5)
def limited(self):
    note("start", self)
    if self.request.retries < 4:
        raise self.retry(countdown=0)
    note("end", self)
"""
)

# The message of the fifth run of `limited` does not come through.
FIFTH = """
from vtrr_queue import dispatch

made = dispatch.message_of

def message_of(*args):
    if store.incr("bound:" + NAME) == 5:
        raise OSError("no message")
    return made(*args)

dispatch.message_of = message_of
"""


def letter(app: Any, id: str) -> Any:
    return wait_for(lambda: letter_of(app, id))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_hook_that_fails_does_not_run_its_task_again(bed: Bed, pool: str) -> None:
    app = bed.load(TASKS)
    bed.worker(pool, 2)
    (failed,) = app.clumsy.queue("a", [{"args": [True]}])
    (fine,) = app.clumsy.queue("a", [{"args": [False]}])
    (silent,) = app.silent.queue("a", [{}])
    bed.drained()
    assert len(bed.events("start")) == 3
    assert failed.state == "FAILURE"
    assert fine.state in ("SUCCESS", "FAILURE"), "Celery's versions differ"
    assert {letter(app, it.id).deliveries for it in (failed, silent)} == {1}


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_ends_whatever_runs_it_is_given_up_in_the_end(bed: Bed, pool: str) -> None:
    app = bed.load(TASKS, max_deliveries=2, sweep_interval=1)
    bed.worker(pool, 1 if pool == "solo" else 2)
    (exits,) = app.exits.queue("a", [{}])
    (other,) = app.work.queue("b", [{}])
    bed.drained()
    assert len(starts(bed, exits.id)) == 2
    assert letter(app, exits.id).error.startswith("poison")
    wait_for(lambda: exits.state == "FAILURE")
    assert ends(bed) == [other.id]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_an_end_whose_words_cannot_be_stored(bed: Bed, pool: str) -> None:
    app = bed.load(
        TASKS
        + """
@vtrr.task
def unreadable(self):
    note("start", self)
    sys.exit("no file \\udce9")
""",
        max_deliveries=2,
        sweep_interval=1,
    )
    bed.worker(pool, 1)
    (result,) = app.unreadable.queue("a", [{}])
    (other,) = app.work.queue("b", [{}])
    bed.drained()
    assert len(starts(bed, result.id)) == 2
    assert ends(bed) == [other.id]


@pytest.mark.parametrize(("pool", "conf"), [("gevent", {"task_soft_time_limit": 60}), ("eventlet", {"task_time_limit": 60})])
def test_a_timeout_of_the_tasks_own_is_no_limit_of_the_pools(bed: Bed, pool: str, conf: dict[str, int]) -> None:
    app = bed.load(
        TASKS
        + f"""
@vtrr.task
def slow(self):
    import {pool}
    note("start", self)
    with {pool}.Timeout(0.2):
        {pool}.sleep(5)
""",
        conf=conf,
        max_deliveries=2,
        sweep_interval=1,
    )
    bed.worker(pool, 2)
    (result,) = app.slow.queue("a", [{}])
    bed.drained()
    assert len(starts(bed, result.id)) == 2
    assert letter(app, result.id).error.startswith("poison")


def test_all_of_many_dead_are_told_of(bed: Bed) -> None:
    app = bed.load(
        TASKS
        + """
from vtrr_queue import teller
teller.MOST_LETTERS = 100
""",
        sweep_interval=0.5,
    )
    ids = [f"odd{i}" for i in range(350)]
    bed.store.hset(bed.key("task"), mapping=dict.fromkeys(ids, json.dumps({"task_name": app.work.name, "args": 5})))
    bed.store.zadd(bed.key("queue"), {id: i for i, id in enumerate(ids)})
    bed.worker("prefork", 1)
    bed.drained()
    assert app.vtrr.stats().dead == 350
    wait_for(lambda: all(app.work.AsyncResult(id).state == "FAILURE" for id in ids))


def test_one_whose_state_is_refused_keeps_no_other_from_being_told_of(bed: Bed) -> None:
    app = bed.load(
        TASKS
        + """
from vtrr_queue import backend
stored = backend.store_failure

def store_failure(where, id, error, payload):
    if id in ("odd0", "odd1") or (id == "odd3" and store.set("odd3:" + NAME, 1, nx=True)):
        raise ValueError("not this one")
    stored(where, id, error, payload)

backend.store_failure = store_failure
""",
        sweep_interval=0.5,
    )
    # Undecodable by Celery's JSON, and not even an object.
    bad = [b"7", b'{"__type__":"decimal","__value__":"abc"}', b"[" * 100_000]
    ids = [f"odd{i}" for i in range(6)]
    bed.store.hset(bed.key("task"), mapping={id: bad[i % 3] for i, id in enumerate(ids)})
    bed.store.zadd(bed.key("queue"), {id: i for i, id in enumerate(ids)})
    (other,) = app.work.queue("a", [{}])
    bed.worker("prefork", 1)
    assert other.get(timeout=120) is None
    wait_for(lambda: app.vtrr.stats().dead == 6)
    wait_for(lambda: all(app.work.AsyncResult(id).state == "FAILURE" for id in ids[2:]))
    assert app.vtrr.cancel(["odd2"]) == {"odd2": "dead"}


@pytest.mark.parametrize("how", ["meddles", "meddles_silently", "late"])
def test_a_backends_error_is_not_always_that_no_state_was_stored(bed: Bed, how: str) -> None:
    app = bed.load(
        TASKS
        + """
class Meddling(Task):
    def on_failure(self, *_):
        self.update_state(meta={"who": object()})

@vtrr.task(base=Meddling)
def meddles(self):
    raise ValueError("as told")

@vtrr.task(base=Meddling, ignore_result=True)
def meddles_silently(self):
    raise ValueError("as told")

class Late(type(app.backend)):
    def mark_as_failure(self, *args, **kwargs):
        super().mark_as_failure(*args, **kwargs)
        raise OSError("too late")

@vtrr.task
def late(self):
    self.backend.__class__ = Late
    raise ValueError("as told")
"""
    )
    bed.worker("prefork", 1)
    (result,) = getattr(app, how).queue("a", [{}])
    assert letter(app, result.id).deliveries == 1
    assert result.state == ("PENDING" if how == "meddles_silently" else "FAILURE")


def test_a_call_that_has_stored_does_not_raise_for_want_of_a_thread(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    app = bed.load(TASKS)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        (result,) = app.work.queue("a", [{}])
    bed.worker("prefork", 1)
    assert result.get(timeout=120) is None


@pytest.mark.parametrize("how", ["returns", "swallows", "ignores"])
def test_a_retry_counts_whatever_the_task_does_then(bed: Bed, how: str) -> None:
    app = bed.load(TASKS)
    bed.worker("threads", 1)
    (result,) = app.again.queue("a", [{"args": [how]}])
    bed.drained()
    assert len(starts(bed, result.id)) == 2


@pytest.mark.parametrize("how", ["too much", "no JSON", "never"])
def test_a_retry_that_cannot_be_stored_is_a_failure(bed: Bed, how: str) -> None:
    app = bed.load(TASKS)
    # Short ones before and after it, which are taken together with it.
    before = app.work.queue("a", [{} for _ in range(20)])
    (asks,) = app.asks.queue("a", [{"args": [how]}])
    after = app.work.queue("a", [{} for _ in range(20)])
    bed.worker("prefork", 1)
    bed.drained()
    assert len(starts(bed, asks.id)) == 1
    assert sorted(ends(bed)) == sorted(it.id for it in [*before, *after])
    assert letter(app, asks.id).deliveries == 1
    with pytest.raises(Reject):
        asks.get(timeout=120)


def test_a_rejected_task_is_a_failure_for_who_waits(bed: Bed) -> None:
    app = bed.load(TASKS)
    bed.worker("prefork", 1)
    (result,) = app.rejects.queue("a", [{}])
    with pytest.raises(Reject, match="not mine"):
        result.get(timeout=120)
    assert letter(app, result.id).deliveries == 1


@pytest.mark.parametrize("field", [{"args": 5}, {"kwargs": [1]}, {"retries": "x"}, {"task_name": 7}])
def test_what_others_store_wrongly_harms_nobody_else(bed: Bed, field: dict[str, Any]) -> None:
    app = bed.load(TASKS)
    before = app.work.queue("a", [{} for _ in range(20)])
    # As 0.1.0 stores it, or anybody.
    payload = {"task_name": app.work.name, "args": [], "kwargs": {}, **field}
    bed.store.hset(bed.key("task"), "odd", json.dumps(payload))
    bed.store.zadd(bed.key("queue"), {"odd": 1.5})
    bed.worker("prefork", 1)
    bed.drained()
    assert sorted(ends(bed)) == sorted(it.id for it in before)
    assert letter(app, "odd").error.startswith(f"unreadable payload: {next(iter(field))} must be")


def test_one_delivery_only_is_of_tasks_that_have_begun(bed: Bed) -> None:
    app = bed.load(
        TASKS
        + """
@vtrr.task
def kills(self):
    os.kill(os.getpid(), 9)
""",
        max_deliveries=1,
    )
    before = app.work.queue("a", [{} for _ in range(50)])
    (kills,) = app.kills.queue("a", [{}])
    after = app.work.queue("a", [{} for _ in range(50)])
    bed.worker("prefork", 1)
    bed.drained()
    assert [it.id for it in app.vtrr.dead_letters()] == [kills.id]
    assert ends(bed) == [it.id for it in [*before, *after]]


def test_the_retries_of_a_revoked_task_do_not_run(bed: Bed) -> None:
    app = bed.load(TASKS, sweep_interval=0.2)
    worker = bed.worker("prefork", 2)
    (result,) = app.waits.queue("a", [{}])
    wait_for(lambda: starts(bed, result.id))
    # Nor do ids that no task can have keep others from being revoked.
    app.app.control.revoke(["", "x" * 600, "with\0nul"])
    result.revoke()
    wait_for(lambda: f"{result.id} is revoked, but runs" in worker.log())
    bed.store.rpush("gate:" + bed.name, 1)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=120)
    bed.drained()
    assert len(starts(bed, result.id)) == 1


def test_a_task_under_a_limit_is_back_soon_when_no_message_could_be_made_for_it(bed: Bed) -> None:
    app = bed.load(TASKS + FIFTH, sweep_interval=1, lease=300)
    bed.worker("prefork", 1)
    (result,) = app.limited.queue("a", [{}])
    bed.drained()
    assert ends(bed) == [result.id]
    assert int(bed.store.get("bound:" + bed.name) or 0) == 6


def test_a_long_call_that_meets_a_conflict_says_how_far_it_got(bed: Bed) -> None:
    app = bed.load(TASKS)
    app.work.queue("b", [{"id": "taken"}])
    tasks: list[dict[str, Any]] = [{} for _ in range(1500)]
    tasks[1200] = {"id": "taken"}
    with pytest.raises(IdConflict, match="taken") as raised:
        app.work.queue("a", tasks)
    unfinished = raised.value.unfinished  # type: ignore[attr-defined]
    assert (unfinished.stored, len(unfinished.ids)) == (1000, 1500)
    assert app.vtrr.stats().queued == 1001
    assert tickets.count(app.app, bed.celery_queue) == 4
    # Mended, it stores the rest and nothing twice.
    ids = [*unfinished.ids[:1200], "free", *unfinished.ids[1201:]]
    results = app.work.queue("a", [{"id": id} for id in ids], request=unfinished.request)
    assert [it.id for it in results] == ids
    assert app.vtrr.stats().totals == {"enqueued": 1501}


def test_without_a_backend_the_dead_are_not_told_of(bed: Bed) -> None:
    bed.backend = "disabled://"
    app = bed.load(TASKS, max_deliveries=1, sweep_interval=0.3)
    worker = bed.worker("prefork", 1)
    (exits,) = app.exits.queue("a", [{}])
    letter(app, exits.id)
    app.work.queue("a", [{}])
    bed.drained()
    wait_for(lambda: int(bed.store.pttl(bed.key("sweeper"))) > 0)
    (again,) = app.work.queue("a", [{"kwargs": {"seconds": 1}}])
    wait_for(lambda: again.id in ends(bed))
    assert "could not be stored" not in worker.log()
    assert "no state could" not in worker.log()
    worker.kill()
    app.work.queue("a", [{"id": "late"}])
    assert app.vtrr.cancel(["late"]) == {"late": "done"}
