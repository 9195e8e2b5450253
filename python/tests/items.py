"""The tasks of test_items.py: they note all that can be seen of a run."""

TASKS = """
from celery import Task, signals
from celery.app import trace
from celery.exceptions import Ignore, Reject
from celery.utils.log import get_task_logger

def event(what, id, **more):
    store.rpush("events:" + NAME, json.dumps({"what": what, "id": id, **more}, default=repr))

@signals.task_prerun.connect
def prerun(task_id=None, task=None, args=None, **_):
    event("prerun", task_id, task=task.name, args=args)

@signals.task_postrun.connect
def postrun(task_id=None, task=None, state=None, **_):
    event("postrun", task_id, task=task.name, state=state)

@signals.task_success.connect
def success(sender=None, result=None, **_):
    event("success", sender.request.id)

class Hooked(Task):
    def before_start(self, task_id, args, kwargs):
        event("hook", task_id, hook="before_start", task=self.name, args=args)

    def on_success(self, retval, task_id, args, kwargs):
        event("hook", task_id, hook="on_success", task=self.name, value=retval)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        event("hook", task_id, hook="on_failure", task=self.name, value=str(exc))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        event("hook", task_id, hook="on_retry", task=self.name, value=str(exc))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        event("hook", task_id, hook="after_return", task=self.name, value=status)

@vtrr.task
def work(self, *args, **kwargs):
    request = self.request
    event(
        "work", request.id, task=self.name, args=request.args, kwargs=request.kwargs, retries=request.retries,
        correlation_id=request.correlation_id, root_id=request.root_id, parent_id=request.parent_id,
        info=request.delivery_info, headers=request.headers, hostname=request.hostname, direct=request.called_directly,
        eager=request.is_eager, ours=sorted(key for key in vars(request) if key.startswith("vtrr")), given=[args, kwargs],
    )
    return [self.name, *args]

@vtrr.task
def parent(self):
    child = work.queue("nested", [{"id": self.request.id + "-child"}])
    return child[0].id

@vtrr.task
def no_arguments(self):
    return self.request.id

@vtrr.task(base=Hooked, max_retries=2)
def hooked(self, how):
    if how == "fail":
        raise ValueError("as told")
    if how == "retry" and not self.request.retries:
        raise self.retry(exc=KeyError("again"), countdown=0)
    return how

@vtrr.task(max_retries=1)
def few(self):
    event("few", self.request.id, retries=self.request.retries)
    raise self.retry(exc=RuntimeError("few"), countdown=0)

@vtrr.task(max_retries=4)
def many(self):
    event("many", self.request.id, retries=self.request.retries)
    raise self.retry(exc=RuntimeError("many"), countdown=0)

@vtrr.task
def later(self):
    raise self.retry(exc=RuntimeError("not yet"), countdown=600)

@vtrr.task(throws=(KeyError,))
def throws(self):
    raise KeyError("expected")

@vtrr.task
def ignored(self):
    raise Ignore()

@vtrr.task
def rejected(self, requeue):
    event("rejected", self.request.id)
    if not requeue or store.incr("rejections:" + self.request.id) < 3:
        raise Reject("not mine", requeue=requeue)
    return "in the end"

class Odd(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@vtrr.task
def mute(self):
    event("mute", self.request.id)
    raise Mute()

@vtrr.task
def odd(self, exits):
    event("odd", self.request.id)
    if exits:
        raise SystemExit(1)
    raise Odd()

@vtrr.task(track_started=True)
def gated(self):
    gates.blpop("gate:" + NAME, timeout=600)
    return "through"

@vtrr.task(ignore_result=True)
def silent(self):
    event("silent", self.request.id)
    return "nobody reads this"

# As instrumentation does: after the tasks are there.
original = trace.build_tracer

def build_tracer(name, task, *args, **kwargs):
    tracer = original(name, task, *args, **kwargs)
    def traced(uuid, *args, **kwargs):
        event("traced", uuid, task=name)
        return tracer(uuid, *args, **kwargs)
    return traced

trace.build_tracer = build_tracer
"""
