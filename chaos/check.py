"""What a ledger and what is left in the store prove: a pure function of both, so that it can be tested itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from .fair import Fairness, measure
from .ledger import DONE, Line, number_of

# What may stand in the store when no task does.
LASTING = {"meta", "current_virtual_time", "request", "answer", "share", "sweeper", "told"}
# An answer that takes so long, half of the lease, may cost leases: nanoseconds.
SLOW = 1_000_000_000
# An outcome after which a task is not delivered again.
FINAL = {"ack", "fail"}


@dataclass
class Left:
    """What the store holds at the end."""

    # queued, leased and delayed tasks.
    unfinished: int = 0
    # Reasons by id.
    dead: dict[str, str] = field(default_factory=dict)
    # Keys of the queue without the prefix, after the dead letters were discarded.
    keys: set[str] = field(default_factory=set)
    # How many tasks the store has counted as done, and as dead letters; None where it forgot.
    acked: int | None = None
    buried: int | None = None


Span = tuple[int, int]


@dataclass
class Promise:
    """What a row of the table promises."""

    # Ids that must end as dead letters, and what the reason must say.
    doomed: dict[str, str] = field(default_factory=dict)
    # Those of which the body may begin once only.
    once: set[str] = field(default_factory=set)
    # What the reason of any other dead letter says.
    reasons: tuple[str, ...] = ("planned",)
    # Spans of time, in ns: of what was asked and answered then, the store may have forgotten some, or all.
    forgets: list[Span] = field(default_factory=list)
    # Whether tokens grow with time: not where the store forgot.
    order: bool = True
    # Whether the order is measured: where no delivery goes unseen.
    fair: bool = False
    # From the begin of each fault until it was over, and the processes that it hit; all of them, if there are none.
    faults: list[tuple[Span, set[int]]] = field(default_factory=list)

    def may_forget(self, sent: int, answered: int) -> bool:
        """Whether the store may have forgotten what was asked and answered then."""
        return any(sent < end and begin <= answered for begin, end in self.forgets)

    def remembers_since(self, at: int) -> int:
        """When the store forgot for the last time before."""
        return max((end for _, end in self.forgets if end <= at), default=0)

    def explains(self, sent: int, answered: int, pid: int) -> bool:
        """Whether a process waited because of a fault."""
        return any(sent < end and begin <= answered and (not hit or pid in hit) for (begin, end), hit in self.faults)


@dataclass
class Findings:
    tasks: int = 0
    redelivered: int = 0
    lost: list[str] = field(default_factory=list)
    # Lost, where that was said.
    forgotten: int = 0
    stuck: list[str] = field(default_factory=list)
    settled_twice: list[str] = field(default_factory=list)
    # How often the store, or the machine, stood still for long.
    stalls: int = 0
    # The order, where it was measured.
    fair: Fairness | None = None
    # Everything else that must not be.
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.stuck or self.settled_twice or self.wrong)


@dataclass
class _Call:
    ids: list[str]
    accepted: bool = False


class _Taken(NamedTuple):
    """A delivery: when it was asked for, and when it was written down."""

    asked: int
    at: int
    token: str
    # Which of the task's it was, by the store's count.
    count: int


@dataclass
class _Task:
    partition: str
    number: int
    # When it was offered first, and accepted last.
    before: int
    accepted: float = inf
    # How often it was accepted: more than once where its id was used again after its end.
    lives: int = 0
    taken: list[_Taken] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ended: bool = False
    # (token, outcome) of settlements that the store has done, and of those that it may have forgotten since.
    settled: set[tuple[str, str]] = field(default_factory=set)
    forgotten: set[tuple[str, str]] = field(default_factory=set)


def check(lines: list[Line], left: Left, promise: Promise | None = None) -> Findings:
    promise = promise or Promise()
    findings = Findings()
    tasks, calls = gather(lines, promise, findings)
    if left.unfinished:
        findings.stuck.append(f"{left.unfinished} tasks are queued, leased or delayed")
    if strange := left.keys - LASTING:
        findings.stuck.append(f"keys are left: {', '.join(sorted(strange))}")
    for id, task in tasks.items():
        look_at(id, task, left, promise, findings)
    whole_calls(tasks, calls, left, findings)
    if promise.order:
        in_order(tasks, promise, findings)
    if promise.fair:
        findings.fair = measure(lines)
        findings.wrong += findings.fair.wrong
    if left.acked is not None and left.buried is not None:
        known = sum(max(task.lives, 1) for id, task in tasks.items() if task.ended or id in left.dead)
        if left.acked + left.buried > known:
            findings.settled_twice.append(f"{left.acked} done and {left.buried} dead by the store's count, of {known} tasks")
    findings.tasks = sum(task.lives for task in tasks.values())
    findings.stalls = stalls(lines, promise)
    return findings


def stalls(lines: list[Line], promise: Promise, slow: int = SLOW) -> int:
    """How often two processes waited for an answer at the same time, for so long, and no fault explains it: then it was not
    one of them that stood still. What was in flight may run again then."""
    waits = {(int(line.more[-1]), line.at, line.pid) for line in lines if line.what in ("took", "settled")}
    found, end = 0, 0
    last: dict[int, int] = {}
    for sent, answered, pid in sorted(it for it in waits if it[1] - it[0] >= slow and not promise.explains(*it)):
        if any(until >= sent + slow for other, until in last.items() if other != pid) and sent >= end:
            found, end = found + 1, answered
        last[pid] = max(last.get(pid, 0), answered)
    return found


def gather(lines: list[Line], promise: Promise, findings: Findings) -> tuple[dict[str, _Task], dict[str, _Call]]:
    tasks: dict[str, _Task] = {}
    calls: dict[str, _Call] = {}
    for line in lines:
        if line.what == "offered":
            call, partition, ids = line.more
            calls[call] = _Call(ids.split(","))
            for id in calls[call].ids:
                tasks.setdefault(id, _Task(partition, len(tasks), line.at))
        elif line.what == "accepted":
            call, *duplicates = line.more
            calls[call].accepted = True
            for id in set(calls[call].ids).difference(*(ids.split(",") for ids in duplicates)):
                tasks[id].lives += 1
                tasks[id].accepted = line.at
        elif line.what in ("took", "start", "end", "settled"):
            id = line.more[0]
            if id not in tasks:
                findings.wrong.append(f"{id} was never offered, and {line.what}")
                continue
            note(tasks[id], id, line, promise, findings)
    return tasks, calls


def note(task: _Task, id: str, line: Line, promise: Promise, findings: Findings) -> None:
    if line.what == "took":
        _, token, count, asked = line.more
        task.taken.append(_Taken(int(asked), line.at, token, int(count)))
    elif line.what == "start":
        task.starts.append(line.at)
    elif line.what == "end":
        task.ended = True
    elif line.more[4] == DONE:
        _, token, outcome, _, _, sent = line.more
        done = task.forgotten if promise.may_forget(int(sent), line.at) else task.settled
        done.add((token, outcome))
        known = [it.token for it in task.taken if promise.remembers_since(line.at) <= it.asked and it.at < int(sent)]
        later = [other for other in known if number_of(other) > number_of(token)]
        if later:
            findings.settled_twice.append(f"{id} was settled with {token} after {later[-1]} was handed out")


def look_at(id: str, task: _Task, left: Left, promise: Promise, findings: Findings) -> None:
    reason = left.dead.get(id)
    final = [token for token, outcome in task.settled if outcome in FINAL]
    if len(final) > max(task.lives, 1):
        findings.settled_twice.append(f"{id}: {len(final)} times")
    elif len(final) < task.lives and task.lives > 1:
        findings.lost.append(f"{id} of {task.partition}: accepted {task.lives} times, ended {len(final)} times")
    if id in promise.once and len(task.starts) > 1:
        findings.wrong.append(f"{id} ran {len(task.starts)} times")
    # Those that gave themselves back are charged alike.
    retries = len({token for token, outcome in task.settled if outcome in ("retry", "ran")})
    # By the store's own count: a child that dies may have been handed the task before it could say so.
    if not task.forgotten:
        findings.redelivered += max(0, max((it.count for it in task.taken), default=1) - 1 - retries)
    if id in promise.doomed:
        if promise.doomed[id] not in (reason or ""):
            findings.wrong.append(f"{id} must be a dead letter because of {promise.doomed[id]!r}, is {reason!r}")
    elif reason is not None:
        if not any(words in reason for words in promise.reasons):
            findings.wrong.append(f"{id} is a dead letter: {reason}")
    elif not task.ended and (task.lives or task.starts):
        if promise.may_forget(task.before, task.accepted):
            findings.forgotten += 1
        else:
            findings.lost.append(f"{id} of {task.partition}: {len(task.starts)} starts, {len(task.taken)} deliveries")


def whole_calls(tasks: dict[str, _Task], calls: dict[str, _Call], left: Left, findings: Findings) -> None:
    """A call that was never answered is stored whole or not at all."""
    for name, call in calls.items():
        if call.accepted:
            continue
        seen = [id for id in call.ids if tasks[id].ended or tasks[id].starts or id in left.dead]
        if seen and len(seen) < len(call.ids):
            findings.wrong.append(f"half of a call was stored: {name}, {len(seen)} of {len(call.ids)}")


def in_order(tasks: dict[str, _Task], promise: Promise, findings: Findings) -> None:
    """Tasks of a partition are delivered in the order in which they were accepted, but for those delivered again."""
    partitions: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for id, task in tasks.items():
        if len(task.taken) == 1 and task.taken[0].count == 1 and id not in promise.doomed:
            partitions[task.partition].append((number_of(task.taken[0].token), task.number, id))
    for partition, delivered in partitions.items():
        delivered.sort()
        for (_, before, one), (_, after, other) in pairwise(delivered):
            if after < before:
                findings.wrong.append(f"{other} of {partition} was delivered after {one}")
