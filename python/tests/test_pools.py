"""The same in every pool: tasks run, retries, results and fairness."""

from __future__ import annotations

import pytest
from celery import states

from bed import POOLS, Bed
from servers import wait_for

TASKS = """
@vtrr.task(max_retries=3)
def work(self, user, i):
    note("start", self, user=user)
    if i == 9 and self.request.retries < 2:
        raise self.retry(countdown=0.2 * self.request.retries)
    if i == 8:
        raise ValueError(user)
    return [user, i, self.request.id]

@vtrr.task
def sleeper(self):
    note("start", self)
    time.sleep(1)
    note("end", self)

@vtrr.task
def held(self):
    note("start", self)
    while not store.exists("open:" + NAME):
        time.sleep(0.05)
    note("end", self)

@vtrr.task
def blocked(self):
    note("blocked", self)
    gates.blpop("gate:" + NAME, timeout=600)
    return "through"
"""


@pytest.mark.parametrize("pool", POOLS)
def test_thirty_tasks_of_three_users(bed: Bed, pool: str) -> None:
    app = bed.load(TASKS, sweep_interval=1)
    results = {user: app.work.queue(user, [{"args": [user, i]} for i in range(10)]) for user in "ABC"}
    bed.worker(pool, 1)
    for user, of_user in results.items():
        for i, result in enumerate(of_user):
            if i == 8:
                with pytest.raises(ValueError, match=user):
                    result.get(timeout=120)
                assert result.state == states.FAILURE
            else:
                assert result.get(timeout=120) == [user, i, result.id]
    bed.drained()
    assert app.vtrr.stats().dead == 3
    users = [event["user"] for event in bed.events("start")]
    assert len(users) == 36
    # Only what comes last is retried: until then each user has had as much as any other.
    for length in range(1, 28):
        counts = [users[:length].count(user) for user in "ABC"]
        assert max(counts) - min(counts) <= 2, users


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_side_by_side(bed: Bed, pool: str) -> None:
    """C64: what waits for Redis, or sleeps, stops nobody else; nor does it let leases of 4 s run out."""
    app = bed.load(TASKS, lease=4, sweep_interval=1)
    bed.worker(pool, 4)
    (result,) = app.blocked.queue("u", [{}]) if pool != "solo" else [None]
    others = app.sleeper.queue("v", [{} for _ in range(14)])
    for other in others:
        other.get(timeout=120)
    if result is not None:
        assert len(bed.events("blocked")) == 1
        bed.store.rpush(f"gate:{bed.name}", 1)
        assert result.get(timeout=120) == "through"
    bed.drained()
    assert len(bed.events("start")) == 14


def test_six_that_sleep_in_gevent(bed: Bed) -> None:
    """C64: four at a time."""
    app = bed.load(TASKS)
    bed.worker("gevent", 4)
    results = app.held.queue("u", [{} for _ in range(6)])
    wait_for(lambda: len(bed.events("start")) == 4)
    bed.store.set(f"open:{bed.name}", 1)
    for result in results:
        result.get(timeout=120)
    events = [event["what"] for event in bed.events()]
    at_once = [events[:n].count("start") - events[:n].count("end") for n in range(len(events))]
    assert max(at_once) == 4, bed.events()
