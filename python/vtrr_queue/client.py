"""Runs commands through the caller's own Redis client. The only module that sends anything of ours to Redis, but for
the channel, what a worker has told of, and looks at single keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis.client import NEVER_DECODE
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
)

if TYPE_CHECKING:
    from ._core import Command

# What a client raises when its server does not do as asked; those of a cluster are no `RedisError`.
ServerErrors = (RedisError, RedisClusterException)

# Payloads are bytes, also from clients that decode.
_RAW: dict[str, Any] = {NEVER_DECODE: True}

# A connection that broke is tried again after these pauses: commands know repeated calls, so they run once.
_PAUSES = (0.0, 0.05, 0.3)


def run(client: Any, command: Command) -> Any:
    """Runs a command to its end, with as many calls as it takes; answers what ``command.decode`` makes of it.

    A client that cannot connect raises its own exceptions, after half a second of trying again; one that does not
    answer raises as its own ``socket_timeout`` says. A call of an enqueue that took so long to fail that the next one might
    come when the server has forgotten it is not tried again.
    """
    while True:
        reply = command.decode(_send(client, command))
        if reply is not NotImplemented:
            return reply


def _send(client: Any, command: Command) -> Any:
    pauses, began = iter(_PAUSES), time.monotonic()
    while True:
        try:
            try:
                return client.execute_command(*command.words(), **_RAW)
            except NoScriptError:
                return client.execute_command(*command.words(whole=True), **_RAW)
        except (AuthenticationError, AuthorizationError):
            raise
        except ConnectionError:
            pause, known_for = next(pauses, None), command.known_for
            # The next attempt may take as long as all until now.
            if pause is None or (known_for is not None and 2 * (time.monotonic() - began) > known_for):
                raise
            time.sleep(pause)
            command.repeated()
