# SPDX-License-Identifier: Apache-2.0
"""On which host a desktop goes, and why not on the others."""

from __future__ import annotations

import pytest

from tests.rooms import counted_gpu, room_of, whole_gpu
from tests.unit.controller.planning.fleets import HOST, NOW, desktop_of, pool_of
from vgpuctl.controller.model import FleetHost, FleetHostState, HostChoice, HostImage, OnItsWay, StoredRoom
from vgpuctl.controller.planning.fleet_room import FleetRoom, demand_of, profiles_of, room_of_fleet
from vgpuctl.controller.planning.host_choice import ChosenHost, choose_host
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

HOSTS = tuple(
    FleetHost(f"h{n}", f"host-{n}", f"ssh://h{n}", seen_at=NOW, labels={"site": "berlin"}) for n in (1, 2, 10)
)
COPYING = HostImage("h1", "image-1", "/srv/images/a.img", True, CopyState.COPYING, 100, 40)
READY = replace(COPYING, state=CopyState.READY)
NEW = desktop_of(host_id=None, profile=None)


def choose(pool, offers, hosts=HOSTS, images=None, placed=None, rooms=None, **more) -> ChosenHost:
    """`offers`: (host, profile, free, total); each profile has GPUs of its own."""
    gpus: dict[str, list] = {}
    for id, profile, free, total in offers:
        gpus.setdefault(id, []).append(counted_gpu(profile.split("-")[0], **{profile: (free, total)}))
    room = FleetRoom({id: room_of(*own) for id, own in gpus.items()} | (rooms or {}))
    return choose_host(NEW, pool, hosts, room, images or {}, placed or {}, NOW, **more)


def name_of(choice: ChosenHost) -> str | None:
    return choice.host.name if choice.host is not None else None


EQUAL = [(id, "A16-2B", 4, 16) for id in ("h1", "h2", "h10")]


def test_the_first_of_equal_hosts():
    choice = choose(pool_of(), EQUAL)
    assert (name_of(choice), choice.profile, choice.reason) == ("host-1", "A16-2B", "host-1: 4 of 16 A16-2B free")
    assert name_of(choose(pool_of(), EQUAL, HOSTS[::-1])) == HOSTS[-1].name


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
    assert choose(pool, EQUAL, [host]) == ChosenHost(None, None, f"no host can take it: {reason}")
    assert name_of(choose(pool, EQUAL, [host, *HOSTS[1:]])) == "host-2"


def test_profiles_and_images_decide():
    pool = pool_of(profiles=("4C", "2B"))
    assert "host-1: offers no 4C, no free 2B (of 16)" in choose(pool, [("h1", "A16-2B", 0, 16)], HOSTS[:1]).reason
    assert choose(pool, [("h1", "A16-2B", 1, 16), ("h2", "A40-4C", 1, 12)]).profile == "A40-4C", (
        "the best profile first"
    )
    assert choose(pool, [("h1", "A16-2B", 1, 16), ("h2", "A40-4C", 0, 12)]).profile == "A16-2B"
    assert name_of(choose(pool_of(), EQUAL, images={"h1": COPYING, "h10": READY})) == "host-10", "it surely has it"
    failed = replace(COPYING, state=CopyState.FAILED, error="no room")
    assert "its image failed (no room)" in choose(pool_of(), EQUAL, HOSTS[:1], images={"h1": failed}).reason
    assert name_of(choose(pool_of(), EQUAL, HOSTS[:1], images={"h1": COPYING})) == "host-1", "it can come"


GPU = counted_gpu(A16_2B=(4, 16))


@pytest.mark.parametrize(
    ("vm", "left", "reason"),
    [
        ({"memory": "8GiB"}, {"memory_mib": 8191}, "8191 MiB of memory left, 8 GiB needed"),
        ({"memory": "8GiB"}, {"memory_mib": 8192}, None),
        ({"vcpus": 8}, {"cpus": 1}, "1 CPU, 8 needed"),
        ({"vcpus": 8}, {"cpus": 8}, None),
        ({}, {"storage_mib": {"default": 1023}}, "1023 MiB left in the storage pool default, 1 GiB needed"),
        ({"storage_pool": "fast"}, {"storage_mib": {"default": 0, "fast": 1024}}, None),
        ({"storage_pool": "fast"}, {"storage_mib": {"default": 0}}, None),
    ],
)
def test_memory_cpus_and_storage_decide(vm, left, reason):
    choice = choose(pool_of(vm=vm), [], HOSTS[:1], rooms={"h1": room_of(GPU, **left)})
    expected = "host-1: 4 of 16 A16-2B free" if reason is None else f"no host can take it: host-1: {reason}"
    assert choice.reason == expected


