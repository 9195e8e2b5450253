"""Tasks that end outside a run of their own: by the loss of their workers, a hard limit, a payload or a name that nobody
can read. That is logged with what they are, and signalled as plain Celery does, once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from celery.exceptions import NotRegistered

from bed import Bed, letter_of
from servers import wait_for
from vtrr_queue._core import Queue

TASKS = """
import signal
from celery import Task, signals

@signals.task_failure.connect
def failed(sender=None, task_id=None, exception=None, args=None, kwargs=None, einfo=None, traceback=None, **_):
    said = {
        "task": sender.name.split(".")[-1],
        "error": type(exception).__name__,
        "args": [list(args), dict(kwargs)],
        "einfo": [type(einfo).__name__, "Error" in str(einfo.traceback), "Error" in str(traceback)],
        "killed": "SIGKILL" in str(exception),
    }
    store.rpush("events:" + NAME, json.dumps({"what": "failure", "id": task_id, "said": said, "pid": os.getpid()}))

@signals.task_unknown.connect
def unknown(name=None, id=None, exc=None, **_):
    store.rpush("events:" + NAME, json.dumps({"what": "unknown", "id": id, "name": name, "error": type(exc).__name__}))

class Hooked(Task):
    abstract = True

    def on_failure(self, error, id, args, kwargs, einfo):
        store.rpush("events:" + NAME, json.dumps({"what": "hook", "id": id, "error": type(error).__name__}))

