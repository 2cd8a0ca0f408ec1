# SPDX-License-Identifier: Apache-2.0
"""Plain SR-IOV: 0 first, no host drivers on VFs, an error for each errno, and undo."""

from __future__ import annotations

import errno
import os

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InUse, InvalidInput, Stuck, VerifyFailed
from vgpuctl.gpu_setup import vf_steps
from vgpuctl.gpu_setup.sriov import SetVfs, count_vfs, list_vfs
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES, numvfs_error
from vgpuctl.model.vm import StuckWrite
from vgpuctl.value import replace

GPU = "0000:86:00.0"
CARD = """version: 1
title: one card
kernel: 6.8.0-45-generic
storage: {pools: [{name: default}]}
networks: [{name: default}]
gpus: [{model: Flex 170, address: "0000:86:00.0", vfs: {total: 4, enabled: 2}}]
"""


class Noted:
    """The device files, with every write noted."""

    def __init__(self, real):
        self.real, self.writes = real, []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def read(self, path):
        assert not path.endswith("sriov_numvfs"), "a reader waits in the kernel behind a write that is parked"
        return self.real.read(path)

    def write(self, path, text):
        self.writes.append((path.rpartition("/")[2], text.strip()))
        self.real.write(path, text)

    def write_uninterruptible(self, path, text, **more):
        self.writes.append((f"{path.rpartition('/')[2]} in a child", text.strip()))
        self.real.write_uninterruptible(path, text, **more)


@pytest.fixture
def ports(tmp_path):
    real = open_sim_host(tmp_path, text=CARD).ports
    return replace(real, sysfs=Noted(real.sysfs))


def test_another_number_goes_by_0_without_host_drivers(ports):
    step = SetVfs(GPU, 3, 2, autoprobe=True)
    step.perform(ports)
    step.verify(ports)
    assert ports.sysfs.writes == [
        ("sriov_numvfs in a child", "0"),
        ("sriov_drivers_autoprobe", "0"),
        ("sriov_numvfs", "3"),
    ]
    assert len(list_vfs(ports, GPU)) == 3
    assert all("driver" not in ports.sysfs.listdir(f"{PCI_DEVICES}/{vf}") for vf in list_vfs(ports, GPU))
    step.undo(ports)
    assert count_vfs(ports, GPU) == 2
    assert ports.sysfs.read(f"{PCI_DEVICES}/{GPU}/sriov_drivers_autoprobe") == "1\n"


def test_the_number_that_is_set_is_not_written(ports):
    SetVfs(GPU, 2, 2, autoprobe=True).perform(ports)
    assert ports.sysfs.writes == []


def test_undo_keeps_another_programs_number(ports):
    step = SetVfs(GPU, 3, 2, autoprobe=True)
    step.perform(ports)
    ports.sysfs.write_uninterruptible(f"{PCI_DEVICES}/{GPU}/sriov_numvfs", "0\n", gpu=GPU, deadline_seconds=1)
    ports.sysfs.write(f"{PCI_DEVICES}/{GPU}/sriov_numvfs", "4\n")
    step.undo(ports)
    assert count_vfs(ports, GPU) == 4


def test_a_vf_held_by_a_process_is_never_removed(ports):
    create(ports, request(mode="sriov", gpu=GPU, name="vm"))
    with pytest.raises(InUse, match="guest=vm"):
        SetVfs(GPU, 0, 2, autoprobe=True).perform(ports)
    assert count_vfs(ports, GPU) == 2


def test_undo_changes_nothing_while_a_write_on_the_gpu_hangs(ports):
    step = SetVfs(GPU, 3, 0, autoprobe=True)
    ports.claims.add_stuck_write(StuckWrite(ports.operations.current().process, "0000:87:00.0", "/path", "0"))
    ports.sysfs.write_uninterruptible(f"{PCI_DEVICES}/{GPU}/sriov_numvfs", "0\n", gpu=GPU, deadline_seconds=1)
    step.perform(ports)
    write = StuckWrite(ports.operations.current().process, GPU, f"{PCI_DEVICES}/{GPU}/sriov_numvfs", "0")
    ports.claims.add_stuck_write(write)
    ports.sysfs.writes.clear()
    with pytest.raises(Stuck, match="sriov_numvfs"):
        step.undo(ports)
    assert ports.sysfs.writes == []
    ports.claims.remove_stuck_write(write)
    step.undo(ports)
    assert count_vfs(ports, GPU) == 0


@pytest.mark.parametrize("address", ["0000:00:02.0", "0000:99:00.0"])
def test_a_gpu_missing_or_without_vfs_has_none(ports, address):
    assert count_vfs(ports, address) == 0


def test_a_number_that_does_not_read_back_is_noticed(ports):
    with pytest.raises(VerifyFailed, match="was set to 3 VFs but has 2"):
        SetVfs(GPU, 3, 2, autoprobe=True).verify(ports)


@pytest.mark.parametrize(
    ("number", "driver", "kind", "text", "hint"),
    [
        (errno.ENOENT, "gim", HostCannot, "its driver gim sets it", "modinfo gim"),
        (errno.ENOENT, "i915", HostCannot, "its driver i915 sets it", "modinfo i915"),
        (errno.ENOENT, None, HostCannot, "it has no driver", "lspci"),
        (errno.ERANGE, "xe", InvalidInput, "cannot have 3 VFs", "sriov_totalvfs"),
        (errno.EBUSY, "xe", Busy, "another program", "again"),
        (errno.EINVAL, "xe", DeviceFailed, "does not accept 3", "journalctl"),
        (errno.ENOMEM, "xe", HostCannot, "no room for 3 VFs", "Above 4G"),
        (errno.ENODEV, "xe", DeviceFailed, "(ENODEV)", "journalctl"),
    ],
)
def test_kernel_errors_are_explained(number, driver, kind, text, hint):
    result = numvfs_error(OSError(number, os.strerror(number)), GPU, 3, "/path", driver)
    assert type(result) is kind
    assert text in str(result)
    assert hint in str(result.hint)
    assert result.facts["errno"] == number


def test_describe_set_vfs():
    lines = [SetVfs(GPU, n, before, autoprobe=True).describe() for n, before in ((0, 2), (3, 0), (3, 2))]
    assert lines == [
        f"turn the 2 VFs of {GPU} off",
        f"turn 3 VFs of {GPU} on",
        f"turn 3 VFs of {GPU} on instead of 2",
    ]
    lines = [SetVfs(GPU, 3, n, autoprobe=True, memory_mib=4096).describe() for n in (0, 2, 3)]
    assert lines == [
        f"turn 3 VFs of {GPU} on, each with 4GiB",
        f"turn 3 VFs of {GPU} on instead of 2, each with 4GiB",
        f"turn the 3 VFs of {GPU} off and on again, each with 4GiB",
    ]


def test_nvidias_command_is_for_nvidias_driver_alone():
    from tests.values import a100

    assert [type(s).__name__ for s in vf_steps(a100(vfs_enabled=0), 16, autoprobe=True)] == ["ManageVfs"]
    assert [type(s).__name__ for s in vf_steps(a100(driver="xe", vendor_id="8086"), 4, autoprobe=True)] == ["SetVfs"]
    assert vf_steps(a100(), 16, autoprobe=True) == ()
