# SPDX-License-Identifier: Apache-2.0
"""Ascend's vNPU templates as mdev types, and VMs that get them on a simulated host."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import context, create, open_sim_host, request
from tests.meanwhile import rebooted
from tests.values import assigned, t4
from vgpuctl.backends.mdev import CreateMdev
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity
from vgpuctl.gpu.room import divide
from vgpuctl.makers.ascend import Ascend
from vgpuctl.model.gpu import VgpuType
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.apply import diff_host
from vgpuctl.operations.desired_state import export_host, read_desired_state
from vgpuctl.operations.gpu_mode import ModeRequest, restore_gpus, set_mode
from vgpuctl.operations.queries import list_profiles

GPU = "0000:3b:00.0"
VFS_OFF = f'version: 1\ngpus: [{{model: Ascend 910B, address: "{GPU}", vfs: {{total: 12, enabled: 0}}}}]\n'
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


@pytest.mark.parametrize(
    ("model", "profile", "most"),
    [("Ascend 910", "vnpu-vir08", 4), ("Ascend 910B", "vnpu-vir06_1c_16g", 4), ("Ascend 950", "vnpu-vir08_3c_30g", 4)],
)
def test_each_chip_has_templates_of_its_own(tmp_path, model, profile, most):
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus: [{{model: {model}}}]\n")
    profiles = {row.profile: row.free for row in list_profiles(host.ports).data}
    assert profiles[profile] == most


def test_vfs_that_vnpus_take_are_turned_on_and_off_by_set_mode_and_at_boot(tmp_path):
    host = open_sim_host(tmp_path, text=VFS_OFF)
    assert list_profiles(host.ports).data == ()
    made = set_mode(host.ports, context(), ModeRequest(GPU, "vgpu", 2))
    assert made.steps[0] == f"turn 2 VFs of {GPU} on"
    assert observe(host.ports, ReadScope()).gpu(GPU).vfs_enabled == 2
    assert host.ports.sysfs.read(f"/sys/bus/pci/devices/{GPU}/sriov_drivers_autoprobe") == "1\n"
    for number in range(2):
        (vgpu,) = create(host.ports, request("vnpu-vir06_1c_16g", name=f"vm-{number}")).data.vgpus
        assert (vgpu.gpu, vgpu.function, vgpu.backend) == (GPU, GPU, "mdev-pf")
    with pytest.raises(NoCapacity):
        create(host.ports, request("vnpu-vir06_1c_16g", name="one-more"))
    assert not diff_host(host.ports, read_desired_state(host.ports, None, ()), drain=False).changed
    assert "vfs: 2" in export_host(host.ports).data.text
    host = rebooted(host)
    assert observe(host.ports, ReadScope()).gpu(GPU).vfs_enabled == 0
    restored = restore_gpus(host.ports, context(), parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus)
    assert [one.error for one in restored] == [None]
    assert observe(host.ports, ReadScope()).gpu(GPU).vfs_enabled == 2


def test_their_number_does_not_change_under_a_vnpu(tmp_path):
    host = open_sim_host(tmp_path, text=VFS_OFF)
    set_mode(host.ports, context(), ModeRequest(GPU, "vgpu"))
    assert observe(host.ports, ReadScope()).gpu(GPU).vfs_enabled == 12
    create(host.ports, request("vnpu-vir06_1c_16g", name="vm"))
    for mode, vfs, why in (("vgpu", 4, "only without a vNPU"), ("passthrough", None, "cannot hold it")):
        with pytest.raises(InUse, match=why):
            set_mode(host.ports, context(), ModeRequest(GPU, mode, vfs, drain=True))
    assert set_mode(host.ports, context(), ModeRequest(GPU, "vgpu")).changed is False


@pytest.mark.parametrize(("mode", "vfs", "error"), [("vgpu", 13, InvalidInput), ("sriov", None, HostCannot)])
def test_at_most_12_and_none_for_vms(tmp_path, mode, vfs, error):
    host = open_sim_host(tmp_path, text=VFS_OFF.replace("12", "16"))
    with pytest.raises(error) as raised:
        set_mode(host.ports, context(), ModeRequest(GPU, mode, vfs))
    assert "1 to 12" in str(raised.value) or f"set-mode {GPU} vgpu" in str(raised.value.hint)
    assert set_mode(host.ports, context(), ModeRequest(GPU, "vgpu")).steps[0] == f"turn 12 VFs of {GPU} on"
