# SPDX-License-Identifier: Apache-2.0
"""How the disks of another hypervisor's VM become disks of a VM here: the commands, and the paths that they write.

qemu-img converts every disk by itself, and always gets the format: a guest could abuse a guess from the content.
virt-v2v opens a whole VM, or one disk (`-i disk`), and puts virtio drivers into a Windows guest that never had them; it
calls the disks NAME-sda, NAME-sdb and so on (virt-v2v-output-local(1)). A name without a slash gets `./`: QEMU would
read a colon in it as a protocol, and every program a hyphen as an option. Both programs overwrite what they write to,
so `test` first checks that no disk of that name exists, and tar extracts into a folder that is new. No two disks of a
call share a name: not what is copied here from other hosts (`name_copies`), and not what the commands write.

A disk that was not here to be read could name any file of this host, which would end up in the VM. So its command
first asks `qemu-img info`, which reads no backing file, and ends if the disk names one. Source of the words of its
JSON: QEMU, qapi/block-core.json. Disks in the other formats that are read have no such names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from itertools import count
from shlex import quote

from vgpuctl.config.foreign_vms.imported import ImportedDisk, ImportedVm, VmFile
from vgpuctl.value import Value, replace

DISK_FOLDER = "/var/lib/libvirt/images"
"""libvirt's storage pool `default` (virt-manager and virt-install make it there)."""
KVM_FORMATS = ("Proxmox VE", "libvirt XML")
"""Their guests have virtio drivers if their devices are virtio's."""


class DiskConversion(Value):
    """`commands`: for a shell; `paths`: the disks that they write, in order; `notes`: what comes before, or instead."""

    commands: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_MAX_PREFIX = 60
_OUTSIDE = {
    **dict.fromkeys(("qcow2", "qed"), '"(backing-filename|data-file)":'),
    "vmdk": r'"backing-filename":|"filename": "([^.]|\.[^/]|([^"\\]|\\.)*/\.\./)',
}
"""By format, what grep -E finds in the JSON about a disk that leads out of the folder where `qemu-img info` runs."""


def name_copies(pairs: Sequence[tuple[VmFile, ImportedVm]]) -> tuple[tuple[VmFile, ImportedVm], ...]:
    """Return the VMs with a local name of its own for each disk that must first be copied here.

    Volumes of several storages, folders or hosts often have the same name. The first one keeps it; others get their
    storage or folder in front of it, and a number where that is taken too.
    """
    taken = {_dotted(posixpath.normpath(file.path)) for file, _ in pairs}
    taken |= {_beside(file, disk.file) for file, vm in pairs if not file.is_ova for disk in vm.disks if not disk.fetch}
    names: dict[tuple[str, str], str] = {}
    named = []
    for file, vm in pairs:
        disks = []
        for disk in vm.disks:
            if disk.origin:
                key = (file.path, disk.origin)
                if key not in names:
                    names[key] = _free_name(disk, taken)
                disk = replace(disk, file=names[key])
            disks.append(disk)
        named.append((file, replace(vm, disks=tuple(disks))))
    return tuple(named)


def _free_name(disk: ImportedDisk, taken: set[str]) -> str:
    """Return a local name that is not in `taken`, and add its path there."""
    folder = re.sub(r"[^A-Za-z0-9._]+", "-", disk.origin.removesuffix(disk.file)).strip("-.")[:_MAX_PREFIX]
    prefixes = ("", *([f"{folder}-"] if folder else []))
    candidates = [f"{prefix}{disk.file}" for prefix in prefixes]
    name = next((one for one in candidates if f"./{one}" not in taken), None)
    name = name or next(one for n in count(2) if f"./{(one := f'{n}-{candidates[-1]}')}" not in taken)
    taken.add(f"./{name}")
    return name


