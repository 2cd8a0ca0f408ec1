# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's VFs: all or none by its own command, waited for, and its complaint told with who holds the GPU."""

from __future__ import annotations

import errno

import pytest

from tests.worlds import create, open_host, wish
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, Stuck, VerifyFailed
from vgpuctl.layout.nvidia import ManageVfs
from vgpuctl.layout.sriov import PCI, number_of
from vgpuctl.model.records import CommandResult, Holder
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

    def holders(self, nodes):
        return tuple(Holder(77, f"dcgm {n}") for n in nodes if n == "/dev/nvidia0")


class Nodes:
    """Device files with nodes of NVIDIA's driver."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def listdir(self, path):
        return ("null", "nvidia0", "nvidiactl") if path == "/dev" else self.real.listdir(path)


@pytest.fixture
def world(tmp_path):
    return open_host(tmp_path, "mixed").world


def test_all_vfs_go_on_and_off_again(world):
    step = ManageVfs(A16, enable=True, total=16)
    step.perform(world)
    step.verify(world)
    assert number_of(world, A16) == 16
    step.perform(world)
    step.undo(world)
    assert number_of(world, A16) == 0
    step.undo(world)


def test_the_host_s_drivers_of_the_vfs_are_waited_for(world):
    step = ManageVfs(A16, enable=True, total=16)
    step.perform(world)
    vf = f"{PCI}/{world.sysfs.readlink(f'{PCI}/{A16}/virtfn3').rpartition('/')[2]}"
    world.sysfs.write_parked(f"{vf}/driver/unbind", vf.rpartition("/")[2], gpu=A16, deadline_seconds=1)
    with pytest.raises(VerifyFailed, match="60 s after they were turned on"):
        step.verify(world)


def test_a_vf_that_a_vm_has_is_never_taken_away(world):
    create(world, wish("A100-4C", name="vm", gpu=A100))
    command = Command(CommandResult(0, ""))
    with pytest.raises(InUse, match="guest=vm"):
        ManageVfs(A100, enable=False, total=16).perform(replace(world, vendor=command))
    assert command.calls == []


def test_who_keeps_the_driver_from_letting_go_is_named(world):
    command = Command(CommandResult(1, f"Cannot obtain unbindLock for {A16}\n"))
    watched = replace(world, vendor=command, processes=Holding(), sysfs=Nodes(world.sysfs))
    before = world.clock.monotonic()
    with pytest.raises(InUse, match=r"in use by dcgm /dev/nvidia0 \(pid 77\): .* 6 times in 5 s") as raised:
        ManageVfs(A16, enable=True, total=16).perform(watched)
    assert command.calls == [("-e", A16)] * 6
    assert world.clock.monotonic() - before == 5
    assert "systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter" in raised.value.hint


@pytest.mark.parametrize(("times", "works"), [(1, True), (5, True), (6, False)])
def test_a_monitor_that_asks_for_a_moment_is_waited_for_five_times(tmp_path, times, works):
    text = f"""version: 1
title: t
gpus: [{{model: A16, address: "{A16}", vfs: {{enabled: 0}}}}]
faults: [{{on: sriov-manage, match: "{A16}", message: Cannot obtain unbindLock for {A16}, times: {times}}}]
"""
    world = open_host(tmp_path, text=text).world
    step = ManageVfs(A16, enable=True, total=16)
    if not works:
        with pytest.raises(InUse, match="a process that cannot be seen"):
            step.perform(world)
        assert number_of(world, A16) == 0
        return
    step.perform(world)
    step.verify(world)
    assert number_of(world, A16) == 16
    assert world.clock.monotonic() - 1_000_000 == times


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), HostCannot, "is not installed"),
        (PermissionError(errno.EACCES, "Permission denied"), DeviceFailed, "Permission denied"),
        (CommandResult(1, "first\nlast line\n"), DeviceFailed, "last line"),
        (CommandResult(3, ""), DeviceFailed, "it ended with status 3"),
    ],
)
def test_a_command_that_fails_is_told_with_what_it_said(world, result, kind, text):
    with pytest.raises(kind, match=text) as raised:
        ManageVfs(A16, enable=True, total=16).perform(replace(world, vendor=Command(result)))
    assert raised.value.facts["command"] == f"/usr/lib/nvidia/sriov-manage -e {A16}"


def test_no_other_failure_is_tried_again(world):
    command = Command(CommandResult(1, "write error: No such device\n"))
    with pytest.raises(DeviceFailed):
        ManageVfs(A16, enable=True, total=16).perform(replace(world, vendor=command))
    assert command.calls == [("-e", A16)]


def test_a_command_that_goes_on_is_not_undone_while_it_lives(world):
    class Left(Command):
        """One that does not end."""

        def sriov_manage(self, flag, address, *, deadline_seconds):
            super().sriov_manage(flag, address, deadline_seconds=deadline_seconds)
            world.claims.record_stuck(StuckWrite(world.processes.this(), address, "/path", flag))
            raise Stuck("it goes on as process 7")

    command = Left(None)
    step, left = ManageVfs(A16, enable=True, total=16), replace(world, vendor=command)
    with pytest.raises(Stuck, match="goes on"):
        step.perform(left)
    for number in (0, 16):
        with pytest.raises(Stuck, match="waits in the kernel"):
            step.undo(left)
        assert number_of(world, A16) == number
        world.vendor.sriov_manage("-e", A16, deadline_seconds=1)
    assert command.calls == [("-e", A16)]


def test_without_the_drivers_commands_nothing_is_tried(world):
    with pytest.raises(HostCannot, match="out of reach"):
        ManageVfs(A16, enable=True, total=16).perform(replace(world, vendor=None))
