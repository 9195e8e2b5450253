"""Arguments of ``VTRRQueue``: what is refused, in words that name the argument, the value and what is allowed."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from celery.utils.nodenames import node_format

from .errors import InvalidArgument, InvalidArgumentType

# How people name the parameter that the task itself goes to.
SELF = {"self", "this", "task", "celery_task", "bound_task", "cls", "t"}


def check_bind(value: Any) -> None:
    if value is not True:
        raise InvalidArgumentType(
            f"bind must be True, or left out, not {value!r}: the first parameter is the task itself, always: def work(self, …)"
        )


def check_function(fn: Any) -> None:
    if not callable(fn):
        raise InvalidArgumentType(f"@vtrr.task must be given a function, not {fn!r}; a name is @vtrr.task(name=…)")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    first = next((it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD, it.VAR_POSITIONAL)), None)
    if first is None:
        raise InvalidArgumentType(f"{fn.__name__}() must take the task itself as its first parameter: def {fn.__name__}(self, …)")
    if first.kind is not first.VAR_POSITIONAL and first.name not in SELF and not first.name.startswith("_"):
        name = getattr(fn, "__name__", "work")
        warnings.warn(
            f"@vtrr.task: {name}({first.name}, …) gets the task itself as {first.name!r}; if that is meant, name it self, else "
            f"add it: def {name}(self, {first.name}, …)",
            stacklevel=4,
        )


def takes_id(fn: Callable[..., Any]) -> bool:
    """Whether the parameter after ``self`` is named ``task_id``, as in the README of 0.1.0."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return False
    return names[1:2] == ["task_id"]


def is_cluster(client: Any) -> bool:
    from redis.cluster import RedisCluster

    return isinstance(client, RedisCluster)


def is_async(client: Any) -> bool:
    import redis.asyncio

    return isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster))


def check_ids(ids: Any) -> list[Any]:
    """One text alone would be taken for ids of one character each."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgumentType(f"ids must be a list of ids, not {ids!r} ({type(ids).__name__})")
    return list(ids)


def check_choice(argument: str, value: Any, *allowed: str) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{argument} must be {' or '.join(map(json.dumps, allowed))}, not {value!r}")


def check_flag(argument: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidArgumentType(f"{argument} must be True or False, not {value!r} ({type(value).__name__})")


def check_text(argument: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidArgumentType(f"{argument} must be text, not {value!r} ({type(value).__name__})")
    if not value:
        raise InvalidArgument(f"{argument} must be text of at least one character, not empty")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidArgument(f"{argument} must be text without lone surrogates, not {value!r}")


def check_bound(argument: str, value: Any) -> None:
    allowed = "an integer from 1 to 1,000,000,000,000, or None"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentType(f"{argument} must be {allowed}, not {value!r} ({type(value).__name__})")
    if not 1 <= value <= 1_000_000_000_000:
        raise InvalidArgument(f"{argument} must be {allowed}, not {value!r}")


def check_path(argument: str, value: Any) -> str | None:
    """A path as text, in which Celery's `%n`, `%h`, `%d` and `%p` may stand for parts of a worker's name."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not isinstance(path := os.fspath(value), str):
        raise InvalidArgumentType(f"{argument} must be a path, text or Path, or None, not {value!r} ({type(value).__name__})")
    check_text(argument, path)
    try:
        node_format(path, "name@host")
    except ValueError:
        raise InvalidArgument(f"{argument} must be a path with no % but Celery's %n, %h, %d, %p and %%, not {path!r}") from None
    return path


def check_number(argument: str, value: Any, least: float, most: float, *, whole: bool = False) -> None:
    allowed = f"{'an integer' if whole else 'a number'} from {least:g} to {most:,g}"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InvalidArgumentType(f"{argument} must be {allowed}, not {value!r} ({type(value).__name__})")
    if not least <= value <= most:
        raise InvalidArgument(f"{argument} must be {allowed}, not {value!r}")
