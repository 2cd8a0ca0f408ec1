# SPDX-License-Identifier: Apache-2.0
"""A VM that was undefined while it runs: nothing of it remains when it stops."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.errors import Refused
from vgpuctl.model.hint_commands import remove_transient_command
from vgpuctl.model.vm import Vm


def refuse_transient_vms(vms: Iterable[Vm]) -> None:
    """Refuse to stop VMs that could not be started again.

    Raises:
        Refused: naming the VMs.
    """
    transient = sorted((vm for vm in vms if not vm.persistent), key=lambda vm: vm.name)
    if transient:
        names, first = [vm.name for vm in transient], shlex.quote(transient[0].name)
        raise Refused(
            f"{', '.join(names)}: running without a definition (virsh undefine), so it is lost when it stops",
            hint=f"virsh dumpxml --inactive --security-info {first} > FILE, then virsh define FILE, keeps it; "
            f"{remove_transient_command(transient[0])} removes it",
            vms=names,
        )
