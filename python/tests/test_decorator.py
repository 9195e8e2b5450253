"""`@vtrr.task` in the place of `@app.task`: what is a Celery task stays one."""

from __future__ import annotations

import inspect
import pickle
import warnings
from types import ModuleType
from typing import Any

import fakeredis
import pytest
from celery import Celery, Task, chain, group

from bed import Bed
from vtrr_queue import InvalidArgumentType, VTRRQueue, VTRRTask
from vtrr_queue.task import weave

TASKS = """
from celery import Task

class Base(Task):
    extra = "from base"
    def before(self):
        return self.name

@app.task(bind=True)
def plain(self, a: int, b: str = "x", *, c: float = 1.0) -> str:
    'Documented.'
    return f"{self.name} {a} {b} {c}"

@vtrr.task
def fair(self, a: int, b: str = "x", *, c: float = 1.0) -> str:
    'Documented.'
    return f"{self.name} {a} {b} {c}"

@vtrr.task(base=Base, name="other.name", bind=True, max_retries=7)
def named(self, *args, **kwargs):
    note("end", self, args=args, kwargs=kwargs, extra=self.extra)
    return [self.before(), list(args)]

@vtrr.task
def nothing(self):
    note("end", self)
    return "ran"
"""


@pytest.fixture
def app(bed: Bed) -> ModuleType:
    bed.store.flushall()
    return bed.load(TASKS)


def test_it_looks_like_a_celery_task(app: Any) -> None:
    plain, fair = app.plain, app.fair
    assert isinstance(fair, Task)
    assert isinstance(fair, VTRRTask)
    assert inspect.signature(fair) == inspect.signature(plain)
    assert inspect.signature(fair.run) == inspect.signature(plain.run)
    assert (fair.__doc__, fair.__name__, fair.__module__) == ("Documented.", "fair", plain.__module__)
    assert fair.__class__.__module__ == app.NAME
    assert inspect.unwrap(fair.__wrapped__).__name__ == "fair"
    assert type(fair.__wrapped__) is type(plain.__wrapped__)
    assert fair.name == f"{app.NAME}.fair"
    assert app.named.name == "other.name"
    assert app.app.tasks[fair.name].name == fair.name
    assert set(dir(plain)) <= set(dir(fair))
    assert repr(fair).replace("fair", "plain").split(" of ")[0] == repr(plain).split(" of ")[0]


def test_a_direct_call_runs_the_body(app: Any) -> None:
    assert app.fair(1) == f"{app.NAME}.fair 1 x 1.0"
    assert app.fair(1, "y", c=2) == f"{app.NAME}.fair 1 y 2"
    assert app.fair.run(1) == app.fair(1)
    assert app.fair.apply([1], {"b": "z"}).get() == f"{app.NAME}.fair 1 z 1.0"
    for wrong in ([], [1, 2, 3]):
        with pytest.raises(TypeError):
            app.fair(*wrong)
        with pytest.raises(TypeError):
            app.fair.delay(*wrong)
    assert app.named("x") == ["other.name", ["x"]]


def test_it_can_be_pickled(app: Any) -> None:
    again = pickle.loads(pickle.dumps(app.fair))
    assert again.name == app.fair.name
    assert again(1) == app.fair(1)
    assert again.vtrr is app.vtrr
    assert pickle.loads(pickle.dumps(app.fair.s(1, c=2))) == app.fair.s(1, c=2)


