# SPDX-License-Identifier: Apache-2.0
"""Do something to a VM while it is off: shut it down, do it, and start it again whatever came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.engine.drained import note
from vgpuctl.engine.power import shut_down
from vgpuctl.engine.run import as_failure
from vgpuctl.engine.setting_up import Calm, start_one
from vgpuctl.errors import Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.outcome import Progress
from vgpuctl.model.vm import Vm
from vgpuctl.steps.domain import OFF

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def while_off(
    world: World, vm: Vm, act: Callable[[], object], done: str, wait_seconds: float, progress: Progress
) -> None:
    """Do it to a VM that is off, or is shut down for it within `wait_seconds`; `done` is what it is then, in a word.

    Raises:
        PartlyApplied: it was done, and the VM could not be started again.
        VgpuctlError: why it was not; the VM runs again, or `left` says why not.
    """
    runs = vm.state not in OFF
    try:
        if runs:
            note(world, None, world.processes.this(), (vm,), wait_seconds)
            shut_down(world, vm.uuid, force=False, dry_run=False, wait_seconds=wait_seconds, progress=progress)
        act()
    except BaseException as error:
        failure = as_failure(error)
        if runs:
            _start_again(world, vm, failure, wait_seconds, progress)
        if failure is error:
            raise
        raise failure from error
    if runs:
        off = start_one(world, vm, frozenset(), wait_seconds, Calm(progress))
        if off is not None:
            partly = PartlyApplied(f"{vm.name} is {done} and stays off: {off}", hint=f"vgpuctl start-vm {vm.name}")
            partly.left.append(f"VM {vm.name} is not started again")
            raise partly


def _start_again(world: World, vm: Vm, failure: VgpuctlError, wait_seconds: float, progress: Progress) -> None:
    """Start the VM again after a failure; that it stays off is added to `left`."""
    asked = frozenset(failure.undone) if isinstance(failure, Interrupted) else frozenset()
    off = start_one(world, vm, asked, wait_seconds, Calm(progress))
    if off is not None:
        failure.left.append(f"VM {vm.name} is not started again: {off}")
        failure.hint = "; ".join(filter(None, (failure.hint, f"vgpuctl start-vm {vm.name}")))
