# SPDX-License-Identifier: Apache-2.0
"""What libvirt and QEMU check before a domain leaves a simulated host, and before another one takes it.

Sources: qemuMigrationSrcIsAllowed in libvirt's qemu_migration.c, virDomainDefCheckABIStability in its domain_conf.c,
and hw/vfio/migration.c of QEMU. What they check of files that are not shared (error 81) is not simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vgpuctl.sim import domain_xml, mtgpu
from vgpuctl.sim.machine import version_number
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.state import file_record
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.sim.journal import JournalRecord
    from vgpuctl.sim.machine import SimGpu
    from vgpuctl.sim.objects import RunningDomain, SimFile
    from vgpuctl.sim.state import State

_ASKS_QEMU_SINCE = 8_006_000
_MIGRATES_VFIO_SINCE = 8_001_000
_KERNEL_MIGRATES_SINCE = (5, 18)


class Guest(Value):
    """What of a domain's XML the guest sees: it must be the same on both hosts. `slots`: where its host devices are.

    `carriers`, and `disks`, which are paths by the names in the guest, may differ.
    """

    name: str
    uuid: str
    memory_kib: int
    vcpus: str
    machine: str
    slots: tuple[str, ...]
    carriers: tuple[str, ...]
    disks: dict[str, str]


def read_guest(xml: str) -> Guest:
    """Read a domain's XML.

    Raises:
        VirError: it is no domain's.
    """
    element = domain_xml.parse(xml)
    os_type, memory = element.find("os/type"), element.find("memory")
    if element.tag != "domain" or os_type is None or memory is None:
        raise VirError(VirErrorNumber.XML_ERROR, "XML error: an os <type> and <memory> must be specified")
    disks = {}
    for disk in element.findall("devices/disk"):
        source, target = disk.find("source"), disk.find("target")
        path = None if source is None else source.get("file") or source.get("dev")
        if path and target is not None:
            disks[target.get("dev", "")] = path
    addresses = [device.find("address") for device in domain_xml.find_hostdevs(element)]
    machine = os_type.get("machine", "pc")
    return Guest(
        (element.findtext("name") or "").strip(),
        (element.findtext("uuid") or "").strip(),
        domain_xml.size_kib(memory.text or "0", memory.get("unit")),
        (element.findtext("vcpu") or "1").strip(),
        domain_xml.MACHINE_TYPES.get(machine, machine),
        tuple("" if address is None else " ".join(map(str, address.attrib.values())) for address in addresses),
        tuple(device.carrier for device in domain_xml.parse_hostdevs(element)),
        disks,
    )


def find_blockers(state: State, running: RunningDomain) -> tuple[str, ...]:
    """Return why QEMU cannot migrate a running domain, in its words."""
    qemu = version_number(state.machine.scenario["libvirt"]["qemu"])
    if qemu < _MIGRATES_VFIO_SINCE:
        return tuple(f"{carrier}: VFIO device doesn't support migration" for carrier in running.carriers)
    return tuple(
        f"{carrier}: VFIO migration is not supported in kernel"
        for carrier in running.carriers
        if _is_too_old(state) or not _can_migrate(state, carrier)
    )


def _is_too_old(state: State) -> bool:
    """Return whether the kernel has no migration of VFIO devices; RHEL's has more than its number says."""
    return state.machine.kernel < _KERNEL_MIGRATES_SINCE and ".el" not in state.machine.scenario["kernel"]


def require_movable(state: State, running: RunningDomain) -> None:
    """Refuse what libvirt does not move or save: it asks QEMU from 8.6 on; before, it refuses every host device.

    Raises:
        VirError: error 55, with QEMU's reasons.
    """
    if running.carriers and state.machine.libvirt_version < _ASKS_QEMU_SINCE:
        text = "Requested operation is not valid: cannot migrate a domain with <hostdev mode='subsystem'>"
        raise VirError(VirErrorNumber.OPERATION_INVALID, text)
    blockers = find_blockers(state, running)
    if blockers:
        text = f"Requested operation is not valid: cannot migrate domain: {'; '.join(blockers)}"
        raise VirError(VirErrorNumber.OPERATION_INVALID, text)


def require_ready_to_be_saved(state: State, running: RunningDomain) -> None:
    """Refuse to save a VM with a vGPU of Moore Threads whose driver in the guest was not asked to get ready.

    Raises:
        VirError: error 9.
    """
    for carrier in running.carriers:
        mdev = state.mdevs.get(carrier)
        function = None if mdev is None else state.machine.functions[mdev.parent]
        if mdev is None or function is None or state.driver(function) != mtgpu.MODULE:
            continue
        if not mtgpu.is_ready_to_be_saved(state, mdev):
            text = f"operation failed: job 'save' failed: {carrier}: the guest is not ready"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)


