# SPDX-License-Identifier: Apache-2.0
"""Turn a VM of another hypervisor into a VM spec: its fields, their text, and what they cannot express.

A profile keeps its name; where this host knows the type, it gets the driver's spelling. VMware writes vGPUs as
`grid_a100-4c` or `nvidia_l40s-8q`, xapi as `GRID A100-4C`: prefix, case and `_` for spaces differ from the driver's
names (NVIDIA's vGPU documentation for VMware vSphere and XenServer).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from shlex import quote
from typing import Any

from vgpuctl.config import device_rules
from vgpuctl.config.arguments import RENDERING_MODE, WINDOWS_11
from vgpuctl.config.foreign_vms.imported import (
    LOCAL_TIME,
    UTC,
    ImportedClock,
    ImportedGpu,
    ImportedNic,
    ImportedVm,
    VmFile,
    bounded,
    stays_inside,
)
from vgpuctl.config.rules import ValidationError, format_path
from vgpuctl.config.spec_text import choose_vm_name, comment, render_spec
from vgpuctl.config.vm_spec import VM_SHAPE, parse_vm_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.gpu.offered_profiles import can_offer
from vgpuctl.gpu.profiles import matches_type
from vgpuctl.makers import maker_of_type
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.names import parse_profile_name, profile_of_type
from vgpuctl.model.numbers import count_text, format_size
from vgpuctl.model.results.host import ImportedVmResult
from vgpuctl.operations.plans.guest_devices import MIN_MEMORY_MIB, MIN_VCPUS
from vgpuctl.operations.plans.imported_disks import KVM_FORMATS, plan_disks
from vgpuctl.value import Value

DEFAULT_NETWORK = "default"
_ONE_KIND = "left out, because a VM here has vGPUs or whole GPUs, not both"
_MAX_NEAREST = 3
_WINDOWS_11 = re.compile(r"win(dows)?[ /]?11", re.IGNORECASE)
_BRAND = re.compile(r"(grid|nvidia)[ _]", re.IGNORECASE)


class SpecPlan(Value):
    """The spec of a VM, and sentences that people must see with it."""

    result: ImportedVmResult
    warnings: tuple[str, ...]


def plan_spec(
    file: VmFile, vm: ImportedVm, name: str, gpus: Sequence[Gpu], names: Collection[str], folder: str
) -> SpecPlan:
    """Return the spec of a VM, whose name here is `name`, for a host with these GPUs.

    `names`: of all VMs of the call; `folder`: for disks.

    Raises:
        InvalidInput: the VM cannot be one of vgpuctl's, for instance with too many vCPUs.
    """
    left_out = list(vm.left_out)
    notes = list(vm.notes)
    warnings: list[str] = []
    if name != vm.name:
        notes.append(f"{vm.position}: the VM's name here is {name}, and there {vm.name!a}")
    conversion = plan_disks(vm, file, name, names, folder)
    fields: dict[str, Any] = {"name": name}
    fields |= _gpu_fields(vm, gpus, left_out, notes, warnings)
    if vm.memory_mib is not None:
        fields["memory"] = format_size(vm.memory_mib)
    if vm.vcpus is not None:
        fields["vcpus"] = vm.vcpus
    missing = [key for key in ("memory", "vcpus") if key not in fields]
    if missing:
        notes.append(f"{vm.position}: {' and '.join(missing)}: the host's default, as the file does not say")
    fields["os"] = _os_kind(vm, notes)
    left_out += _find_guest_state(vm, fields["os"])
    if vm.hardware_uuid is not None and vm.is_windows:
        left_out.append(
            f"{vm.hardware_uuid}: the VM gets a new UUID: Windows, and programs whose licenses are for the old one, "
            "may ask to be activated again"
        )
    if fields["os"] == WINDOWS_11:
        _raise_to_least(vm, fields, notes)
    if conversion.paths:
        fields["disk"] = list(conversion.paths)
    if vm.nics or file.content.format in ("VMware VMX", "OVF", *KVM_FORMATS):
        fields["networks"] = _networks(vm, file, left_out, notes) or ["none"]
    text = checked_text(fields, file)
    result = ImportedVmResult(
        name=name,
        source=file.content.format,
        file=file.content.name,
        spec=fields,
        text=text,
        commands=conversion.commands,
        left_out=bounded(left_out),
        notes=(*conversion.notes, *notes),
    )
    return SpecPlan(result, tuple(warnings))


def choose_name(vm: ImportedVm, file: VmFile, taken: set[str]) -> str:
    """Return a name for a VM that vgpuctl accepts and that no other one of the files has; it is added to `taken`."""
    stem = posixpath.splitext(posixpath.basename(file.path))[0]
    return choose_vm_name((vm.name, f"vm-{stem}" if stem.isdecimal() else stem), taken)


def checked_text(fields: dict[str, Any], file: VmFile) -> str:
    """Return the text of a VM spec, which reads back as these fields.

    Raises:
        InvalidInput: the rules of VM specs refuse a field.
    """
    try:
        checked = VM_SHAPE.check(fields)
    except ValidationError as error:
        problems = [{"file": file.content.name, "problem": problem.text} for problem in error.problems]
        texts = "; ".join(f"{format_path(problem.path)}: {problem.text}" for problem in error.problems)
        raise InvalidInput(f"{file.content.name}: the VM {fields['name']}: {texts}", problems=problems) from error
    text = comment(f"{file.content.name} ({file.content.format})") + render_spec(fields)
    if parse_vm_spec(text, "the intended text") != checked:
        raise AssertionError("the VM spec that was written has another meaning")
    return text


def _os_kind(vm: ImportedVm, notes: list[str]) -> str:
    if vm.firmware != "uefi":
        if vm.is_windows:
            notes.append(f"{vm.position}: Windows with BIOS is os: generic, with virtio disks; windows11 needs UEFI")
        return "generic"
    if vm.is_windows:
        there = f"; the guest there is {vm.os_name}" if vm.os_name and not _WINDOWS_11.search(vm.os_name) else ""
        notes.append(f"{vm.position}: os: windows11 has secure boot, a new TPM, at least 4 GiB and 2 CPUs{there}")
    return "windows11" if vm.is_windows else "linux"


def _find_guest_state(vm: ImportedVm, kind: str) -> list[str]:
    """Return what the guest finds changed about its clock and TPM, with what to do. `kind`: its `os:` here."""
    sentences = []
    if vm.tpm is not None:
        tpm_here = "the VM gets a new one" if kind == WINDOWS_11 else f"os: {kind} has no TPM"
        key = (
            "BitLocker's recovery key" if vm.is_windows else "its passphrase (LUKS with clevis or systemd-cryptenroll)"
        )
        sentences.append(
            f"{vm.tpm}: the TPM's state is not copied, and {tpm_here}. A disk whose key is in the TPM opens only with "
            f"another key: have {key} ready"
        )
    clock = vm.clock
    if clock is None and vm.is_windows and kind != WINDOWS_11:
        clock = ImportedClock(f"{vm.position}: Windows", LOCAL_TIME)
    clock_here = LOCAL_TIME if kind == WINDOWS_11 else UTC
    if clock is not None and clock.time != clock_here:
        advice = _CLOCK_ADVICE[WINDOWS_11 if kind == WINDOWS_11 else "windows" if vm.is_windows else "linux"]
        shown = f"this host's {LOCAL_TIME}" if kind == WINDOWS_11 else UTC
        sentences.append(f"{clock.position}: the VM's clock shows {clock.time} there, and {shown} here: {advice}")
    return sentences


_CLOCK_ADVICE = {
    WINDOWS_11: "Windows takes it for its own local time: set the same time zone on both, or let Windows synchronize "
    "its clock (w32tm /resync); if it has RealTimeIsUniversal, set that to 0",
    "windows": "Windows takes it for local time, so it is wrong by the time zone. In the guest, as administrator: reg "
    r"add HKLM\SYSTEM\CurrentControlSet\Control\TimeZoneInformation /v RealTimeIsUniversal /t REG_DWORD /d 1 /f",
    "linux": "if timedatectl in the guest says 'RTC in local TZ: yes', run timedatectl set-local-rtc 0 there",
}


def _raise_to_least(vm: ImportedVm, fields: dict[str, Any], notes: list[str]) -> None:
    """Give a VM as much memory and as many CPUs as create-vm requires for Windows 11, with a note."""
    if vm.memory_mib is not None and vm.memory_mib < MIN_MEMORY_MIB:
        fields["memory"] = format_size(MIN_MEMORY_MIB)
        notes.append(f"{vm.position}: memory: {fields['memory']} instead of {format_size(vm.memory_mib)} there")
    if vm.vcpus is not None and vm.vcpus < MIN_VCPUS:
        fields["vcpus"] = MIN_VCPUS
        notes.append(f"{vm.position}: vcpus: {MIN_VCPUS} instead of {vm.vcpus} there")


def _gpu_fields(
    vm: ImportedVm, gpus: Sequence[Gpu], left_out: list[str], notes: list[str], warnings: list[str]
) -> dict[str, Any]:
    """Return the fields of the GPUs: profiles, or how many whole GPUs."""
    vgpus = [gpu for gpu in vm.gpus if not gpu.is_whole]
    profiles = [text for gpu in vgpus if (text := _resolve(gpu, gpus, left_out, warnings)) is not None]
    whole = [gpu for gpu in vm.gpus if gpu.is_whole]
    if vm.drawn is not None and (vm.gpus or vm.is_windows):
        why = "Windows has no driver that draws" if vm.is_windows else "a VM with a GPU of its own does not draw"
        left_out.append(f"{vm.drawn}: {why} on the host's GPU")
    if profiles:
        if whole:
            left_out.append(
                f"{_named(whole)}: {_ONE_KIND}: {', '.join(dict.fromkeys(profiles))} is in the spec. For "
                f"{count_text(len(whole), 'whole GPU')} instead, write mode: passthrough and gpus: {len(whole)} in "
                "place of profile:"
            )
        counts = {profile: profiles.count(profile) for profile in profiles}
        return {"profile": [profile if n == 1 else f"{profile}:{n}" for profile, n in counts.items()]}
    if vm.drawn is not None and not vm.gpus and not vm.is_windows:
        notes.append(f"{vm.drawn}: QEMU draws for it on a GPU of this host; gpu: in the spec names one")
        return {"mode": RENDERING_MODE}
    if not whole:
        notes.append(f"{vm.position}: no vGPU is known: add profile: (vgpuctl list-profiles shows this host's)")
        return {}
    if vgpus:
        left_out.append(
            f"{_named(vgpus)}: {_ONE_KIND}: gpus: {len(whole)} is in the spec. For vGPUs instead, write profile: in "
            "place of mode: and gpus: (vgpuctl list-profiles shows this host's)"
        )
    notes += [f"{gpu.position}: {gpu.device} counts as a GPU" for gpu in whole]
    other = f"gpus: {len(whole) - 1}" if len(whole) > 1 else "profile: in place of mode: and gpus:"
    notes.append(
        f"{vm.position}: gpus: {len(whole)}: vgpuctl takes free GPUs of this host, with all functions of their slots; "
        f"gpu: in the spec names others (vgpuctl list-gpus). If one of the devices there is no GPU, write {other}"
    )
    return {"mode": "passthrough", "gpus": len(whole)}


def _resolve(gpu: ImportedGpu, gpus: Sequence[Gpu], left_out: list[str], warnings: list[str]) -> str | None:
    """Return the profile of a vGPU; None for whole GPUs, and for a type that only the other host's driver knows."""
    types = [vgpu_type for own in gpus for vgpu_type in own.types]
    if gpu.type_id is not None:
        number = gpu.type_id.removeprefix("nvidia-")
        profiles = {t.profile for t in types if t.type_id in (gpu.type_id, number, f"nvidia-{number}")}
        if len(profiles) == 1:
            return profiles.pop()
        maker = maker_of_type(gpu.type_id)
        if maker.has_numbered_types or maker.type_prefix is None:
            has_number = maker.has_numbered_types or gpu.type_id.isdecimal()
            more = ", or nvidia-smi vgpu -s -v" if has_number else ""
            left_out.append(
                f"{gpu.position}: the vGPU type {gpu.type_id}: no GPU here has it. Add profile: with the name that the "
                f"other host shows: {_printer_of_name(gpu.type_id)}{more}"
            )
            return None
        warnings.append(
            f"{gpu.position}: {gpu.type_id} is a type of {maker.name} {maker.mdev_technique}, and no GPU of this host "
            "has it now. vgpuctl calls it by that name where a GPU has it. Types of this host: vgpuctl list-profiles; "
            f"what this one is, the other host shows: {_printer_of_name(gpu.type_id, 'description')}"
        )
        return gpu.type_id
    if gpu.profile is None:
        uuid = str(gpu.vgpu_uuid)
        path = quote(uuid) if stays_inside(uuid) else "*"
        left_out.append(
            f"{gpu.position}: the vGPU {uuid}: libvirt's XML does not say its profile. On the other host: "
            f"cat /sys/bus/mdev/devices/{path}/mdev_type/name"
        )
        return None
    known = next((t for t in types if _is_type(t, gpu.profile)), None)
    profile = known.profile if known is not None else _plain_name(gpu.profile)
    offers = [can_offer(own, profile) for own in gpus]
    if not any(offer is not False for offer in offers):
        nearest = find_nearest(profile, types)
        none = "no profile here resembles it: vgpuctl list-profiles" if types else "it offers no vGPU profiles now"
        hint = f"the nearest here: {', '.join(nearest)}" if nearest else none
        warnings.append(f"{gpu.position}: no GPU of this host offers {profile}; {hint}")
    return profile


