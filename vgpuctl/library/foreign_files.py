# SPDX-License-Identifier: Apache-2.0
"""Reads the files of VMs of other hypervisors, and checks where the disks beside them lead.

A disk may not leave the folder of its VM: not by its name, not by a symbolic link, and not by what a VMDK names itself
(its extents, the parent of a snapshot), because qemu-img opens all of these. A qcow2 may name no file at all. What
leaves it is left out, with a reason. A file's own first bytes say what it is checked for, not the format that the VM's
file gives. Disks that come later, and those of Proxmox and libvirt, are not here to be checked. Source for qcow2: QEMU,
docs/interop/qcow2.rst.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.foreign_vms import ovf, vmdk, vmx
from vgpuctl.config.foreign_vms.imported import ImportedDisk, ImportedVm, Source, VmFile, stays_inside
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.config.not_text import not_utf8_error, to_utf8
from vgpuctl.errors import InvalidInput
from vgpuctl.library.ova_file import OvaContent, is_ova, read_ova
from vgpuctl.library.text_file import VM_KIND, command_path, display_name, read_given_text, read_text
from vgpuctl.regular_file import open_regular_file
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vgpuctl.ports.host import Host

_ENCODING = re.compile(rb'^[ \t]*\.encoding[ \t]*=[ \t]*"([^"\r\n]{1,40})"', re.MULTILINE | re.IGNORECASE)
_WITH_DISKS = (vmx.FORMAT, ovf.FORMAT)
"""The formats whose disks are files next to them."""
_ENCODING_LINE = r"^[ \t]*\.encoding[ \t]*="
"""As sed knows a line with `.encoding`."""
MAX_FILES = 256
_MAX_CHAIN = 256
_MAX_DISK_BYTES = 64 << 40
_QCOW = struct.Struct(">4sIQI52xQ")
"""Magic, version, where the name of the backing file begins, its length, and from version 3 incompatible features."""
_EXTERNAL_DATA = 1 << 2
_REFUSED_MAGIC = {
    b"QED\0": "it is a QED disk, which vgpuctl does not check",
    b"\x1f\x8b": "it is compressed with gzip: decompress it first",
    b"\xfd7zXZ": "it is compressed with xz: decompress it first",
}


class _Check(Value):
    """What was read of a disk: why it may not be converted, and whether it is here at all."""

    problem: str | None = None
    is_here: bool = False


def read_vm_files(host: Host, paths: Sequence[str]) -> tuple[VmFile, ...]:
    """Read the files that the caller names.

    Raises:
        InvalidInput: no file, too many, or one twice; or as `read_vm_file`.
        FileNeeded, NotFound: as `read_vm_file`.
    """
    if not paths:
        raise InvalidInput("files: missing: name the file of a VM", hint="vgpuctl import-vm desk-1.vmx")
    if len(paths) > MAX_FILES:
        raise InvalidInput(f"files: {len(paths)} are given; at most {MAX_FILES} are read at once")
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InvalidInput(f"files: {display_name(twice)} is given twice", path=twice)
    return tuple(read_vm_file(host, path) for path in paths)


def read_vm_file(host: Host, path: str) -> VmFile:
    """Read a file that the caller names: from this machine, with the disks beside it, or as a caller elsewhere sent it.

    Raises:
        FileNeeded: the caller has to send it.
        InvalidInput, NotFound: it cannot be read, or is not in one of the formats.
    """
    if host.given_files is not None:
        content = parse_foreign_file(read_given_text(host, path, VM_KIND), display_name(path), command_path(path))
        is_unchecked = content.format in _WITH_DISKS and any(vm.disks for vm in content.vms)
        return VmFile(path, content, path.lower().endswith(".ova"), is_unchecked)
    if path != "-" and is_ova(path):
        return _read_ova_file(path)
    content = parse_foreign_file(read_text(path, VM_KIND), display_name(path), command_path(path))
    if path == "-":
        return VmFile(path, content)
    folder = os.path.dirname(path) or "."
    checked: dict[str, _Check] = {}
    if content.format in _WITH_DISKS:
        content = replace(content, vms=tuple(_check_vm(vm, folder, checked) for vm in content.vms))
    return VmFile(path, content)


def decode_vm_text(content: bytes, path: str) -> str:
    """Return the text of a file: UTF-8, or as `.encoding` in a VMX says.

    Raises:
        InvalidInput: vgpuctl does not know that encoding, or the text is not in it.
        UnicodeDecodeError: there is no `.encoding`, and the text is not UTF-8.
    """
    match = _ENCODING.search(content)
    name = "utf-8" if match is None else match[1].decode("ascii", "replace").lower()
    source = Source(display_name(path))
    if match is not None and name not in vmx.ENCODINGS:
        raise source.error(
            content.count(b"\n", 0, match.start(1)) + 1,
            f".encoding is {name!a}, which vgpuctl does not know; it knows {', '.join(sorted(vmx.ENCODINGS))}",
            hint=to_utf8(command_path(path), name, without=_ENCODING_LINE),
        )
    try:
        text = content.decode(vmx.ENCODINGS[name])
    except UnicodeDecodeError as error:
        if match is None:
            raise
        raise source.error(
            content.count(b"\n", 0, error.start) + 1,
            f".encoding is {name!a}, but byte {error.start} is no such text",
            hint=to_utf8(command_path(path), without=_ENCODING_LINE),
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def read_ova_text(path: str) -> str:
    """Return the text of the OVF in an OVA.

    Raises:
        InvalidInput: the OVA is damaged or not allowed, or its OVF is no text.
    """
    return _read_ova(path)[1]


def _read_ova(path: str) -> tuple[OvaContent, str]:
    try:
        ova = read_ova(path, vmdk.HEAD_BYTES, _find_named_outside)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}", path=path) from error
    try:
        return ova, ova.ovf.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        printer = f"tar -xOf {quote(command_path(path))} -- {quote(ova.ovf_name)}"
        raise not_utf8_error(f"{path}:{ova.ovf_name}", "", error.object, error.start, printer=printer) from error


def _read_ova_file(path: str) -> VmFile:
    ova, text = _read_ova(path)
    content = parse_foreign_file(text, f"{path}:{ova.ovf_name}")
    checked = {name: _Check(problem, is_here=True) for name, problem in ova.disks.items()}
    for disk in (disk for vm in content.vms for disk in vm.disks):
        checked.setdefault(disk.file, _Check("the OVA does not have it"))
    vms = tuple(_without_unsafe(vm, checked) for vm in content.vms)
    if any(check.problem is not None for check in checked.values()):  # a disk may name such a file in the OVA
        vms = tuple(replace(vm, opener=None) for vm in vms)
    return VmFile(path, replace(content, vms=vms), is_ova=True)


def _check_vm(vm: ImportedVm, folder: str, checked: dict[str, _Check]) -> ImportedVm:
    """Return the VM without the disks that leave its folder. `checked`: what was read before, by file."""
    for disk in vm.disks:
        if disk.file not in checked:
            checked[disk.file] = _check_disk(folder, disk)
    return _without_unsafe(vm, checked)


def _without_unsafe(vm: ImportedVm, checked: Mapping[str, _Check]) -> ImportedVm:
    """Return the VM without the disks that have a problem; then virt-v2v must not open the VM as a whole."""
    good = [disk for disk in vm.disks if checked[disk.file].problem is None]
    kept = tuple(replace(disk, is_checked=checked[disk.file].is_here) for disk in good)
    left_out = [
        f"{disk.position}: the disk {disk.file!a} is left out: {checked[disk.file].problem}"
        for disk in vm.disks
        if disk not in good
    ]
    if not left_out:
        return replace(vm, disks=kept)
    return replace(vm, disks=kept, opener=None, left_out=(*vm.left_out, *left_out))


def _check_disk(folder: str, disk: ImportedDisk) -> _Check:
    """Return whether a disk may be read. One that is not here yet has no problem."""
    root = os.path.realpath(folder)
    waiting, seen = [disk.file], {disk.file}
    while waiting:
        file = waiting.pop()
        path = os.path.realpath(os.path.join(root, file))
        if os.path.commonpath((root, path)) != root:
            return _Check(f"{file!a} leads to {path!a}, outside the VM's folder")
        try:
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                return _Check(f"{file!a} is not a regular file")
            names = _read_names(path)
        except FileNotFoundError:
            if file == disk.file:
                return _Check()
            continue
        except ValueError as error:
            return _Check(str(error))
        except OSError as error:
            return _Check(f"{file!a} cannot be read: {error.strerror}")
        outside = next((name for name in names if not stays_inside(name)), None)
        if outside is not None:
            return _Check(f"{file!a} names {outside!a}, outside the VM's folder")
        subfolder = os.path.dirname(file)
        named = [os.path.join(subfolder, name) for name in names]
        waiting += [name for name in dict.fromkeys(named) if name not in seen]
        seen.update(named)
        if len(seen) > _MAX_CHAIN:
            return _Check(f"it names more than {_MAX_CHAIN} files")
    return _Check(is_here=True)


def _read_names(path: str) -> tuple[str, ...]:
    with open_regular_file(path, _MAX_DISK_BYTES) as file:
        return _named_files(file.read(vmdk.HEAD_BYTES))


def _find_named_outside(head: bytes) -> str | None:
    try:
        outside = next((name for name in _named_files(head) if not stays_inside(name)), None)
    except ValueError as error:
        return str(error)
    return None if outside is None else f"it names {outside!a}, outside the VM's folder"


def _named_files(head: bytes) -> tuple[str, ...]:
    """Return what the first bytes of a disk may name.

    Raises:
        ValueError: what it says may not be followed.
    """
    for magic, problem in _REFUSED_MAGIC.items():
        if head.startswith(magic):
            raise ValueError(problem)
    if not head.startswith(b"QFI\xfb"):
        return vmdk.named_files(head)
    _, version, offset, size, features = _QCOW.unpack_from(head.ljust(_QCOW.size, b"\0"))
    if offset or size:
        name = head[offset : offset + min(size, 1023)].decode("utf-8", "backslashreplace")
        raise ValueError(f"it is a qcow2 with the backing file {name!a}: qemu-img would read that too")
    if version >= 3 and features & _EXTERNAL_DATA:
        raise ValueError("it is a qcow2 whose data is in another file: qemu-img would read that too")
    return ()
