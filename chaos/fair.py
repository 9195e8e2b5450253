"""The order in which the server handed tasks out, measured against DESIGN's bound: a pure function of the ledger, so that
it can be tested itself. All weights and shares are 1 here.

A delivery is charged unless it is one again of a task that did not run, or whose worker or lease was lost for the first
time. Whether a task ran is what its body wrote down, not what its worker said of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from math import inf

from .ledger import DONE, Line, number_of

# Weight over share of the one, and of the other.
MOST_APART = 2
# Of each partition that is busy until then: its share over the newcomer's, and one.
MOST_AHEAD = 2


@dataclass
class Fairness:
    # By how much the weights charged to two partitions differed while both had tasks waiting all the time.
    apart: int = 0
    # How many of one partition were charged between the arrival of a newcomer's task and its delivery.
    ahead: int = 0
    # Of how many charges, and of how many newcomers, that was measured.
    charges: int = 0
    newcomers: int = 0

    def __str__(self) -> str:
        return f"{self.apart} apart in {self.charges:,} charges, {self.ahead} ahead of {self.newcomers} newcomers"

    @property
    def wrong(self) -> list[str]:
        found = []
        if self.apart > MOST_APART:
            found.append(f"partitions that had tasks waiting were charged {self.apart} apart, more than {MOST_APART}")
        if self.ahead > MOST_AHEAD:
            found.append(f"{self.ahead} of one partition went before a newcomer, more than {MOST_AHEAD}")
        if not self.charges or not self.newcomers:
            found.append(f"the order was measured of {self.charges} charges and {self.newcomers} newcomers only")
        return found


@dataclass
class _Delivery:
    id: str
    token: str
    # When it was asked for, and when it was written down.
    sent: int
    at: int
    place: int = 0
    charged: bool = True


@dataclass
class _Task:
    partition: str
    offers: int = 0
    accepted: int = 0
    taken: list[_Delivery] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    # What became of a delivery, by its token; and when a task ended for good, in nanoseconds.
    outcomes: dict[str, str] = field(default_factory=dict)
    ended: int = 0


@dataclass
class _Call:
    offered: int
    ids: list[str]


def measure(lines: list[Line]) -> Fairness:
    tasks, calls = gather(lines)
    order = sorted((it for task in tasks.values() for it in task.taken), key=lambda it: number_of(it.token))
    for place, delivery in enumerate(order):
        delivery.place = place
    for task in tasks.values():
        charge(task)
    fairness = Fairness()
    far_apart(tasks, order, fairness)
    before_newcomers(tasks, calls, order, fairness)
    return fairness


def gather(lines: list[Line]) -> tuple[dict[str, _Task], dict[str, _Call]]:
    tasks: dict[str, _Task] = {}
    calls: dict[str, _Call] = {}
    tokens: set[str] = set()
    for line in lines:
        if line.what == "offered":
            call, partition, ids = line.more[:3]
            calls[call] = _Call(line.at, ids.split(","))
            for id in calls[call].ids:
                tasks.setdefault(id, _Task(partition)).offers += 1
        elif line.what == "accepted":
            for id in calls[line.more[0]].ids:
                tasks[id].accepted = line.at
        elif (task := tasks.get(line.more[0]) if line.more else None) is None:
            continue
        elif line.what == "took" and line.more[1] not in tokens:
            tokens.add(line.more[1])
            task.taken.append(_Delivery(line.more[0], line.more[1], int(line.more[3]), line.at))
        elif line.what == "start":
            task.starts.append(line.at)
        elif line.what == "settled" and line.more[4] == DONE:
            task.outcomes[line.more[1]] = line.more[2]
            if line.more[2] in ("ack", "fail"):
                task.ended = line.at
    return tasks, calls


def charge(task: _Task) -> None:
    """Says which deliveries of a task are charged."""
    losses = 0
    task.taken.sort(key=lambda it: number_of(it.token))
    for before, delivery in zip(task.taken, task.taken[1:], strict=False):
        outcome = task.outcomes.get(before.token)
        if outcome in ("release", "ran"):
            delivery.charged = any(before.at <= start < delivery.at for start in task.starts)
        elif outcome == "unknown":
            delivery.charged = False
        elif outcome in (None, "lost"):
            losses += 1
            delivery.charged = losses > 1


def far_apart(tasks: dict[str, _Task], order: list[_Delivery], fairness: Fairness) -> None:
    partitions: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for task in tasks.values():
        if task.offers == 1 and task.accepted and task.taken:
            partitions[task.partition].append((task.accepted, task.taken[0].place))
    waiting = {partition: backlogged(waits, order) for partition, waits in partitions.items()}
    of = [tasks[it.id].partition for it in order]
    for one, other in combinations(waiting, 2):
        lead = least = most = 0
        for place, both in enumerate(map(bool.__and__, waiting[one], waiting[other])):
            if not both:
                lead = least = most = 0
            elif order[place].charged and of[place] in (one, other):
                lead += 1 if of[place] == one else -1
                least, most = min(least, lead), max(most, lead)
                fairness.apart = max(fairness.apart, most - least)
                fairness.charges += 1


def backlogged(waits: list[tuple[int, int]], order: list[_Delivery]) -> list[bool]:
    """At which deliveries a task of the partition waited for certain: one accepted before that was asked for, and not
    delivered before. `waits` are times of acceptance and places of first deliveries."""
    waits.sort()
    accepted = [at for at, _ in waits]
    last = [-1, *accumulate((place for _, place in waits), max)]
    return [last[bisect_left(accepted, it.sent)] > it.place for it in order]


def before_newcomers(tasks: dict[str, _Task], calls: dict[str, _Call], order: list[_Delivery], fairness: Fairness) -> None:
    """A newcomer is a call that was made when all earlier tasks of its partition had ended."""
    # Of each partition: when the last of its tasks so far ended.
    idle_since: dict[str, float] = defaultdict(int)
    for call in calls.values():
        of_call = [tasks[id] for id in call.ids]
        partition = of_call[0].partition
        is_newcomer = idle_since[partition] < call.offered
        idle_since[partition] = max([idle_since[partition], *(task.ended or inf for task in of_call)])
        if not is_newcomer or not all(task.offers == 1 and task.accepted and task.taken for task in of_call):
            continue
        first = min(task.taken[0].place for task in of_call)
        ahead = Counter(tasks[it.id].partition for it in order[:first] if it.charged and it.sent > of_call[0].accepted)
        fairness.newcomers += 1
        fairness.ahead = max([fairness.ahead, *ahead.values()])