def dies(self, *args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

free = vtrr.task(name=NAME + ".free", base=Hooked)(dies)
limited = vtrr.task(name=NAME + ".limited", base=Hooked, time_limit=300)(dies)
plain = app.task(name=NAME + ".plain", base=Hooked, bind=True)(dies)

@vtrr.task(time_limit=1)
def hangs(self):
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def nothing_of_other_tests(bed: Bed) -> None:
    """Ids are the same in all of them."""
    bed.store.flushall()


def errors(bed: Bed, id: str) -> list[str]:
    """What workers say of a task at the level ERROR."""
    lines = [line for worker in bed.workers for line in worker.log().splitlines()]
    return [line for line in lines if "ERROR/" in line and f"[{id}]" in line]


def failures(bed: Bed, id: str) -> list[dict[str, Any]]:
    return [event for event in bed.events("failure") if event["id"] == id]


def test_a_poisonous_task_is_told_of_as_a_plain_one_that_kills_its_process(bed: Bed) -> None:
    app = bed.load(TASKS, max_deliveries=2, sweep_interval=0.5)
    worker = bed.worker(concurrency=1)
    app.plain.apply_async(args=[1], kwargs={"a": 2}, task_id="plain", queue=app.vtrr.celery_queue)
    wait_for(lambda: failures(bed, "plain"))
    for task in ("free", "limited"):
        getattr(app, task).queue("anna", [{"id": task, "args": [1], "kwargs": {"a": 2}}])
        wait_for(lambda task=task: failures(bed, task), 60)
    said = {id: failures(bed, id)[0] for id in ("plain", "free", "limited")}
    assert said["plain"]["said"] == {
        "task": "plain",
        "error": "WorkerLostError",
        "args": [[1], {"a": 2}],
        "einfo": ["ExceptionInfo", True, True],
        "killed": True,
    }
    for task in ("free", "limited"):
        assert said[task]["said"] == {**said["plain"]["said"], "task": task}
        assert said[task]["pid"] == said["plain"]["pid"] == worker.pid
        # Each delivery that was lost, and the dead letter.
        name = re.escape(f"{bed.name}.{task}[{task}]")
        lines = errors(bed, task)
        assert [bool(re.search(rf"{name} of partition 'anna' .*deliver(y|ies)", line)) for line in lines] == [True] * 3, lines
        assert ["delivery 1" in lines[0], "delivery 2" in lines[1], "dead letter (deliveries: 2)" in lines[2]] == [True] * 3
    # The hook runs in no process that is gone.
    assert bed.events("hook") == []


def test_a_dead_letter_is_told_of_once_whichever_worker_sweeps(bed: Bed) -> None:
    app = bed.load(TASKS, conf={"result_backend": "disabled"}, max_deliveries=1, sweep_interval=0.5)
    sweeper = bed.key("sweeper")
    for turn in range(3):
        worker = bed.worker(concurrency=1)
        leader = wait_for(lambda: bed.store.get(sweeper))
        app.free.queue("anna", [{"id": f"task{turn}"}])
        wait_for(lambda turn=turn: failures(bed, f"task{turn}"))
        worker.stop()
        # Those that a crash leaves are told of by the next worker, too.
        wait_for(lambda leader=leader: bed.store.get(sweeper) != leader)
    wait_for(lambda: len(app.vtrr.dead_letters()) == 3)
    assert [event["id"] for event in bed.events("failure")] == ["task0", "task1", "task2"]
    assert [len([line for line in errors(bed, f"task{turn}") if "dead letter" in line]) for turn in range(3)] == [1, 1, 1]


def store_payload(bed: Bed, id: str, **fields: Any) -> None:
    """Queues what our producers would not."""
    payload = {"args": [], "kwargs": {}, **fields}
    bed.store.hset(bed.key("task"), id, json.dumps(payload))
    bed.store.zadd(bed.key("queue"), {id: 1.5})


def test_a_name_that_no_worker_knows_is_told_of_as_plain_celery_does(bed: Bed) -> None:
    app = bed.load(TASKS, max_deliveries=1, sweep_interval=0.5)
    bed.worker("threads", 1)
    app.app.send_task("nobody", task_id="plain", queue=app.vtrr.celery_queue)
    prepared = Queue.prepare("anna", [{"id": "ours"}], task_name="nobody", dumps=json.dumps)
    app.vtrr._run(app.vtrr._core.enqueue(prepared))
    for id in ("plain", "ours"):
        with pytest.raises(NotRegistered, match="nobody"):
            app.free.AsyncResult(id).get(timeout=20)
    told = {event["id"]: event for event in wait_for(lambda: len(bed.events("unknown")) == 2 and bed.events("unknown"))}
    assert told["plain"]["name"] == told["ours"]["name"] == "nobody"
    (line,) = wait_for(lambda: errors(bed, "ours"))
    assert "nobody[ours] of partition 'anna' is a dead letter (deliveries: 1)" in line
    assert bed.events("failure") == []


def test_a_payload_that_is_lost_or_cannot_be_read_is_logged_with_its_id(bed: Bed) -> None:
    app = bed.load(TASKS, sweep_interval=0.5)
    for id in ("lost", "odd"):
        store_payload(bed, id, task_name=app.free.name, args=5)
    assert bed.store.hdel(bed.key("task"), "lost") == 1
    bed.worker("threads", 1)
    for id in ("lost", "odd"):
        wait_for(lambda id=id: letter_of(app, id))
        (line,) = wait_for(lambda id=id: errors(bed, id))
        assert "is a dead letter" in line
    assert bed.events("failure") == []


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_a_hard_limit_is_logged_and_signalled(bed: Bed, tagging: str) -> None:
    """In mode `all` too, where a task under a limit runs inside a ticket, of which Celery tells nobody."""
    app = bed.load(TASKS, tagging=tagging, sweep_interval=0.5)
    worker = bed.worker(concurrency=1)
    app.hangs.queue("anna", [{"id": "hangs"}])
    (event, *_) = wait_for(lambda: failures(bed, "hangs"), 60)
    assert (event["said"]["error"], event["pid"]) == ("TimeLimitExceeded", worker.pid)
    wait_for(lambda: any("is a dead letter" in line for line in errors(bed, "hangs")))


def test_a_task_whose_leases_run_out_is_told_of(bed: Bed) -> None:
    """Its worker is gone without a word, as with its host; another one sweeps."""
    app = bed.load(TASKS, max_deliveries=1, lease=1, sweep_interval=0.5)
    app.free.queue("anna", [{"id": "lost"}])
    options = {"lease": 1.0, "max_deliveries": 1, "settle": []}
    assert app.vtrr._run(app.vtrr._core.dequeue(1, owner="gone", **options))[0]
    bed.worker("threads", 1)
    (event,) = wait_for(lambda: failures(bed, "lost"))
    assert event["said"]["error"] == "WorkerLostError"
    assert any("is a dead letter" in line for line in errors(bed, "lost"))
