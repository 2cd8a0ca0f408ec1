# SPDX-License-Identifier: Apache-2.0
"""What the files of other hypervisors say about VMs, in values that all formats share, and errors with their line.

A value that a result takes from a file is one line of visible characters: `Source.text` refuses others. What a VM spec
cannot express goes into `left_out`, as sentences with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.makers import is_gpu_model, is_makers_vendor_id, is_vendor_of_network_cards
from vgpuctl.model.names import is_visible
from vgpuctl.model.numbers import count_text
from vgpuctl.value import Value, replace

MAX_VALUE_LENGTH = 1024
"""No name, path or profile of a VM is longer."""
MAX_VMS_PER_FILE = 1000
MAX_DEVICES_PER_VM = 256
"""More disks, network cards or GPUs than any of these hypervisors gives to a VM."""
MAX_LEFT_OUT = 200
MAPPINGS_PRINTER = "cat /etc/pve/mapping/pci.cfg"
"""What prints the mappings of a cluster of Proxmox on each of its nodes."""
IF_IT_IS_A_GPU = "if it is a GPU, write mode: passthrough and one more in gpus:"
LOCAL_TIME, UTC, OWN_TIME = "local time", "UTC", "a time of its own"
WITHOUT_FIRST_FUNCTION = (
    "it counts as no GPU, because the first function of one is 0; a VF of a GPU is mode: sriov and gpus: 1 here"
)
_MAX_SHOWN = 4
_MIB, _DAY_MINUTES = 1 << 20, 24 * 60
_HUGE = 1 << 62
_INSIDE = re.compile(r"[^/\\:]+(/[^/\\:]+)*")


class Source(Value):
    """A file: the name that messages use for it. Its methods make texts and errors with the line."""

    name: str

    def at(self, line: int) -> str:
        """Return a place in the file as `file:line`."""
        return f"{self.name}:{line}"

    def error(self, line: int, problem: str, hint: str | None = None) -> InvalidInput:
        """Return the error for a line."""
        facts = [{"file": self.name, "line": line, "column": 1, "path": "", "problem": problem}]
        return InvalidInput(f"{self.at(line)}: {problem}", hint=hint, problems=facts)

    def text(self, line: int, what: str, value: str) -> str:
        """Return a value without spaces around it.

        Raises:
            InvalidInput: a character in it is not visible, such as a line break, or it is too long.
        """
        stripped = value.strip(" ")
        if len(stripped) > MAX_VALUE_LENGTH:
            raise self.error(line, f"{what} has {len(stripped)} characters; at most {MAX_VALUE_LENGTH} are allowed")
        bad = next((character for character in stripped if not is_visible(character)), None)
        if bad is not None:
            raise self.error(
                line,
                f"{what} has the character {bad!a}, which is not visible",
                hint="give it a value of visible characters in one line, on the other host or in a copy of the file",
            )
        return stripped

    def count(self, line: int, what: str, value: str) -> int:
        """Return a whole number.

        Raises:
            InvalidInput: it is none.
        """
        stripped = value.strip()
        if not re.fullmatch("[0-9]{1,18}", stripped, re.ASCII):
            raise self.error(line, f"{what} is {value[:60]!a}, not a whole number of at most 18 digits")
        return int(stripped)

    def clock(self, line: int, what: str, seconds: str) -> ImportedClock:
        """Return a clock that differs from UTC by so many seconds.

        Raises:
            InvalidInput: they are no whole number.
        """
        sign, number = ("-", seconds.strip()[1:]) if seconds.strip().startswith("-") else ("+", seconds)
        minutes = (self.count(line, what, number) + 30) // 60
        shown = f"{UTC}{sign}{minutes // 60:02}:{minutes % 60:02}" if minutes else UTC
        return ImportedClock(f"{self.at(line)}: {what}", shown if minutes <= _DAY_MINUTES else OWN_TIME)


class ImportedDisk(Value):
    """A disk. `file`: as its source names it; it is a path in the VM's folder.

    `format`: QEMU's name of its format. `fetch`: how its file comes to this host, if it is not there yet; then `origin`
    is its whole name on the other host. `is_checked`: it was read here, and leads to no file outside its VM's folder.
    `is_on_virtio`: its bus there is virtio-blk, as here. A VM boots from its first disk.
    """

    file: str
    format: str
    position: str
    fetch: str | None = None
    origin: str = ""
    is_checked: bool = False
    is_on_virtio: bool = False


class ImportedNic(Value):
    """A network card. `network`, `bridge`: names of the other host. `model`: `virtio`, `e1000e`, or None for others."""

    position: str
    mac: str | None = None
    network: str | None = None
    bridge: str | None = None
    vlan: int | None = None
    model: str | None = None


class ImportedGpu(Value):
    """A GPU or vGPU that a VM has on its other host: a vGPU by name, mdev type or UUID; without these a whole device.

    `profile`: the vGPU's name as it is written there. `device`: what people call a whole device, with the functions of
    its slot that the VM has. `mapping`: the name that Proxmox' cluster has for devices of several nodes.
    """

    position: str
    profile: str | None = None
    type_id: str | None = None
    device: str | None = None
    mapping: str | None = None
    vgpu_uuid: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the device is passed through as a whole."""
        return self.profile is None and self.type_id is None and self.vgpu_uuid is None