def _printer_of_name(type_id: str, file: str = "name") -> str:
    """Return the command that prints a text of an mdev type; without its directory that of each type."""
    folder = quote(type_id) if stays_inside(type_id) else "*"
    return f"cat /sys/bus/pci/devices/*/mdev_supported_types/{folder}/{file}"


def _named(gpus: Sequence[ImportedGpu]) -> str:
    """Return what people call these GPUs and vGPUs, with the place of the first."""
    names = [gpu.device or gpu.type_id or f"the vGPU {gpu.vgpu_uuid}" for gpu in gpus]
    return f"{gpus[0].position}: {', '.join(names)}"


def _is_type(vgpu_type: VgpuType, text: str) -> bool:
    """Return whether another hypervisor's name means this type."""
    spellings = {text, _plain_name(text)}
    spelled = _spelling(text)
    return any(matches_type(vgpu_type, one) for one in spellings) or spelled in (
        _spelling(vgpu_type.name),
        _spelling(vgpu_type.profile),
    )


def _spelling(name: str) -> str:
    return _BRAND.sub("", name.strip(), count=1).lower().replace("_", " ")


def _plain_name(text: str) -> str:
    """Return the profile's name as the driver spells most: without the brand, in upper case if it was in lower case."""
    plain = profile_of_type(_BRAND.sub("", text.strip(), count=1).replace("_", " "))
    return plain.upper() if plain == plain.lower() and parse_profile_name(plain) is not None else plain


