"""Forks, threads and signals around a call: nobody hangs, replies are not mixed, nothing is half written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from bed import PACKAGE, Bed
from servers import PATIENCE, wait_for

TASKS = """
@vtrr.task
def work(self, *args): ...
"""


def python(bed: Bed, source: str) -> subprocess.Popen[str]:
    """Starts Python with the bed's module imported as `app`."""
    path = os.pathsep.join([str(bed.folder), str(PACKAGE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", f"import {bed.name} as app\n{source}"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def output(process: subprocess.Popen[str], seconds: float = PATIENCE) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


FORK = """
import json, os, signal, sys
from vtrr_queue._core import Queue

def say(*words):
    # Whole lines, though others write at the same time.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def use(who, n=100):
    for i in range(n):
        id = f"{who}{i}"
        (result,) = app.work.queue(who, [{"id": id, "args": [id]}])
        found = app.vtrr.find(id)
        assert result.id == id and found.partition == who, (who, found)
        assert json.loads(found.payload)["args"] == [id], (who, found)
    command = app.vtrr._core.dequeue(3, owner=Queue.fresh(), lease=30.0, max_deliveries=5)
    assert len(app.vtrr._run(command)[0]) == 3
    # Of the connection that it used.
    return app.store.client_id()

use("parent-before")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        try:
            if CLOSE:
                os.closerange(3, 4096)
            say("child", number, use(f"child{number}-"), Queue.fresh())
            os._exit(0)
        except BaseException as error:
            say("error", repr(error))
            os._exit(1)
    children.append(pid)
say("parent", "p", use("parent-during-"), Queue.fresh())
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
say("parent", "q", use("parent-after"), Queue.fresh())
say("codes", codes)
"""


@pytest.mark.parametrize("close", [False, True], ids=["", "all fds closed"])
def test_a_process_that_forks_after_use_goes_on_in_both(bed: Bed, close: bool) -> None:
    app: Any = bed.load(TASKS)
    text = output(python(bed, FORK.replace("CLOSE", str(close))))
    assert "codes [0, 0, 0]" in text, text
    used = [line.split() for line in text.splitlines() if line.startswith(("child", "parent"))]
    assert len(used) == 5, text
    # Random ids are not the same in both.
    assert len({line[3] for line in used}) == 5
    # Each process has a connection of its own, and the parent keeps its one.
    connections = [line[2] for line in used]
    assert len(set(connections)) == 4, text
    assert len({line[2] for line in used if line[0] == "parent"}) == 1, text
    assert app.vtrr.stats().totals["enqueued"] == 600
    assert app.vtrr.stats().leased == 18
    # Nor are those that tasks get.
    lines = output(python(bed, FORK_IDS)).splitlines()
    assert len({id for line in lines for id in json.loads(line)}) == 150


FORK_IDS = """
import json, os
def say_ids():
    os.write(1, (json.dumps([r.id for r in app.work.queue("u", [{}] * 50)]) + "\\n").encode())
say_ids()
pid = os.fork()
say_ids()
if pid:
    os.waitpid(pid, 0)
"""

PAUSED = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts with `&`
signal.alarm(120)  # what hangs ends
def count():
    for _ in range(100):
        time.sleep(0.01)
    print("counted", flush=True)
app.work.queue("warm", [{}])
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=count, daemon=True).start()
try:
    app.work.queue("u", TASKS)
    print("stored", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("count", [1, 10, 2500])
def test_a_server_that_hangs_stops_no_other_thread_and_ctrl_c_works(bed: Bed, count: int) -> None:
    app: Any = bed.load(TASKS)
    tasks = f"[{{'id': str(i)}} for i in range({count})]"
    before = connections(bed)
    process = python(bed, PAUSED.replace("TASKS", tasks))
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    its = connections(bed) - before
    with bed.server.hanging():
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "counted\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(PATIENCE) == 0
    # The server may still run what it was sent: all of a call of up to 1,000 tasks, or nothing.
    wait_for(lambda: not its & connections(bed))
    stored = app.vtrr.stats().totals["enqueued"] - 1
    assert stored in ({0, count} if count <= 1000 else {0, 1000, 2000, count})
    assert bed.store.hlen(bed.key("task")) + bed.store.hlen(bed.key("waiting")) == stored + 1


def connections(bed: Bed) -> set[str]:
    """Connections to the bed's server, by their ids."""
    return {it["id"] for it in bed.store.client_list()}


THREADS = """
import json, threading
errors = []
def use(n):
    try:
        for i in range(50):
            id = f"{n}-{i}"
            (result,) = app.work.queue(str(n % 4), [{"id": id, "args": [id] * 50}])
            assert json.loads(app.vtrr.find(id).payload)["args"] == [id] * 50
            if i % 3 == 0:
                assert app.vtrr.cancel([id]) == {id: "done"}
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=use, args=(n,)) for n in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join(120)
print(errors, sum(thread.is_alive() for thread in threads), len(app.vtrr))
"""


def test_threads_use_one_queue_together(bed: Bed) -> None:
    bed.load(TASKS)
    assert output(python(bed, THREADS)) == f"[] 0 {16 * 50 - 16 * 17}\n"


def test_an_interrupt_while_much_is_encoded_leaves_nothing(bed: Bed) -> None:
    app: Any = bed.load(TASKS)
    source = PAUSED.replace("TASKS", "({'args': [i]} for i in range(10**9))")
    process = python(bed, source)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    # That it would take for ever is seen by what the other thread has done meanwhile.
    assert process.stdout.readline() == "counted\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.wait(PATIENCE)
    assert app.vtrr.stats().totals["enqueued"] == 1
