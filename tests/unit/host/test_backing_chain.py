# SPDX-License-Identifier: Apache-2.0
"""Hostile images: each refers to a file of the host, a server, or itself. None of them reaches a program."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.host.disks import SIZE, gpt
from vgpuctl.host.backing_chain import MAX_CHAIN_FILES, read_image_files
from vgpuctl.host.commands import find_command
from vgpuctl.host.images import ImageInspector
from vgpuctl.host.qemu_access import QemuUser
from vgpuctl.model.port_values import ImageFile, ImageInfo

TOOL = find_command("qemu-img")
needs_tool = pytest.mark.skipif(TOOL is None, reason="qemu-img is not installed")
DATA_FILE = 1 << 2


def qcow2(
    backing: str = "", form: str = "", *, version: int = 3, features: int = 0, offset: int | None = None
) -> bytes:
    """A header as in docs/interop/qcow2.txt, with one extension for the backing file's format, then the name."""
    extension = struct.pack(">II", 0xE2792ACA, len(form)) + form.encode().ljust(-(-len(form) // 8) * 8, b"\0")
    extension = (extension if form else b"") + bytes(8)
    length = 104 if version == 3 else 72
    name = backing.encode()
    at = (length + len(extension) if name else 0) if offset is None else offset
    head = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", version, at, len(name), 16, SIZE, 0, 0, 0, 65536, 1, 0, 0)
    if version == 3:
        head += struct.pack(">QQQII", features, 0, 0, 4, 104)
    return head + extension + name + bytes(SIZE)


class Tripwire:
    """Locates programs, and fails the test if one is requested."""

    def __call__(self, name: str) -> str | None:
        pytest.fail(f"{name} was about to be run")


def inspect_image(path: Path, pool: Path | None = None, tool: object = None) -> ImageInfo:
    images = ImageInspector(lambda: None, tool or Tripwire())  # type: ignore[arg-type]
    record = images.inspect(str(path), lambda: [str(pool)] if pool else [])
    assert record is not None
    return record


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (qcow2("/etc/shadow", "raw"), "backing file /etc/shadow, which is in no storage pool"),
        (qcow2("/etc/passwd", "raw", version=2), "backing file /etc/passwd, which is in no storage pool"),
        (qcow2("../../../../../../../../etc/passwd", "raw"), "backing file /etc/passwd, which is in no storage pool"),
        (qcow2("base.raw"), "without its format, so QEMU would have to guess"),
        (qcow2("base.raw", "vmdk"), "as vmdk, so QEMU would have to guess"),
        (qcow2("base.raw", "qcow2"), "as qcow2, and it is raw"),
        (qcow2("none.raw", "raw"), "none.raw, which cannot be read: No such file"),
        (qcow2("link.raw", "raw"), "backing file /etc/passwd, which is in no storage pool"),
        (qcow2("a.qcow2", "qcow2"), "form a loop through"),
        (qcow2('json:{"driver":"nbd","host":"10.0.0.1"}', "raw"), "which is not a local file"),
        (qcow2("nbd://10.0.0.1/x", "raw"), "'nbd://10.0.0.1/x', which is not a local file"),
        (qcow2("https://10.0.0.1/x", "raw"), "which is not a local file"),
        (qcow2("file:/etc/shadow", "raw"), "which is not a local file"),
        (qcow2("fat:/etc", "raw"), "which is not a local file"),
        (qcow2(features=DATA_FILE), "keeps its data in another file"),
        (qcow2("x" * 1024, "raw"), "names a backing file of 1024 bytes"),
        (qcow2("x", "raw", offset=1 << 40), "names a backing file of 1 bytes at byte 1099511627776"),
        (qcow2(version=9), "version 9 of qcow2"),
        (b"QFI\xfb\0\0\0\3", "its header is truncated"),
    ],
)
def test_what_names_a_file_of_the_host_is_refused_before_any_program_sees_it(
    tmp_path: Path, content: bytes, output: str
) -> None:
    put(tmp_path / "base.raw", bytes(SIZE))
    (tmp_path / "link.raw").symlink_to("/etc/passwd")
    record = inspect_image(put(tmp_path / "a.qcow2", content), tmp_path)
    assert record.unsafe_reason is not None
    assert output in record.unsafe_reason


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (qcow2(version=1), "qcow"),
        (b"KDMV" + bytes(SIZE), "vmdk"),
        (b"COWD" + bytes(SIZE), "vmdk"),
        (b'# Disk DescriptorFile\nversion=1\nRW 9 FLAT "/etc/shadow" 0\n', "vmdk"),
        (b'\n  \n# x\r\n# y\nversion=3\nRW 9 FLAT "/etc/shadow" 0\n', "vmdk"),
        (b"x" * 64 + b"\x7f\x10\xda\xbe" + bytes(SIZE), "vdi"),
        (b"vhdxfile" + bytes(SIZE), "vhdx"),
        (b"conectix" + bytes(SIZE), "vpc"),
        (b"QED\0" + bytes(SIZE), "qed"),
        (b"LUKS\xba\xbe" + bytes(SIZE), "luks"),
    ],
)
def test_other_formats_are_detected_by_magic_without_a_program(tmp_path: Path, content: bytes, form: str) -> None:
    assert inspect_image(put(tmp_path / "a.qcow2", content)).format == form