def find_nearest(profile: str, types: Sequence[VgpuType]) -> tuple[str, ...]:
    """Return the offered profiles that are most like one: of the same series, then of the nearest size.

    A name that is no NVIDIA profile's has nothing to compare, so nothing resembles it.
    """
    wanted = parse_profile_name(profile)
    offered = {t.profile: parse_profile_name(t.profile) for t in types}
    named = {name: parsed for name, parsed in offered.items() if parsed is not None}
    if wanted is None:
        return ()
    size = _size_of(wanted.without_board)

    def distance(name: str) -> tuple[bool, bool, float, bool, str]:
        parsed = named[name]
        own = _size_of(parsed.without_board)
        return (parsed.series != wanted.series, parsed.mig_slices > 0, abs(own - size), own < size, name)

    return tuple(sorted(named, key=distance)[:_MAX_NEAREST])


def _size_of(without_board: str) -> float:
    """Return the number in front of the series: GiB, where 0 is 512 MiB."""
    digits = re.search(r"(\d{1,4})[A-Z]", without_board.upper())
    return float(digits[1]) or 0.5 if digits is not None else 0.0


def _networks(vm: ImportedVm, file: VmFile, left_out: list[str], notes: list[str]) -> list[Any]:
    """Return the network cards; one that the rules refuse loses what they refuse, with a sentence."""
    cards: list[Any] = []
    macs: set[str] = set()
    for nic in vm.nics:
        card: dict[str, Any] = _card(nic, file, notes)
        try:
            mac = None if nic.mac is None else device_rules.mac_address(nic.mac)
        except ValueError as error:
            left_out.append(f"{nic.position}: {error}: the card gets another address")
            mac = None
        if mac in macs:
            left_out.append(f"{nic.position}: the address {mac} is given twice: the card gets another one")
        elif mac is not None:
            macs.add(mac)
            card["mac"] = mac
        cards.append(card["network"] if [*card] == ["network"] else card)
    return cards


def _card(nic: ImportedNic, file: VmFile, notes: list[str]) -> dict[str, Any]:
    is_kvm = file.content.format in KVM_FORMATS
    model = {"model": nic.model} if is_kvm and nic.model is not None else {}
    for where in ({"bridge": nic.bridge, "vlan": nic.vlan}, {"network": nic.network if is_kvm else None}):
        named = {key: value for key, value in where.items() if value is not None}
        try:
            device_rules.network(named)
        except ValueError:
            continue
        kind, there = next(iter(named.items()))
        notes.append(f"{nic.position}: the {kind} {there} must exist on this host")
        return {**named, **model}
    if nic.network is not None or nic.bridge is not None:
        named_there = nic.bridge or nic.network
        vlan = "" if nic.vlan is None else f" with VLAN {nic.vlan}"
        notes.append(
            f"{nic.position}: the network {named_there!a}{vlan} there is network {DEFAULT_NETWORK} here: change it"
        )
    elif is_kvm:
        notes.append(f"{nic.position}: no network is named there: it is network {DEFAULT_NETWORK} here")
    return {"network": DEFAULT_NETWORK, **model}
