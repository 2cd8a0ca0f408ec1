# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs as a fleet: alike GPUs in one group, unknown ones left out; several profiles fit on them, or not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.gpu.test_gpu_instances import H1
from tests.unit.gpu.test_gpu_instances import host as instances_host
from tests.values import A4C, A5C, T4Q, a100, assigned, changed, snapshot, t4, taken, vm
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.profiles import find_types
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.placement.fit import check_fit
from vgpuctl.placement.fleet import build_fleet_state, fleet_by_profile, rename_profiles, resolve_profile
from vgpuctl.value import replace


def test_gpus_that_are_alike_are_of_one_kind_in_one_group_in_the_order_of_their_addresses() -> None:
    gpus = [a100(f"0000:{n:02x}:00.0") for n in (0x5E, 0x3B, 0x81)]
    numbers = build_fleet_state(snapshot(*gpus), gpus)
    assert [g.address for g in numbers.gpus] == ["0000:3b:00.0", "0000:5e:00.0", "0000:81:00.0"]
    assert [n for _, n in numbers.fleet.groups()] == [3]
    two = snapshot(*gpus, vgpus=(taken(gpus[0], A4C),))
    numbers = build_fleet_state(two, gpus)
    assert len(numbers.fleet.kinds) == 1
    assert [numbers.fleet.vgpu_count(n) for n in range(3)] == [0, 1, 0]


def test_unrequested_profiles_follow_the_rules_alone() -> None:
    gpu = a100()
    for number in range(len(gpu.functions)):
        gpu = changed(gpu, number, available_instances={A4C.type_id: 1})
    asked = build_fleet_state(snapshot(gpu), [gpu], read_profiles=frozenset({"A100-4C"})).fleet
    read = build_fleet_state(snapshot(gpu), [gpu]).fleet
    (group, _), (same, _) = next(asked.groups()), next(read.groups())
    assert [asked.kind_of(group).count_remaining(group.state, p) for p in ("A100-4C", "A100-5C")] == [10, 8]
    assert [read.kind_of(same).count_remaining(same.state, p) for p in ("A100-4C", "A100-5C")] == [10, 0]


def test_a_cordoned_stuck_or_assigned_gpu_is_left_out_with_a_reason() -> None:
    gpus = [
        a100("0000:01:00.0", cordoned=True),
        a100("0000:02:00.0", reserved_for=("lab-*",)),
        a100("0000:03:00.0"),
        a100("0000:04:00.0"),
    ]
    whole = taken(gpus[3], None, carrier=gpus[3].address, backend=Backend.PASSTHROUGH)
    write = StuckWrite(ProcessId(7, 1), gpus[2].address, "create", "x")
    seen = replace(snapshot(*gpus, vgpus=(whole,)), stuck_writes=(write,))
    numbers = build_fleet_state(seen, gpus)
    assert len(numbers.fleet) == 0
    assert {a: why.split(";")[0] for a, why in numbers.excluded_gpus.items()} == {
        "0000:01:00.0": "it is cordoned",
        "0000:02:00.0": "host.yaml reserves it for VMs named lab-*",
        "0000:03:00.0": "a kernel write on it is blocked",
        "0000:04:00.0": "how many fit on it is not known",
    }
    assert len(build_fleet_state(seen, gpus, "lab-1").fleet) == 1


