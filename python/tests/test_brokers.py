"""Brokers in all forms of URL, and brokers that do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bed import Bed, waiting_tickets
from clients import Servers
from proxy import Proxy
from servers import RedisServer, free_port, wait_for
from vtrr_queue import tickets

TASKS = """
@vtrr.task
def work(self):
    note("end", self)
    return self.request.id
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("s")).running() as servers:
        servers.plain.client().execute_command("ACL", "SETUSER", "queues", "on", ">p@ss#w", "~*", "&*", "+@all")
        yield servers


# What the app gets as its broker, the options of the transport, and the db where the messages then are.
FORMS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "a database": ("redis://127.0.0.1:{port}/4", {}, 4),
    "a password with escapes": ("redis://queues:p%40ss%23w@127.0.0.1:{port}/5", {}, 5),
    "a unix socket": ("redis+socket://{socket}?virtual_host=2", {}, 2),
    "TLS": ("rediss://127.0.0.1:{tls}/3?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={ca}", {}, 3),
    "TLS, in words of redis-py": ("rediss://127.0.0.1:{tls}/3?ssl_cert_reqs=required&ssl_ca_certs={ca}", {}, 3),
    "Sentinel": ("sentinel://127.0.0.1:{sentinel}/6;sentinel://127.0.0.1:1/6", {"master_name": "themaster"}, 6),
    "two servers in one text": ("redis://127.0.0.1:{port}/7;redis://127.0.0.1:1/7", {}, 7),
    "a list": (["redis://127.0.0.1:{port}/8", "redis://127.0.0.1:1/8"], {}, 8),
}


def filled_in(url: Any, servers: Servers) -> Any:
    if isinstance(url, list):
        return [filled_in(one, servers) for one in url]
    return url.format(
        port=servers.plain.port,
        socket=servers.socket,
        tls=servers.tls_port,
        ca=servers.folder / "ca.pem",
        sentinel=servers.sentinel_port,
    )


@pytest.mark.parametrize("form", FORMS)
def test_tickets_go_where_celery_sends_its_messages(servers: Servers, bed: Bed, form: str) -> None:
    """C27: same server, same db, and the limit of waiting tickets holds."""
    url, options, db = FORMS[form]
    bed.broker = filled_in(url, servers)
    app = bed.load(TASKS, conf={"broker_transport_options": options}, max_concurrency=2, sweep_interval=1)
    app.work.queue("u", [{} for _ in range(5)])
    app.work.queue("v", [{} for _ in range(5)])
    assert servers.plain.client(db).llen(bed.celery_queue) == tickets.count(app.app, bed.celery_queue) == 2


@pytest.mark.parametrize("form", ["a password with escapes", "Sentinel", "TLS", "a list"])
def test_workers_of_such_brokers(servers: Servers, bed: Bed, form: str) -> None:
    url, options, _ = FORMS[form]
    bed.broker = filled_in(url, servers)
    app = bed.load(TASKS, conf={"broker_transport_options": options}, max_concurrency=2, sweep_interval=1)
    app.work.queue("u", [{} for _ in range(5)])
    bed.worker(concurrency=1)
    bed.drained()
    assert len(bed.events("end")) == 5


def test_a_broker_that_is_configured_late(bed: Bed, redis_server: RedisServer) -> None:
    """C27: after VTRRQueue was made."""
    bed.broker = "redis://127.0.0.1:1/0"
    app = bed.load(TASKS, max_concurrency=2)
    app.app.conf.broker_url = redis_server.url(9)
    app.work.queue("u", [{} for _ in range(5)])
    assert redis_server.client(9).llen(bed.celery_queue) == 2


def test_a_broker_in_memory(bed: Bed) -> None:
    """C27: of this process only, but counted all the same."""
    bed.broker = "memory://"
    app = bed.load(TASKS, max_concurrency=2)
    for _ in range(3):
        app.work.queue("u", [{}])
    assert tickets.count(app.app, bed.celery_queue) == 2


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_closed_port(bed: Bed, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """C28: `queue()` does not wait for a broker to come; what it has stored runs once there is one."""
    bed.broker = f"{kind}://127.0.0.1:{free_port()}//"
    app = bed.load(TASKS)
    (result,) = app.work.queue("u", [{"id": "t0"}])
    assert caplog.text.count("tickets could not be sent") == 1
    assert (result.id, len(app.vtrr)) == ("t0", 1)


def test_a_broker_that_does_not_answer(bed: Bed, server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """C28: as above, and the next calls do not wait again."""
    bed.broker = server.url(0)
    app = bed.load(TASKS, sweep_interval=1)
    with server.hanging():
        for id in ("t0", "t1", "t2"):
            app.work.queue("u", [{"id": id}])
        assert caplog.text.count("the broker does not answer within 5 s") == 1
        assert caplog.text.count("the broker still does not answer") == 2
        assert len(app.vtrr) == 3
        bed.worker(concurrency=1, wait=False)
    wait_for(lambda: len(bed.events("end")) == 3)
    assert [event["id"] for event in bed.events("end")] == ["t0", "t1", "t2"]


def test_a_broker_that_forgets_a_connection(bed: Bed) -> None:
    """Half open: nothing comes back on it, nobody closes it. The next call that may wait for a new one sends tickets."""
    with Proxy(bed.server.port) as proxy:
        bed.broker = f"redis://127.0.0.1:{proxy.port}/0"
        app = bed.load(TASKS, max_concurrency=1000)
        app.work.queue("u", [{}])
        assert waiting_tickets(bed) == 1
        proxy.forget()

        def flow_again() -> bool:
            before = waiting_tickets(bed)
            app.work.queue("u", [{}])
            return waiting_tickets(bed) > before

        wait_for(flow_again, every=1.0)
    assert len(app.vtrr) > 1


def test_a_broker_that_hangs_does_not_stop_the_sweep(bed: Bed, server: RedisServer) -> None:
    """It accepts and never answers: leases that have run out are taken back all the same; then it goes on."""
    bed.broker = server.url(0)
    app = bed.load(TASKS, sweep_interval=1)
    bed.worker(concurrency=1)
    with server.hanging():
        # Waits for the broker in vain; meanwhile the sweep has heard of the tasks.
        app.work.queue("u", [{"id": "t0"}, {"id": "t1"}])
        core = app.vtrr._core
        app.vtrr._run(core.dequeue(1, owner=core.fresh(), lease=1, max_deliveries=5, settle=[]))
        wait_for(lambda: app.vtrr.stats().totals.get("reclaimed") == 1)
    bed.drained()
    assert sorted(event["id"] for event in bed.events("end")) == ["t0", "t1"]