@needs_tool
@pytest.mark.parametrize("form", ["vmdk", "vdi", "vhdx", "vpc", "qed", "parallels", "qcow"])
def test_qemu_img_formats_are_detected_by_content(tmp_path: Path, form: str) -> None:
    raw, image = put(tmp_path / "disk.raw", gpt()), tmp_path / "an image"
    subprocess.run([str(TOOL), "convert", "-O", form, raw, image], check=True)
    assert inspect_image(image).format == form


@needs_tool
def test_a_vmdk_that_names_a_file_of_the_host_is_not_opened(tmp_path: Path) -> None:
    image = tmp_path / "flat.vmdk"
    create = [str(TOOL), "create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", str(image), "1M"]
    subprocess.run(create, check=True)
    image.write_text(image.read_text().replace("flat-flat.vmdk", "/etc/shadow"))
    assert inspect_image(image).format == "vmdk"


@needs_tool
def test_a_qcow2_whose_data_is_in_another_file_is_refused_as_qemu_img_makes_it(tmp_path: Path) -> None:
    image, data = tmp_path / "a.qcow2", tmp_path / "data"
    create = [str(TOOL), "create", "-q", "-f", "qcow2", "-o", f"data_file={data},data_file_raw=on", str(image), "1M"]
    subprocess.run(create, check=True)
    assert "keeps its data in another file" in str(inspect_image(image).unsafe_reason)


def backed(path: Path, base: Path, form: str = "qcow2") -> Path:
    subprocess.run([str(TOOL), "create", "-q", "-f", "qcow2", "-b", base.name, "-F", form, path], check=True)
    return path


@needs_tool
def test_an_image_that_lies_below_itself_is_refused_at_once(tmp_path: Path) -> None:
    first, second = tmp_path / "1.qcow2", tmp_path / "2.qcow2"
    subprocess.run([str(TOOL), "create", "-q", "-f", "qcow2", first, "1M"], check=True)
    backed(second, first)
    rebase = [str(TOOL), "rebase", "-u", "-f", "qcow2", "-F", "qcow2"]
    subprocess.run([*rebase, "-b", first.name, first], check=True)
    assert "form a loop" in str(inspect_image(first, tmp_path).unsafe_reason)
    subprocess.run([*rebase, "-b", second.name, first], check=True)
    assert "form a loop" in str(inspect_image(second, tmp_path).unsafe_reason)


def test_a_chain_has_a_limit(tmp_path: Path) -> None:
    put(tmp_path / "0", bytes(SIZE))
    for number in range(1, MAX_CHAIN_FILES + 1):
        put(tmp_path / str(number), qcow2(str(number - 1), "qcow2" if number > 1 else "raw"))
    assert inspect_image(tmp_path / str(MAX_CHAIN_FILES - 1), tmp_path, lambda name: None).unsafe_reason is None
    assert f"more than {MAX_CHAIN_FILES} backing files" in str(
        inspect_image(tmp_path / str(MAX_CHAIN_FILES), tmp_path).unsafe_reason
    )


@needs_tool
def test_clones_of_clones_within_the_pools_are_allowed_and_their_chain_is_known(tmp_path: Path) -> None:
    base = put(tmp_path / "base.raw", gpt())
    middle = backed(tmp_path / "middle.qcow2", base, "raw")
    top = backed(tmp_path / "top.qcow2", middle)
    record = inspect_image(top, tmp_path, find_command)
    assert (record.unsafe_reason, record.access_problem, record.virtual_size_bytes) == (None, None, SIZE)
    assert [one.path for one in record.backing_chain] == [str(top), str(middle), str(base)]
    assert "which is in no storage pool" in str(inspect_image(top, tmp_path / "elsewhere").unsafe_reason)


@needs_tool
def test_a_raw_file_that_begins_like_a_qcow2_is_raw_where_the_image_above_says_so(tmp_path: Path) -> None:
    inner = put(tmp_path / "inner", qcow2("/etc/shadow", "raw"))
    top = tmp_path / "top.qcow2"
    create = [str(TOOL), "create", "-q", "-f", "qcow2", "-b", inner.name, "-F", "raw", top, "1M"]
    subprocess.run(create, check=True)
    record = inspect_image(top, tmp_path, find_command)
    assert (record.unsafe_reason, [one.backing_path for one in record.backing_chain]) == (None, [str(inner), None])