@pytest.mark.parametrize("tagging", ["head", "all"])
def test_signatures_and_plain_calls_work(bed: Bed, tagging: str) -> None:
    bed.store.flushall()
    app: Any = bed.load(TASKS, tagging=tagging)
    signature = app.fair.s(1, b="y")
    assert (signature.task, signature.args, signature.kwargs) == (app.fair.name, (1,), {"b": "y"})
    assert app.fair.si(1).immutable
    assert app.fair.subtask((1,)).args == (1,)
    assert app.fair.signature((1,), countdown=5).options == {"countdown": 5}
    bed.worker("threads", 4, queues=f"{bed.celery_queue},celery")
    name = app.fair.name
    assert app.fair.delay(1).get(timeout=120) == f"{name} 1 x 1.0"
    assert app.fair.apply_async([2], {"c": 0.5}, queue=bed.celery_queue).get(timeout=120) == f"{name} 2 x 0.5"
    assert app.fair.s(3).delay().get(timeout=120) == f"{name} 3 x 1.0"
    assert group(app.fair.s(n) for n in (1, 2))().get(timeout=120) == [f"{name} 1 x 1.0", f"{name} 2 x 1.0"]
    nested = chain(app.fair.s(1), app.fair.s(b="end"))().get(timeout=120)
    assert nested == f"{name} {name} 1 x 1.0 end 1.0"
    # Without arguments it is a call too, in the queue of tickets as well.
    assert app.nothing.delay().get(timeout=120) == "ran"
    assert app.nothing.apply_async(queue=bed.celery_queue).get(timeout=120) == "ran"
    assert app.named.delay().get(timeout=120) == ["other.name", []]
    assert app.app.send_task("other.name", [1]).get(timeout=120) == ["other.name", [1]]
    assert len(bed.events("end")) == 4
    (result,) = app.named.queue("u", [{"args": [5], "kwargs": {"k": 1}}])
    assert result.get(timeout=120) == ["other.name", [5]]
    assert bed.events("end")[-1]["extra"] == "from base"
    bed.drained()
    assert app.vtrr.stats().totals["acked"] == 1


OVERRIDES = """
class Narrow(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        note("sent", self, options=sorted(set(options) - {"headers"}))
        return super().apply_async(args, kwargs, **options)

class Bare(Task):
    def apply_async(self, args=None, kwargs=None, task_id=None):
        return super().apply_async(args, kwargs, task_id)

@app.task(base=Narrow)
def plain_narrow(n=0):
    return n

@vtrr.task(base=Narrow)
def narrow(self, n=0):
    if n == 7 and not self.request.retries:
        raise self.retry(countdown=0)
    return n

@vtrr.task(base=Bare)
def bare(self, n=0):
    return n
"""


def test_a_base_class_may_override_apply_async_as_it_may_in_celery(bed: Bed) -> None:
    """It is called with what the caller has given, and with nothing by position but args and kwargs: as Celery does."""
    bed.store.flushall()
    app: Any = bed.load(TASKS + OVERRIDES)
    bed.worker("threads", 4, queues=f"{bed.celery_queue},celery")
    for task in (app.plain_narrow, app.narrow):
        results = [task.delay(1), task.s(2).apply_async(), task.apply_async((3,), countdown=0)]
        results.append(task.apply_async([4], task_id=f"{task.name}-4"))
        assert [result.get(timeout=120) for result in results] == [1, 2, 3, 4]
    sent = [[event["task"], event["options"]] for event in bed.events("sent")]
    options: list[list[str]] = [[], [], ["countdown"], ["task_id"]]
    assert sent == [[task.name, given] for task in (app.plain_narrow, app.narrow) for given in options]
    assert [app.bare.delay().get(timeout=120), app.bare.apply_async([1], task_id="b").get(timeout=120)] == [0, 1]
    (result,) = app.narrow.queue("u", [{"args": [7]}])
    assert result.get(timeout=120) == 7


@pytest.fixture
def vtrr() -> VTRRQueue:
    app = Celery("decorator", broker="memory://", set_as_current=False)
    return VTRRQueue(redis_client=fakeredis.FakeRedis(), celery_app=app, name="q")


