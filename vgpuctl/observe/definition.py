# SPDX-License-Identifier: Apache-2.0
"""VMs' definitions: read through libvirt, compared with their records, and with the functions that exist.

Other programs write definitions too, and may lose or change a device. A device that is missing is put back by start-vm.
One that somebody wrote differently is never overwritten: the start is refused. libvirt's hook can change nothing, so it
refuses both.

The function of a recorded vGPU may be gone, on every backend: VFs go with a boot, cards can be pulled out. What is not
there is never started with: libvirt would only report a path of /sys that does not exist.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import lru_cache

from vgpuctl.backends import backend_for
from vgpuctl.domain.domain_xml import (
    has_unknown_backing_file,
    names_other_devices,
    parse_disk_sources,
    parse_domain,
    parse_hostdevs,
)
from vgpuctl.domain.record import TEXT_KIND
from vgpuctl.errors import HostCannot, InUse, LibvirtFailed, Refused
from vgpuctl.gpu.division import name_holders
from vgpuctl.gpu.profiles import vfs_off_error
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import OFF_OR_UNKNOWN_STATES, AssignedVgpu, HostdevRef, Vm, VmRecord, VmState
from vgpuctl.ports.host import Host
from vgpuctl.value import Value, replace

_ALIAS_PREFIX = "ua-vgpuctl-"


def read_vm(host: Host, domain: DomainInfo) -> Vm:
    """Convert one domain to a Vm, including devices of the running domain that its persistent config lacks."""
    vm = _parse(domain.xml, domain.live_xml, domain.state, host.machine_id, persistent=domain.persistent)
    return vm if domain.stop_reason is None else replace(vm, stop_reason=domain.stop_reason)


@lru_cache(maxsize=2048)
def _parse(xml: str, live_xml: str | None, state: VmState, machine_id: str, *, persistent: bool) -> Vm:
    """Convert a domain; cached, because a command for many VMs reads each of them again and again, mostly unchanged."""
    vm = parse_domain(xml, state, machine_id)
    if not persistent:
        vm = replace(vm, persistent=False)
    if live_xml is None:
        return vm
    if has_unknown_backing_file(live_xml, {d.base for d in vm.record.disks if d.base} if vm.record else ()):
        vm = replace(vm, backing_pairs=parse_disk_sources(xml, live_xml).backing_pairs)
    if not names_other_devices(live_xml, xml):
        return replace(vm, live_carriers=frozenset(h.carrier for h in vm.hostdevs))
    live_hostdevs = parse_hostdevs(live_xml)
    carriers = {h.carrier for h in vm.hostdevs}
    live_only = tuple(h for h in live_hostdevs if h.carrier not in carriers)
    return replace(vm, hostdevs=vm.hostdevs + live_only, live_carriers=frozenset(h.carrier for h in live_hostdevs))


def read_vms(host: Host) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return every VM, and a sentence for each domain whose XML could not be parsed."""
    vms: list[Vm] = []
    problems: list[str] = []
    for domain in host.hypervisor.domains():
        try:
            vms.append(read_vm(host, domain))
        except (ValueError, LibvirtFailed) as error:
            problems.append(f"the domain {domain.name} cannot be read: {error}")
    return tuple(vms), tuple(problems)


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


def require_function(snapshot: Snapshot, vgpu: AssignedVgpu) -> Gpu:
    """Return the GPU of a vGPU, if the function that carries it exists and no other VM has the whole GPU.

    Raises:
        HostCannot: the GPU or the function is gone; the hint is the command that brings it back.
        InUse: a VM has the whole GPU; names it.
    """
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        raise HostCannot(
            f"the GPU {vgpu.gpu} is no longer on this host",
            hint="vgpuctl list-gpus --all; lspci -Dnn",
            check="gpu-missing",
            gpu=vgpu.gpu,
        )
    refuse_lost_gpu(gpu)
    backend = backend_for(vgpu.backend)
    if not backend.takes_whole_gpu:
        _refuse_given_whole(snapshot, gpu, vgpu)
    if not backend.has_carrier(gpu, vgpu.function):
        raise _absent_error(gpu, vgpu)
    return gpu


def refuse_lost_gpu(gpu: Gpu) -> None:
    """Refuse a GPU that its driver lost.

    Raises:
        HostCannot: with the GPU.
    """
    if gpu.is_lost:
        raise HostCannot(
            f"{gpu.address} ({gpu.model}) cannot be used: its driver lost it, NVML answers, but not for this GPU",
            hint="journalctl -k -g 'NVRM: Xid' shows why; reboot the host, or power it off and on",
            check="gpu-lost",
            gpu=gpu.address,
        )


