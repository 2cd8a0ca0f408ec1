# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's VFs: all or none by sriov-manage, waited for, and its error shown with the GPU's holder."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, Stuck, VerifyFailed
from vgpuctl.gpu_setup.sriov import ManageVfs, count_vfs
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES
from vgpuctl.model.port_values import CommandResult, DeviceUser
from vgpuctl.model.vm import StuckWrite
from vgpuctl.value import replace

A16, A100 = "0000:17:00.0", "0000:3b:00.0"


class Command:
    """A sriov-manage that ends in one way."""

    def __init__(self, result):
        self.result, self.calls = result, []

    def sriov_manage(self, flag, address, *, deadline_seconds):
        self.calls.append((flag, address))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Holding:
    """Processes of which one has the GPU's own node open."""

    def find_holders(self, nodes):
        return tuple(DeviceUser(77, f"dcgm {n}") for n in nodes if n == "/dev/nvidia0")


class Nodes:
    """Device files with nodes of NVIDIA's driver."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def listdir(self, path):
        return ("null", "nvidia0", "nvidiactl") if path == "/dev" else self.real.listdir(path)


@pytest.fixture
def ports(tmp_path):
    return open_sim_host(tmp_path, "mixed").ports


def test_all_vfs_go_on_and_off_again(ports):
    step = ManageVfs(A16, enable=True, vf_total=16)
    step.perform(ports)
    step.verify(ports)
    assert count_vfs(ports, A16) == 16
    step.perform(ports)
    step.undo(ports)
    assert count_vfs(ports, A16) == 0
    step.undo(ports)


def test_it_waits_for_the_vfs_host_drivers(ports):
    step = ManageVfs(A16, enable=True, vf_total=16)
    step.perform(ports)
    vf = f"{PCI_DEVICES}/{ports.sysfs.readlink(f'{PCI_DEVICES}/{A16}/virtfn3').rpartition('/')[2]}"
    ports.sysfs.write_uninterruptible(f"{vf}/driver/unbind", vf.rpartition("/")[2], gpu=A16, deadline_seconds=1)
    with pytest.raises(VerifyFailed, match="60 s after they were turned on"):
        step.verify(ports)


def test_a_vf_of_a_vm_is_never_removed(ports):
    create(ports, request("A100-4C", name="vm", gpu=A100))
    command = Command(CommandResult(0, ""))
    with pytest.raises(InUse, match="guest=vm"):
        ManageVfs(A100, enable=False, vf_total=16).perform(replace(ports, vendor_commands=command))
    assert command.calls == []


def test_a_process_holding_the_driver_is_named(ports):
    command = Command(CommandResult(1, f"Cannot obtain unbindLock for {A16}\n"))
    watched = replace(ports, vendor_commands=command, processes=Holding(), sysfs=Nodes(ports.sysfs))
    before = ports.clock.monotonic()
    with pytest.raises(InUse, match=r"in use by dcgm /dev/nvidia0 \(pid 77\): .* 6 times in 5 s") as raised:
        ManageVfs(A16, enable=True, vf_total=16).perform(watched)
    assert command.calls == [("-e", A16)] * 6
    assert ports.clock.monotonic() - before == 5
    assert "systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter" in raised.value.hint


@pytest.mark.parametrize(("times", "works"), [(1, True), (5, True), (6, False)])
def test_a_busy_unbind_lock_is_retried_five_times(tmp_path, times, works):
    text = f"""version: 1
title: t
gpus: [{{model: A16, address: "{A16}", vfs: {{enabled: 0}}}}]
faults: [{{on: sriov-manage, match: "{A16}", message: Cannot obtain unbindLock for {A16}, times: {times}}}]
"""
    ports = open_sim_host(tmp_path, text=text).ports
    step = ManageVfs(A16, enable=True, vf_total=16)
    if not works:
        with pytest.raises(InUse, match="an unknown process"):
            step.perform(ports)
        assert count_vfs(ports, A16) == 0
        return
    step.perform(ports)
    step.verify(ports)
    assert count_vfs(ports, A16) == 16
    assert ports.clock.monotonic() - 1_000_000 == times


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), HostCannot, "is not installed"),
        (PermissionError(errno.EACCES, "Permission denied"), DeviceFailed, "Permission denied"),
        (CommandResult(1, "first\nlast line\n"), DeviceFailed, "last line"),
        (CommandResult(3, ""), DeviceFailed, "it ended with status 3"),
    ],
)
def test_a_failed_command_is_shown_with_its_output(ports, result, kind, text):
    with pytest.raises(kind, match=text) as raised:
        ManageVfs(A16, enable=True, vf_total=16).perform(replace(ports, vendor_commands=Command(result)))
    assert raised.value.facts["command"] == f"/usr/lib/nvidia/sriov-manage -e {A16}"


def test_no_other_failure_is_tried_again(ports):
    command = Command(CommandResult(1, "write error: No such device\n"))
    with pytest.raises(DeviceFailed):
        ManageVfs(A16, enable=True, vf_total=16).perform(replace(ports, vendor_commands=command))
    assert command.calls == [("-e", A16)]


def test_a_running_command_is_not_undone(ports):
    class Left(Command):
        """One that does not end."""

        def sriov_manage(self, flag, address, *, deadline_seconds):
            super().sriov_manage(flag, address, deadline_seconds=deadline_seconds)
            ports.claims.add_stuck_write(StuckWrite(ports.operations.current().process, address, "/path", flag))
            raise Stuck("it continues as process 7")

    command = Left(None)
    step, left = ManageVfs(A16, enable=True, vf_total=16), replace(ports, vendor_commands=command)
    with pytest.raises(Stuck, match="continues"):
        step.perform(left)
    for number in (0, 16):
        with pytest.raises(Stuck, match="waits in the kernel"):
            step.undo(left)
        assert count_vfs(ports, A16) == number
        ports.vendor_commands.sriov_manage("-e", A16, deadline_seconds=1)
    assert command.calls == [("-e", A16)]


def test_without_the_drivers_commands_nothing_is_tried(ports):
    with pytest.raises(HostCannot, match="is not accessible"):
        ManageVfs(A16, enable=True, vf_total=16).perform(replace(ports, vendor_commands=None))
