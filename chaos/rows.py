"""The table: which fault hits which workers on which server, how often, and how soon all must be as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from postgres import programs

from . import faults_of_processes as of_processes
from . import faults_of_servers as of_servers
from . import faults_of_tasks as of_tasks
from .scene import FAKETIME, LEASE, SWEEP, Scene, Setting
from .stores import Cluster, Sentinels, Single, Store


@dataclass
class Row:
    fault: str
    # `rust`, `celery` (prefork) or `celery POOL`.
    kind: str
    server: str
    inject: Callable[[Scene], int]
    rounds: int
    # Seconds until all is as before, as docs/guarantees.md says.
    promised: float
    store: Callable[[Path], Store]
    setting: Setting = field(default_factory=Setting)
    # How often each fault may have tasks delivered again: once for each in flight, unless said otherwise.
    again: int = 0
    # What may be lost there, in words.
    unless: str = ""
    # Why it cannot be run here.
    missing: Callable[[], str] = lambda: ""

    @property
    def in_flight(self) -> int:
        """How many tasks may be in hands at once: Celery's take up to 16 short ones with a call."""
        return self.setting.workers * self.setting.concurrency * (16 if self.kind.startswith("celery") else 1)

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.kind}, {self.server}"


REDIS, VALKEY, OLD = "redis 7", "valkey 8", "redis 6.2"
CHILD, KILLED, OUTAGE, AT_ONCE = 2.0, LEASE + SWEEP, 5.0, SWEEP + 1


def on(kind: str, *, fsync: str = "always") -> dict[str, object]:
    words = {"always": kind, "": f"{kind}, no AOF"}.get(fsync, f"{kind}, {fsync}")
    return {"server": words, "store": partial(Single, kind=kind, fsync=fsync)}


def sentinels(kind: str) -> dict[str, object]:
    return {"server": f"{kind}, Sentinel", "store": partial(Sentinels, kind=kind)}


def cluster(kind: str) -> dict[str, object]:
    return {"server": f"{kind}, Cluster", "store": partial(Cluster, kind=kind)}


def row(fault: str, kind: str, inject: Callable[[Scene], int], rounds: int, promised: float, **more: object) -> Row:
    return Row(fault, kind, inject=inject, rounds=rounds, promised=promised, **more)  # type: ignore[arg-type]


def no_cgroups() -> str:
    return "" if of_processes.has_cgroups() else "needs root and the memory cgroup of Linux, version 1"


def no_postgres() -> str:
    try:
        programs()
    except AssertionError as error:
        return str(error)
    return ""


def no_faketime() -> str:
    return "" if FAKETIME else "needs Debian's package faketime"


# Its tasks are long enough that a busy machine can write down and read what they do.
WIDE = Setting(concurrency=16, max_ms=40)
# Long enough that another worker is still at them when a paused one comes back.
LONG = Setting(concurrency=64, max_ms=2000)
POISON = Setting(max_deliveries=3)
CLOCKS = Setting(clocks=True)
# What is given back runs some hundred times.
FAIR = Setting(fair=True, max_deliveries=1_000_000)
BY_HAND = Setting(fair=True, role="hand", max_deliveries=1_000_000)
IN_REDIS, IN_POSTGRES = Setting(fair=True, results="redis"), Setting(fair=True, results="postgres")
EACH_SECOND = "everysec"
UNBOUNDED = Setting(fair=True, env={"CHAOS_PREFETCH": "0"})

