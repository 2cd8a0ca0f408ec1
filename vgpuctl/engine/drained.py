# SPDX-License-Identifier: Apache-2.0
"""VMs that a command shuts down and starts again: noted before, so that one that is killed in between leaves word.

start-vm, stop-vm and delete-vm drop the note, whoever calls them; a boot drops all of them with /run. Where the process
that noted it is dead, reconcile drops it too once the VM was started since, or is gone: who switches it off later wants
it off. A VM that still is in the run in which it was noted may be about to power off, because it was asked to; after
the time that it was given for that, it counts as running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed, VgpuctlError
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DrainedVm, ProcessId, PromiseState, Vm
from vgpuctl.steps.claims import reading
from vgpuctl.steps.domain import OFF

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def note(world: World, gpu: str | None, process: ProcessId, vms: tuple[Vm, ...], wait_seconds: float) -> None:
    """Note which VMs a process shuts down, each within `wait_seconds`, to set a GPU up; without a GPU, to change them.

    Raises:
        FileFailed: it cannot be written; then none of them is noted.
    """
    until = world.clock.monotonic() + wait_seconds * len(vms)
    records = [(vm, world.hypervisor.find_domain(vm.uuid)) for vm in vms]
    for number, (vm, record) in enumerate(records):
        run = None if record is None else _run(record)
        try:
            world.claims.note_drained(DrainedVm(vm.uuid, gpu, process, run, until))
        except OSError as error:
            for noted in vms[: number + 1]:
                world.claims.forget_drained(noted.uuid)
            raise FileFailed(
                f"that {vm.name} is to be started again cannot be noted: {error.strerror or error}",
                hint="is /run full, or mounted read-only? df /run",
                vm=vm.name,
                errno=error.errno,
                path=error.filename,
            ) from error


def left_off(world: World, snapshot: Snapshot) -> tuple[tuple[str | None, Vm], ...]:
    """Return (GPU, VM) of each VM that was shut down, is off, and has nobody left to start it; nothing without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    vms = ((one.gpu, vm) for one, vm in _abandoned(world, snapshot) if vm is not None and vm.state in OFF)
    return tuple((gpu, vm) for gpu, vm in vms if vm.promise is not None and vm.promise.state is PromiseState.READY)


def forget_settled(world: World, snapshot: Snapshot) -> None:
    """Drop the notes of dead processes for VMs that run again or are gone; without root none.

    Raises:
        FileFailed: the notes cannot be read.
    """
    for one, vm in _abandoned(world, snapshot):
        if vm is None or vm.state not in OFF:
            _forget_if_settled(world, snapshot, one)


def _abandoned(world: World, snapshot: Snapshot) -> list[tuple[DrainedVm, Vm | None]]:
    """Return the notes of processes that are dead, each with its VM; nothing without root."""
    with reading("which VMs are to be started again"):
        try:
            noted = world.claims.drained()
        except PermissionError:
            return []
    return [(one, snapshot.vm(one.vm_uuid)) for one in noted if not world.processes.alive(one.process)]


def _forget_if_settled(world: World, snapshot: Snapshot, one: DrainedVm) -> None:
    """Drop the note of a VM that runs again or is gone; it is looked at after the note: the snapshot may be older."""
    if not snapshot.hypervisor.available:
        return
    try:
        record = world.hypervisor.find_domain(one.vm_uuid)
    except VgpuctlError:
        return  # the next command that reads the note looks again
    if record is not None:
        may_go_off = _run(record) == one.run and world.clock.monotonic() < one.until
        if record.state in OFF or (one.run is not None and may_go_off):
            return
    world.claims.forget_drained(one.vm_uuid, one)


def _run(record: DomainRecord) -> str | None:
    from vgpuctl.domain.parse import run_of  # needs lxml, which a host without VMs spares

    return None if record.live_xml is None else run_of(record.live_xml)
