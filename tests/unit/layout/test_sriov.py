# SPDX-License-Identifier: Apache-2.0
"""Plain SR-IOV: 0 first, host drivers kept off, each errno told apart, and back to what was."""

from __future__ import annotations

import errno
import os

import pytest

from tests.worlds import create, open_host, wish
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InUse, InvalidInput, Stuck, VerifyFailed
from vgpuctl.layout import steps
from vgpuctl.layout.sriov import PCI, SetVfs, number_of, refusal, vfs_of
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

    def write_parked(self, path, text, **more):
        self.writes.append((f"{path.rpartition('/')[2]} in a child", text.strip()))
        self.real.write_parked(path, text, **more)


@pytest.fixture
def world(tmp_path):
    real = open_host(tmp_path, text=CARD).world
    return replace(real, sysfs=Noted(real.sysfs))


def test_another_number_goes_over_0_and_keeps_host_drivers_off(world):
    step = SetVfs(GPU, 3, 2, autoprobe=True)
    step.perform(world)
    step.verify(world)
    assert world.sysfs.writes == [
        ("sriov_numvfs in a child", "0"),
        ("sriov_drivers_autoprobe", "0"),
        ("sriov_numvfs", "3"),
    ]
    assert len(vfs_of(world, GPU)) == 3
    assert all("driver" not in world.sysfs.listdir(f"{PCI}/{vf}") for vf in vfs_of(world, GPU))
    step.undo(world)
    assert number_of(world, GPU) == 2
    assert world.sysfs.read(f"{PCI}/{GPU}/sriov_drivers_autoprobe") == "1\n"


def test_the_number_that_is_set_is_not_written(world):
    SetVfs(GPU, 2, 2, autoprobe=True).perform(world)
    assert world.sysfs.writes == []


def test_undo_leaves_a_number_that_somebody_else_set(world):
    step = SetVfs(GPU, 3, 2, autoprobe=True)
    step.perform(world)
    world.sysfs.write_parked(f"{PCI}/{GPU}/sriov_numvfs", "0\n", gpu=GPU, deadline_seconds=1)
    world.sysfs.write(f"{PCI}/{GPU}/sriov_numvfs", "4\n")
    step.undo(world)
    assert number_of(world, GPU) == 4


def test_a_vf_that_a_process_holds_is_never_taken_away(world):
    create(world, wish(mode="sriov", gpu=GPU, name="vm"))
    with pytest.raises(InUse, match="guest=vm"):
        SetVfs(GPU, 0, 2, autoprobe=True).perform(world)
    assert number_of(world, GPU) == 2


def test_undo_touches_nothing_while_a_write_on_the_gpu_has_not_come_back(world):
    step = SetVfs(GPU, 3, 0, autoprobe=True)
    world.claims.record_stuck(StuckWrite(world.processes.this(), "0000:87:00.0", "/path", "0"))
    world.sysfs.write_parked(f"{PCI}/{GPU}/sriov_numvfs", "0\n", gpu=GPU, deadline_seconds=1)
    step.perform(world)
    write = StuckWrite(world.processes.this(), GPU, f"{PCI}/{GPU}/sriov_numvfs", "0")
    world.claims.record_stuck(write)
    world.sysfs.writes.clear()
    with pytest.raises(Stuck, match="sriov_numvfs"):
        step.undo(world)
    assert world.sysfs.writes == []
    world.claims.forget_stuck(write)
    step.undo(world)
    assert number_of(world, GPU) == 0


@pytest.mark.parametrize("address", ["0000:00:02.0", "0000:99:00.0"])
def test_what_has_no_vfs_or_is_not_there_has_none(world, address):
    assert number_of(world, address) == 0


def test_a_number_that_does_not_read_back_is_noticed(world):
    with pytest.raises(VerifyFailed, match="was set to 3 VFs but has 2"):
        SetVfs(GPU, 3, 2, autoprobe=True).verify(world)


@pytest.mark.parametrize(
    ("number", "driver", "kind", "text", "hint"),
    [
        (errno.ENOENT, "gim", HostCannot, "its driver gim sets it itself", "vf_num"),
        (errno.ENOENT, "i915", HostCannot, "its driver i915 sets it itself", "modinfo i915"),
        (errno.ENOENT, None, HostCannot, "it has no driver", "lspci"),
        (errno.ERANGE, "xe", InvalidInput, "cannot have 3 VFs", "sriov_totalvfs"),
        (errno.EBUSY, "xe", Busy, "another program", "again"),
        (errno.EINVAL, "xe", DeviceFailed, "does not take 3", "journalctl"),
        (errno.ENOMEM, "xe", HostCannot, "no room for 3 VFs", "Above 4G"),
        (errno.ENODEV, "xe", DeviceFailed, "(ENODEV)", "journalctl"),
    ],
)
def test_why_the_kernel_refused_is_told(number, driver, kind, text, hint):
    found = refusal(OSError(number, os.strerror(number)), GPU, 3, "/path", driver)
    assert type(found) is kind
    assert text in str(found)
    assert hint in str(found.hint)
    assert found.facts["errno"] == number


def test_what_it_says_it_does():
    lines = [SetVfs(GPU, n, before, autoprobe=True).describe() for n, before in ((0, 2), (3, 0), (3, 2))]
    assert lines == [
        f"turn the 2 VFs of {GPU} off",
        f"turn 3 VFs of {GPU} on",
        f"turn 3 VFs of {GPU} on instead of 2",
    ]


def test_nvidias_command_is_for_nvidias_driver_alone():
    from tests.values import a100

    assert [type(s).__name__ for s in steps(a100(vfs_enabled=0), 16, autoprobe=True)] == ["ManageVfs"]
    assert [type(s).__name__ for s in steps(a100(driver="xe", vendor_id="8086"), 4, autoprobe=True)] == ["SetVfs"]
    assert steps(a100(), 16, autoprobe=True) == ()