def gib(name: str, total: int, *profiles: str) -> EqualSizeKind:
    """Return a kind whose profiles are sized by their names."""
    sizes = {p: int("".join(c for c in p.rpartition("-")[2] if c.isdigit())) * 1024 for p in profiles}
    return EqualSizeKind(name, total * 1024, sizes, {p: total * 1024 // mib for p, mib in sizes.items()})


A16 = gib("A16", 16, "A16-1B", "A16-2B", "A16-4Q", "A16-4C", "A16-8Q", "A16-16Q", "A16-16C")
L40S = gib("L40S", 48, "L40S-1B", "L40S-2B", "L40S-4Q", "L40S-8Q", "L40S-12C", "L40S-24C", "L40S-48C")
KINDS = (A16, L40S)


@pytest.mark.parametrize(
    ("text", "name", "profiles"),
    [
        ("2B", "2B", ("A16-2B", "L40S-2B")),
        ("A16-2B", "A16-2B", ("A16-2B", None)),
        ("a16-2b", "A16-2B", ("A16-2B", None)),
        ("4C", "A16-4C", ("A16-4C", None)),
        ("A16-4C|L40S-12C", "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        ("L40S-12C|A16-4C", "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
    ],
)
def test_what_serves_a_request(text: str, name: str, profiles: tuple[str | None, ...]) -> None:
    result = resolve_profile(text, KINDS)
    assert (result.name, result.profiles) == (name, profiles)
    assert resolve_profile(result.name, KINDS) == result


def test_requests_with_different_results_have_different_names() -> None:
    kinds = (gib("X", 8, "X-1B", "X-2B"), gib("Y", 8, "X-1B"), gib("Z", 8, "X-2B"))
    small, large = (resolve_profile(text, kinds) for text in ("X-1B|X-2B", "X-2B|X-1B"))
    assert (small.profiles, large.profiles) == (("X-1B", "X-1B", "X-2B"), ("X-2B", "X-1B", "X-2B"))
    assert small.name != large.name


def test_an_unoffered_profile_resolves_to_none() -> None:
    assert resolve_profile("A16-3B", KINDS) is None


def test_a_kind_with_other_names_is_the_same_kind() -> None:
    resolved = [resolve_profile(text, KINDS) for text in ("2B", "A16-2B", "8Q", "L40S-12C")]
    kind = rename_profiles(KINDS, [result for result in resolved if result is not None])[0]
    assert {name: kind.sizes[name] for name in ("2B", "A16-2B", "8Q")} == {"2B": 2048, "A16-2B": 2048, "8Q": 8192}
    assert {A16.footprint(p) for p in A16.sizes} == {kind.footprint(name) for name in kind.sizes}
    (move,) = kind.placements(kind.empty, "2B")
    assert move == A16.placements(A16.empty, "A16-2B")[0]
    assert (
        kind.count_remaining(move.state_after, "A16-2B"),
        kind.count_remaining(move.state_after, "8Q"),
        kind.count_remaining(move.state_after, "L40S-12C"),
    ) == (
        7,
        0,
        0,
    )
    assert kind.remove(move.state_after, "2B", move.place) == kind.empty
    assert kind.placements(kind.empty, "L40S-12C") == ()
    assert kind.fits(kind.empty, Counter({"2B": 4, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"2B": 5, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"L40S-12C": 1}))


SMALL, LARGE = t4(), a100(types=(replace(A4C, name="NVIDIA A100-4Q", profile="A100-4Q"), A5C))
SNAPSHOT = snapshot(LARGE, SMALL)
NUMBERS = build_fleet_state(SNAPSHOT, SNAPSHOT.gpus)


def fleet_for(*texts):
    return fleet_by_profile(NUMBERS, {text: find_types(SNAPSHOT, SNAPSHOT.gpus, text) for text in texts})


def left(fleet, name):
    return [fleet.kind_of(g).count_remaining(g.state, name) for g in (fleet.group_of(0), fleet.group_of(1))]


def test_what_one_model_alone_has_leaves_the_fleet_as_it_was():
    same = fleet_for("5C", "T4-2Q")
    assert (same.fleet, same.name_by_text) == (NUMBERS.fleet, {"5C": "A100-5C", "T4-2Q": "T4-2Q"})


def test_a_profile_of_any_model_has_one_name_and_room_on_each():
    for text in ("4Q", "A100-4Q|T4-4Q"):
        one = fleet_for(text, "A100-5C")
        assert one.name_by_text == {text: "4Q", "A100-5C": "A100-5C"}
        assert left(one.fleet, "4Q") == [10, 4]
        assert left(one.fleet, "A100-5C") == [8, 0]


def test_the_other_profiles_are_in_it_too():
    assert set(fleet_for("4Q").fleet.kinds[0].sizes) == {"4Q", "A100-5C"}


def test_the_fewest_that_are_too_many_are_named_with_what_each_gpu_has_room_for():
    gpu = a100()
    result = check_fit(snapshot(gpu, vms=[vm(1, assigned(gpu, A4C))]), (gpu,), [("A100-4C", 3), ("A100-5C", 2)])
    assert result.fits is False
    assert result.excess == (("A100-5C", 2),)
    (barrier,) = result.rooms
    assert "it has 1 of another size" in barrier.room.reasons[0]


def test_fit_is_unknown_without_a_maximum():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    result = check_fit(snapshot(gpu), (gpu,), [("A100-4C", 3)])
    assert result.fits is None
    assert "not known" in str(result.reason)


def test_a_profile_of_any_model_counts_the_gpus_of_all():
    gpus = (a100(), t4(types=(replace(T4Q, name="GRID T4-4C", profile="T4-4C"),)))
    result = check_fit(snapshot(*gpus), gpus, [("4C", 13), ("GRID A100-4C", 1)])
    assert result.fits is True
    assert result.requested == {"4C": 13, "A100-4C": 1}
    assert Counter((s.gpu.address, s.profile) for s in result.planned) == {
        (gpus[0].address, "A100-4C"): 10,
        (gpus[1].address, "T4-4C"): 4,
    }
    few = check_fit(snapshot(*gpus), gpus, [("4C", 15)])
    assert (few.fits, few.excess) == (False, (("4C", 1),))
    assert [b.room.free for b in few.rooms] == [10, 4]


def test_a_gpu_with_more_recorded_vgpus_than_instances_leaves_the_others_countable() -> None:
    """Its instances were made differently after the VMs were recorded."""
    over = instances_host(19, 19, 9)
    second = instances_host(9, 19)
    second = replace(second, address="0000:5e:00.0", functions=a100("0000:5e:00.0", second.types, vfs=48).functions)
    recorded = tuple(taken(over, H1, n, present=False) for n in range(3))
    result = check_fit(snapshot(over, second, vgpus=recorded), (over, second), [("H100-3-40C", 3), ("H100-1-10C", 2)])
    assert (result.fits, dict(result.excess)) == (False, {"H100-3-40C": 1, "H100-1-10C": 1})