def test_whole_gpus_and_plain_vfs():
    whole = pool_of(profiles=(), vm={"mode": "passthrough", "gpus": 2})
    two = room_of(whole=(whole_gpu("A100 80GB"), whole_gpu("A16")))
    assert choose(whole, [], rooms={"h2": two}).profile == "passthrough"
    one = room_of(GPU, whole=(whole_gpu(),))
    assert "host-1: 1 passthrough free (of 1), 2 needed" in choose(whole, [], HOSTS[:1], rooms={"h1": one}).reason
    assert name_of(choose(whole, EQUAL)) is None
    model = pool_of(profiles=(), vm={"mode": "passthrough", "gpu": "A100"})
    assert name_of(choose(model, [], rooms={"h1": room_of(whole=(whole_gpu("A16"),)), "h2": two})) == "host-2"
    other = pool_of(profiles=(), vm={"mode": "passthrough", "not_gpu": ["A100", "L40"]})
    assert name_of(choose(other, [], rooms={"h1": room_of(whole=(whole_gpu("A100"),)), "h2": two})) == "host-2"
    plain = pool_of(profiles=(), vm={"mode": "sriov"})
    assert choose(plain, [("h2", "VF", 3, 4)]).reason == "host-2: 3 of 4 VF free"


def test_a_gpu_that_is_reserved_for_other_names():
    pool = pool_of(profiles=(), vm={"mode": "passthrough"})
    for pattern, name in (("d-*", "host-2"), ("cad-*", None)):
        rooms = {"h2": room_of(whole=(whole_gpu(reserved_for=(pattern,)),))}
        assert name_of(choose(pool, [], rooms=rooms)) == name


def test_policies():
    offers = [("h1", "A16-2B", 9, 16), ("h2", "A16-2B", 2, 16), ("h10", "A16-2B", 15, 16)]
    assert name_of(choose(pool_of(), offers)) == "host-2"
    assert name_of(choose(pool_of(choice=HostChoice.SPREAD), offers)) == "host-10"
    anywhere = pool_of(choice=HostChoice.RANDOM)
    picked = [name_of(choose(anywhere, offers, number=number)) for number in (0.0, 0.34, 0.999)]
    assert picked == ["host-1", "host-2", "host-10"]
    apart = pool_of(apart=True)
    assert name_of(choose(apart, offers, placed={"h2": 1, "h1": 1})) == "host-10"
    assert name_of(choose(apart, offers, placed={"h2": 1, "h1": 1, "h10": 1})) == "host-2"


A16 = EqualSizeKind("A16", 16384, {"A16-2B": 2048, "A16-8Q": 8192}, {"A16-2B": 8, "A16-8Q": 2})


def test_least_waste_keeps_empty_gpus_for_sizes_that_need_one():
    """A GPU takes one size: the host whose GPU has that size already is better than one with more room."""
    empty = (A16, A16.empty)
    rooms = {"h1": room_of(empty), "h10": room_of((A16, (2048, 3)), empty, empty)}
    assert name_of(choose(pool_of(), [], rooms=rooms)) == "host-10"
    used, large = {"h10": room_of((A16, (2048, 3)))}, pool_of(profiles=("A16-8Q",))
    assert choose(large, [], HOSTS[2:], rooms=used).reason.endswith("no free A16-8Q (of 2)")


