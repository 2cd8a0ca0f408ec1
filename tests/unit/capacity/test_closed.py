# SPDX-License-Identifier: Apache-2.0
"""GPUs that host.yaml keeps from new vGPUs: skipped when something is placed, and told why."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, promised, snapshot, t4, vm
from vgpuctl.capacity.closed import why_closed, why_not_allowed
from vgpuctl.capacity.place import free_in, place, rooms_for
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import Mode
from vgpuctl.model.wish import Where


@pytest.mark.parametrize(
    ("said", "mode", "why"),
    [
        ({}, "vgpu", None),
        ({"cordoned": True}, "vgpu", "it is cordoned"),
        ({"cordoned": True}, "passthrough", "it is cordoned"),
        ({"desired": Mode.VGPU}, "vgpu", None),
        ({"desired": Mode.VGPU}, "passthrough", "keeps it for mode vgpu"),
        ({"desired": Mode.PASSTHROUGH}, "vgpu", "keeps it for mode passthrough"),
        ({"desired": Mode.PASSTHROUGH}, "passthrough", None),
        ({"desired": Mode.SRIOV}, "sriov", None),
        ({"desired": Mode.UNMANAGED}, "sriov", "vgpuctl leaves it alone"),
    ],
)
def test_what_host_yaml_keeps_a_gpu_from(said, mode, why):
    found = why_closed(a100(**said), mode)
    assert found is None if why is None else why in str(found)


def test_a_cordoned_gpu_is_passed_over_though_it_is_the_fullest():
    closed, open_ = a100("0000:3b:00.0", cordoned=True), a100("0000:86:00.0")
    look = snapshot(closed, open_, vms=[vm(1, promised(closed, A4C))])
    (slot,) = place(look, [("A100-4C", 1)], None)
    assert slot.gpu.address == open_.address


def test_with_only_closed_gpus_there_is_no_room_and_it_says_why():
    look = snapshot(a100(cordoned=True), a100("0000:86:00.0", desired=Mode.UNMANAGED))
    with pytest.raises(NoCapacity) as raised:
        place(look, [("A100-4C", 1)], None)
    assert [line.partition(": ")[2][:14] for line in raised.value.facts["details"]] == [
        "it is cordoned",
        "host.yaml says",
    ]


def test_a_closed_gpu_counts_as_full():
    gpu = a100(cordoned=True)
    look = snapshot(gpu, a100("0000:86:00.0"), t4())
    types = {g.address: A4C for g in look.gpus[:2]}
    assert free_in(rooms_for(look, look.gpus[:2], types)) == 10
    assert rooms_for(look, [gpu], types)[0][1].reasons == (f"it is cordoned; vgpuctl uncordon {gpu.address} opens it",)


def test_a_reserved_gpu_is_for_vms_whose_names_fit_and_for_nobody_unnamed():
    gpu = a100(reserved_for=("vdi-*", "lab"))
    names = {"vdi-1": True, "lab": True, "LAB": False, "lab2": False, "my-vdi-1": False, None: False}
    assert {name: why_closed(gpu, "vgpu", name) is None for name in names} == names
    look = snapshot(gpu, a100("0000:86:00.0"))
    assert place(look, [("A100-4C", 1)], None, vm="vdi-1")[0].gpu.address == gpu.address
    assert place(look, [("A100-4C", 1)], None, vm="other")[0].gpu.address == "0000:86:00.0"
    assert (
        free_in(rooms_for(look, look.gpus, {g.address: A4C for g in look.gpus}, "lab")),
        why_closed(gpu, "sriov", "x"),
    ) == (
        20,
        "host.yaml reserves it for VMs named vdi-* or lab",
    )


def test_a_profile_that_is_not_allowed_goes_to_another_gpu_or_nowhere():
    closed, open_ = a100(allowed_profiles=("A100-8C",)), a100("0000:86:00.0", allowed_profiles=("A100-4C",))
    look = snapshot(closed, open_)
    assert place(look, [("A100-4C", 1)], None)[0].gpu.address == open_.address
    with pytest.raises(NoCapacity) as raised:
        place(look, [("A100-4C", 1)], Where(gpus=(closed.address,)))
    assert "host.yaml allows only A100-8C" in str(raised.value.facts["details"])
    assert why_not_allowed(a100(), A4C) is None
