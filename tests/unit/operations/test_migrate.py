# SPDX-License-Identifier: Apache-2.0
"""Moving a VM between two simulated hosts: what is on each of them afterwards, and after a failure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, picture, request
from vgpuctl.errors import Busy, Interrupted, Refused, VgpuctlError
from vgpuctl.library import GpuHost
from vgpuctl.library.move_between import MoveRequest, move_vm
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.attach import detach
from vgpuctl.operations.save import save_vm
from vgpuctl.value import replace

OTHER = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def source(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path / "a", "a100-40")


@pytest.fixture
def target(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path / "b", "a100-40")


def calls(host: SimulatedHost) -> GpuHost:
    return GpuHost(host.ports, CallSettings())


def to(target: SimulatedHost, **more: object) -> MoveRequest:
    return replace(MoveRequest(target.sim.migration_uri, insecure=True), **more)


def vm_of(host: SimulatedHost, name: str = "vm") -> object:
    return observe(host.ports, ReadScope()).vm(name)


def lands(target: SimulatedHost, state: VmState = VmState.RUNNING) -> None:
    """Check that the VM is one of the target like any other."""
    vm = observe(target.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert (vm.state, vm.record.state, vm.record.migration) == (state, RecordState.READY, None)
    assert vm.record.machine_id == target.ports.machine_id
    if state is VmState.RUNNING:
        assert {v.carrier for v in vm.record.vgpus} == vm.live_carriers


def test_a_running_vm_moves_with_its_vgpu_and_disk(source: SimulatedHost, target: SimulatedHost) -> None:
    empty = picture(source)
    create(source.ports, request("A100-4C", name="vm"))
    result = move_vm(calls(source), calls(target), "vm", to(target, copies_disks=True))
    assert (result.is_live, result.is_running, result.copied_disks) == (True, True, ("vda",))
    lands(target)
    assert picture(source) == empty
    assert move_vm(calls(target), calls(source), "vm", to(source, copies_disks=True)).is_live
    lands(source)


def test_one_that_is_off_moves_with_its_disk(source: SimulatedHost, target: SimulatedHost) -> None:
    empty = picture(source)
    create(source.ports, request("A100-4C", name="vm"), start=False)
    result = move_vm(calls(source), calls(target), "vm", to(target, copies_disks=True, offline=True))
    assert (result.is_live, result.is_running, result.copied_disks) == (False, False, ("vda",))
    lands(target, VmState.STOPPED)
    assert picture(source) == empty


def test_one_that_runs_is_shut_down_moved_and_started(source: SimulatedHost, target: SimulatedHost) -> None:
    empty = picture(source)
    create(source.ports, request("A100-4C", name="vm"))
    assert not move_vm(calls(source), calls(target), "vm", to(target, copies_disks=True, offline=True)).is_live
    lands(target)
    assert picture(source) == empty


class Stopped(NoProgress):
    """A user who stops the move while memory is sent."""

    def __init__(self) -> None:
        self.is_stopped = False

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        self.is_stopped = True
        raise Interrupted("stopped by SIGINT", signal_number=2)


@pytest.mark.parametrize("offline", [False, True])
def test_one_that_is_stopped_is_where_it_was_and_nothing_of_it_on_the_other_host(
    source: SimulatedHost, target: SimulatedHost, offline: bool
) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    before, empty = picture(source), picture(target)
    user = Stopped()
    here, there = (
        GpuHost(host.ports, CallSettings(progress=user, cancelled=lambda: user.is_stopped)) for host in (source, target)
    )
    with pytest.raises(Interrupted) as caught:
        move_vm(here, there, "vm", to(target, copies_disks=True, offline=offline))
    assert caught.value.left == []
    assert (picture(source).running.keys(), picture(target)) == (before.running.keys(), empty)
    lands(source)


@pytest.mark.parametrize("count", [1, 2])
def test_a_move_on_simulated_hosts_keeps_to_the_estimate(
    source: SimulatedHost, target: SimulatedHost, count: int
) -> None:
    create(source.ports, request("A100-8C", count, name="vm"))
    asked = to(target, copies_disks=True)
    moved = move_vm(calls(source), calls(target), "vm", asked, monotonic=lambda: 0.0)
    assert moved.estimate.downtime_ms is not None
    assert moved.paused_ms is not None
    assert 500 * count < moved.paused_ms <= moved.estimate.downtime_ms


def meeting(host: SimulatedHost, call: str, deed: Callable[[], object]) -> GpuHost:
    """Return a host on which another one does something right before a call."""

    class Met(GpuHost):
        pass

    def made(self: GpuHost, *args: object, **options: object) -> object:
        deed()
        host.ports.operations.end()
        return getattr(GpuHost, call)(self, *args, **options)

    setattr(Met, call, made)
    return Met(host.ports, CallSettings())


def test_a_vm_that_was_changed_since_it_was_offered_is_not_sent(source: SimulatedHost, target: SimulatedHost) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    empty = picture(target)
    here = meeting(source, "migrate_out", lambda: detach(source.ports, context(), "vm"))
    with pytest.raises(Busy, match="vm has just been changed"):
        move_vm(here, calls(target), "vm", to(target, copies_disks=True))
    lands(source)
    assert picture(target) == empty


def test_a_vm_that_is_saved_where_it_should_shut_down_is_not_sent(source: SimulatedHost, target: SimulatedHost) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    empty = picture(target)
    here = meeting(source, "stop_vm", lambda: save_vm(source.ports, context(), "vm"))
    with pytest.raises(Refused, match="vm cannot move"):
        move_vm(here, calls(target), "vm", to(target, copies_disks=True, offline=True))
    lands(source)
    assert picture(target) == empty


def test_a_disk_that_did_not_go_stays(source: SimulatedHost, target: SimulatedHost) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    vm, hypervisor = vm_of(source), source.ports.hypervisor
    path = vm.record.data_disks()[0].path

    def detach_disk() -> None:  # as virsh detach-disk --config does
        hypervisor.define(re.sub("<disk type=.*?</disk>", "", hypervisor.definition(vm.uuid), flags=re.DOTALL))

    move_vm(meeting(source, "finish_migration", detach_disk), calls(target), "vm", to(target, copies_disks=True))
    lands(target)
    assert path in picture(source).files
    assert vm_of(source) is None


def test_a_disk_that_anothers_linked_clone_needs_stays(source: SimulatedHost, target: SimulatedHost) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    vm, ports = vm_of(source), source.ports
    path = vm.record.data_disks()[0].path

    def clone_disk() -> None:  # as qemu-img create -b and virsh define do, after the VM was looked at
        clone = ports.storage.create_volume("default", "theirs.qcow2", 1 << 30, path, "qcow2").path
        text = ports.hypervisor.definition(vm.uuid).replace(vm.uuid, OTHER).replace("<name>vm<", "<name>theirs<")
        text = re.sub("<hostdev.*?</hostdev>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        ports.hypervisor.define(text.replace(path, clone))

    finishing = meeting(source, "finish_migration", clone_disk)
    move_vm(finishing, calls(target), "vm", to(target, copies_disks=True))
    lands(target)
    assert path in picture(source).files
    assert vm_of(source) is None


def test_a_file_that_comes_where_a_copy_would_be_ends_the_move(source: SimulatedHost, target: SimulatedHost) -> None:
    create(source.ports, request("A100-4C", name="vm"))
    path, empty = vm_of(source).record.data_disks()[0].path, picture(target)

    def put_file() -> None:
        target.ports.storage.create_pool("default", posixpath.dirname(path))
        target.ports.storage.create_volume("default", posixpath.basename(path), 1 << 30, None, None)

    offers = iter((lambda: None, put_file))  # the dry run finds no file

    there = meeting(target, "prepare_incoming", lambda: next(offers)())
    with pytest.raises(VgpuctlError, match="exists"):
        move_vm(calls(source), there, "vm", to(target, copies_disks=True))
    lands(source)
    assert picture(target).files.keys() == {*empty.files, path}
    assert vm_of(target) is None
