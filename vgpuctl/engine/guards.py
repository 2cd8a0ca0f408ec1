# SPDX-License-Identifier: Apache-2.0
"""What commands check first: that the host may be changed, that libvirt answers, that the VM is there."""

from __future__ import annotations

import difflib

from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.seams import World
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm


def require_writable(world: World) -> None:
    """Refuse a changing command on a host that is only to be looked at.

    Raises:
        InvalidInput: with the reason.
    """
    if world.read_only is not None:
        raise InvalidInput(f"nothing can be changed here: {world.read_only}", host=world.name)


def require_libvirt(snapshot: Snapshot) -> None:
    """Refuse to go on without libvirt.

    Raises:
        HostCannot: with libvirt's own reason.
    """
    status = snapshot.hypervisor
    if not status.available:
        raise HostCannot(
            f"libvirt does not answer at {status.uri}: {status.reason}",
            hint="systemctl start libvirtd (or virtqemud.socket virtnetworkd.socket virtstoraged.socket)",
            check="libvirt",
            uri=status.uri,
        )


def find_vm(snapshot: Snapshot, name: str) -> Vm:
    """Return the VM of that name or uuid.

    Raises:
        NotFound: with names that are near.
    """
    require_libvirt(snapshot)
    vm = snapshot.vm(name)
    if vm is None:
        near = difflib.get_close_matches(name, [v.name for v in snapshot.vms], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "vgpuctl list-vms shows those there are"
        raise NotFound(f"there is no VM {name}", hint=hint, vm=name, near=near)
    return vm
