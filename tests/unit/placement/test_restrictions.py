# SPDX-License-Identifier: Apache-2.0
"""GPUs that host.yaml closes to new vGPUs: placement skips them and gives the reason."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, snapshot, t4, vm
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.request import GpuConstraints
from vgpuctl.placement.restrictions import why_profile_forbidden, why_restricted
from vgpuctl.placement.vm_placement import list_rooms, place_vgpus, sum_free


@pytest.mark.parametrize(
    ("output", "mode", "why"),
    [
        ({}, "vgpu", None),
        ({"cordoned": True}, "vgpu", "it is cordoned"),
        ({"cordoned": True}, "passthrough", "it is cordoned"),
        ({"desired_mode": GpuMode.VGPU}, "vgpu", None),
        ({"desired_mode": GpuMode.VGPU}, "passthrough", "reserves it for mode vgpu"),
        ({"desired_mode": GpuMode.PASSTHROUGH}, "vgpu", "reserves it for mode passthrough"),
        ({"desired_mode": GpuMode.PASSTHROUGH}, "passthrough", None),
        ({"desired_mode": GpuMode.SRIOV}, "sriov", None),
        ({"desired_mode": GpuMode.UNMANAGED}, "sriov", "excludes it from vgpuctl"),
    ],
)
def test_what_host_yaml_keeps_a_gpu_from(output, mode, why):
    result = why_restricted(a100(**output), mode)
    assert result is None if why is None else why in str(result)


def test_a_cordoned_gpu_is_skipped_even_if_fullest():
    closed, open_ = a100("0000:3b:00.0", cordoned=True), a100("0000:86:00.0")
    observed = snapshot(closed, open_, vms=[vm(1, assigned(closed, A4C))])
    (slot,) = place_vgpus(observed, [("A100-4C", 1)], None)
    assert slot.gpu.address == open_.address


def test_with_only_restricted_gpus_there_is_no_room():
    observed = snapshot(a100(cordoned=True), a100("0000:86:00.0", desired_mode=GpuMode.UNMANAGED))
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(observed, [("A100-4C", 1)], None)
    assert [line.partition(": ")[2][:14] for line in raised.value.facts["details"]] == [
        "it is cordoned",
        "host.yaml excl",
    ]


def test_a_restricted_gpu_is_full():
    gpu = a100(cordoned=True)
    observed = snapshot(gpu, a100("0000:86:00.0"), t4())
    types = {g.address: A4C for g in observed.gpus[:2]}
    assert sum_free(list_rooms(observed, observed.gpus[:2], types)) == 10
    assert list_rooms(observed, [gpu], types)[0][1].reasons == (
        f"it is cordoned; vgpuctl uncordon {gpu.address} allows new vGPUs",
    )


def test_a_reserved_gpu_is_for_vms_whose_names_fit_and_for_nobody_unnamed():
    ranged = a100(reserved_for=("lab-{09..10}-*",))
    assert why_restricted(ranged, "vgpu", "lab-10-a") is None
    assert why_restricted(ranged, "vgpu", "lab-11-a") is not None
    gpu = a100(reserved_for=("vdi-*", "lab"))
    names = {"vdi-1": True, "lab": True, "LAB": False, "lab2": False, "my-vdi-1": False, None: False}
    assert {name: why_restricted(gpu, "vgpu", name) is None for name in names} == names
    observed = snapshot(gpu, a100("0000:86:00.0"))
    assert place_vgpus(observed, [("A100-4C", 1)], None, vm="vdi-1")[0].gpu.address == gpu.address
    assert place_vgpus(observed, [("A100-4C", 1)], None, vm="other")[0].gpu.address == "0000:86:00.0"
    assert (
        sum_free(list_rooms(observed, observed.gpus, {g.address: A4C for g in observed.gpus}, "lab")),
        why_restricted(gpu, "sriov", "x"),
    ) == (
        20,
        "host.yaml reserves it for VMs named vdi-* or lab",
    )


def test_a_profile_that_is_not_allowed_goes_to_another_gpu_or_nowhere():
    closed, open_ = a100(allowed_profiles=("A100-8C",)), a100("0000:86:00.0", allowed_profiles=("A100-4C",))
    observed = snapshot(closed, open_)
    assert place_vgpus(observed, [("A100-4C", 1)], None)[0].gpu.address == open_.address
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(gpus=(closed.address,)))
    assert "host.yaml allows only A100-8C" in str(raised.value.facts["details"])
    assert why_profile_forbidden(a100(), A4C) is None
