# SPDX-License-Identifier: Apache-2.0
"""Compare a VM's definition with its record: other programs write definitions too, and may lose or change a device.

A device that is missing is put back by start-vm. One that somebody wrote differently is never overwritten: the start is
refused. libvirt's hook can change nothing, so it refuses both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.backends import backend_for
from vgpuctl.domain.host_devices import TEXT_KIND
from vgpuctl.errors import InUse, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vm import OFF_OR_UNKNOWN_STATES, AssignedVgpu, HostdevRef, Vm, VmRecord

_ALIAS_PREFIX = "ua-vgpuctl-"


def find_unreferenced_vgpus(vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs in the record that the VM's devices lack."""
    carriers = {hostdev.carrier for hostdev in vm.hostdevs}
    return tuple(v for v in record.vgpus if v.carrier not in carriers)


def find_harmful_hostdevs(vm: Vm, gpus: Iterable[Gpu]) -> tuple[HostdevRef, ...]:
    """Return the devices that libvirt would unbind from a driver that does not survive it, at the VM's start."""
    bound = {f.address for g in gpus if backend_for(g.backend).functions_stay_bound for f in g.functions}
    if vm.record is not None:
        bound |= {v.carrier for v in vm.record.vgpus if backend_for(v.backend).functions_stay_bound}
    return tuple(h for h in vm.hostdevs if h.managed and h.carrier in bound)


def refuse_changed_definition(vm: Vm, record: VmRecord, gpus: Iterable[Gpu] = ()) -> None:
    """Refuse to start a VM whose definition names other devices than its record, or names one in a harmful way.

    A vGPU that is only missing is not refused. `gpus`: also the functions of these must not be unbound.

    Raises:
        Refused: with the device and how to correct the definition.
    """
    harmful = find_harmful_hostdevs(vm, gpus)
    if harmful:
        raise Refused(
            f"the definition of {vm.name} has {harmful[0].carrier} with managed='yes': libvirt would unbind it from "
            "its vGPU driver, and the start would hang in the kernel until the host is rebooted",
            hint=_how_to_correct(vm, harmful[0], "set managed='no' there"),
            vm=vm.name,
            carrier=harmful[0].carrier,
        )
    carriers = [h.carrier for h in vm.hostdevs]
    twice = next((h for h in vm.hostdevs if carriers.count(h.carrier) > 1), None)
    if twice is not None and any(v.carrier == twice.carrier for v in record.vgpus):
        raise Refused(
            f"the definition of {vm.name} has {twice.carrier} twice",
            hint=f"virsh edit {shlex.quote(vm.name)}: remove one of the two",
            vm=vm.name,
            carrier=twice.carrier,
        )
    for vgpu in find_unreferenced_vgpus(vm, record):
        other = next((h for h in vm.hostdevs if _is_in_place_of(h, vgpu, record)), None)
        if other is not None:
            raise Refused(
                f"the definition of {vm.name} has {other.carrier} where its record has {vgpu.carrier} "
                f"({vgpu.profile or vgpu.backend})",
                hint=_how_to_correct(vm, other, "remove it there"),
                vm=vm.name,
                carrier=vgpu.carrier,
                other=other.carrier,
            )


def refuse_missing_vgpus(vm: Vm, record: VmRecord) -> None:
    """Refuse to start a VM whose definition lacks a vGPU of its record, where the definition cannot be changed.

    Raises:
        Refused: with the vGPU; start-vm puts it back.
    """
    missing = find_unreferenced_vgpus(vm, record)
    if missing:
        raise Refused(
            f"the definition of {vm.name} lacks {lost_text(missing)}: another program removed it",
            hint=f"vgpuctl start-vm {shlex.quote(vm.name)} puts it back",
            vm=vm.name,
            carriers=[v.carrier for v in missing],
        )


def lost_text(vgpus: Iterable[AssignedVgpu]) -> str:
    """Return vGPUs as text: `A40-8Q (0000:3b:00.4)`."""
    return ", ".join(f"{v.profile or v.backend} ({v.carrier})" for v in vgpus)


def refuse_shared_vgpus(vms: Iterable[Vm], vm: Vm, carriers: Iterable[str]) -> None:
    """Refuse to start or change a VM while another VM that is not off names one of its devices, as a clone of it does.

    Raises:
        InUse: with the other VM, and what helps.
    """
    named = set(carriers)
    for other in vms:
        if other.uuid == vm.uuid or other.state in OFF_OR_UNKNOWN_STATES:
            continue
        carrier = next((h.carrier for h in other.hostdevs if h.carrier in named and other.refers_to(h.carrier)), None)
        if carrier is not None:
            raise InUse(
                f"{carrier} of {vm.name} is in use by VM {other.name}, which is {other.state} and names it too",
                hint=f"{hint_commands.stop_command(other)}; then {removal_command(other, carrier)}",
                vm=other.name,
                carrier=carrier,
            )


def removal_command(vm: Vm, carrier: str) -> str:
    """Return the command that takes a device out of the definition of a VM of somebody else."""
    hostdev = next((h for h in vm.hostdevs if h.carrier == carrier), None)
    name = shlex.quote(vm.name)
    if hostdev is not None and (hostdev.alias or "").startswith("ua-"):
        return f"virsh detach-device-alias {name} {shlex.quote(hostdev.alias or '')} --config"
    if hostdev is not None and hostdev.kind == TEXT_KIND:
        return f"virsh edit {name}: it names {carrier} in a text, such as <qemu:commandline>"
    return f"virsh edit {name}: remove the device with {carrier}"


def _is_in_place_of(hostdev: HostdevRef, vgpu: AssignedVgpu, record: VmRecord) -> bool:
    """Return whether somebody wrote this device in place of a missing vGPU; other devices are the VM's own affair."""
    if any(v.carrier == hostdev.carrier for v in record.vgpus):
        return False
    if (hostdev.alias or "").startswith(_ALIAS_PREFIX):
        return True
    if hostdev.kind == "mdev":
        return backend_for(vgpu.backend).carrier_has_uuid
    return hostdev.carrier.rpartition(":")[0] == vgpu.function.rpartition(":")[0]


def _how_to_correct(vm: Vm, hostdev: HostdevRef, edit: str) -> str:
    """Return how to correct a device in a definition; one with an alias can go, and start-vm puts it back."""
    name = shlex.quote(vm.name)
    if hostdev.alias is None or not hostdev.alias.startswith("ua-"):
        return f"virsh edit {name}: {edit}"
    remove = f"virsh detach-device-alias {name} {shlex.quote(hostdev.alias)} --config"
    return f"{remove} removes it; then vgpuctl start-vm {name} puts back what the record has"
