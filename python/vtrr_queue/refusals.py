"""States that a result backend refuses, as a database does a text with a NUL or an id longer than its column. A backend that
answers and refuses is not away: what it does not take as it is, it is given in plainer forms; and a task whose state it takes
in no form does not run again for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import states, uuid
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.utils.serialization import create_exception_cls
from kombu.exceptions import EncodeError

logger = logging.getLogger(__name__)

# Backends that cannot be asked for a state: they keep none.
STATELESS = (DisabledBackend, RPCBackend)

# Marks requests of tasks of ours; of no others are states touched.
OURS = "vtrr_partition"
# Marks errors of a backend that was away.
AWAY = "vtrr_away"
# How much of a text a plainer form keeps: of an error's, and the end of a traceback.
MOST_TEXT, MOST_TRACEBACK = 1_000, 4_000


class StateRefused(Exception):
    """The result backend works, and takes the state of this task in no form."""


def guard(backend: Any) -> Any:
    """Puts our `store_result` in front of a backend's own, once; answers the backend."""
    if "vtrr_guarded" not in backend.__dict__ and not isinstance(backend, STATELESS):
        backend.vtrr_guarded = True
        own = backend.store_result

        def store_result(task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **more: Any) -> Any:
            if getattr(result, AWAY, False):
                raise result
            try:
                return own(task_id, result, state, traceback=traceback, request=request, **more)
            except (SoftTimeLimitExceeded, MemoryError, EncodeError):
                raise
            except Exception as error:
                if not hasattr(request, OURS):
                    raise
                if state in states.EXCEPTION_STATES:
                    return _store_plainer(backend, own, task_id, result, state, traceback, request, error)
                # Of a result that cannot be stored Celery makes a failure, which comes here then.
                if not _succeeds(backend.get_state, uuid()):
                    _be_away(error)
                    raise
                return own(task_id, result, state, traceback=traceback, request=request, **more)

        backend.store_result = store_result
    return backend


def ours(**fields: Any) -> Context:
    """A request of a task of ours that no run has made."""
    return Context(**fields, **{OURS: None})


def _store_plainer(
    backend: Any, own: Callable[..., Any], id: str, result: Any, state: str, traceback: Any, request: Any, error: Exception
) -> Any:
    probe = uuid()
    if not _succeeds(backend.get_state, probe):
        _be_away(error)
        raise error
    for form, (plainer, ending, of) in _forms(result, traceback, request, error):
        if _succeeds(own, id, plainer, state, ending, of):
            logger.warning("the result backend refused the state %s of %s, it was stored %s: %r", state, id, form, error)
            return plainer
    # A replica, or a full disk, refuses everything: that passes.
    bare = _bare(result, error)
    if not _succeeds(own, probe, bare, state):
        raise error
    if not _succeeds(backend.forget, probe):
        logger.debug("the state of the probe %s stays in the result backend", probe)
    if not _succeeds(own, id, bare, state):
        raise StateRefused(f"the result backend takes no state of {id}: {error}") from error
    logger.warning("the result backend refused the state %s of %s, it was stored bare: %r", state, id, error)
    return bare


def _be_away(error: Exception) -> None:
    """Of an error of a backend that has not refused Celery shall make no failure: the backend may be back by then, and the task
    has ended otherwise."""
    setattr(error, AWAY, True)


def _forms(result: Any, traceback: Any, request: Any, error: Exception) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    yield "with its text cleaned and cut", (_cleaned(result), _clean(traceback, -MOST_TRACEBACK), request)
    # What `result_extended` stores besides comes from the request.
    yield "bare", (_bare(result, error), None, None)


def _succeeds(what: Callable[..., Any], *args: Any) -> bool:
    try:
        what(*args)
    except (SoftTimeLimitExceeded, MemoryError):
        raise
    except Exception as error:
        logger.debug("the result backend: %r", error)
        return False
    return True


def _like(result: Any, text: str) -> Exception:
    """An exception that is stored as one of the same type, with this text."""
    kind = type(result)
    made: Exception = create_exception_cls(kind.__name__, kind.__module__)(text)
    return made


def _cleaned(result: Any) -> Exception:
    try:
        text = str(result)
    except Exception:
        text = "(its text cannot be had)"
    return _like(result, str(_clean(text, MOST_TEXT)))


def _bare(result: Any, error: Exception) -> Exception:
    return _like(result, f"(the result backend refused its text: {type(error).__name__})")


def _clean(text: Any, most: int) -> str | None:
    """Without what databases refuse in texts: NUL, lone surrogates, what is beyond Unicode's first plane. The first `most`
    characters; or the last, if that is negative."""
    if text is None:
        return None
    text = str(text)
    cut = text[:most] if most > 0 else text[most:]
    return "".join(letter if _is_plain(letter) else "\ufffd" for letter in cut)


def _is_plain(letter: str) -> bool:
    return "\0" < letter < "\ud800" or "\ue000" <= letter <= "\uffff"
