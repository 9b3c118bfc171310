"""Which endpoints are unloaded for another: the longest idle, no more than needed, never one in use."""

from __future__ import annotations

from backend.domain.jobs.endpoint_memory import OtherEndpoint, choose_to_unload


def other(port: int, memory: int, *, idle_s: float = 1.0, may_leave: bool = True, loads: bool = False) -> OtherEndpoint:
    return OtherEndpoint(port, memory, loads, may_leave, idle_s)


def ports(needed: int, free: int, *others: OtherEndpoint) -> list[int] | None:
    chosen = choose_to_unload(needed, free, others)
    return None if chosen is None else [each.port for each in chosen]


def test_nothing_is_unloaded_where_there_is_room() -> None:
    assert ports(10, 10, other(1, 50)) == []


def test_the_longest_idle_goes_first_and_no_more_than_needed() -> None:
    others = (other(1, 5, idle_s=1.0), other(2, 5, idle_s=9.0), other(3, 5, idle_s=5.0))
    assert ports(10, 8, *others) == [2]
    assert ports(10, 1, *others) == [2, 3]
    assert ports(100, 1, *others) is None, "nothing is unloaded for nothing"


def test_one_in_use_stays_and_one_that_loads_has_its_memory_already() -> None:
    assert ports(10, 5, other(1, 50, may_leave=False)) is None
    assert ports(10, 15, other(1, 6, may_leave=False, loads=True)) is None
    assert ports(10, 15, other(1, 6, may_leave=False, loads=True), other(2, 1)) == [2]
