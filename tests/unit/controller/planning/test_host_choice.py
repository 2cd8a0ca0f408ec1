# SPDX-License-Identifier: Apache-2.0
"""On which host a desktop goes, and why not on the others."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import HOST, NOW, desktop_of, pool_of
from vgpuctl.controller.model import FleetHost, FleetHostState, HostChoice, HostImage, Offer
from vgpuctl.controller.planning.host_choice import ChosenHost, HostRoom, choose_host
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

HOSTS = tuple(
    FleetHost(f"h{n}", f"host-{n}", f"ssh://h{n}", seen_at=NOW, labels={"site": "berlin"}) for n in (1, 2, 10)
)
COPYING = HostImage("h1", "image-1", "/srv/images/a.img", True, CopyState.COPYING, 100, 40)
READY = replace(COPYING, state=CopyState.READY)
NEW = desktop_of(host_id=None, profile=None)


def choose(pool, offers, hosts=HOSTS, images=None, placed=None, **more) -> ChosenHost:
    offers = [Offer(id, profile, free, total) for id, profile, free, total in offers]
    return choose_host(NEW, pool, hosts, offers, images or {}, placed or {}, NOW, **more)


def name_of(choice: ChosenHost) -> str | None:
    return choice.host.name if choice.host is not None else None


EQUAL = [(id, "A16-2B", 4, 16) for id in ("h1", "h2", "h10")]


def test_the_first_of_equal_hosts_by_its_number():
    choice = choose(pool_of(), EQUAL)
    assert (name_of(choice), choice.profile, choice.reason) == ("host-1", "A16-2B", "host-1: 4 of 16 A16-2B free")
    assert name_of(choose(pool_of(), EQUAL, HOSTS[::-1])) == "host-1"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": FleetHostState.CORDONED}, "host-1: cordoned"),
        ({"state": FleetHostState.DRAINING}, "host-1: draining"),
        ({"held": "a new driver"}, "host-1: held (a new driver)"),
        ({"seen_at": NOW - 46}, "host-1: silent"),
        ({"seen_at": None}, "host-1: silent"),
        ({"labels": {"site": "bonn"}}, "host-1: lacks the label site=berlin"),
        ({"labels": {}}, "host-1: lacks the label site=berlin"),
    ],
)
def test_a_host_that_cannot_take_it_and_why(change, reason):
    pool = pool_of(hosts={"site": "berlin"})
    host = replace(HOSTS[0], **change)
    assert choose(pool, EQUAL, [host]) == ChosenHost(None, None, f"no host can take d-001: {reason}")
    assert name_of(choose(pool, EQUAL, [host, *HOSTS[1:]])) == "host-2"


def test_offers_images_and_memory_decide():
    pool = pool_of(profiles=("4C", "2B"), vm={"memory": "8GiB", "vcpus": 8})
    assert "host-1: offers no 4C, no free 2B (of 16)" in choose(pool, [("h1", "A16-2B", 0, 16)], HOSTS[:1]).reason
    assert choose(pool, [("h1", "A16-2B", 1, 16), ("h2", "A40-4C", 1, 12)]).profile == "A40-4C", (
        "the best profile first"
    )
    assert choose(pool, [("h1", "A16-2B", 1, 16), ("h2", "A40-4C", 0, 12)]).profile == "A16-2B"
    assert name_of(choose(pool_of(), EQUAL, images={"h1": COPYING, "h10": READY})) == "host-10", "it surely has it"
    failed = replace(COPYING, state=CopyState.FAILED, error="no room")
    assert "its image failed (no room)" in choose(pool_of(), EQUAL, HOSTS[:1], images={"h1": failed}).reason
    assert name_of(choose(pool_of(), EQUAL, HOSTS[:1], images={"h1": COPYING})) == "host-1", "it can come"
    rooms = {"h1": HostRoom(8191), "h2": HostRoom(None, 4)}
    reason = choose(pool, EQUAL, HOSTS[:2], rooms=rooms).reason
    assert "host-1: 8191 MiB of memory free, 8 GiB needed; host-2: 4 CPUs, 8 needed" in reason
    whole = pool_of(profiles=(), vm={"mode": "passthrough", "gpus": 1})
    assert choose(whole, [("h1", "passthrough", 1, 2)]).profile == "passthrough"
    assert name_of(choose(whole, EQUAL)) is None


def test_policies():
    offers = [("h1", "A16-2B", 9, 16), ("h1", "A16-4C", 4, 8), ("h2", "A16-2B", 2, 16), ("h2", "A16-4C", 1, 8),
              ("h10", "A16-2B", 15, 16), ("h10", "A16-4C", 7, 8)]  # fmt: skip
    assert name_of(choose(pool_of(), offers)) == "host-2"
    assert name_of(choose(pool_of(choice=HostChoice.SPREAD), offers)) == "host-10"
    anywhere = pool_of(choice=HostChoice.RANDOM)
    picked = [name_of(choose(anywhere, offers, number=number)) for number in (0.0, 0.34, 0.999)]
    assert picked == ["host-1", "host-2", "host-10"]
    apart = pool_of(apart=True)
    assert name_of(choose(apart, offers, placed={"h2": 1, "h1": 1})) == "host-10"
    assert name_of(choose(apart, offers, placed={"h2": 1, "h1": 1, "h10": 1})) == "host-2"


def test_the_reason_has_an_end():
    hosts = [replace(HOST, id=f"x{n}", name=f"x{n}", held="y") for n in range(30)]
    assert choose(pool_of(), [], hosts).reason.endswith("; and 10 more hosts")
    assert choose(pool_of(), [], []).reason == "no host can take d-001: the fleet has none"
