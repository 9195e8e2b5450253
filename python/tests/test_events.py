"""What Flower and `celery events` see of tasks that run inside tickets."""

from __future__ import annotations

import threading
from typing import Any

from bed import Bed
from servers import wait_for

TASKS = """
@vtrr.task
def fine(self, n):
    return n

@vtrr.task
def wrong(self):
    raise ValueError("as told")

@vtrr.task(max_retries=1)
def again(self):
    if not self.request.retries:
        raise self.retry(exc=KeyError("again"), countdown=0)
    return "in the end"

@vtrr.task(soft_time_limit=30)
def limited(self, n):
    return "limited"
"""


class Camera:
    """Collects the events of an app, as Flower does."""

    def __init__(self, app: Any) -> None:
        self.state = app.events.State()
        self.seen: list[tuple[str, str]] = []
        self.connection = app.connection_for_read()
        self.receiver = app.events.Receiver(self.connection, handlers={"*": self.note})
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        self.receiver.capture(limit=None, timeout=None, wakeup=False)

    def note(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        if event["type"].startswith("task-"):
            self.seen.append((event["uuid"], event["type"]))

    def of(self, id: str) -> list[str]:
        return [what for uuid, what in self.seen if uuid == id]

    def close(self) -> None:
        self.receiver.should_stop = True
        self.thread.join(10)
        self.connection.release()


def test_flower_sees_each_task_if_asked_to(bed: Bed) -> None:
    app = bed.load(TASKS, task_events=True)
    camera = Camera(app.app)
    bed.worker("prefork", 2, "-E")
    fine = app.fine.queue("a", [{"args": [n]} for n in range(20)])
    (wrong,) = app.wrong.queue("b", [{}])
    (again,) = app.again.queue("c", [{}])
    (limited,) = app.limited.queue("d", [{"args": [5]}])
    bed.drained()
    once = ["task-received", "task-started"]
    wait_for(lambda: all(camera.of(it.id) == [*once, "task-succeeded"] for it in fine))
    wait_for(lambda: camera.of(wrong.id) == [*once, "task-failed"])
    wait_for(lambda: camera.of(again.id) == [*once, "task-retried", *once, "task-succeeded"])
    # That of a message comes from Celery, and not twice.
    wait_for(lambda: camera.of(limited.id) == [*once, "task-succeeded"])
    camera.close()
    task = camera.state.tasks[fine[7].id]
    assert (task.name, task.args, task.result, task.state) == (app.fine.name, "[7]", "7", "SUCCESS")
    assert task.runtime is not None
    assert camera.state.tasks[limited.id].args == "[5]"
    assert task.worker.hostname.startswith(f"{bed.name}-1@")
    assert "as told" in camera.state.tasks[wrong.id].exception
    assert "raise ValueError" in camera.state.tasks[wrong.id].traceback


def test_without_being_asked_only_messages_are_seen(bed: Bed) -> None:
    app = bed.load(TASKS)
    camera = Camera(app.app)
    bed.worker("prefork", 1, "-E")
    results = app.fine.queue("a", [{"args": [n]} for n in range(5)])
    bed.drained()
    wait_for(lambda: any(what == "task-started" for _, what in camera.seen))
    camera.close()
    assert not [it.id for it in results if camera.of(it.id)]


def test_tasks_run_while_events_cannot_be_sent(bed: Bed) -> None:
    app = bed.load(
        TASKS
        + """
from celery.events.dispatcher import EventDispatcher

original, main = EventDispatcher.send, os.getpid()

def send(self, type, *args, **kwargs):
    if type.startswith("task-") and os.getpid() != main:
        raise OSError("no broker")
    return original(self, type, *args, **kwargs)

EventDispatcher.send = send
""",
        task_events=True,
    )
    bed.worker("prefork", 1)
    results = app.fine.queue("a", [{"args": [n]} for n in range(5)])
    assert [it.get(timeout=120) for it in results] == list(range(5))
