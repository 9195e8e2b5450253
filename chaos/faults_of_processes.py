"""Faults of workers and producers: killed, stopped, paused, out of memory, their clocks wrong. Each is a function of a
scene and answers when it was over, in ns of the monotonic clock."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from .processes import Process
from .scene import LEASE, Scene

now = time.monotonic_ns
# What orchestrators give a worker to stop, before SIGKILL.
GRACE = 30.0


def kill_child(scene: Scene) -> int:
    """SIGKILL of a process of a pool, one that runs a task if there is one."""
    worker = scene.any_worker()
    children = worker.children()
    scene.watch.look()
    at_work = [pid for pid, _ in scene.watch.running.values() if pid in children]
    pid = scene.random.choice(at_work or children)
    over = now()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return over


def kill_worker(scene: Scene) -> int:
    worker = scene.any_worker()
    over = now()
    worker.kill()
    replace(scene, worker)
    return over


def replace(scene: Scene, worker: Process) -> None:
    scene.remove(worker)
    scene.add_worker().ready()


def stop_worker(scene: Scene) -> int:
    """SIGTERM: it ends what it has in hand."""
    return ended_by(scene, signal.SIGTERM)


def quit_worker(scene: Scene) -> int:
    """SIGQUIT: it gives back what it has in hand."""
    return ended_by(scene, signal.SIGQUIT)


def ended_by(scene: Scene, number: int) -> int:
    worker = scene.any_worker()
    over = now()
    if worker.stop(number, GRACE) is None:
        # Celery's signal handlers use connections that may be in use, and hang now and then: then it is killed, as by
        # whoever runs it.
        over = now()
        if not scene.has_celery:
            scene.troubles.append(f"{worker.name} did not stop: {worker.tail()[-500:]}")
    replace(scene, worker)
    return over


def kill_producer(scene: Scene) -> int:
    """SIGKILL in the middle of a call, and another one takes its place."""
    (producer,) = scene.producers
    over = now()
    producer.kill()
    scene.remove(producer)
    scene.add_producer()
    return over


def pause_worker(scene: Scene) -> int:
    """SIGSTOP for longer than the lease, then SIGCONT: what it settles then is refused."""
    worker = scene.any_worker()
    scene.hit = {worker.pid, *worker.children()}
    over = now()
    worker.group(signal.SIGSTOP)
    scene.sleep(LEASE + 1, LEASE + 2)
    worker.group(signal.SIGCONT)
    return over


def lose_everything(scene: Scene) -> int:
    """All workers and all tickets are gone, and nobody queues any more: what waits runs all the same."""
    (producer,) = scene.producers
    producer.group(signal.SIGSTOP)
    for worker in list(scene.workers):
        worker.kill()
        scene.remove(worker)
    scene.broker.client(0).flushdb()
    for worker in [scene.add_worker() for _ in range(scene.setting.workers)]:
        worker.ready()
    over = now()
    scene.busy()
    producer.group(signal.SIGCONT)
    return over


def soft_limit(scene: Scene) -> int:
    """What Celery does to a process when a soft time limit has passed, at any moment of it."""
    worker = scene.any_worker()
    scene.promise.reasons = ("planned", "SoftTimeLimitExceeded")
    for pid in worker.children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    return now()


def spoil_settle(scene: Scene) -> int:
    """The client raises after a settle was done."""
    spoil = scene.folder / "spoil"
    spoil.touch()
    end = time.monotonic() + 20
    while spoil.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return now()


def poison(scene: Scene) -> int:
    """A task that kills its process each time."""
    ids = scene.enqueue("poison")
    scene.promise.doomed |= dict.fromkeys(ids, "poison")
    over = now()
    if scene.has_celery:
        return over
    # A Rust worker is one process: somebody starts it again.
    end = time.monotonic() + 30
    deaths = 0
    while deaths < scene.setting.max_deliveries and time.monotonic() < end:
        for worker in [worker for worker in scene.workers if not worker.is_alive]:
            deaths += 1
            scene.remove(worker)
            scene.add_worker()
        time.sleep(0.02)
    return now()


def unknown_name(scene: Scene) -> int:
    """A rolling deploy: new tasks are queued while the workers that know them come one by one. Each round starts with
    old ones."""
    for worker in list(scene.workers):
        worker.stop()
        scene.remove(worker)
        scene.add_worker(CHAOS_OLD="1").ready()
    scene.enqueue("fresh", 5)
    scene.sleep(0.2, 1)
    for worker in list(scene.workers):
        worker.stop()
        replace(scene, worker)
    return now()


def frozen(scene: Scene) -> int:
    """A hard time limit that passes inside of C code."""
    ids = scene.enqueue("frozen")
    scene.promise.doomed |= dict.fromkeys(ids, "TimeLimitExceeded")
    return now()


MEMORY = Path("/sys/fs/cgroup/memory")


def has_cgroups() -> bool:
    """Whether we may limit the memory of processes as containers do: version 1, as root."""
    return os.access(MEMORY / "cgroup.procs", os.W_OK)


def out_of_memory(scene: Scene) -> int:
    """The kernel kills who takes more memory than its container has."""
    for worker in scene.workers:
        confine(scene, worker)
    scene.enqueue("hungry")
    over = now()
    end = time.monotonic() + 20
    while not scene.has_celery and time.monotonic() < end:
        if dead := [worker for worker in scene.workers if not worker.is_alive]:
            over = now()
            replace(scene, dead[0])
            break
        time.sleep(0.02)
    return over


def confine(scene: Scene, worker: Process) -> None:
    """Its processes, and those that it starts, get 700 MB together."""
    group = MEMORY / f"vtrr-chaos-{worker.pid}"
    if group.exists():
        return
    group.mkdir()
    scene.stack.callback(dissolve, group)
    (group / "memory.limit_in_bytes").write_text("700000000")
    for pid in [worker.pid, *worker.children()]:
        (group / "cgroup.procs").write_text(str(pid))


def dissolve(group: Path) -> None:
    """Its processes have ended: the stack closes after they were killed."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def jump(scene: Scene) -> int:
    """The clock of a worker or producer jumps, to within ten minutes of the right one."""
    process = scene.random.choice([*scene.workers, *scene.producers])
    (scene.folder / f"{process.name}.clock").write_text(f"{scene.random.choice([-600, -300, 300, 600]):+}\n")
    return now()
