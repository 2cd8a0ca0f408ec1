# SPDX-License-Identifier: Apache-2.0
"""Recognize the format of another hypervisor's file by its content, and read it.

No file is too strange to get an error of its own: one that is not text, an unknown format, and each format's problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from shlex import quote

from vgpuctl.config.foreign_vms import esxcli, libvirt_xml, ovf, proxmox, proxmox_mapping, vmx, xe
from vgpuctl.config.foreign_vms.imported import MAX_DEVICES_PER_VM, ForeignFile, Source
from vgpuctl.config.foreign_vms.xml_reader import root_name
from vgpuctl.config.not_text import refuse_nul

FORMATS_HELP = (
    "VMware's VMX, OVF and OVA, what xe vm-param-list and xe vgpu-list params=all print, Proxmox's "
    "/etc/pve/qemu-server/NUMBER.conf and /etc/pve/mapping/pci.cfg, libvirt's domain XML, and what esxcli graphics "
    "prints"
)
_TEXT_FORMATS: tuple[tuple[Callable[[str], bool], Callable[[Source, str], ForeignFile]], ...] = (
    (xe.is_format, xe.parse_text),
    (esxcli.is_format, esxcli.parse_text),
    (proxmox_mapping.is_format, proxmox_mapping.parse_text),
    (vmx.is_format, vmx.parse_text),
    (proxmox.is_format, proxmox.parse_text),
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def parse_foreign_file(text: str, name: str, path: str = "") -> ForeignFile:
    """Read a file of another hypervisor. `name`: what messages call it; `path`: what commands do, if it is a file.

    Raises:
        InvalidInput: it has a format that vgpuctl does not know, or a problem in its format; with file and line.
    """
    source = Source(name)
    _refuse_controls(source, path, text)
    file = _parse(source, text)
    for vm in file.vms:
        number = max(len(vm.disks), len(vm.nics), len(vm.gpus))
        if number > MAX_DEVICES_PER_VM:
            raise source.error(
                1, f"{vm.name!a} has {number} devices of one kind; at most {MAX_DEVICES_PER_VM} are allowed"
            )
    return file


def _parse(source: Source, text: str) -> ForeignFile:
    if text.lstrip().startswith("<"):
        root = root_name(source, text)
        if root == "domain":
            return libvirt_xml.parse_domain_file(source, text)
        if root == "Envelope":
            return ovf.parse_ovf(source, text)
        raise source.error(1, f"this is XML of another kind (<{root}>): expected {FORMATS_HELP}")
    for is_format, parse in _TEXT_FORMATS:
        if is_format(text):
            return parse(source, text)
    raise source.error(1, f"this is not one of the known formats: {FORMATS_HELP}")


def _refuse_controls(source: Source, path: str, text: str) -> None:
    """Refuse what no text of these formats has: NUL shows a binary file, a lone CR hides what follows it on screens."""
    refuse_nul(source.name, path, text)
    match = _CONTROL.search(text)
    if match is None:
        return
    line = text.count("\n", 0, match.start()) + 1
    files = f"<{quote(path)} >{quote(f'{path}.clean')}" if path else "<FILE"
    if match[0] == "\r":
        raise source.error(line, "it has a carriage return within the line", hint=f"remove it: tr -d '\\r' {files}")
    hint = rf"remove it: tr -d '\001-\010\013-\037\177' {files}"
    raise source.error(line, f"it has the control character {match[0]!a}", hint=hint)