def test_options_of_celery_that_make_sense_reach_the_task(vtrr: VTRRQueue) -> None:
    options = {"ignore_result": True, "throws": (KeyError,), "track_started": True, "typing": False, "name": "n"}
    options |= {"max_retries": 2, "default_retry_delay": 9, "soft_time_limit": 3, "time_limit": 4}

    @vtrr.task(dont_autoretry_for=(KeyError,), autoretry_for=(Exception,), **options)
    def work(self: Any) -> None:
        raise KeyError

    for option, value in options.items():
        assert getattr(work, option) == value, option
    assert work.vtrr.tasks == {"n": work}
    assert work.apply().state == "FAILURE"


REFUSED = {
    "acks_late": "leases do",
    "expires": "cancel()",
    "priority": "give heavy tasks a weight",
    "queue": "celery_queue",
    "rate_limit": "holds messages, and would not hold back what is queued",
    "reject_on_worker_lost": "max_deliveries",
    "serializer": "stored as JSON",
    "max_retry": "",
    "shared": "",
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_that_make_no_sense_are_refused_with_a_reason(vtrr: VTRRQueue, option: str) -> None:
    with pytest.raises(InvalidArgumentType) as raised:
        vtrr.task(**{option: 1, "max_retries": 1})
    message = str(raised.value)
    assert f"@vtrr.task does not support option(s): {option}" in message
    assert REFUSED[option] in message
    assert "Allowed: autoretry_for, base," in message
    assert vtrr.tasks == {}


def test_bind_is_not_a_choice(vtrr: VTRRQueue) -> None:
    """The first parameter is the task, always: with `bind=False` it would land in the first argument."""

    @vtrr.task(bind=True)
    def bound(self: Any) -> Any:
        return self.name

    assert bound() == bound.name
    for wrong in (False, None, 0):
        with pytest.raises(InvalidArgumentType, match=f"bind must be True, or left out, not {wrong}: the first parameter is"):
            vtrr.task(bind=wrong)
    assert list(vtrr.tasks.values()) == [bound]


def test_a_first_parameter_that_looks_like_an_argument_is_warned_of(vtrr: VTRRQueue) -> None:
    """Where `self` was forgotten, and the arguments fit all the same, it runs with the task as its first argument."""
    with pytest.warns(UserWarning, match=r"process\(upload_id, …\).*the task itself.*def process\(self, upload_id, …\)") as seen:

        @vtrr.task
        def process(upload_id: Any, force: bool = False) -> None: ...

    assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fn in (lambda self, x: x, lambda task, x: x, lambda _, x: x, lambda *args: args, lambda celery_task: 1):
            vtrr.task(fn)


def test_a_base_class_by_name_or_of_ours(vtrr: VTRRQueue) -> None:
    @vtrr.task(base=VTRRTask)
    def of_ours(self: Any) -> None: ...

    class Base(Task):  # type: ignore[misc]
        abstract = True

    assert weave(Base) is not weave(VTRRTask)
    assert isinstance(of_ours, VTRRTask)

    @vtrr.task(base=Base)
    def of_theirs(self: Any) -> None: ...

    assert isinstance(of_theirs, Base)
    assert of_theirs.__class__.__mro__.index(Base) > of_theirs.__class__.__mro__.index(VTRRTask)


def test_tasks_belong_to_their_app_alone(vtrr: VTRRQueue) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)

    @vtrr.task
    def work(self: Any) -> None: ...

    assert work.name in vtrr.celery_app.tasks
    assert work.name not in other.tasks
    late = VTRRQueue(redis_client=fakeredis.FakeRedis(), celery_app=other, name="late")
    other.finalize()

    @late.task
    def after(self: Any) -> int:
        return 5

    assert after.name in other.tasks
    assert after() == 5


def test_the_apps_task_class_is_kept(vtrr: VTRRQueue) -> None:
    class Own(Task):  # type: ignore[misc]
        def helper(self) -> str:
            return "own"

    vtrr.celery_app.Task = Own

    @vtrr.task
    def work(self: Any) -> Any:
        return self.helper()

    assert work() == "own"
