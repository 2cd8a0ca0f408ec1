# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs as a fleet: alike GPUs in one group, closed and unknown ones left out with their reason."""

from __future__ import annotations

from tests.values import A4C, a100, changed, snapshot, taken
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.placement.fleet_state import build_fleet_state
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
