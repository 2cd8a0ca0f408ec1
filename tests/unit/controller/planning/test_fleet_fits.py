# SPDX-License-Identifier: Apache-2.0
"""How many more desktops fit on each host, and why not more."""

from __future__ import annotations

import pytest

from tests.rooms import counted_gpu, room_of, whole_gpu
from tests.unit.controller.planning.fleets import NOW, pool_of
from vgpuctl.controller.model import FleetHost, FleetHostState, HostImage, OnItsWay, StoredRoom
from vgpuctl.controller.planning.fleet_fits import HostFits, count_fits
from vgpuctl.controller.planning.fleet_room import room_of_fleet
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

HOSTS = tuple(FleetHost(f"h{n}", f"host-{n}", f"ssh://h{n}", seen_at=NOW) for n in (10, 2))
FAILED = HostImage("h2", "image-1", "/a", True, CopyState.FAILED, 100, 40, error="5 GiB free, 9 GiB needed")


def fits(spec, rooms, images=None, hosts=HOSTS, coming=()) -> list[HostFits]:
    """`coming`: pairs of a host and a pool, of desktops on their way."""
    pools = {pool.id: pool for _, pool in coming}
    way = [OnItsWay(id, pool.id, "x", pool.spec.profiles[0]) for id, pool in coming]
    room = room_of_fleet({id: StoredRoom(one, 1) for id, one in rooms.items()}, way, pools)
    return list(count_fits(spec, hosts, room, images or {}, NOW))


def test_who_needs_so_many_hears_of_no_more():
    room = room_of_fleet({host.id: StoredRoom(FOUR, 1) for host in HOSTS}, [], {})
    assert [(one.host.name, one.free) for one in count_fits(A16_2B, HOSTS, room, {}, NOW, 3)] == [("host-2", 3)]
    assert room.totals("h2") == {"A16-2B": 16}
    assert room.totals("gone") == {}


def numbers(*args, **more) -> list[tuple[str, int]]:
    return [(one.host.name, one.free) for one in fits(*args, **more)]


A16_2B = pool_of(profiles=("A16-2B",)).spec
FOUR = room_of(counted_gpu(A16_2B=(4, 16)))


def test_each_host_by_its_number_with_what_it_offers():
    rooms = {"h2": room_of(counted_gpu(A16_2B=(4, 16), A16_4C=(9, 9))), "h10": room_of(counted_gpu(A16_2B=(0, 16)))}
    assert [(one.host.name, one.free, one.profiles, one.why) for one in fits(A16_2B, rooms)] == [
        ("host-2", 4, {"A16-2B": 4}, ""),
        ("host-10", 0, {"A16-2B": 0}, "no free A16-2B (of 16)"),
    ]


def test_a_host_without_the_profile():
    assert {one.why for one in fits(A16_2B, {})} == {"offers no A16-2B"}


A16 = EqualSizeKind("A16", 16384, {"A16-2B": 2048, "A16-8Q": 8192}, {"A16-2B": 8, "A16-8Q": 2})


def test_alternatives_share_gpus_and_gpu_models_do_not():
    rooms = {"h2": room_of(counted_gpu(A16_2B=(4, 16)), counted_gpu("L4", L4_2B=(3, 12)))}
    assert numbers(pool_of(profiles=("2B",)).spec, rooms)[0] == ("host-2", 7)
    shared = fits(pool_of(profiles=("A16-8Q", "A16-2B")).spec, {"h2": room_of((A16, A16.empty), (A16, (2048, 5)))})[0]
    assert (shared.free, shared.profiles) == (2 + 3, {"A16-8Q": 2, "A16-2B": 11})


def test_desktops_of_other_pools_on_their_way_are_counted():
    large = replace(pool_of(profiles=("A16-8Q",)), id="large")
    rooms = {"h2": room_of((A16, A16.empty), (A16, A16.empty))}
    assert numbers(A16_2B, rooms)[0] == ("host-2", 16)
    assert numbers(A16_2B, rooms, coming=[("h2", large)])[0] == ("host-2", 8)
    assert numbers(A16_2B, rooms, coming=[("h2", large)] * 2)[0] == ("host-2", 8), "both are on one GPU"
    assert numbers(A16_2B, rooms, coming=[("h2", large)] * 3)[0] == ("host-2", 0)


def test_memory_and_storage_are_counted_for_each():
    spec = pool_of(profiles=("A16-2B",), vm={"memory": "4GiB"}).spec
    short = room_of(counted_gpu(A16_2B=(4, 16)), memory_mib=3 * 4096 - 1)
    some = fits(spec, {"h2": short})[0]
    assert (some.free, some.why) == (2, "")
    none = fits(spec, {"h2": replace(short, memory_mib=4095)})[0]
    assert (none.free, none.why) == (0, "4095 MiB of memory left, 4 GiB needed")
    assert numbers(spec, {"h2": replace(FOUR, storage_mib={"default": 3000})})[0] == ("host-2", 2)


def test_desktops_with_several_gpus():
    spec = pool_of(profiles=(), vm={"mode": "passthrough", "gpus": 2}).spec
    one = fits(spec, {"h2": room_of(whole=(whole_gpu(),) * 5)})[0]
    assert (one.free, one.profiles) == (2, {"passthrough": 2})


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
    assert fits(spec, {"h2": FOUR}, hosts=[host]) == [HostFits(host, 0, {}, why)]


def test_a_host_without_disk_for_the_image():
    spec = pool_of(profiles=("A16-2B",)).spec
    result = fits(spec, {"h2": FOUR}, images={"h2": FAILED})[0]
    assert (result.free, result.why) == (0, "its image failed (5 GiB free, 9 GiB needed)")
