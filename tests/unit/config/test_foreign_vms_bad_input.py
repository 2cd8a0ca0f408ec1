# SPDX-License-Identifier: Apache-2.0
"""Bad files of other hypervisors: each kind has its own error with its line, and no disk opens a file elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import foreign_vms as texts
from vgpuctl.config.foreign_vms import vmdk
from vgpuctl.config.foreign_vms.imported import (
    ImportedVm,
    stays_inside,
)
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.errors import InvalidInput


def the_vm(text: str, name: str = "f") -> ImportedVm:
    (vm,) = parse_foreign_file(text, name).vms
    return vm


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n'
BAD = {
    "nul": ('displayName = "a"\nmemSize = "1\0"\n', "f:2: it has a NUL byte"),
    "cr": ('displayName = "a\rb"\n', "f:1: it has a carriage return"),
    "escape": ("memory: 1\nname: \x1b[2J\n", r"f:2: it has the control character '\x1b'"),
    "empty": ("", "f:1: this is not one of the known formats"),
    "yaml": ("profile: A100-4C\nname: x\n", "not one of the known formats"),
    "vmx: crlf in a value": ('memSize = "1"\ndisplayName = "a|0D|0Ab"\n', r"f:2: displayName has the character '\r'"),
    "vmx: bidi": ('displayName = "a\u202eb"\n', "f:1: displayName has the character '\\u202e'"),
    "vmx: no value": ('displayName = "a"\nmemSize\n', "f:2: 'memSize' is not KEY"),
    "vmx: quote": ('displayName = "a"b"\n', "is not KEY"),
    "vmx: two words": ("displayName = a b\n", "is not KEY"),
    "vmx: twice": ('memSize = "1"\nMEMSIZE = "2"\n', "f:2: MEMSIZE is given twice, first in line 1"),
    "vmx: number": ('memSize = "lots"\n', "f:1: memSize is 'lots', not a whole number"),
    "vmx: long number": (f'memSize = "{"9" * 5000}"\n', "not a whole number"),
    "vmx: long name": (f'displayName = "{"x" * 2000}"\n', "has 2000 characters"),
    "vmx: encrypted": ('displayName = "a"\nencryption.keySafe = "x"\n', "f:2: this VM is encrypted"),
    "vmx: many disks": (
        'displayName = "a"\n'
        + "".join(f'scsi{n}:0.present = "TRUE"\nscsi{n}:0.fileName = "{n}.vmdk"\n' for n in range(300)),
        "has 300 devices of one kind",
    ),
    "ovf: entities": (ENTITIES + texts.OVF.partition("\n")[2], "f:1: a document type"),
    "ovf: no system": ("<Envelope/>", "describes no VM"),
    "ovf: unit": (texts.OVF.replace("byte * 2^30</rasd", "furlong</rasd"), "'furlong', which is not known"),
    "ovf: huge unit": (texts.OVF.replace("byte * 2^30</rasd", "byte * 2^99</rasd"), "which is not known"),
    "ovf: quantity": (texts.OVF.replace("Quantity>16<", "Quantity>-1<"), "f:33: VirtualQuantity is '-1'"),
    "ovf: many": (f"<Envelope>{'<VirtualSystem/>' * 1001}</Envelope>", "describes 1001 VMs"),
    "xml: entities": (f"\n{ENTITIES}<domain><name>&b;</name></domain>", "f:2: a document type"),
    "xml: entity in lower case": ("<!doctype a><domain/>", "f:1: a document type"),
    "xml: undeclared": ("<domain>\n<name>&b;</name></domain>", "f:2: this is not XML"),
    "xml: not closed": ("<domain><name>", "this is not XML"),
    "xml: deep": (f"<domain>{'<a>' * 5000}", "this is not XML"),
    "xml: many": (f"<domain>{'<a/>' * 30_000}</domain>", "has 30001 elements"),
    "xml: other": ("<svg/>", "XML of another kind (<svg>)"),
    "xml: no element": ("<", "XML without an element"),
    "xml: crlf in a value": ("<domain>\n<name>a&#13;&#10;b</name></domain>", r"f:2: name has the character '\r'"),
    "xml: vcpus": ("<domain><vcpu>two</vcpu></domain>", "vcpu is 'two'"),
    "xml: unit": ("<domain><memory unit='stone'>2</memory></domain>", "has the unit 'stone'"),
    "xe: twice": (texts.XE_VM.replace("power-state", "name-label"), "f:7: name-label is given twice"),
    "xe: before": ("  device ( RO): 0\n" + texts.XE_VGPUS, "f:1: device is before the first uuid"),
    "xe: words": ("hello\n" + texts.XE_VGPUS, "f:1: 'hello' is not what xe prints"),
    "xe: memory": (texts.XE_VM.replace("8589934592", "much"), "memory-static-max is 'much'"),
    "xe: algorithm": (texts.XE_GROUP.replace("breadth-first", "random"), "not depth-first or breadth-first"),
    "proxmox: line": ("memory: 1\n-> x\n", "f:2: '-> x' is not KEY: VALUE"),
    "proxmox: twice": ("memory: 1\nmemory: 2\n", "f:2: memory is given twice"),
    "proxmox: cores": ("cores: x\n", "cores is 'x'"),
    "mapping: no name": ("\tmap node=a,path=01:00\n", "f:1: 'map node=a,path=01:00' belongs to no mapping"),
    "mapping: twice": (f"{texts.PROXMOX_MAPPING}\nnic\n", "the mapping nic is given twice, first in line 8"),
    "mapping: no path": ("a\n\tmap id=10de:1,node=a\n", "f:2: this map has no path="),
    "mapping: no node": ("a\n map path=1\n map id=10de:1,path=01:00,node=\n", "f:2: this map has no node="),
    "mapping: bidi": ("a\n\tmap node=a\u202e,path=01:00\n", "f:2: map node has the character '\\u202e'"),
    "mapping: long": (f"{'a' * 2000}\n\tmap node=a,path=01:00\n", "f:1: the mapping has 2000 characters"),
    "esxcli: policy": ("   Shared Passthru Assignment Policy: Random\n", "not Performance or Consolidation"),
    "esxcli: dword": ("NVreg_RegistryDwords string RmPVMRL=0x100000001\n", "not a number of 32 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_has_its_own_error_with_its_line(name):
    text, problem = BAD[name]
    with pytest.raises(InvalidInput) as raised:
        parse_foreign_file(text, "f")
    assert problem in raised.value.message
    assert raised.value.message.startswith("f:")
    assert len(raised.value.message) < 600


@pytest.mark.parametrize(
    "file",
    ["../x.vmdk", "a/../../x.vmdk", "/etc/shadow.vmdk", "..\\x.vmdk", "C:\\x.vmdk", "nbd://host/x.vmdk", "json:{}.vmdk",
     "a//b.vmdk", "./x.vmdk", ".."],
)  # fmt: skip
def test_a_disk_outside_the_folder_is_left_out(file):
    assert not stays_inside(file)
    escaped = file.replace("|", "|7C")
    vm = the_vm(f'displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "{escaped}"\n')
    assert (vm.disks, vm.opener) == ((), None)
    assert vm.left_out[0].startswith("f:3: scsi0:0 is ")
    ovf = the_vm(texts.OVF.replace("desk-2-disk1.vmdk", file))
    assert (ovf.disks, ovf.opener) == ((), None)
    assert "outside the folder of f" in ovf.left_out[0]


def test_a_disk_in_a_subfolder_stays_inside():
    assert stays_inside("disks/x 1.vmdk")
    assert stays_inside("..x")


def test_what_a_vmdk_names():
    text = texts.DESCRIPTOR.format(extent="../../etc/shadow")
    for head in (text.encode(), text.replace("\n", "\r\n").encode(), texts.sparse_vmdk(text)):
        assert vmdk.named_files(head) == ("monolithicFlat", "../../etc/shadow", " 0", "lsilogic")
    assert vmdk.named_files(b'RW 1 VMFS "a-flat.vmdk"\nparentFileNameHint="base.vmdk"\n') == (
        "a-flat.vmdk",
        "base.vmdk",
    )
    assert vmdk.named_files(texts.sparse_vmdk()) == vmdk.named_files(b"COWD" + b'RW 1 FLAT "x"') == ()
    assert vmdk.named_files(b'createType=""\0RW 1 FLAT "x"') == vmdk.named_files(b"") == vmdk.named_files(b"KDMV") == ()


@pytest.mark.parametrize(
    "text",
    [
        'RW+2048 FLAT "/etc/shadow" 0',
        f'RW {"0" * 30}2048 FLAT "/etc/shadow" 0',
        'RW 2048\nFLAT "/etc/shadow" 0',
        '\nRW\n2048\r\v\fFLAT\n\n"/etc/shadow" 0',
        'RW 1 x" "/etc/shadow" 0',
        'RW 1 FLAT "/etc/shadow',
        'RW 1 FLAT "/etc/shadow\rx',
        'RW 1\nabcdefgh="/etc/shadow"',
        ' \tRDONLY\t1\tSPARSE\t"/etc/shadow"',
        'xparentFileNameHint="/etc/shadow"',
        'ddb.x="parentFileNameHint=x/etc/shadow"',
        '# parentFileNameHint\n\n/etc/shadow"',
        'parentFileNameHintparentFileNameHint="/etc/shadow"',
        '\xffRW 1 FLAT "/etc/shadow"',
    ],
)
def test_every_file_that_qemu_may_read_from_a_descriptor_is_seen(text):
    hidden = texts.sparse_vmdk(text)
    without_offset = hidden[:28] + b"\0" * 8 + hidden[36:]
    cowd = b"COWD".ljust(512, b"\1") + text.encode("latin-1")
    for head in (text.encode("latin-1"), hidden, without_offset, cowd):
        assert "/etc/shadow" in vmdk.named_files(head)


@pytest.mark.parametrize("offset", [2, 100, 1 << 63, (1 << 64) - 1])
def test_a_vmdk_whose_descriptor_is_elsewhere_is_refused(offset):
    head = texts.sparse_vmdk("x")
    with pytest.raises(ValueError, match=f"descriptor begins at sector {offset}:"):
        vmdk.named_files(head[:28] + offset.to_bytes(8, "little") + head[36:])


def test_a_name_that_qemu_would_cut_off_is_refused():
    assert vmdk.named_files(b'RW 1 FLAT "%b"' % (b"x" * 255)) == ("x" * 255,)
    with pytest.raises(ValueError, match="more than 255 bytes"):
        vmdk.named_files(f'RW 1 FLAT "{"é" * 128}"'.encode())
    for text in (b'RW 1 FLAT "%b"', b"parentFileNameHint==%b", b'"\xff%b"'):
        with pytest.raises(ValueError, match="more than 255 bytes"):
            vmdk.named_files(text % (b"x" * 1000))


@given(st.sampled_from(sorted(texts.FORMATS)), st.data())
def test_a_changed_file_is_read_or_refused_with_its_line(name, data):
    """Any part may be missing, repeated or replaced."""
    text = texts.FORMATS[name]
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 200)))
    odd = data.draw(
        st.one_of(st.text(max_size=20), st.sampled_from(["\0", "../", "|0A", "&#10;", '"', "<a/>", "[x]\n"]))
    )
    changed = text[:begin] + odd + text[end:]
    problem, vms = "f:", ()
    try:
        vms = parse_foreign_file(changed, "f").vms
    except InvalidInput as error:
        problem = error.message
    assert problem.startswith("f:")
    for vm in vms:
        assert all(stays_inside(disk.file) for disk in vm.disks)
        assert all(line.startswith("f:") for line in vm.left_out)