class ImportedClock(Value):
    """What a VM's clock shows. `position`: with the key. `time`: `LOCAL_TIME`, `UTC`, or words for another one."""

    position: str
    time: str


class ImportedVm(Value):
    """A VM of another hypervisor. None: its file does not say.

    `uuid`: by which other files name it. `firmware`: `bios` or `uefi`. `os_name`: the guest's system as its file calls
    it, empty if it does not. `opener`: how virt-v2v opens the whole VM (`vmx`, `ova`), or `disk` where its only disk
    must be exported first; None where each disk is opened by itself. `listed_nics`: network cards that other files
    describe, None if it does not say how many. `tpm`: the place and key of its TPM; `hardware_uuid`: of the UUID that
    its guest sees. `arch`: of its CPU, as libvirt names it. `drawn`: the place and words by which its file has QEMU
    draw for the guest on the host's GPU. `notes`: what is assumed where the file says nothing.
    """

    name: str
    position: str
    uuid: str | None = None
    memory_mib: int | None = None
    vcpus: int | None = None
    firmware: str | None = None
    is_windows: bool = False
    os_name: str = ""
    disks: tuple[ImportedDisk, ...] = ()
    nics: tuple[ImportedNic, ...] = ()
    gpus: tuple[ImportedGpu, ...] = ()
    opener: str | None = None
    listed_nics: int | None = None
    clock: ImportedClock | None = None
    tpm: str | None = None
    hardware_uuid: str | None = None
    arch: str | None = None
    drawn: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ImportedDevice(Value):
    """A vGPU or network card that its file lists apart from its VM. `vm_uuid`: of the VM."""

    vm_uuid: str
    position: str
    gpu: ImportedGpu | None = None
    nic: ImportedNic | None = None


class ImportedHostSettings(Value):
    """What the files say about the other host's GPUs: None where they do not. `scheduler_dword`: RmPVMRL.

    `placement`: a policy of vgpuctl. `mode`: of host.yaml.
    """

    position: str
    placement: str | None = None
    mode: str | None = None
    mixed_size: bool | None = None
    scheduler_dword: int | None = None


class MappedDevice(Value):
    """A device of a node of Proxmox. `path`: PCI addresses, with `;` between them. `id`: vendor and device, in hex."""

    node: str
    path: str
    id: str


class ImportedMapping(Value):
    """A name that a cluster of Proxmox has for devices, any of which a VM may get."""

    name: str
    position: str
    devices: tuple[MappedDevice, ...]

    def __str__(self) -> str:
        """Return which devices these are, the first ones by node."""
        texts = [f"{one.path} of {one.node}{f' ({one.id})' if one.id else ''}" for one in self.devices]
        more = f" and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
        return f"{self.position}: {' or '.join(texts[:_MAX_SHOWN]) or 'no device'}{more}"


class ForeignFile(Value):
    """The content of one file. `format`: what people call its format. `left_out`: what belongs to no VM."""

    name: str
    format: str
    vms: tuple[ImportedVm, ...] = ()
    devices: tuple[ImportedDevice, ...] = ()
    settings: tuple[ImportedHostSettings, ...] = ()
    left_out: tuple[str, ...] = ()
    mappings: tuple[ImportedMapping, ...] = ()


class VmFile(Value):
    """A file of another hypervisor. `path`: as it was given. `is_ova`: its disks are within it.

    `is_unchecked`: its disks could not be checked, because only its text came from another machine.
    """

    path: str
    content: ForeignFile
    is_ova: bool = False
    is_unchecked: bool = False


def stays_inside(file: str) -> bool:
    """Return whether a file name in a VM's file cannot lead out of its folder, by its text alone.

    A colon would make it a protocol for QEMU, or a drive of Windows.
    """
    return _INSIDE.fullmatch(file) is not None and not {".", ".."} & set(file.split("/"))


def bounded(left_out: Sequence[str]) -> tuple[str, ...]:
    """Return the first sentences about what was left out, and the number of the others."""
    rest = len(left_out) - MAX_LEFT_OUT
    return (*left_out[:MAX_LEFT_OUT], f"and {rest} more") if rest > 0 else tuple(left_out)