def _refuse_given_whole(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> None:
    """Refuse while another VM has all of the GPU.

    Raises:
        InUse: with the VM.
    """
    user = next((vm for vm in snapshot.vms if _has_whole_gpu(vm, gpu)), None)
    if user is None:
        return
    again = f"; then {_bring_back_command(gpu, vgpu)}" if backend_for(vgpu.backend).on_vfs else ""
    raise InUse(
        f"{vgpu.profile or vgpu.function} does not exist: VM {user.name}, which is {user.state}, has the whole GPU "
        f"{gpu.address}, and its vGPUs and VFs are gone while it runs",
        hint=f"{hint_commands.stop_command(user)}; {removal_command(user, gpu.address)}{again}",
        gpu=gpu.address,
        vm=user.name,
    )


def _has_whole_gpu(vm: Vm, gpu: Gpu) -> bool:
    return vm.state not in OFF_OR_UNKNOWN_STATES and gpu.address in (vm.live_carriers or ())


def _absent_error(gpu: Gpu, vgpu: AssignedVgpu) -> HostCannot:
    """Return why the function of a vGPU does not exist, and the command that brings it back."""
    if not backend_for(vgpu.backend).on_vfs:
        return HostCannot(
            f"{vgpu.function} is no longer on this host, although {gpu.address} is",
            hint="vgpuctl list-gpus --all; lspci -Dnn",
            check="gpu-missing",
            gpu=gpu.address,
            function=vgpu.function,
        )
    command = _bring_back_command(gpu, vgpu)
    if gpu.vfs_total and not gpu.vfs_enabled:
        return vfs_off_error(gpu, f", so {vgpu.function} does not exist", hint=command)
    return HostCannot(
        f"{vgpu.function} does not exist: {gpu.vfs_enabled} of {gpu.vfs_total} VFs of {gpu.address} ({gpu.model}) "
        f"are on, driver {gpu.driver or 'none'}",
        hint=command,
        check="vfs-off",
        gpu=gpu.address,
        function=vgpu.function,
    )


def _bring_back_command(gpu: Gpu, vgpu: AssignedVgpu) -> str:
    """Return the command that turns the VFs on as they were: the record of that is host.yaml, if it has the GPU."""
    mode = backend_for(vgpu.backend).mode
    if mode is not None and gpu.desired_mode is mode and not gpu.vfs_enabled:
        return "vgpuctl restore-host"
    return f"vgpuctl set-mode {gpu.address} {mode}"


class Endangered(Value):
    """A VM that names a function of a GPU on which others have vGPUs or VFs. `vgpus`: those of others.

    `function`: the GPU's own, a VF under their mdevs, or another function of the GPU's slot, such as its audio.
    """

    vm: Vm
    function: str
    gpu: Gpu
    vgpus: tuple[Vgpu, ...]

    @property
    def text(self) -> str:
        """What its start would do, as a sentence."""
        others = name_holders(self.vgpus)
        if self.function == self.gpu.address:
            return (
                f"VM {self.vm.name}, which is {self.vm.state}, has all of GPU {self.function}: while it runs, "
                f"the vGPUs and VFs of {others} there are gone"
            )
        if self.gpu.find_function(self.function) is not None:
            return (
                f"VM {self.vm.name}, which is {self.vm.state}, has the VF {self.function}: while it runs, "
                f"the vGPU of {others} on that VF is gone"
            )
        return (
            f"VM {self.vm.name}, which is {self.vm.state}, has {self.function}, which is on the same card as GPU "
            f"{self.gpu.address}: it cannot start while the host's driver has that GPU for {others}"
        )


def find_endangered(snapshot: Snapshot) -> tuple[Endangered, ...]:
    """Return each VM that names a function which other VMs, or host.yaml, need on the host."""
    return tuple(
        Endangered(vm, carrier, gpu, vgpus)
        for vm in snapshot.vms
        for carrier in dict.fromkeys(h.carrier for h in vm.hostdevs if vm.refers_to(h.carrier))
        for gpu in snapshot.gpus
        if (vgpus := _vgpus_below(snapshot, gpu, carrier, vm))
    )


def _vgpus_below(snapshot: Snapshot, gpu: Gpu, function: str, vm: Vm) -> tuple[Vgpu, ...]:
    """Return the managed vGPUs of others on a GPU that need this function, and are not functions of the card."""
    is_vf = function != gpu.address and gpu.find_function(function) is not None
    if not is_vf and function.rpartition(".")[0] != gpu.address.rpartition(".")[0]:
        return ()
    others = (
        v for v in snapshot.vgpus_on(gpu.address) if v.vm_uuid != vm.uuid and not backend_for(v.backend).takes_whole_gpu
    )
    managed = (v for v in others if v.carrier != function and v.owner is Ownership.MANAGED)
    return tuple(v for v in managed if not is_vf or v.function == function)
