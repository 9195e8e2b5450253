"""No password in what this package says: exceptions, tracebacks, reprs, and the logs of producers and workers. Celery's own
lines are Celery's; the worker here does not show any either."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from celery import Celery

from bed import HEADER, WORK, Bed
from servers import RedisServer, wait_for
from vtrr_queue import VTRRQueue

# In URLs; sent as s3cr#t/w0rd.
IN_URLS = "s3cr%23t%2Fw0rd"
SECRET = "s3cr#t/w0rd"


def shows(text: str) -> bool:
    return "s3cr" in text or "w0rd" in text


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "own"
    folder.mkdir()
    with RedisServer(folder) as server:
        server.client().execute_command("ACL", "SETUSER", "user", "on", f">{SECRET}", "~*", "&*", "+@all")
        yield server


def url(port: int, db: int, password: str = IN_URLS) -> str:
    return f"redis://user:{password}@127.0.0.1:{port}/{db}"


def said(call: Callable[[], Any]) -> str:
    """An exception in all its forms."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    error = raised.value
    text = "".join(traceback.format_exception(error))
    # The lines of source that a traceback quotes are the test's.
    return "\n".join([text, str(error), repr(error), repr(getattr(error, "unfinished", None))])


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_what_a_producer_is_told(server: RedisServer, silent: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    for port, password in ((closed, IN_URLS), (silent, IN_URLS), (server.port, "s3cr-wr0ng-w0rd")):
        broker, options = url(port, 0, password), {"socket_timeout": 0.2}
        app = Celery("app", broker=broker, backend=url(port, 1, password), set_as_current=False)
        app.conf.broker_transport_options = {"socket_timeout": 0.2, "max_retries": 0}
        store = redis.Redis.from_url(url(port, 3, password), retry_on_timeout=False, **options)
        vtrr = VTRRQueue(store, app, name="n", celery_queue="n")

        @vtrr.task
        def work(self: Any) -> None: ...

        for call in (lambda work=work: work.queue("u", [{}]), vtrr.stats, lambda vtrr=vtrr: vtrr.cancel(["x"])):
            assert not shows(said(call))
        # Stored, and the broker fails.
        vtrr.redis_client = redis.Redis.from_url(url(server.port, 3))
        (result,) = work.queue("u", [{}])
        shown = [vtrr, work, result, vtrr.stats(), vtrr.find(result.id), vtrr.__dict__["_issuer"]]
        assert not shows("".join(map(repr, shown)))
    ours = [record for record in caplog.records if record.name.startswith("vtrr_queue")]
    assert len([record for record in ours if "tickets could not be sent" in record.message]) == 3
    assert not shows(caplog.text)


def test_a_broker_url_that_cannot_be_read(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A password that is not escaped: what Python's parser takes for the port is a part of it."""
    app = Celery("app", broker=f"redis://:{SECRET}@127.0.0.1/0", set_as_current=False)
    vtrr = VTRRQueue(redis.Redis.from_url(url(server.port, 3)), app, name="n")

    @vtrr.task
    def work(self: Any) -> None: ...

    assert len(work.queue("u", [{}])) == 1
    assert "tickets could not be sent, the sweep will: ValueError, not shown" in caplog.text
    assert not shows(caplog.text)


@pytest.mark.parametrize(
    "client",
    [
        url(1, 0),
        redis.asyncio.Redis.from_url(url(1, 0)),
        {"url": url(1, 0)},
        redis.ConnectionPool.from_url(url(1, 0)),
    ],
    ids=lambda client: type(client).__name__,
)
def test_arguments_that_hold_one(client: Any) -> None:
    for arguments in ((client, Celery("app", set_as_current=False)), (redis.Redis(), client)):
        text = said(lambda arguments=arguments: VTRRQueue(*arguments, name="n"))
        assert not shows(text)
        assert f"not of type {type(client).__name__}" in text


def test_what_a_worker_logs(server: RedisServer, tmp_path: Path) -> None:
    """At level DEBUG; through an outage of the store, and while its password is another one."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with RedisServer(folder) as other, Bed(server, tmp_path, "secretive") as bed:
        other.client().execute_command("ACL", "SETUSER", "user", "on", f">{SECRET}", "~*", "&*", "+@all")
        bed.broker, bed.backend = url(other.port, 0), url(other.port, 1)
        header = HEADER.replace("redis_client=store", f"redis_client=redis.Redis.from_url({url(server.port, 3)!r})")
        header += "import logging\nlogging.getLogger('vtrr_queue').setLevel(logging.DEBUG)\n"
        app = bed.load(WORK, header=header, sweep_interval=0.5)
        worker = bed.worker(concurrency=1)
        admin = server.client()
        # What it says while the server has another password, and then none.
        for id, password in (("t0", "another"), ("t1", SECRET)):
            (result,) = app.work.queue("u", [{"id": id}])
            result.get(timeout=120)
            admin.execute_command("ACL", "SETUSER", "user", "resetpass", f">{password}")
            admin.execute_command("CLIENT", "KILL", "USER", "user")
            if id == "t0":
                wait_for(lambda: "AuthenticationError" in worker.log())
                admin.execute_command("ACL", "SETUSER", "user", "resetpass", f">{SECRET}")
        server.stop()
        wait_for(lambda: "the sweep could not turn" in worker.log() and "ConnectionError" in worker.log())
        assert not shows(worker.log()), worker.log()
