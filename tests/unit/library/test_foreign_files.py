# SPDX-License-Identifier: Apache-2.0
"""Files of other hypervisors on disk: OVAs that are not extracted, and disks that may not leave their VM's folder."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from tests import foreign_vms as texts
from tests.hosts import open_sim_host
from vgpuctl.config.foreign_vms.imported import ImportedVm, VmFile
from vgpuctl.errors import FileNeeded, InvalidInput, NotFound
from vgpuctl.library.foreign_files import MAX_FILES, decode_vm_text, read_vm_file, read_vm_files
from vgpuctl.library.text_file import VM_KIND, read_text
from vgpuctl.value import replace

OVF = ("desk-2.ovf", texts.OVF.encode())
DISK = ("desk-2-disk1.vmdk", texts.sparse_vmdk())


@pytest.fixture
def ports(tmp_path):
    return open_sim_host(tmp_path / "state").ports


def read(ports, path: Path) -> VmFile:
    return read_vm_file(ports, str(path))


def the_vm(ports, path: Path) -> ImportedVm:
    (vm,) = read(ports, path).content.vms
    return vm


def vmx(folder: Path) -> Path:
    """Write a VMX whose only disk is disk.vmdk."""
    folder.mkdir(exist_ok=True)
    path = folder / "x.vmx"
    path.write_text('displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "disk.vmdk"\n')
    return path


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_ova_is_read_without_extracting_it(ports, tmp_path, form):
    folder = tmp_path / "ova"
    folder.mkdir()
    path = texts.write_ova(folder / "desk-2.ova", OVF, (f"{'a' * 60}/{'b' * 60}.mf", b"x" * 700), DISK, form=form)
    file = read(ports, path)
    assert file.is_ova
    assert file.content.name == f"{path}:desk-2.ovf"
    assert file.content.vms[0].opener == "ova"
    assert [disk.file for disk in file.content.vms[0].disks] == ["desk-2-disk1.vmdk"]
    assert [*folder.iterdir()] == [path]
    assert read_text(str(path), VM_KIND) == texts.OVF


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ((OVF, texts.link("x.vmdk", "/etc/shadow")), "'x.vmdk' in this OVA is a symbolic link"),
        ((OVF, texts.link("x.vmdk", "desk-2.ovf", tarfile.LNKTYPE)), "is a hard link"),
        ((OVF, texts.link("x.vmdk", "", tarfile.CHRTYPE)), "is a device"),
        ((OVF, texts.link("x.vmdk", "", tarfile.FIFOTYPE)), "is a pipe"),
        ((OVF, texts.link("x.vmdk", "", b"S")), "is a sparse file"),
        ((OVF, texts.link("x.vmdk", "", b"K")), "of a kind that no OVA has"),
        ((OVF, DISK, DISK), "two members named 'desk-2-disk1.vmdk'"),
        ((OVF, DISK, (f"./{DISK[0]}", b"")), "two members named 'desk-2-disk1.vmdk'"),
        ((OVF, (f"a/.//./{DISK[0]}", b""), (f"./a/{DISK[0]}", b"")), "two members named 'a/desk-2-disk1.vmdk'"),
        ((OVF, texts.link("x", "", tarfile.DIRTYPE), ("x", b"")), "two members named 'x'"),
        ((OVF, texts.header(b"x", f"path={DISK[0]}"), ("x", b""), DISK), "two members named 'desk-2-disk1.vmdk'"),
        ((OVF, texts.header(b"x", "GNU.sparse.major=1"), DISK), "a sparse file ('GNU.sparse.major')"),
        ((OVF, texts.header(b"x", "GNU.sparse.size=9"), DISK), "a sparse file ('GNU.sparse.size')"),
        ((texts.header(b"g", "GNU.sparse.name=x"), OVF), "a sparse file ('GNU.sparse.name')"),
        ((texts.header(b"g", "comment=x", "path=x.vmdk"), OVF), "a global extended header with 'path'"),
        ((texts.header(b"g", "size=0"), OVF), "a global extended header with 'size'"),
        ((texts.header(b"g", "linkpath=x"), OVF), "a global extended header with 'linkpath'"),
        ((texts.header(b"x", "path=x", "path=y"), OVF), "'path' twice"),
        ((texts.header(b"x", "path=x"), texts.header(b"x", "path=y"), OVF), "'path' twice"),
        ((texts.header(b"x", "path=x"), (texts.header(b"L")[0], b"y\0"), OVF), "'path' twice"),
        ((texts.header(b"x", "path="), OVF), "an empty 'path'"),
        ((texts.header(b"x", "size="), OVF), "a member's size is ''"),
        ((texts.header(b"x", "size=+1"), OVF), "a member's size is '+1'"),
        (((texts.header(b"x")[0], b" 9 path=x\n"), OVF), "an extended header is not in records"),
        (((texts.header(b"x")[0], b"10  path=x\n"), OVF), "an extended header is not in records"),
        (((texts.header(b"x")[0], b"9 path=xy"), OVF), "an extended header is not in records"),
        (((texts.header(b"x")[0], b"99 path=x\n"), OVF), "an extended header is not in records"),
        ((OVF, (texts.link("x", "", tarfile.DIRTYPE), b"x")), "the folder 'x/' in this OVA has a content"),
        ((OVF, ("/etc/x.vmdk", b"")), "'/etc/x.vmdk' in this OVA would leave its folder"),
        ((OVF, ("../x.vmdk", b"")), "would leave its folder"),
        ((OVF, ("a/../../x.vmdk", b"")), "would leave its folder"),
        ((OVF, ("a\\x.vmdk", b"")), "would leave its folder"),
        ((DISK,), "this OVA has 0 .ovf files"),
        ((OVF, ("b.ovf", b"")), "this OVA has 2 .ovf files"),
        ((("a.ovf", b" " * ((1 << 20) + 1)),), "'a.ovf' in it is larger than 1024 KiB"),
        ((("a.ovf", b"<Envelope>\xff"),), "not UTF-8 text: byte 10"),
        ((("a.ovf", b"<!DOCTYPE a>"),), "a.ovf:1: a document type"),
        ((OVF, *((f"{n}", b"") for n in range(1001))), "has more than 1000 members"),
    ],
)
def test_an_ova_with_what_no_ova_has_is_refused(ports, tmp_path, members, problem):
    path = texts.write_ova(tmp_path / "x.ova", *members)
    with pytest.raises(InvalidInput) as raised:
        read(ports, path)
    assert problem in raised.value.message
    assert str(path) in raised.value.message


def test_a_damaged_ova_is_refused(ports, tmp_path):
    whole = texts.write_ova(tmp_path / "x.ova", OVF, DISK).read_bytes()
    changed = bytearray(whole)
    changed[3] ^= 1
    signed = bytearray(whole)
    signed[124:136] = b"\xff" * 12
    signed[148:156] = b"%06o\0 " % (sum(signed[:148]) + 256 + sum(signed[156:512]))
    for name, content in {"cut": whole[: len(OVF[1])], "changed": changed, "size": signed, "half": whole[:700]}.items():
        path = tmp_path / f"{name}.ova"
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="this OVA is damaged"):
            read(ports, path)


def test_headers_that_say_nothing_wrong_are_allowed(ports, tmp_path):
    before = (texts.header(b"g", "comment=x"), texts.header(b"x", "mtime=1.5", f"path={DISK[0]}"))
    path = texts.write_ova(tmp_path / "x.ova", OVF, *before, ("short", DISK[1]))
    assert [disk.file for disk in the_vm(ports, path).disks] == [DISK[0]]


def test_the_size_in_an_extended_header_is_that_of_the_member_after_all_headers(ports, tmp_path):
    headers = (texts.header(b"x", f"size={len(DISK[1])}"), (texts.header(b"L")[0], DISK[0].encode() + b"\0"))
    path = texts.write_ova(tmp_path / "x.ova", *headers, ("short", DISK[1]), OVF)
    assert [disk.file for disk in the_vm(ports, path).disks] == [DISK[0]]


def test_an_extended_header_has_a_limit(ports, tmp_path):
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "x" * 100_000}
    path = texts.write_ova(tmp_path / "x.ova", info, OVF, form=tarfile.PAX_FORMAT)
    with pytest.raises(InvalidInput, match="extended header of 1000"):
        read(ports, path)


def test_a_disk_in_an_ova_may_not_name_files_outside(ports, tmp_path):
    bad = texts.sparse_vmdk(texts.DESCRIPTOR.format(extent="/etc/shadow"))
    vm = the_vm(ports, texts.write_ova(tmp_path / "x.ova", OVF, (DISK[0], bad)))
    assert (vm.disks, vm.opener) == ((), None)
    assert "it names '/etc/shadow'" in vm.left_out[-1]
    vm = the_vm(ports, texts.write_ova(tmp_path / "y.ova", OVF))
    assert vm.disks == ()
    assert "the OVA does not have it" in vm.left_out[-1]


def test_a_disk_that_is_there_or_comes_later_is_kept(ports, tmp_path):
    path = vmx(tmp_path / "vm")
    assert [disk.file for disk in the_vm(ports, path).disks] == ["disk.vmdk"]
    (path.parent / "disk.vmdk").write_text(texts.DESCRIPTOR.format(extent="disk-flat.vmdk"))
    (path.parent / "disk-flat.vmdk").write_bytes(b"\0" * 512)
    vm = the_vm(ports, path)
    assert ([disk.file for disk in vm.disks], vm.opener, vm.left_out) == (["disk.vmdk"], "vmx", ())


def symlink(folder):
    (folder / "disk.vmdk").symlink_to("/etc/passwd")


def symlink_to_folder(folder):
    (folder.parent / "other").mkdir()
    (folder.parent / "other/x.vmdk").write_text("")
    (folder / "disk.vmdk").symlink_to("../other/x.vmdk")


def dangling(folder):
    (folder / "disk.vmdk").symlink_to("/nowhere/x.vmdk")


def extent(folder):
    (folder / "disk.vmdk").write_text(texts.DESCRIPTOR.format(extent="/etc/shadow"))


def extent_above(folder):
    (folder / "disk.vmdk").write_bytes(texts.sparse_vmdk(texts.DESCRIPTOR.format(extent="../secret.img")))


def linked_extent(folder):
    (folder / "disk.vmdk").write_text(texts.DESCRIPTOR.format(extent="disk-flat.vmdk"))
    (folder / "disk-flat.vmdk").symlink_to("/etc/shadow")


def parent(folder):
    (folder / "disk.vmdk").write_text('createType="x"\nparentFileNameHint="base.vmdk"\n')
    (folder / "base.vmdk").write_text('createType="x"\nRW 1 FLAT "/etc/shadow" 0\n')


def protocol(folder):
    (folder / "disk.vmdk").write_text('createType="x"\nRW 1 FLAT "nbd://127.0.0.1/x" 0\n')


def fifo(folder):
    os.mkfifo(folder / "disk.vmdk")


def directory(folder):
    (folder / "disk.vmdk").mkdir()


def several_lines(folder):
    (folder / "disk.vmdk").write_text('createType="monolithicFlat"\nRW +2048\nFLAT\n"/etc/shadow" 0\n')


def parent_without_offset(folder):
    head = texts.sparse_vmdk('parentFileNameHint="/etc/shadow"\n')
    (folder / "disk.vmdk").write_bytes(head[:28] + b"\0" * 8 + head[36:])


def linked_parent(folder):
    (folder / "disk.vmdk").write_text('x="1" parentFileNameHint="base.vmdk"\n')
    (folder / "base.vmdk").symlink_to("/etc/shadow")


def qcow2_for_a_parent(folder):
    (folder / "disk.vmdk").write_text('parentFileNameHint="base.vmdk"\n')
    (folder / "base.vmdk").write_bytes(texts.qcow2(b"/etc/shadow"))


def far_descriptor(folder):
    (folder / "disk.vmdk").write_bytes(b"KDMV" + b"\xff" * 600)


def many(folder):
    lines = "".join(f'RW 1 FLAT "{n}.vmdk" 0\n' for n in range(300))
    (folder / "disk.vmdk").write_text(lines)


BAD = (symlink, symlink_to_folder, dangling, extent, extent_above, linked_extent, parent, protocol, fifo, directory,
       far_descriptor, many, several_lines, parent_without_offset, linked_parent, qcow2_for_a_parent)  # fmt: skip


@pytest.mark.parametrize("spoil", BAD)
def test_a_disk_that_leaves_the_folder_is_left_out(ports, tmp_path, spoil):
    path = vmx(tmp_path / "vm")
    spoil(path.parent)
    vm = the_vm(ports, path)
    assert (vm.disks, vm.opener) == ((), None)
    assert vm.left_out[-1].startswith(f"{path}:3: the disk 'disk.vmdk' is left out: ")


OTHER_FILES = [
    (texts.qcow2(b"/etc/shadow"), "a qcow2 with the backing file '/etc/shadow'"),
    (texts.qcow2(b"base.qcow2", version=2), "a qcow2 with the backing file 'base.qcow2'"),
    (texts.qcow2(b"/etc/shadow", version=1), "a qcow2 with the backing file '/etc/shadow'"),
    (texts.qcow2(b"\xff\n"), "a qcow2 with the backing file '\\\\xff\\n'"),
    (texts.qcow2(features=4), "a qcow2 whose data is in another file"),
    (texts.qcow2(features=0xFF), "a qcow2 whose data is in another file"),
    (b"QFI\xfb\0\0\0\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a qcow2 with the backing file ''"),
    (b"QED\0" + b"\0" * 60, "a QED disk"),
    (b"\x1f\x8b\x08", "compressed with gzip"),
    (b"\xfd7zXZ\0", "compressed with xz"),
    (texts.DESCRIPTOR.format(extent="/etc/shadow").encode(), "names '/etc/shadow'"),
]


@pytest.mark.parametrize("name", ["disk.qcow2", "disk.vmdk", "disk.vhd"])
@pytest.mark.parametrize(("content", "problem"), OTHER_FILES)
def test_a_disk_that_leads_to_other_files_is_left_out_whatever_format_it_is_said_to_have(
    ports, tmp_path, name, content, problem
):
    text = texts.OVF.replace(DISK[0], name).replace("vmdk.html#streamOptimized", name)
    path = tmp_path / "desk-2.ovf"
    path.write_text(text)
    (tmp_path / name).write_bytes(content)
    ova = texts.write_ova(tmp_path / "desk-2.ova", (OVF[0], text.encode()), (name, content))
    for vm in (the_vm(ports, path), the_vm(ports, ova)):
        assert (vm.disks, vm.opener) == ((), None)
        assert problem in vm.left_out[-1]


def test_a_qcow2_of_its_own_is_kept(ports, tmp_path):
    text = texts.OVF.replace(DISK[0], "disk.qcow2").replace("vmdk.html#streamOptimized", "qcow2")
    for content in (texts.qcow2(), texts.qcow2(features=3), texts.qcow2(version=2, features=4), texts.qcow2()[:20]):
        ova = texts.write_ova(tmp_path / "x.ova", (OVF[0], text.encode()), ("disk.qcow2", content))
        assert [disk.format for disk in the_vm(ports, ova).disks] == ["qcow2"]


def test_virt_v2v_does_not_open_an_ova_with_a_file_that_leaves_the_folder(ports, tmp_path):
    parent = texts.DESCRIPTOR.format(extent="base.vmdk").encode()
    bad = texts.DESCRIPTOR.format(extent="/etc/shadow").encode()
    vm = the_vm(ports, texts.write_ova(tmp_path / "x.ova", OVF, (DISK[0], parent), ("base.vmdk", bad)))
    assert ([disk.file for disk in vm.disks], vm.opener) == ([DISK[0]], None)


def test_extents_that_name_each_other_end(ports, tmp_path):
    path = vmx(tmp_path / "vm")
    (path.parent / "disk.vmdk").write_text('RW 1 SPARSE "other.vmdk"\n')
    (path.parent / "other.vmdk").write_text('parentFileNameHint="disk.vmdk"\n')
    assert len(the_vm(ports, path).disks) == 1


def test_a_folder_that_is_a_link_itself_is_no_problem(ports, tmp_path):
    path = vmx(tmp_path / "vm")
    (path.parent / "disk.vmdk").write_bytes(texts.sparse_vmdk())
    (tmp_path / "link").symlink_to("vm")
    assert len(the_vm(ports, tmp_path / "link/x.vmx").disks) == 1


def test_a_vmx_says_its_encoding():
    text = '.encoding = "{}"\ndisplayName = "Büro"\n'
    for name, codec in (("UTF-8", "utf-8"), ("windows-1252", "cp1252"), ("ISO-8859-1", "latin-1")):
        assert "Büro" in decode_vm_text(text.format(name).encode(codec), "x.vmx")
    assert decode_vm_text("\ufeffa\r\nb".encode(), "x.vmx") == "a\nb"
    for name, line in (("shift_jis", 2), ("us-ascii", 2), ("UTF-8", 2)):
        with pytest.raises(InvalidInput, match=f"^x.vmx:{line}: .encoding is '{name.lower()}', but byte .* is no such"):
            decode_vm_text(text.format(name).encode("latin-1").replace(b"\xfc", b"\x81 "), "x.vmx")
    for name in ("rot13", "zlib", "utf-16"):
        with pytest.raises(InvalidInput, match=r"^x\.vmx:1: .*which vgpuctl does not know"):
            decode_vm_text(text.format(name).encode(), "x.vmx")


def test_files_that_cannot_be_read(ports, tmp_path):
    large = tmp_path / "large.vmx"
    large.write_text('displayName = "x"\n' + "# a comment\n" * 900_000)
    assert large.stat().st_size > 10_000_000
    latin = tmp_path / "latin.vmx"
    latin.write_bytes('displayName = "Büro"\n'.encode("latin-1"))
    for path, kind, problem in (
        (large, InvalidInput, "larger than 1024 KiB"),
        (latin, InvalidInput, "not UTF-8 text"),
        (tmp_path, InvalidInput, "Is a directory"),
        (tmp_path / "none.vmx", NotFound, "there is no VM file"),
        (Path("/dev/zero"), InvalidInput, "larger than 1024 KiB"),
    ):
        with pytest.raises(kind) as raised:
            read(ports, path)
        assert problem in raised.value.message


def test_which_files(ports, tmp_path):
    path = str(vmx(tmp_path / "vm"))
    for paths, problem in (
        ((), "missing"),
        ((path, path), "given twice"),
        (tuple(map(str, range(MAX_FILES + 1))), "257"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            read_vm_files(ports, paths)


def test_of_a_caller_elsewhere_only_the_sent_text_is_read(ports, tmp_path):
    path = vmx(tmp_path / "vm")
    symlink(path.parent)
    elsewhere = replace(ports, given_files={})
    with pytest.raises(FileNeeded):
        read(elsewhere, path)
    file = read(replace(ports, given_files={str(path): path.read_text()}), path)
    assert file.is_unchecked
    assert len(file.content.vms[0].disks) == 1
    sent = read(replace(ports, given_files={"x.ova": texts.OVF}), Path("x.ova"))
    assert sent.is_ova