def test_qemu_img_runs_with_limits_and_a_format(tmp_path: Path) -> None:
    """A stand-in for both programs logs its arguments."""
    log = tmp_path / "log"
    for name in ("prlimit", "qemu-img"):
        script = put(tmp_path / name, f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> {shlex.quote(str(log))}\n'.encode())
        script.chmod(0o755)
    image = put(tmp_path / "a.qcow2", qcow2())
    inspect_image(image, None, lambda name: str(tmp_path / name))
    (line,) = log.read_text().splitlines()
    assert line.startswith(f"prlimit --as=1073741824 --cpu=30 --core=0 -- {tmp_path}/qemu-img dd -U -f qcow2 ")
    log.unlink()
    inspect_image(image, None, lambda name: None if name == "prlimit" else str(tmp_path / name))
    assert not log.exists()


@needs_tool
def test_the_limits_are_enough_for_a_large_image(tmp_path: Path) -> None:
    image = tmp_path / "large.qcow2"
    subprocess.run([str(TOOL), "create", "-q", "-f", "qcow2", image, "8T"], check=True)
    record = inspect_image(image, None, find_command)
    assert (record.access_problem, record.firmware, record.virtual_size_bytes) == (None, "none", 8 << 40)


def read_image_file(path: Path | str, **options: Any) -> ImageFile | None:
    return read_image_files([str(path)], **options).get(str(path))


def test_one_file_has_one_identity_by_every_path_and_another_stamp_once_it_was_written_to(tmp_path: Path) -> None:
    image = put(tmp_path / "a.qcow2", qcow2())
    os.link(image, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(image)
    paths = (image, tmp_path / "hard", tmp_path / "soft", tmp_path / "x" / ".." / "a.qcow2")
    (tmp_path / "x").mkdir()
    seen = [read_image_file(path) for path in paths]
    assert len({one.identity for one in seen if one}) == 1
    before = seen[0]
    assert before is not None
    image.chmod(0o640)
    assert read_image_file(image) == before
    for content in (qcow2() + b"more", qcow2("b", "raw")):
        put(image, content)
        os.utime(image, ns=(0, 0))
        now = read_image_file(image)
        assert now is not None
        assert (now.identity, now.content_stamp == before.content_stamp) == (before.identity, False)
    image.unlink()
    assert read_image_file(image) is None


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (lambda path: path.chmod(0o666), "can change the file"),
        (lambda path: path.chmod(0o664) or os.chown(path, 0, 12345), "can change the file"),
        (lambda path: os.chown(path, 12345, 0), "can change the file"),
        (lambda path: path.parent.chmod(0o777), "can change the directory"),
        (lambda path: os.chown(path.parent, 12345, 0), "can change the directory"),
        (lambda path: path.parent.chmod(0o1777), None),
        (lambda path: path.chmod(0o664) or os.chown(path, 64055, 64055), None),
        (lambda path: path.chmod(0o644), None),
    ],
)
def test_a_base_that_others_may_write_to_is_named(tmp_path: Path, change: object, output: str | None) -> None:
    assert callable(change)
    folder = tmp_path / "images"
    folder.mkdir()
    for place in (tmp_path, *tmp_path.parents[:1]):
        place.chmod(0o755)
    path = put(folder / "base.raw", bytes(SIZE))
    change(path)
    user = QemuUser("libvirt-qemu", 64055, frozenset({64055}), owns_files=True)
    record = ImageInspector(lambda: user, find_command).inspect(str(path))
    assert record is not None
    assert [output in text for text in record.exposures if output] == ([True] if output else [])
    assert record.exposures == () or output


FAR = "/sys/kernel/uevent_seqnum"


def seen(path: Path | str, *near: str) -> bool:
    return read_image_file(path, reachable=near) is not None


def test_a_file_of_this_host_is_looked_at_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("../disk")
    (tmp_path / "short").symlink_to(tmp_path / "folder")
    link = tmp_path / "short" / "link"
    assert read_image_file(link, reachable=()) == read_image_file(link)
    assert seen(f"{tmp_path}/folder/.././/disk")
    assert not seen(tmp_path / "missing")


@pytest.mark.parametrize("target", [FAR, "../" * 30 + FAR[1:], "other"])
def test_another_file_system_is_not_touched_through_links_either(tmp_path: Path, target: str) -> None:
    assert read_image_file(FAR) is not None
    (tmp_path / "other").symlink_to("/sys/../sys/kernel/uevent_seqnum")
    (tmp_path / "link").symlink_to(target)
    assert not seen(FAR)
    assert not seen(tmp_path / "link")


def test_what_is_opened_anyway_opens_its_file_system_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys/kernel/notes")
    (tmp_path / "other").symlink_to("/proc/self/environ")
    assert seen(FAR, str(tmp_path / "link"))
    assert not seen(FAR, str(tmp_path / "other"), str(tmp_path))


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    assert not seen(tmp_path / "link")
