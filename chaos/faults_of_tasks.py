"""Faults of tasks, and of where their states are stored. Each is a function of a scene and answers when it was over, in ns of
the monotonic clock. Partitions that had no tasks get some meanwhile: few of others may go before them."""

from __future__ import annotations

import time
from itertools import count

from servers import RedisServer

from .scene import Scene

now = time.monotonic_ns


def meanwhile(scene: Scene, least: float, most: float) -> None:
    """Lets time pass, in which newcomers come."""
    for _ in range(3):
        scene.sleep(least / 3, most / 3)
        scene.enqueue("work", 2, partition=f"ours:newcomer{scene.names}")


def give_back(scene: Scene) -> int:
    """Tasks run and give themselves back, again and again for a while."""
    flag = scene.folder / "restless"
    flag.touch()
    scene.enqueue("restless", 100)
    meanwhile(scene, 1, 2)
    over = now()
    flag.unlink()
    return over


def use_again(scene: Scene) -> int:
    """Ids are queued again while their tasks wait, run, wait for a retry, have ended and are dead letters."""
    fresh = duplicates = 0
    for turn in count():
        for kind, number in (("work", 8), ("flaky", 4), ("bad", 4)):
            ids = [f"again-{kind}.{n}" for n in range(number)]
            known = len(scene.enqueue_as(ids, kind, f"ours:again-{kind}", ms=20))
            duplicates += known
            fresh += number - known if turn else 0
        if turn >= 5 and fresh and duplicates:
            break
        scene.sleep(0, 0.2)
    meanwhile(scene, 0, 0.5)
    return now()


def refuse(scene: Scene) -> int:
    """The result backend answers, and does not take the states of some tasks, in any form: each runs once."""
    if isinstance(scene.results, RedisServer):
        scene.results.client().execute_command("ACL", "SETUSER", "default", "resetkeys", "~celery-task-meta-[^r]*")
    else:
        # A text that the database takes only when it is cleaned.
        once(scene, [f"spoken-{scene.names}.{n}" for n in range(10)], "spoken", "failed: ValueError")
    # No key of them may be written; or they are longer than the database's column.
    once(scene, [f"refused-{scene.names}.{n}{'x' * 150}" for n in range(10)], "work", "backend: ")
    meanwhile(scene, 0.5, 1)
    return now()


def once(scene: Scene, ids: list[str], kind: str, reason: str) -> None:
    """Tasks that may run once, and are dead letters then."""
    scene.promise.doomed |= dict.fromkeys(ids, reason)
    scene.promise.once |= set(ids)
    scene.enqueue_as(ids, kind, f"ours:{kind}-once")


def lose_results(scene: Scene) -> int:
    """The result backend is away: it hangs, or is gone. What ran meanwhile runs again when it is back."""
    assert isinstance(scene.results, RedisServer)
    if scene.random.random() < 0.5:
        with scene.results.hanging():
            meanwhile(scene, 1, 3)
    else:
        scene.results.stop()
        meanwhile(scene, 1, 3)
        scene.results.start()
    return now()


def flood(scene: Scene) -> int:
    """All processes are busy for long, and workers prefetch without a bound: tickets stay few."""
    setting = scene.setting
    processes = setting.workers * setting.concurrency
    scene.enqueue("work", processes, partition=f"ours:long{scene.names}", ms=5000)
    # In a worker's hands for each of its processes, and in the broker.
    bound = 5 * processes + 4
    most, end = 0, time.monotonic() + 5
    while time.monotonic() < end:
        meanwhile(scene, 0, 0.3)
        broker = scene.broker.client(0)
        most = max(most, int(broker.llen("vtrr_queue") + broker.hlen("unacked")))
    if most > bound:
        scene.troubles.append(f"{most} tickets at once, more than {bound}")
    return now()
