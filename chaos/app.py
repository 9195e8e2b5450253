"""The Celery app whose workers `make chaos` breaks. All settings come from the environment."""

from __future__ import annotations

import hashlib
import os
import select
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from celery.signals import worker_ready, worker_shutdown

from vtrr_queue import VTRRQueue

from .ledger import Writer
from .witness import Witness, client

FOLDER = Path(os.environ["CHAOS_FOLDER"])
ledger = Writer(Path(os.environ["CHAOS_LEDGER"]))
# Where states are stored, if anywhere.
RESULTS = os.environ.get("CHAOS_RESULTS")
app = Celery("chaos", broker=os.environ["CHAOS_BROKER"], backend=RESULTS)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_ignore_result=RESULTS is None,
    # What a backend that is away makes a task wait for is short.
    redis_socket_timeout=1,
    redis_socket_connect_timeout=1,
    result_backend_transport_options={"retry_policy": {"max_retries": 1, "interval_start": 0.1}},
    worker_proc_alive_timeout=60,
    worker_prefetch_multiplier=int(os.environ.get("CHAOS_PREFETCH", "1")),
)
vtrr = VTRRQueue(
    redis_client=client(os.environ["CHAOS_STORE"], Witness(ledger, FOLDER / "spoil")),
    celery_app=app,
    name=os.environ["CHAOS_QUEUE"],
    lease=int(os.environ["CHAOS_LEASE_MS"]) / 1000,
    sweep_interval=int(os.environ["CHAOS_SWEEP_MS"]) / 1000,
    max_deliveries=int(os.environ["CHAOS_MAX_DELIVERIES"]),
)


def body(self: Any, ms: int) -> None:
    ledger.note("start", self.request.id, 1 + self.request.retries)
    # Not `time.sleep`, which fails under libfaketime.
    select.select([], [], [], ms / 1000)


def fail(self: Any, error: Exception) -> None:
    ledger.note("failed", self.request.id)
    raise error


@vtrr.task(name="work")
def work(self: Any, ms: int) -> None:
    body(self, ms)
    ledger.note("end", self.request.id)


@vtrr.task(name="flaky", autoretry_for=(OSError,), default_retry_delay=0.3, max_retries=3)
def flaky(self: Any, ms: int) -> None:
    """Ends well when it is run again."""
    body(self, ms)
    if self.request.retries == 0:
        fail(self, OSError("a first run"))
    ledger.note("end", self.request.id)


@vtrr.task(name="bad", throws=(ValueError,))
def bad(self: Any, ms: int) -> None:
    body(self, ms)
    fail(self, ValueError("planned"))


@vtrr.task(name="spoken", throws=(ValueError,))
def spoken(self: Any, ms: int) -> None:
    body(self, ms)
    fail(self, ValueError("planned, with a \0 in it"))


@vtrr.task(name="restless")
def restless(self: Any, ms: int) -> None:
    """Gives itself back for as long as a file is there."""
    body(self, ms)
    if (FOLDER / "restless").exists():
        raise Reject("not now", requeue=True)
    ledger.note("end", self.request.id)


@vtrr.task(name="poison")
def poison(self: Any, ms: int) -> None:
    body(self, ms)
    os.kill(os.getpid(), signal.SIGKILL)


@vtrr.task(name="hungry")
def hungry(self: Any, ms: int) -> None:
    """Takes memory until there is none."""
    body(self, ms)
    if not self.request.delivery_info["redelivered"]:
        eaten = b"x" * 2_000_000_000
        assert eaten
    ledger.note("end", self.request.id)


@vtrr.task(name="frozen", time_limit=1)
def frozen(self: Any, ms: int) -> None:
    """Does not come back from C code within its hard time limit."""
    body(self, ms)
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 100_000_000)


if "CHAOS_OLD" not in os.environ:

    @vtrr.task(name="fresh")
    def fresh(self: Any, ms: int) -> None:
        body(self, ms)
        ledger.note("end", self.request.id)


@worker_ready.connect
def note_ready(**_: Any) -> None:
    ledger.note("ready")


@worker_shutdown.connect
def note_stopped(**_: Any) -> None:
    ledger.note("stopped")
