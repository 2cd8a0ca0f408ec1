# SPDX-License-Identifier: Apache-2.0
"""VMs that a command shuts down and starts again: noted before, so that one that is killed in between leaves word.

start-vm and stop-vm drop the note, whoever calls them; a boot drops all of them with /run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DrainedVm, ProcessId, PromiseState, Vm
from vgpuctl.steps.domain import OFF

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def note(world: World, gpu: str | None, process: ProcessId, vms: tuple[Vm, ...]) -> None:
    """Note which VMs a process shuts down to set a GPU up; without a GPU, to refresh or move them.

    Raises:
        FileFailed: it cannot be written.
    """
    for vm in vms:
        try:
            world.claims.note_drained(DrainedVm(vm.uuid, gpu, process))
        except OSError as error:
            raise FileFailed(
                f"that {vm.name} is to be started again cannot be noted: {error.strerror or error}",
                hint="is /run full, or mounted read-only? df /run",
                vm=vm.name,
                errno=error.errno,
                path=error.filename,
            ) from error


def left_off(world: World, snapshot: Snapshot) -> tuple[tuple[str | None, Vm], ...]:
    """Return (GPU, VM) of each VM that was shut down, is off, and has nobody left to start it; nothing without root."""
    try:
        noted = world.claims.drained()
    except PermissionError:
        return ()
    vms = ((one, snapshot.vm(one.vm_uuid)) for one in noted if not world.processes.alive(one.process))
    return tuple(
        (one.gpu, vm)
        for one, vm in vms
        if vm is not None and vm.state in OFF and vm.promise is not None and vm.promise.state is PromiseState.READY
    )
