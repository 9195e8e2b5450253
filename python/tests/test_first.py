"""The whole way, once: queue, run, result."""

from __future__ import annotations

from bed import Bed

TASKS = """
@vtrr.task
def add(self, a, b=0):
    note("end", self)
    return a + b

@vtrr.task(max_retries=3)
def flaky(self, n):
    if self.request.retries < n:
        raise self.retry(countdown=0.3)
    return self.request.retries
"""


def test_tasks_run_and_their_results_come_back(bed: Bed) -> None:
    app = bed.load(TASKS)
    bed.worker()
    results = app.add.queue("u", [{"args": [i], "kwargs": {"b": 1}} for i in range(10)])
    assert [result.get(timeout=120) for result in results] == [i + 1 for i in range(10)]
    (flaky,) = app.flaky.queue("u", [{"args": [2]}])
    assert flaky.get(timeout=120) == 2
    bed.drained()
