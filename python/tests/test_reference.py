"""0.1.0's own tests, from its source distribution, on this package: as they are, and with the private names in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reference
from bed import PACKAGE, Bed
from servers import wait_for

pytest.importorskip("fakeredis")

HERE = Path(__file__).parent

# Of 25; and why not.
HELD_OTHERWISE = {
    "test_drain_resets_all_state": "the virtual time's key is deleted, which reads as 0 to 0.1.0 too, and not set to 0",
    "test_get_workers_scheduled_sums_priority_queues": "the broker is asked by kombu; below in our words",
    "test_is_start_retries_once_on_empty_queue": "tasks are stored before messages are sent: no race; below too",
}


def run(path: list[Path], *options: str) -> tuple[set[str], str]:
    """Runs their tests with the packages of this path; answers which passed, and all that pytest said."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "tests",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:logging",
        "--rootdir=.",
        *options,
    ]
    done = subprocess.run(
        [*words, *options],
        cwd=reference.folder(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return set(re.findall(r"^PASSED tests/test_vtrr\.py::\w+::(\w+)$", done.stdout, re.MULTILINE)), done.stdout


def test_their_tests_pass_on_their_package() -> None:
    """Else the others here would say nothing."""
    passed, said = run([reference.folder() / "src"])
    assert len(passed) == 25, said


def test_as_they_are_none_of_them_passes_since_their_module_reads_a_private_name() -> None:
    passed, said = run([PACKAGE])
    assert passed == set()
    assert "module 'vtrr_queue.queue' has no attribute '_SCRIPTS_DIR'" in said


def test_with_their_private_names_all_pass_but_those_that_are_held_otherwise() -> None:
    theirs, _ = run([reference.folder() / "src"])
    passed, said = run([PACKAGE, HERE], "-p", "reference_shim")
    assert theirs - passed == set(HELD_OTHERWISE), said
    assert len(passed) == 22


WORK = """
@vtrr.task
def work(self, n=0):
    note("end", self, n=n)
"""


def test_messages_of_all_priorities_count(bed: Bed) -> None:
    app = bed.load(WORK, max_concurrency=4)
    for priority in (0, 3, 9):
        app.app.send_task("nobody.knows", queue=bed.celery_queue, priority=priority)
    broker = bed.server.client(0)
    app.work.queue("u", [{"args": [n]} for n in range(10)])
    assert sum(broker.llen(key) for key in broker.scan_iter(f"{bed.celery_queue}*")) == 4


@pytest.mark.parametrize("is_start", [True, False])
def test_a_message_of_theirs_that_finds_nothing_is_harmless(bed: Bed, is_start: bool) -> None:
    app = bed.load(WORK)
    app.app.send_task(app.work.name, (), {"is_start": is_start}, queue=bed.celery_queue)
    worker = bed.worker()
    (result,) = app.work.queue("u", [{"args": [1]}])
    assert result.get(timeout=120) is None
    bed.drained()
    assert [event["n"] for event in bed.events()] == [1]
    assert "Traceback" not in worker.log()
    broker = bed.server.client(0)
    # Nor has it left one behind for later.
    assert not broker.llen(bed.celery_queue)
    wait_for(lambda: not bed.unacknowledged())
