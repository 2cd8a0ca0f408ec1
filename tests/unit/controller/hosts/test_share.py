# SPDX-License-Identifier: Apache-2.0
"""How many hosts a controller takes, keeps and lets go."""

from __future__ import annotations

from vgpuctl.controller.clock import SteppedClock
from vgpuctl.controller.hosts.share import FEW, FREE_SECONDS, PART, REST_SECONDS, HostShare

NOBODY: frozenset[str] = frozenset()


def names(count: int, first: int = 0) -> list[str]:
    return [f"h{number:03}" for number in range(first, first + count)]


def share(hosts: int, controllers: int, held: int = 0, clock: SteppedClock | None = None) -> HostShare:
    result = HostShare(clock or SteppedClock(0.0))
    result.set_hosts(hosts)
    result.set_controllers(controllers)
    for name in names(held):
        result.keep(name)
    return result


def let_all_go(one: HostShare, idle: list[str], free: frozenset[str] = NOBODY) -> frozenset[str]:
    chosen = one.choose_leaving(idle, free)
    for name in chosen:
        assert one.is_leaving(name)
        one.let_go(name)
    return chosen


def test_a_share_is_rounded_up() -> None:
    assert [share(10, count).size for count in (1, 2, 3, 4, 10, 20)] == [10, 5, 4, 3, 1, 1]
    assert share(0, 3).size == 0
    assert share(10, 0).size == 10, "this controller lives at least"
    assert share(10, 1).is_alone
    assert not share(10, 2).is_alone


def test_free_hosts_are_taken_up_to_the_share_and_left_ones_by_anyone() -> None:
    one = share(10, 2)
    assert [one.take(name, 0.0) for name in names(6)] == [True] * 5 + [False]
    assert one.take("h000", 0.0), "it is its own already"
    assert not one.take("h005", FREE_SECONDS - 0.1)
    assert one.take("h005", FREE_SECONDS)
    one.lose("h000")
    assert not one.take("h006", 0.0), "five are its share"
    one.lose("h001")
    assert one.take("h006", 0.0)


def test_a_controller_alone_takes_all_and_lets_none_go() -> None:
    one = share(300, 1)
    assert all(one.take(name, 0.0) for name in names(300))
    assert let_all_go(one, names(300)) == NOBODY


def test_some_are_let_go_at_a_time_until_the_share_is_left() -> None:
    one, held, rounds = share(400, 2, held=400), set(names(400)), []
    while chosen := let_all_go(one, sorted(held)):
        held -= chosen
        rounds.append(len(chosen))
    assert rounds == [400 // PART] * 10
    assert len(held) == 200


def test_no_more_are_let_go_while_nobody_has_taken_the_last_ones() -> None:
    one = share(20, 2, held=20)
    first = let_all_go(one, names(20))
    assert len(first) == FEW
    assert let_all_go(one, names(20), first) == NOBODY
    one_left = frozenset(sorted(first)[:1])
    assert len(let_all_go(one, names(20), one_left)) == FEW - 1


def test_hosts_with_calls_stay() -> None:
    one = share(20, 2, held=20)
    assert one.choose_leaving(["h003", "h999"], NOBODY) == {"h003"}, "of its own"
    assert one.is_leaving("h003")
    one.stay("h003")
    assert not one.is_leaving("h003")
    assert one.choose_leaving([], NOBODY) == NOBODY


def test_a_little_more_than_the_share_is_no_reason() -> None:
    assert share(40, 2, held=22).choose_leaving(names(22), NOBODY) == NOBODY
    one, held = share(40, 2, held=23), set(names(23))
    while chosen := let_all_go(one, sorted(held)):
        held -= chosen
    assert len(held) == 20, "what has begun goes on to the share"
    one.keep("h030")
    assert let_all_go(one, sorted(held)) == NOBODY, "and begins again only above the tolerance"
    assert len(share(2, 2, held=2).choose_leaving(names(2), NOBODY)) == 1


def test_nothing_is_let_go_for_a_while_after_a_host_came_back() -> None:
    clock = SteppedClock(0.0)
    one = share(20, 2, held=20, clock=clock)
    left = let_all_go(one, names(20))
    back = min(left)
    assert not one.take(back, 0.0, was_own=True)
    assert one.take(back, FREE_SECONDS, was_own=True)
    assert let_all_go(one, names(20)) == NOBODY
    clock.advance(REST_SECONDS - 1)
    assert let_all_go(one, names(20)) == NOBODY
    clock.advance(1)
    assert let_all_go(one, names(20))


def test_a_host_that_another_took_meanwhile_does_not_count_as_come_back() -> None:
    one = share(20, 2, held=20)
    left = let_all_go(one, names(20))
    assert one.take(min(left), FREE_SECONDS), "another one had it, and died"
    assert let_all_go(one, names(20)), "no rest"
    assert one.choose_leaving([], NOBODY) == NOBODY  # others have them now
    assert one.take(max(left), FREE_SECONDS, was_own=True), "which is long ago"
    assert let_all_go(one, names(20)), "no rest"


def test_a_removed_host_is_forgotten() -> None:
    one = share(2, 2, held=2)
    one.choose_leaving(["h000"], NOBODY)
    one.forget("h000")
    assert not one.is_leaving("h000")
    assert let_all_go(one, names(2)) == NOBODY


def test_hosts_that_others_took_meanwhile_make_room() -> None:
    one = share(10, 2, held=5)
    assert one.choose_leaving(names(5), NOBODY) == NOBODY
    assert not one.take("h009", 0.0)
    assert one.compare({"h000", "h001", "h002"}) == {"h003", "h004"}, "a paused controller lost them"
    assert one.compare({"h000", "h001", "h002"}) == NOBODY
    assert one.take("h009", 0.0)
