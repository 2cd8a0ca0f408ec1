# SPDX-License-Identifier: Apache-2.0
"""Say that this process works on VMs of which no claim tells it: those that reserve nothing while they are off.

reconcile leaves such a VM alone while the process lives. A claim says the same of every other VM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import WorkedOn
from vgpuctl.steps.claims import reading

if TYPE_CHECKING:
    from vgpuctl.model.world import World


@contextmanager
def working_on(world: World, uuids: Iterable[str]) -> Iterator[None]:
    """Keep word of it until the work has ended, its undo included.

    Raises:
        FileFailed: it cannot be written; nothing was done.
    """
    noted: list[str] = []
    try:
        for uuid in uuids:
            noted.append(uuid)
            _note(world, uuid)
        yield
    finally:
        for uuid in noted:
            world.claims.forget_working(uuid)


def _note(world: World, uuid: str) -> None:
    try:
        world.claims.note_working(WorkedOn(uuid, world.processes.this()))
    except OSError as error:
        raise FileFailed(
            f"that this command works on the VM cannot be noted: {error.strerror or error}",
            hint="is /run full, or mounted read-only? df -h /run; df -i /run",
            vm=uuid,
            errno=error.errno,
            path=error.filename,
        ) from error


def worked_on(world: World) -> frozenset[str]:
    """Return the uuids of VMs that a living process works on; nothing without root.

    Raises:
        FileFailed: that cannot be read.
    """
    with reading("what other commands work on"):
        try:
            return world.claims.working()
        except PermissionError:
            return frozenset()
