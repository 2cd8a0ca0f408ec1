# SPDX-License-Identifier: Apache-2.0
"""What commands check first: that the host may be changed, that libvirt answers, that the VM is there."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.capacity.place import stuck_error
from vgpuctl.errors import Busy, FileFailed, HostCannot, InvalidInput, NotFound
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import SETTING_UP, ProcessId, Promise, Vm
from vgpuctl.steps.claims import refuse_others

if TYPE_CHECKING:
    from vgpuctl.model.world import World


_PLAIN = re.compile(r"( [\w@%+=:,./-]+)*", re.ASCII)
"""Words of a command line that a shell takes as they are."""


def require_writable(world: World) -> None:
    """Refuse a changing command on a host that is only to be looked at, or for a user who may not change it.

    Raises:
        FileFailed: it takes root's rights.
        InvalidInput: with the reason.
    """
    if world.unprivileged is not None:
        words = world.processes.command().removeprefix("vgpuctl")
        raise FileFailed(
            f"root is needed to change this host, and {world.unprivileged} is not root",
            hint=f"sudo vgpuctl{words}" if _PLAIN.fullmatch(words) else "run the same command with sudo in front",
            errno=errno.EPERM,
        )
    if not world.machine_id:
        raise HostCannot(
            "this host has no machine id, by which vgpuctl tells its own VMs from copies",
            hint="systemd-machine-id-setup",
            check="machine-id",
        )
    if world.read_only is not None:
        raise InvalidInput(f"nothing can be changed here: {world.read_only}", host=world.name)


def require_libvirt(snapshot: Snapshot) -> None:
    """Refuse to go on without libvirt.

    Raises:
        HostCannot: with libvirt's own reason.
    """
    status = snapshot.hypervisor
    if not status.available:
        reason = status.reason or "no reason given"
        raise HostCannot(
            reason if status.uri and status.uri in reason else f"libvirt does not answer at {status.uri}: {reason}",
            hint=status.hint
            or "systemctl start libvirtd (or virtqemud.socket virtnetworkd.socket virtstoraged.socket)",
            check="libvirt",
            uri=status.uri,
        )


def require_system(snapshot: Snapshot) -> None:
    """Refuse to change anything over a connection that does not show the host's own VMs.

    The claims and devices are the host's; a session's libvirt or the test driver would make all of them look
    leaked.

    Raises:
        HostCannot: naming the connection.
    """
    uri = snapshot.hypervisor.uri
    if "/session" in uri or uri.startswith("test:"):
        raise HostCannot(
            f"{uri} does not show this host's VMs and cannot give VFIO devices to them",
            hint="use --connect qemu:///system",
            check="session",
            uri=uri,
        )
    require_libvirt(snapshot)


def refuse_stuck(snapshot: Snapshot, gpus: Iterable[str]) -> None:
    """Refuse to work on a GPU on which a kernel write has not come back.

    Raises:
        Stuck: naming the process and what it writes.
    """
    wanted = set(gpus)
    for write in snapshot.stuck:
        if write.gpu in wanted:
            raise stuck_error(write)


def find_vm(snapshot: Snapshot, name: str) -> Vm:
    """Return the VM of that name or uuid.

    Raises:
        NotFound: with names that are near.
    """
    require_libvirt(snapshot)
    vm = snapshot.vm(name)
    if vm is None:
        import difflib

        near = difflib.get_close_matches(name, [v.name for v in snapshot.vms], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "vgpuctl list-vms shows those there are"
        raise NotFound(f"there is no VM {name.strip() or repr(name)}", hint=hint, vm=name, near=near)
    return vm


def refuse_being_set_up(snapshot: Snapshot, gpus: Iterable[str]) -> None:
    """Refuse to start something on a GPU that a living process is setting up: its VFs may go at any moment.

    Raises:
        Busy: naming the process.
    """
    wanted = set(gpus)
    for claim in snapshot.claims:
        if claim.carrier in wanted and claim.vm == SETTING_UP and claim.carrier in snapshot.live_claims:
            raise Busy(
                f"process {claim.process.pid} sets {claim.gpu} up: {claim.command}",
                hint="wait for it, then run the command again",
                gpu=claim.gpu,
                pid=claim.process.pid,
            )


def works_on(snapshot: Snapshot, gpu: str, me: ProcessId) -> Busy | None:
    """Return the refusal to change a GPU on which another living process works; None where nobody does."""
    for other in snapshot.claims:
        if other.gpu == gpu and other.process != me and other.carrier in snapshot.live_claims:
            return Busy(
                f"process {other.process.pid} works on {other.holder}: {other.command}",
                hint="wait for it, then run the command again",
                pid=other.process.pid,
                command=other.command,
                vm=None if other.vm == SETTING_UP else other.vm,
            )
    return None


def refuse_leaving(snapshot: Snapshot, vm: Vm) -> None:
    """Refuse to start a VM from which a living process takes vGPUs: what is still there goes at any moment.

    Raises:
        Busy: naming the process.
    """
    for claim in snapshot.claims:
        if claim.vm_uuid == vm.uuid and claim.leaving and claim.carrier in snapshot.live_claims:
            raise Busy(
                f"process {claim.process.pid} takes vGPUs from VM {vm.name}: {claim.command}",
                hint="start the VM again when it has ended",
                pid=claim.process.pid,
                vm=vm.name,
            )


def refuse_half_exchanged(vm: Vm, promise: Promise) -> None:
    """Refuse a VM whose place is being exchanged: another VM may be where its record still says that it is.

    Raises:
        Busy: reconcile finishes it, or takes it back.
    """
    if promise.exchange is not None:
        raise Busy(
            f"{vm.name} is half-way: its place is being exchanged",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
        )


def refuse_worked_on(world: World, vm: Vm) -> None:
    """Refuse a VM for which another live process holds a claim; under the host lock the first one wins.

    Raises:
        Busy: naming the process.
    """
    refuse_others(world, vm.name, vm.uuid)


def unreadable(path: str, error: OSError) -> FileFailed:
    """Return the error for a file or directory of the host's that is there and cannot be read."""
    return FileFailed(
        f"{path} cannot be read: {error.strerror or error}",
        hint=f"run this as root; ls -ld {path}",
        path=path,
        errno=error.errno,
    )
