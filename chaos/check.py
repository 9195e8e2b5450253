"""What a ledger and what is left in the store prove: a pure function of both, so that it can be tested itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

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


@dataclass
class Promise:
    """What a row of the table promises."""

    # Ids that must end as dead letters, and what the reason must say.
    doomed: dict[str, str] = field(default_factory=dict)
    # Those of which the body may begin once only.
    once: set[str] = field(default_factory=set)
    # What the reason of any other dead letter says.
    reasons: tuple[str, ...] = ("planned",)
    # Tasks offered before this time may be lost, and settlements: the store forgot (no AOF, an unplanned failover).
    forgets_before: int = 0
    # Whether tokens grow with time: not where the store forgot.
    order: bool = True
    # Whether the order is measured: where no delivery goes unseen.
    fair: bool = False


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


@dataclass
class _Task:
    partition: str
    number: int
    before: int
    # How often it was accepted: more than once where its id was used again after its end.
    lives: int = 0
    taken: list[tuple[int, str, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ended: bool = False
    # (token, outcome) of settlements that the store has done.
    settled: dict[tuple[str, str], int] = field(default_factory=dict)


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
    findings.stalls = stalls(lines)
    return findings


def stalls(lines: list[Line], slow: int = SLOW) -> int:
    """How often two processes waited for an answer at the same time, for so long: then it was not one of them that stood
    still. What was in flight may run again then."""
    waits = {(int(line.more[-1]), line.at, line.pid) for line in lines if line.what in ("took", "settled")}
    found, end = 0, 0
    last: dict[int, int] = {}
    for sent, answered, pid in sorted(it for it in waits if it[1] - it[0] >= slow):
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
        elif line.what in ("took", "start", "end", "settled"):
            id = line.more[0]
            if id not in tasks:
                findings.wrong.append(f"{id} was never offered, and {line.what}")
                continue
            note(tasks[id], id, line, promise, findings)
    return tasks, calls


def note(task: _Task, id: str, line: Line, promise: Promise, findings: Findings) -> None:
    if line.what == "took":
        task.taken.append((line.at, line.more[1], int(line.more[2])))
    elif line.what == "start":
        task.starts.append(line.at)
    elif line.what == "end":
        task.ended = True
    elif line.more[4] == DONE:
        _, token, outcome, _, _, sent = line.more
        task.settled.setdefault((token, outcome), line.at)
        taken = [(at, other) for at, other, _ in task.taken if promise.forgets_before <= at < int(sent)]
        later = [other for _, other in taken if number_of(other) > number_of(token)]
        if later:
            findings.settled_twice.append(f"{id} was settled with {token} after {later[-1]} was handed out")


def look_at(id: str, task: _Task, left: Left, promise: Promise, findings: Findings) -> None:
    reason = left.dead.get(id)
    final = [token for (token, outcome), at in task.settled.items() if outcome in FINAL and at >= promise.forgets_before]
    if len(final) > max(task.lives, 1):
        findings.settled_twice.append(f"{id}: {len(final)} times")
    elif len(final) < task.lives and task.lives > 1:
        findings.lost.append(f"{id} of {task.partition}: accepted {task.lives} times, ended {len(final)} times")
    if id in promise.once and len(task.starts) > 1:
        findings.wrong.append(f"{id} ran {len(task.starts)} times")
    # Those that gave themselves back are charged alike.
    retries = len({token for token, outcome in task.settled if outcome in ("retry", "ran")})
    # By the store's own count: a child that dies may have been handed the task before it could say so.
    findings.redelivered += max(0, max((count for _, _, count in task.taken), default=1) - 1 - retries)
    if id in promise.doomed:
        if promise.doomed[id] not in (reason or ""):
            findings.wrong.append(f"{id} must be a dead letter because of {promise.doomed[id]!r}, is {reason!r}")
    elif reason is not None:
        if not any(words in reason for words in promise.reasons):
            findings.wrong.append(f"{id} is a dead letter: {reason}")
    elif not task.ended and (task.lives or task.starts):
        if task.before < promise.forgets_before:
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
        if len(task.taken) == 1 and task.taken[0][2] == 1 and id not in promise.doomed:
            partitions[task.partition].append((number_of(task.taken[0][1]), task.number, id))
    for partition, delivered in partitions.items():
        delivered.sort()
        for (_, before, one), (_, after, other) in pairwise(delivered):
            if after < before:
                findings.wrong.append(f"{other} of {partition} was delivered after {one}")
