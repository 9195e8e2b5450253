"""RabbitMQ as the broker, with Redis for the queue."""

from __future__ import annotations

import pytest
from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError

from bed import Bed
from proxy import Proxy
from rabbitmq import RabbitMQ
from servers import wait_for
from vtrr_queue.tickets import count

TASKS = """
@vtrr.task(max_retries=2)
def work(self, n):
    if n == 3 and not self.request.retries:
        raise self.retry(countdown=0.2)
    note("end", self)
    return n

@vtrr.task(time_limit=20)
def limited(self, n):
    return n

@vtrr.task
def kills(self):
    os.kill(os.getpid(), 9)
"""


def test_tasks_run_with_retries_and_limits(bed: Bed, rabbitmq: RabbitMQ) -> None:
    bed.broker = rabbitmq.url
    app = bed.load(TASKS)
    bed.worker()
    results = [result for user in "abc" for result in app.work.queue(user, [{"args": [n]} for n in range(10)])]
    assert [result.get(timeout=120) for result in results] == [*range(10)] * 3
    assert [result.get(timeout=120) for result in app.limited.queue("a", [{"args": [n]} for n in range(5)])] == [*range(5)]
    bed.drained()


def test_tickets_are_counted_by_the_broker_and_capped(bed: Bed, rabbitmq: RabbitMQ) -> None:
    bed.broker = rabbitmq.url
    app = bed.load(TASKS, max_concurrency=3)
    assert count(app.app, bed.celery_queue) == 0, "a queue that is not declared yet"
    app.work.queue("a", [{"args": [0]}])
    wait_for(lambda: count(app.app, bed.celery_queue) == 1)
    app.work.queue("a", [{"args": [n]} for n in range(4, 30)])
    wait_for(lambda: count(app.app, bed.celery_queue) == 3)
    bed.worker(concurrency=2)
    bed.drained()
    assert len(bed.events("end")) == 27


def test_results_come_back_by_rpc(bed: Bed, rabbitmq: RabbitMQ) -> None:
    bed.broker, bed.backend = rabbitmq.url, "rpc://"
    app = bed.load(TASKS)
    bed.worker()
    assert [result.get(timeout=120) for result in app.work.queue("a", [{"args": [n]} for n in range(6)])] == [*range(6)]


def test_who_waits_by_rpc_is_told_of_what_is_cancelled_or_lost(bed: Bed, rabbitmq: RabbitMQ) -> None:
    bed.broker, bed.backend = rabbitmq.url, "rpc://"
    app = bed.load(TASKS, max_deliveries=1, sweep_interval=1)
    cancelled, kept = app.work.queue("a", [{"args": [0]}, {"args": [1]}])
    cancelled.revoke()
    with pytest.raises(TaskRevokedError):
        cancelled.get(timeout=120)
    bed.worker("prefork", 1)
    assert kept.get(timeout=120) == 1
    (killed,) = app.kills.queue("a", [{}])
    with pytest.raises(WorkerLostError):
        killed.get(timeout=120)


def test_all_tickets_lost_and_still_everything_runs(bed: Bed, rabbitmq: RabbitMQ) -> None:
    bed.broker = rabbitmq.url
    app = bed.load(TASKS, sweep_interval=1)
    app.work.queue("a", [{"args": [n]} for n in range(4, 20)])
    wait_for(lambda: count(app.app, bed.celery_queue) == 4)
    purged = app.app.control.purge()  # of the default queue, on some versions of this one too
    with app.app.connection_for_write() as connection:
        assert purged + connection.default_channel.queue_purge(bed.celery_queue) == 4
    bed.worker()
    bed.drained()
    assert len(bed.events("end")) == 16


def test_a_broker_that_forgets_a_connection(bed: Bed, rabbitmq: RabbitMQ) -> None:
    """Half open: nothing comes back on it, nobody closes it. Tickets flow again on a new one."""
    with Proxy(rabbitmq.port) as proxy:
        bed.broker = rabbitmq.url.replace(str(rabbitmq.port), str(proxy.port))
        app = bed.load(TASKS, max_concurrency=1000)
        app.work.queue("u", [{"args": [0]}])
        wait_for(lambda: count(app.app, bed.celery_queue) == 1)
        proxy.forget()
        app.work.queue("u", [{"args": [1]}])

        def flow_again() -> bool:
            app.work.queue("u", [{"args": [2]}])
            return count(app.app, bed.celery_queue) > 1

        wait_for(flow_again, every=1.0)