def plan_disks(
    vm: ImportedVm, file: VmFile, name: str, names: Collection[str], folder: str = DISK_FOLDER
) -> DiskConversion:
    """Return how the disks of a VM, whose name here is `name`, are converted into a folder.

    `names`: of all VMs of the call.
    """
    if not vm.disks:
        return DiskConversion(notes=(f"{vm.position}: no disk is taken over: without disk: the VM gets an empty one",))
    notes = [
        f"{disk.position}: {_source(vm, file, index, name)}: {disk.fetch}"
        for index, disk in enumerate(vm.disks)
        if disk.fetch is not None
    ]
    if file.is_unchecked:
        notes.append(
            f"{vm.position}: its disks were not checked, because only its text came here: check with ls -l that they "
            "are plain files in its folder, or run vgpuctl import-vm as root where they are"
        )
    needs_drivers = _needs_drivers(vm, file)
    if needs_drivers and vm.firmware != "uefi":  # with UEFI it is windows11, on SATA
        notes.append(
            f"{vm.disks[0].position}: Windows does not boot from a virtio disk without its driver (stop code "
            "INACCESSIBLE_BOOT_DEVICE): virt-v2v puts the drivers into the copy, from /usr/share/virtio-win or the ISO "
            "that VIRTIO_WIN names"
        )
    is_alone = len(file.content.vms) == 1
    if vm.opener in ("vmx", "ova") and (vm.is_windows or file.is_ova) and file.path != "-" and is_alone:
        opened = posixpath.dirname(file.path) or "." if vm.opener == "ova" and not file.is_ova else file.path
        checks = "" if file.is_ova else _checks(vm, file, name)
        opened = f"-i {vm.opener} {quote(_dotted(opened))}"
        paths = [f"{folder}/{name}-sd{_letters(number)}" for number in _numbers(vm)]
        command = f"{_unless_there(paths)} && {checks}{_virt_v2v(opened, folder, name)}"
        return DiskConversion((command,), tuple(paths), tuple(notes))
    paths = [f"{folder}/{one}.qcow2" for one in _qcow2_names(vm, name, names)]
    programs = [
        f"qemu-img convert -f {disk.format} -O qcow2 {quote(_source(vm, file, index, name))} {quote(path)}"
        for index, (disk, path) in enumerate(zip(vm.disks, paths, strict=True))
    ]
    if needs_drivers:
        paths[0] = f"{folder}/{name}-sda"
        programs[0] = _virt_v2v(f"-i disk -if {vm.disks[0].format} {quote(_source(vm, file, 0, name))}", folder, name)
    commands = [
        f"{_unless_there([path])} && {_checks(vm, file, name, index)}{program}"
        for index, (path, program) in enumerate(zip(paths, programs, strict=True))
    ]
    if file.is_ova:
        members = " ".join(quote(disk.file) for disk in vm.disks)
        commands.insert(0, f"mkdir ./{name} && tar -xf {quote(_dotted(file.path))} -C ./{name} -- {members}")
    return DiskConversion(tuple(commands), tuple(paths), tuple(notes))


def _needs_drivers(vm: ImportedVm, file: VmFile) -> bool:
    """Return whether virt-v2v must convert the disk from which a VM boots: a Windows that may have no virtio driver.

    With virtio-scsi it has another driver than for virtio-blk. From KVM and UEFI it becomes windows11, on SATA.
    """
    is_of_kvm = file.content.format in KVM_FORMATS
    return vm.is_windows and not (is_of_kvm and (vm.firmware == "uefi" or vm.disks[0].is_on_virtio))


def _checks(vm: ImportedVm, file: VmFile, name: str, *indexes: int) -> str:
    """Return what must come before a command that reads these disks, or all: it ends where one leads to other files."""
    checks = []
    for index in indexes or range(len(vm.disks)):
        disk = vm.disks[index]
        if disk.format in _OUTSIDE and not disk.is_checked:
            folder, own_name = posixpath.split(_source(vm, file, index, name))
            entered = "" if folder == "." else f"cd {quote(folder)} && "
            checks.append(
                f"({entered}i=$(qemu-img info --output=json -f {disk.format} {quote(f'./{own_name}')}) && "
                f'! printf %s "$i" | grep -E {quote(_OUTSIDE[disk.format])} >&2) && '
            )
    return "".join(checks)


def _virt_v2v(opened: str, folder: str, name: str) -> str:
    return f"virt-v2v {opened} -o local -os {quote(folder)} -of qcow2 -on {quote(name)}"


def _qcow2_names(vm: ImportedVm, name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return NAME, NAME.disk2 and so on, without those that are another VM's NAME."""
    more = (f"{name}.disk{number}" for number in count(2))
    free = (one for one in more if one not in names)
    return tuple(name if number == 1 else next(free) for number in _numbers(vm))


def _unless_there(paths: Sequence[str]) -> str:
    """Return a condition for a POSIX shell: none of the paths exists. It says so on stderr where one does."""
    checks = " && ".join(f"test ! -e {quote(path)}" for path in paths)
    return f"{checks} || {{ echo {quote(' or '.join(paths))} exists >&2; false; }}"


def _source(vm: ImportedVm, file: VmFile, index: int, name: str) -> str:
    """Return the path of a disk's file: beside the VM's own file, or where a copy or an OVA's disks were put."""
    disk = vm.disks[index]
    if vm.opener == "disk":
        return f"./{name}.vhd"
    if file.is_ova:
        return f"./{name}/{disk.file}"
    return _beside(file, disk.file) if disk.fetch is None else _dotted(disk.file)


def _beside(file: VmFile, name: str) -> str:
    """Return the path of a file that a VM's file names: in its folder."""
    return _dotted(name if file.path == "-" else posixpath.join(posixpath.dirname(file.path), name))


def _dotted(path: str) -> str:
    return path if path.startswith(("/", "./", "../")) or path == "." else f"./{path}"


def _numbers(vm: ImportedVm) -> range:
    return range(1, len(vm.disks) + 1)


def _letters(number: int) -> str:
    """Return the letters of the disk with this number, from 1: `a` to `z`, then `aa`."""
    text = ""
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
