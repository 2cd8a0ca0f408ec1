# SPDX-License-Identifier: Apache-2.0
"""Ascend's vNPU templates as mdev types, and VMs that get them on a simulated host."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import create, open_sim_host, request
from tests.values import assigned, t4
from vgpuctl.backends.mdev import CreateMdev
from vgpuctl.errors import NoCapacity
from vgpuctl.gpu.room import divide
from vgpuctl.makers.ascend import Ascend
from vgpuctl.model.gpu import VgpuType
from vgpuctl.observe import ReadScope, observe

VIR02 = (
    "type name: vir02\naicore num: 2\nmemory size: %sGB\naicpu num: 2\nvpc num: 3\njpegd num: 4\nbar2 size: 32768KB\n"
)


@pytest.mark.parametrize(("memory", "mib"), [("6", 6144), ("16", 16384), ("0", None), ("?", None)])
def test_a_template_is_a_profile_and_memory_that_is_not_divided_is_unknown(memory, mib):
    known = Ascend().read_type("vnpu-vir02", "vnpu-vir02", VIR02 % memory)
    assert (known.profile, known.framebuffer_mib, known.pool_units) == ("vnpu-vir02", mib, None)


def test_the_second_die_has_types_of_its_own():
    assert Ascend().read_type("vnpu-p1_vir02", "", VIR02 % 6).profile == "vnpu-p1_vir02"


def test_a_vm_gets_one_and_the_driver_says_what_is_left(tmp_path):
    host = open_sim_host(tmp_path, "ascend")
    (vgpu,) = create(host.ports, request("vnpu-vir04")).data.vgpus
    assert (vgpu.gpu, vgpu.backend, vgpu.framebuffer_mib) == ("0000:3b:00.0", "mdev-pf", 12288)
    gpu = observe(host.ports, ReadScope(types=True)).gpu("0000:3b:00.0")
    left = gpu.functions[0].available_instances
    assert (left["vnpu-vir04"], left["vnpu-vir04_3c"], left["vnpu-vir01"]) == (0, 1, 3)
    assert "npu-smi" in str(divide(gpu, ()).rule)


def test_a_refusal_is_no_room_whatever_the_driver_means_and_the_next_card_is_tried(tmp_path):
    faults = "faults: [{on: sysfs-write, match: '*/create', kind: error, errno: EINVAL, nth: 1}]\n"
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus: [{{model: Ascend 310P, count: 2}}]\n{faults}")
    assert create(host.ports, request("vnpu-vir02")).data.vgpus[0].gpu == "0000:3f:00.0"


def test_the_step_names_the_errno(tmp_path):
    faults = "faults: [{on: sysfs-write, match: '*/create', kind: error, errno: EINVAL}]\n"
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus: [{{model: Ascend 310P}}]\n{faults}")
    kind = VgpuType("vnpu-vir02", "vir02", "vnpu-vir02", 6144)
    with pytest.raises(NoCapacity) as raised:
        CreateMdev(assigned(t4("0000:3b:00.0"), kind), kind.type_id).perform(host.ports)
    assert raised.value.facts["errno"] == errno.EINVAL