def require_same_guest(before: Guest, after: Guest) -> None:
    """Refuse a target's definition of which the guest would notice that it is another one.

    Raises:
        VirError: error 67, with the first difference.
    """
    _require_equal(before, after, ("name", "uuid", "memory_kib", "vcpus", "machine", "slots"))


def require_same_domain(before: Guest, after: Guest) -> None:
    """Refuse a definition to keep that is another domain's.

    Raises:
        VirError: error 67.
    """
    _require_equal(before, after, ("name", "uuid"))


def _require_equal(before: Guest, after: Guest, words: tuple[str, ...]) -> None:
    for word in words:
        old, new = getattr(before, word), getattr(after, word)
        if old != new:
            text = f"Target domain {word.removesuffix('_kib')} {new} does not match source {old}"
            raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {text}")


def require_disks(guest: Guest, names: tuple[str, ...]) -> None:
    """Refuse to copy a disk that a domain does not have.

    Raises:
        VirError: error 8.
    """
    for name in names:
        if name not in guest.disks:
            raise VirError(VirErrorNumber.INVALID_ARG, f"invalid argument: disk target {name} not found")


def require_room_for_copies(state: State, guest: Guest, files: Mapping[str, SimFile], *, top_only: bool) -> None:
    """Refuse to copy a disk into one of another size. libvirt makes files that are missing, but none with a base.

    QEMU's blockdev-mirror wants the same size; of a larger block device, libvirt shows it a part.

    Raises:
        VirError: error 9 or 84 (qemuMigrationDstPrecreateStorage).
    """
    for name, file in files.items():
        existing = state.find_file(guest.disks[name])
        if existing is None and top_only:
            text = "pre-creation of storage targets for incremental storage migration is not supported"
            raise VirError(VirErrorNumber.OPERATION_UNSUPPORTED, f"Operation not supported: {text}")
        if existing is None or existing.size == file.size:
            continue
        if existing.size < file.size or not existing.path.startswith("/dev/"):
            text = f"operation failed: migration of disk {name} failed: source and target have different sizes"
            raise VirError(VirErrorNumber.OPERATION_FAILED, text)


def require_same_types(before: Mapping[int, str], after: Mapping[int, str]) -> None:
    """Refuse the memory of a vGPU of another type, as its driver does.

    Raises:
        VirError: error 9.
    """
    if before != after:
        text = "operation failed: job 'migration out' failed: error while loading state for instance 0x0 of a device"
        raise VirError(VirErrorNumber.OPERATION_FAILED, text)


def copied_file(state: State, file: SimFile, path: str) -> JournalRecord:
    """Return the record of a disk into which the content of another one was copied."""
    existing = state.find_file(path)
    if existing is None:
        return file_record(replace(file, path=path, base=None, link=None, tag=None))
    return file_record(replace(existing, firmware=file.firmware, digest=file.digest))


def carrier_types(state: State, carriers: tuple[str, ...]) -> dict[int, str]:
    """Return the vGPU types of a domain's carriers by their position; whole functions have none."""
    types = {number: _type_of(state, carrier) for number, carrier in enumerate(carriers)}
    return {number: kind[0] for number, kind in types.items() if kind is not None}


def device_mib(state: State, running: RunningDomain) -> int:
    """Return the framebuffer of a running domain's vGPUs."""
    types = (_type_of(state, carrier) for carrier in running.carriers)
    return sum(kind[1] for kind in types if kind is not None)


def _can_migrate(state: State, carrier: str) -> bool:
    gpu = _gpu_of(state, carrier)
    if gpu is None or (carrier not in state.mdevs and carrier not in state.vf_types):
        return False
    return gpu.rule == "nvidia" or gpu.own_function.vendor.endswith("1ed5")


def _type_of(state: State, carrier: str) -> tuple[str, int] | None:
    """Return the name and framebuffer of a vGPU's type."""
    gpu = _gpu_of(state, carrier)
    key = state.vgpus_by_gpu.get(gpu.address, {}).get(carrier) if gpu is not None else None
    if gpu is None or key is None:
        return None
    return gpu.types[key].name, gpu.types[key].framebuffer_mib


def _gpu_of(state: State, carrier: str) -> SimGpu | None:
    mdev = state.mdevs.get(carrier)
    function = state.machine.functions.get(carrier if mdev is None else mdev.parent)
    return None if function is None else state.machine.gpus[function.gpu]
