# SPDX-License-Identifier: Apache-2.0
"""A VM whose definition was taken away while it runs: nothing of it is left when it stops."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.errors import Refused
from vgpuctl.model.commands import to_remove_transient
from vgpuctl.model.vm import Vm


def refuse_transient(vms: Iterable[Vm]) -> None:
    """Refuse to stop VMs that could not be started again.

    Raises:
        Refused: naming the VMs.
    """
    gone = sorted((vm for vm in vms if not vm.persistent), key=lambda vm: vm.name)
    if gone:
        names, first = [vm.name for vm in gone], shlex.quote(gone[0].name)
        raise Refused(
            f"{', '.join(names)}: undefined while running (virsh undefine), so nothing is left of it once it stops",
            hint=f"to keep it: virsh dumpxml --inactive --security-info {first} > FILE, then virsh define FILE; "
            f"to be rid of it: {to_remove_transient(gone[0])}",
            vms=names,
        )