def bytes_to_mib(size: int) -> int:
    """Return a size in bytes in MiB, rounded up: a guest never gets less than it had."""
    return -(-size // _MIB)


def scaled_mib(number: int, unit_bytes: int) -> int:
    """Return a number of units in MiB, rounded up; what no host has stays too large for the rules of a VM spec."""
    return bytes_to_mib(min(number * unit_bytes, _HUGE))


def name_functions(addresses: Sequence[str]) -> str:
    """Return what people call the functions of one slot that a VM has: the first, and the others with it."""
    first, *others = dict.fromkeys(addresses)
    return f"{first} with {', '.join(others)}" if others else first


def nic_model(name: str) -> str | None:
    """Return vgpuctl's model for another hypervisor's network card; None: vgpuctl's own choice for the guest."""
    lower = name.lower()
    if lower in ("virtio", "vmxnet3", "virtio-net-pci", "virtio-net"):
        return "virtio"
    return "e1000e" if lower in ("e1000", "e1000e") else None


def merge_files(files: tuple[VmFile, ...]) -> tuple[tuple[tuple[VmFile, ImportedVm], ...], tuple[str, ...]]:
    """Return each VM with its file and with the devices that other files list for it, and what belongs to none."""
    devices: dict[str, list[ImportedDevice]] = {}
    for device in (device for file in files for device in file.content.devices):
        devices.setdefault(device.vm_uuid, []).append(device)
    mappings = [mapping for file in files for mapping in file.content.mappings]
    vms = []
    for file in files:
        for vm in file.content.vms:
            own = devices.pop(vm.uuid, []) if vm.uuid is not None else []
            gpus = tuple(device.gpu for device in own if device.gpu is not None)
            nics = tuple(device.nic for device in own if device.nic is not None)
            missing = () if vm.listed_nics is None else _missing_nics(vm, len(nics))
            merged = replace(vm, gpus=(*vm.gpus, *gpus), nics=(*vm.nics, *nics), left_out=(*vm.left_out, *missing))
            vms.append((file, _with_mappings(merged, mappings)))
    left_out = [line for file in files for line in file.content.left_out]
    left_out += [
        f"{device.position}: it belongs to the VM {device.vm_uuid!a}, which none of the files describes"
        for rest in devices.values()
        for device in rest
    ]
    return tuple(vms), tuple(left_out)


def _with_mappings(vm: ImportedVm, mappings: Sequence[ImportedMapping]) -> ImportedVm:
    """Return the VM with what its mappings mean; one that means only devices which are no GPUs is left out."""
    gpus, left_out, notes = [], list(vm.left_out), list(vm.notes)
    for gpu in vm.gpus:
        meant = [mapping for mapping in mappings if mapping.name == gpu.mapping]
        texts = "; ".join(map(str, meant))
        reason = _why_no_gpu({device.id.lower() for mapping in meant for device in mapping.devices})
        if gpu.mapping is not None and not meant:
            absent = "which none of the files has" if mappings else "whose devices are in another file"
            assumed = "it is assumed to be a GPU; " if gpu.is_whole else ""
            left_out.append(
                f"{gpu.position}: the mapping {gpu.mapping}, {absent}: {assumed}give what {MAPPINGS_PRINTER} prints on "
                "a node of that cluster"
            )
        elif gpu.is_whole and reason is not None:
            left_out.append(f"{gpu.position}: the mapping {gpu.mapping} {reason.format(texts)}")
            continue
        elif meant:
            notes.append(f"{gpu.position}: the mapping {gpu.mapping} means there {texts}")
        gpus.append(gpu)
    return replace(vm, gpus=tuple(gpus), left_out=tuple(left_out), notes=tuple(notes))


def _why_no_gpu(pci_ids: Collection[str]) -> str | None:
    """Return why none of the devices `VENDOR:DEVICE` counts as a GPU, with `{}` for what they are.

    None: one of them may be a GPU, or an id is unknown.
    """
    vendors = {pci_id.partition(":")[0] for pci_id in pci_ids}
    others = [vendor for vendor in vendors if not is_makers_vendor_id(vendor)]
    network = [vendor for vendor in vendors if is_vendor_of_network_cards(vendor)]
    if "" in vendors or len(others) + len(network) < len(vendors) or any(map(is_gpu_model, pci_ids)):
        return None
    if network:
        return f"means there {{}}, which may be a network card and does not count: {IF_IT_IS_A_GPU}"
    return "means no GPU: {}" if vendors else None


def _missing_nics(vm: ImportedVm, known: int) -> tuple[str, ...]:
    """Return a sentence if the files describe fewer network cards than the VM has."""
    if vm.listed_nics is None or known >= vm.listed_nics:
        return ()
    number = count_text(vm.listed_nics, "network card")
    return (f"{vm.position}: it has {number}, and the files describe {known}: give xe vif-list params=all too",)
