"""How `make chaos` measures the order: on ledgers made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos import ledger
from chaos.fair import Fairness, measure


def took(*ids: str, after: str = "", first: int = 1, sent: int = 100) -> str:
    """Deliveries of these ids, each settled as `after` says: its lines, with ID and TOKEN in them. `first` is the number of
    the first one, and `sent` when they were asked for."""
    text, counts = "", dict.fromkeys(ids, 0)
    for number, id in enumerate(ids, first):
        counts[id] += 1
        text += f"took {id} 7-{number} {counts[id]} {sent}\n"
        text += after.replace("ID", id).replace("TOKEN", f"7-{number}")
    return text


def order(text: str) -> Fairness:
    """Of two partitions that have five tasks each, and of more lines."""
    queued = "".join(f"offered {p} {p} {p}1,{p}2,{p}3,{p}4,{p}5\naccepted {p}\n" for p in "pq")
    return measure(ledger.lines_of(queued + text))


def test_turn_by_turn_is_fair() -> None:
    found = order(took("p1", "q1", "p2", "q2", "q3", "p3", "p4", "q4", "q5", "p5"))
    assert (found.apart, found.charges) == (2, 8)


def test_one_that_gets_more_than_another_who_waits_is_found_out() -> None:
    assert order(took("p1", "p2", "p3", "q1", "q2", "q3", "p4", "q4", "p5", "q5")).apart == 3
    found = order(took("p1", "q1", "q2", "q3", "q4", "p2", "p3", "p4", "p5", "q5"))
    assert found.apart == 4
    assert found.wrong == ["partitions that had tasks waiting were charged 4 apart, more than 2"]


def test_who_has_no_task_waiting_is_compared_with_nobody() -> None:
    assert order(took("p1", "q1", "p2", "q2", "p3", "q3", "p4", "q4", "p5", "q5")).apart == 1
    # Once the last of p's was taken, q may have all.
    assert order(took("p1", "p2", "q1", "p3", "p4", "q2", "p5", "q3", "q4", "q5")).apart == 3
    late = "offered r r r1,r2\naccepted r\n"
    before = took("p1", "p2", "p3", sent=4)
    assert order(before + late + took("p4", "r1", "p5", "r2", first=4)).apart == 1


RELEASED = "settled ID TOKEN release 0 0 1\n"


def test_what_was_given_back_and_had_not_run_is_free() -> None:
    assert order(took("p1", "p1", "p1", "p1", "q1", "p2", "q2", after=RELEASED)).apart <= 2


def test_what_ran_and_was_given_back_is_charged_whatever_was_said_of_it() -> None:
    ran = "start ID 1\n" + RELEASED
    assert order(took("p1", "p1", "p1", "p1", "q1", "p2", "q2", after=ran)).apart == 4
    assert order(took("p1", "p1", "p1", "p1", "q1", "p2", "q2", after=ran.replace("release", "ran"))).apart == 4


def test_a_retry_is_charged() -> None:
    assert order(took("p1", "p1", "p1", "p1", "q1", "p2", "q2", after=RELEASED.replace("release", "retry"))).apart == 4


def test_what_was_lost_is_free_once() -> None:
    assert order(took("p1", "p1", "q1", "p2", "q2")).apart == 1
    assert order(took("p1", "p1", "p1", "p1", "q1", "p2", "q2")).apart == 3


NEWCOMER = "offered n n n1\naccepted n\n"


def test_few_go_before_a_newcomer() -> None:
    found = order(NEWCOMER + took("p1", "q1", "p2", "q2", "n1", "p3", "q3"))
    assert (found.ahead, found.newcomers) == (2, 1)


def test_many_that_go_before_a_newcomer_are_found_out() -> None:
    found = order(NEWCOMER + took("p1", "q1", "p2", "q2", "p3", "n1", "q3"))
    assert found.wrong[-1] == "3 of one partition went before a newcomer, more than 2"


def test_who_has_not_ended_yet_is_no_newcomer() -> None:
    late = "offered n2 n n2\naccepted n2\n" + took("p1", "n2", first=2)
    assert order(NEWCOMER + took("n1", after="settled ID TOKEN ack 0 0 1\n") + late).newcomers == 2
    assert order(NEWCOMER + took("n1") + late).newcomers == 1


def test_an_order_that_nobody_measured_is_wrong() -> None:
    assert measure([]).wrong == ["the order was measured of 0 charges and 0 newcomers only"]