def test_what_is_on_its_way_is_counted_as_the_host_would():
    small, large = (replace(pool_of(profiles=(p,)), id=p) for p in ("A16-2B", "A16-8Q"))
    stored = {"h1": StoredRoom(room_of((A16, A16.empty), memory_mib=20480, storage_mib={"default": 4096}), 1)}
    pools = {pool.id: pool for pool in (small, large)}
    coming = [OnItsWay("h1", "A16-8Q", "x-1", "A16-8Q"), OnItsWay("gone", "A16-8Q", "x-2", "A16-8Q")]
    room = room_of_fleet(stored, [*coming, OnItsWay("h1", "no pool", "x-3", "A16-8Q")], pools)
    assert choose_host(NEW, small, HOSTS[:1], room, {}, {}, NOW).reason.endswith("host-1: no free A16-2B (of 8)")
    assert choose_host(NEW, large, HOSTS[:1], room, {}, {}, NOW).reason == "host-1: 1 of 2 A16-8Q free"
    assert (room.memory_mib("h1"), room.storage_mib("h1", "default")) == (20480 - 4096, 3072)
    assert room.profiles("h1") == {"A16-2B": 0, "A16-8Q": 1}
    assert room.profiles("gone") == {}


def test_a_profile_that_was_refused_is_not_offered():
    l4 = counted_gpu("L4", L4_2B=(0, 12))
    stored = {"h1": StoredRoom(room_of(GPU, l4, whole=(whole_gpu(),)), 1, {"A16-2B": "no room for A16-2B: a driver"})}
    room = room_of_fleet(stored, [], {})
    assert room.profiles("h1") == {"A16-2B": 0, "L4-2B": 0, "passthrough": 1}
    reason = choose_host(NEW, pool_of(), HOSTS[:1], room, {}, {}, NOW).reason
    assert reason == "no host can take it: host-1: no room for A16-2B: a driver"


def test_of_two_models_the_one_that_was_not_refused():
    """What is on its way there was not refused when it was placed."""
    two = room_of(GPU, counted_gpu("L4", L4_2B=(12, 12)))
    pool = pool_of()
    way = [OnItsWay("h1", pool.id, "x", "A16-2B")]
    room = room_of_fleet({"h1": StoredRoom(two, 1, {"A16-2B": "no"})}, way, {pool.id: pool})
    assert choose_host(NEW, pool, HOSTS[:1], room, {}, {}, NOW).reason == "host-1: 12 of 28 L4-2B free"
    room.refuse({})
    assert room.profiles("h1") == {"A16-2B": 3, "L4-2B": 12}


def test_a_gpu_that_a_vm_has_as_a_whole_counts_but_is_not_free():
    pool = pool_of(profiles=(), vm={"mode": "passthrough"})
    one = room_of(whole=(whole_gpu(free=False),))
    assert choose(pool, [], HOSTS[:1], rooms={"h1": one}).reason.endswith("host-1: no free passthrough (of 1)")
    assert profiles_of(one) == {"passthrough"}


def test_a_gpu_is_whole_no_more_with_a_vgpu_and_divided_no_more_when_it_is_given():
    both = room_of((A16, A16.empty))
    both = replace(both, gpus=(replace(both.gpus[0], whole=True, free=True),))
    whole = demand_of(pool_of(profiles=(), vm={"mode": "passthrough"}).spec)
    divided = demand_of(pool_of(profiles=("A16-8Q",)).spec)
    first, second = FleetRoom({"h1": both}), FleetRoom({"h1": both})
    assert first.take("h1", divided) == "A16-8Q"
    assert (first.profiles("h1")["passthrough"], first.take("h1", whole)) == (0, None)
    assert second.take("h1", whole) == "passthrough"
    assert second.profiles("h1") == {"A16-2B": 0, "A16-8Q": 0, "passthrough": 0}
    assert second.take("h1", divided) is None


def test_gpus_that_a_host_describes_wrongly_are_left_out():
    good = room_of(GPU)
    bad = replace(good.gpus[0], rule=7), replace(good.gpus[0], state=("f" * 99,)), replace(good.gpus[0], state=())
    assert FleetRoom({"h1": replace(good, gpus=(*bad, *good.gpus))}).profiles("h1") == {"A16-2B": 4}
    many = replace(good, gpus=good.gpus * 5000)
    assert FleetRoom({"h1": many}).profiles("h1") == {"A16-2B": 4 * 64}, "so many GPUs count"


def test_the_reason_has_an_end():
    hosts = [replace(HOST, id=f"x{n}", name=f"x{n}", held="y") for n in range(30)]
    assert choose(pool_of(), [], hosts).reason.endswith("; and 10 more hosts")
    assert choose(pool_of(), [], []).reason == "no host can take it: the fleet has none"
