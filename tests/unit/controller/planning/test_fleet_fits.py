# SPDX-License-Identifier: Apache-2.0
"""How many more desktops fit on each host, and why not more."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import NOW, pool_of
from vgpuctl.controller.model import FleetHost, FleetHostState, HostImage, Offer
from vgpuctl.controller.planning.fleet_fits import HostFits, count_fits
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

HOSTS = tuple(FleetHost(f"h{n}", f"host-{n}", f"ssh://h{n}", seen_at=NOW) for n in (10, 2))
FAILED = HostImage("h2", "image-1", "/a", True, CopyState.FAILED, 100, 40, error="5 GiB free, 9 GiB needed")


def fits(spec, offers, on_their_way=None, images=None, hosts=HOSTS) -> list[HostFits]:
    rows = [Offer(id, profile, free, total) for id, profile, free, total in offers]
    return list(count_fits(spec, hosts, rows, images or {}, on_their_way or {}, NOW))


def numbers(*args, **more) -> list[tuple[str, int, int]]:
    return [(one.host.name, one.free, one.at_least) for one in fits(*args, **more)]


def test_each_host_by_its_number_with_what_it_offers():
    spec = pool_of(profiles=("A16-2B",)).spec
    result = fits(spec, [("h2", "A16-2B", 4, 16), ("h2", "A16-4C", 9, 9), ("h10", "A16-2B", 0, 16)])
    assert [(one.host.name, one.free, one.profiles, one.why) for one in result] == [
        ("host-2", 4, {"A16-2B": 4}, ""),
        ("host-10", 0, {"A16-2B": 0}, "no A16-2B is free"),
    ]


def test_a_host_without_the_profile():
    assert {one.why for one in fits(pool_of(profiles=("A16-2B",)).spec, [])} == {"it offers no A16-2B"}


def test_alternatives_share_gpus_and_gpu_models_do_not():
    offers = [("h2", "A16-2B", 4, 16), ("h2", "L4-2B", 3, 12), ("h2", "A16-4C", 9, 9)]
    assert numbers(pool_of(profiles=("2B",)).spec, offers)[0] == ("host-2", 7, 7)
    assert numbers(pool_of(profiles=("A16-2B", "A16-4C")).spec, offers)[0] == ("host-2", 9, 9)


@pytest.mark.parametrize(
    ("way", "at_least"), [({"A16-2B": 5}, 20), ({"A16-4C": 1}, 4), ({"A16-4C": 1, "A16-2B": 1}, 4), ({"A16-4C": 2}, 0)]
)
def test_another_profile_on_its_way_takes_at_most_one_gpu(way, at_least):
    spec = pool_of(profiles=("A16-2B",)).spec
    assert numbers(spec, [("h2", "A16-2B", 20, 16)], {"h2": way, "h10": {"A16-4C": 1}})[0] == ("host-2", 20, at_least)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": FleetHostState.CORDONED}, "cordoned"),
        ({"state": FleetHostState.MAINTENANCE}, "maintenance"),
        ({"held": "a new driver"}, "held (a new driver)"),
        ({"seen_at": NOW - 46}, "silent"),
        ({"labels": {"site": "bonn"}}, "lacks the label site=berlin"),
    ],
)
def test_a_host_that_takes_none(change, why):
    spec = pool_of(profiles=("A16-2B",), hosts={"site": "berlin"}).spec
    host = replace(HOSTS[1], **{"labels": {"site": "berlin"}, **change})
    assert fits(spec, [("h2", "A16-2B", 4, 16)], hosts=[host]) == [HostFits(host, 0, 0, {}, why)]


def test_a_host_without_disk_for_the_image():
    spec = pool_of(profiles=("A16-2B",)).spec
    result = fits(spec, [("h2", "A16-2B", 4, 16)], images={"h2": FAILED})[0]
    assert (result.free, result.why) == (0, "its image failed (5 GiB free, 9 GiB needed)")
