"""Clients of redis-py that write down what the server hands out and how it answers to settles: what went over the wire,
not what the worker makes of it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.sentinel import Sentinel

from vtrr_queue._core import Queue

from .ledger import Writer


class Witness:
    def __init__(self, ledger: Writer, spoil: Path) -> None:
        self.ledger = ledger
        # A file that, while there, spoils one answer to a settle; whoever deletes it has it.
        self.spoil = spoil
        core = Queue("any")
        self.dequeue = sha(core.dequeue(1, owner="any", lease=1, max_deliveries=1))
        self.settle = sha(core.settle([("any", "1-1", "ack", 0.0, None)]))

    def see(self, words: tuple[Any, ...], call: Any) -> Any:
        """Makes a call and writes down what comes of it."""
        sent = time.monotonic_ns()
        answer = call()
        if words[0] not in ("EVALSHA", "EVAL") or not isinstance(answer, list):
            return answer
        name = words[1] if words[0] == "EVALSHA" else hashlib.sha1(as_bytes(words[1])).hexdigest()
        name = name.decode() if isinstance(name, bytes) else name
        args = words[3 + int(words[2]) :]
        settlements = list(self.settlements(name, args))
        if settlements and self.is_spoiled():
            raise RuntimeError("the answer to a settle was spoiled on purpose")
        for settlement, code in zip(settlements, answer[0] if settlements else (), strict=True):
            self.ledger.note("settled", *map(text, settlement[:4]), text(code), sent)
        if name == self.dequeue:
            for id, token, count, *_ in answer[3]:
                self.ledger.note("took", text(id), text(token), text(count), sent)
        return answer

    def settlements(self, name: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """id, token, outcome, delay and text of each, as docs/protocol.md lays them out."""
        if name == self.dequeue:
            start, count = 7 + int(args[5]), int(args[6])
        elif name == self.settle and not args[0]:
            start, count = 2, int(args[1])
        else:
            return
        for at in range(start, start + 5 * count, 5):
            yield args[at : at + 5]

    def is_spoiled(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self.spoil.unlink()
            self.ledger.note("spoiled")
            return True
        return False


def sha(command: Any) -> str:
    return hashlib.sha1(as_bytes(command.words(whole=True)[1])).hexdigest()


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class Watched:
    # A client may send while it is made.
    witness: Witness | None = None

    def execute_command(self, *words: Any, **options: Any) -> Any:
        if self.witness is None:
            return super().execute_command(*words, **options)  # type: ignore[misc]
        return self.witness.see(words, lambda: super(Watched, self).execute_command(*words, **options))  # type: ignore[misc]


class WatchedRedis(Watched, redis.Redis):
    pass


class WatchedCluster(Watched, redis.RedisCluster):
    pass


def client(store: str, witness: Witness | None) -> Any:
    """A client for a store as `chaos.stores` names it: as docs/production.md says, with timeouts."""
    timeouts = {"socket_timeout": 2, "socket_connect_timeout": 2}
    if store.startswith("cluster:"):
        kind = WatchedCluster if witness else redis.RedisCluster
        made: Any = kind.from_url(store.removeprefix("cluster:").split(",")[0], **timeouts)
    elif store.startswith("sentinel:"):
        master, urls = store.removeprefix("sentinel:").split(":", 1)
        addresses = [(url.split("//")[1].split(":")[0], int(url.split(":")[-1].strip("/"))) for url in urls.split(",")]
        sentinel = Sentinel(addresses, socket_timeout=0.5, sentinel_kwargs={"socket_timeout": 0.5})
        made = sentinel.master_for(master, redis_class=WatchedRedis if witness else redis.Redis, **timeouts)
    else:
        made = (WatchedRedis if witness else redis.Redis).from_url(store, **timeouts)
    if witness:
        made.witness = witness
    return made