ROWS = [
    row("a pool's child is killed", "celery", of_processes.kill_child, 20, CHILD, **on(REDIS)),
    row("a worker is killed", "rust", of_processes.kill_worker, 10, KILLED, **on(VALKEY), setting=WIDE),
    row("a worker is killed", "celery", of_processes.kill_worker, 4, KILLED, **on(OLD)),
    row("a worker is killed", "celery threads", of_processes.kill_worker, 3, KILLED, **on(REDIS)),
    row("the producer is killed", "rust", of_processes.kill_producer, 20, AT_ONCE, **on(REDIS), setting=WIDE),
    row("the producer is killed", "celery", of_processes.kill_producer, 6, AT_ONCE, **on(VALKEY)),
    row("a worker is stopped past its lease", "rust", of_processes.pause_worker, 4, KILLED, **on(OLD), setting=LONG),
    row("a worker is stopped past its lease", "celery", of_processes.pause_worker, 3, KILLED, **on(REDIS)),
    row("SIGTERM", "rust", of_processes.stop_worker, 12, AT_ONCE, **on(REDIS), setting=WIDE),
    row("SIGTERM", "celery", of_processes.stop_worker, 4, KILLED, **on(VALKEY)),
    row("SIGQUIT", "celery", of_processes.quit_worker, 4, KILLED, **on(REDIS)),
    row("out of memory", "rust", of_processes.out_of_memory, 4, KILLED, **on(REDIS), missing=no_cgroups),
    row("out of memory", "celery", of_processes.out_of_memory, 4, CHILD, **on(REDIS), missing=no_cgroups),
    row("hard time limit in C code", "celery", of_processes.frozen, 5, CHILD, **on(REDIS)),
    row("an error while settling", "rust", of_processes.spoil_settle, 12, KILLED, **on(VALKEY), setting=WIDE),
    row("an error while settling", "celery", of_processes.spoil_settle, 8, KILLED, **on(REDIS)),
    row("soft time limit at any moment", "celery", of_processes.soft_limit, 25, CHILD, **on(VALKEY)),
    row("poison", "rust", of_processes.poison, 3, KILLED, **on(REDIS), setting=POISON, again=32),
    row("poison", "celery", of_processes.poison, 5, CHILD, **on(OLD), setting=POISON),
    row("a name that workers do not know yet", "rust", of_processes.unknown_name, 5, OUTAGE, **on(REDIS), again=100),
    row("a name that workers do not know yet", "celery", of_processes.unknown_name, 1, OUTAGE, **on(REDIS), again=100),
    row("clocks jump by up to 10 min", "rust", of_processes.jump, 10, AT_ONCE, **on(REDIS), setting=CLOCKS, missing=no_faketime),
    row("clocks jump by up to 10 min", "celery", of_processes.jump, 8, AT_ONCE, **on(REDIS), setting=CLOCKS, missing=no_faketime),
    row("a payload is deleted by hand", "rust", of_servers.remove_payload, 15, AT_ONCE, **on(REDIS)),
    row("a payload is deleted by hand", "celery", of_servers.remove_payload, 10, AT_ONCE, **on(VALKEY)),
    row("10,000 leases run out at once", "rust", of_servers.expire_many, 1, 10, **on(REDIS), setting=WIDE, again=10_000 + 32),
    row("tasks give themselves back", "rust", of_tasks.give_back, 3, AT_ONCE, **on(REDIS), setting=BY_HAND),
    row("tasks give themselves back", "celery", of_tasks.give_back, 3, AT_ONCE, **on(VALKEY), setting=FAIR),
    row("ids are used again", "rust", of_tasks.use_again, 4, AT_ONCE, **on(REDIS), setting=FAIR),
    row("ids are used again", "celery", of_tasks.use_again, 4, AT_ONCE, **on(OLD), setting=FAIR),
    row("the result backend refuses (Redis)", "celery", of_tasks.refuse, 4, AT_ONCE, **on(REDIS), setting=IN_REDIS),
    row(
        "the result backend refuses (PostgreSQL)",
        "celery",
        of_tasks.refuse,
        4,
        AT_ONCE,
        **on(VALKEY),
        setting=IN_POSTGRES,
        missing=no_postgres,
    ),
    row("the result backend is away", "celery", of_tasks.lose_results, 4, OUTAGE, **on(REDIS), setting=IN_REDIS),
    row("prefetch without a bound", "celery", of_tasks.flood, 2, AT_ONCE, **on(REDIS), setting=UNBOUNDED),
    row("tickets are purged", "celery", of_servers.purge_tickets, 10, AT_ONCE, **on(REDIS)),
    row("tickets are revoked", "celery", of_servers.revoke_tickets, 8, AT_ONCE, **on(REDIS)),
    row("the broker is emptied", "celery", of_servers.empty_broker, 10, AT_ONCE, **on(VALKEY)),
    row("all workers and tickets are lost", "celery", of_processes.lose_everything, 3, KILLED + SWEEP, **on(REDIS)),
    row("the broker is down", "celery", of_servers.restart_broker, 4, OUTAGE, **on(REDIS)),
    row("the broker does not answer", "celery", of_servers.stall_broker, 4, OUTAGE, **on(REDIS)),
    row("cut before a script", "rust", of_servers.cut_request, 25, AT_ONCE, **on(REDIS), setting=WIDE),
    row("cut before a script", "celery", of_servers.cut_request, 15, AT_ONCE, **on(OLD)),
    row("a script's reply is lost", "rust", of_servers.lose_reply, 25, AT_ONCE, **on(VALKEY), setting=WIDE),
    row("a script's reply is lost", "celery", of_servers.lose_reply, 15, AT_ONCE, **on(REDIS)),
    row("half-open connections", "rust", of_servers.half_open, 4, OUTAGE, **on(REDIS), setting=WIDE),
    row("half-open connections", "celery", of_servers.half_open, 4, OUTAGE, **on(REDIS)),
    row("the network is late", "rust", of_servers.late, 4, OUTAGE, **on(REDIS), setting=WIDE),
    row("the network is late", "celery", of_servers.late, 4, OUTAGE, **on(VALKEY)),
    row("SCRIPT FLUSH", "rust", of_servers.flush_scripts, 20, AT_ONCE, **on(REDIS), setting=WIDE),
    row("SCRIPT FLUSH", "celery", of_servers.flush_scripts, 10, AT_ONCE, **on(VALKEY)),
    row("the store is killed", "rust", of_servers.restart, 8, OUTAGE, **on(REDIS), setting=WIDE),
    row("the store is killed", "rust", of_servers.restart, 8, OUTAGE, **on(VALKEY), setting=WIDE),
    row("the store is killed", "rust", of_servers.restart, 8, OUTAGE, **on(OLD), setting=WIDE),
    row("the store is killed", "celery", of_servers.restart, 6, OUTAGE, **on(REDIS)),
    row(
        "the store is killed",
        "rust",
        of_servers.restart_late,
        8,
        OUTAGE,
        **on(REDIS, fsync="everysec"),
        setting=WIDE,
        unless="forgotten",
    ),
    row("the store is killed", "celery", of_servers.restart_late, 6, OUTAGE, **on(VALKEY, fsync=EACH_SECOND), unless="forgotten"),
    row("the store is killed", "rust", of_servers.restart_empty, 4, OUTAGE, **on(REDIS, fsync=""), unless="forgotten"),
    row("the store is killed", "celery", of_servers.restart_empty, 3, OUTAGE, **on(VALKEY, fsync=""), unless="forgotten"),
    row("LOADING", "rust", of_servers.restart_loading, 3, OUTAGE, **on(REDIS), setting=WIDE),
    row("LOADING", "celery", of_servers.restart_loading, 2, OUTAGE, **on(OLD)),
    row("READONLY", "rust", of_servers.read_only, 6, OUTAGE, **on(REDIS), setting=WIDE),
    row("READONLY", "celery", of_servers.read_only, 5, OUTAGE, **on(OLD)),
    row("maxmemory", "rust", of_servers.full, 6, OUTAGE, **on(REDIS), setting=WIDE),
    row("maxmemory", "celery", of_servers.full, 5, OUTAGE, **on(VALKEY)),
    row("the store does not answer", "rust", of_servers.stall, 4, OUTAGE, **on(REDIS), setting=WIDE),
    row("the store does not answer", "celery", of_servers.stall, 4, OUTAGE, **on(REDIS)),
    row("planned failover", "rust", of_servers.failover_sentinel, 3, OUTAGE, **sentinels(REDIS), setting=WIDE),
    row("planned failover", "celery", of_servers.failover_sentinel, 2, OUTAGE, **sentinels(VALKEY)),
    row(
        "failover",
        "rust",
        of_servers.failover_unplanned,
        3,
        OUTAGE,
        **sentinels(REDIS),
        setting=WIDE,
        unless="not replicated",
    ),
    row("failover", "celery", of_servers.failover_unplanned, 2, OUTAGE, **sentinels(REDIS), unless="not replicated"),
    row("CLUSTER FAILOVER", "rust", of_servers.failover_cluster, 4, OUTAGE, **cluster(REDIS), setting=WIDE),
    row("CLUSTER FAILOVER", "celery", of_servers.failover_cluster, 3, OUTAGE, **cluster(REDIS)),
]
