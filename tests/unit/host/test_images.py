# SPDX-License-Identifier: Apache-2.0
"""Image files, created with qemu-img.

Copies of images with the real qemu-img: their content, progress, errors, and their end with vgpuctl.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.host.disks import BIOS_BOOT, ESP, SIZE, gpt, iso
from vgpuctl.errors import FileFailed, HostCannot
from vgpuctl.host.commands import find_command
from vgpuctl.host.images import ImageInspector, copy_image
from vgpuctl.host.qemu_access import QemuUser

TOOL = find_command("qemu-img")


def images(tool=TOOL, user=None):
    return ImageInspector(lambda: user, lambda name: tool and find_command(name))


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "disk.raw"
    path.write_bytes(gpt(BIOS_BOOT, ESP, code=b"boot"))
    return path


def converted(raw, *options):
    target = raw.with_suffix(".out")
    subprocess.run([TOOL, "convert", *options, raw, target], check=True)
    return str(target)


@pytest.mark.parametrize("tool", [None, TOOL])
def test_a_raw_disk(raw, tool):
    record = images(tool).inspect(str(raw))
    assert (record.format, record.virtual_size_bytes, record.firmware, record.access_problem) == (
        "raw",
        SIZE,
        "both",
        None,
    )


@pytest.mark.parametrize("tool", [None, TOOL])
def test_an_iso_is_raw_and_no_disk(tmp_path, tool):
    (tmp_path / "a.iso").write_bytes(iso())
    record = images(tool).inspect(str(tmp_path / "a.iso"))
    assert (record.format, record.firmware) == ("raw", "unknown")


@pytest.mark.parametrize("options", [["-Oqcow2"], ["-Oqcow2", "-c"], ["-Oqcow2", "-ocluster_size=512"]])
def test_a_formatted_disk_is_judged_by_what_the_guest_sees(raw, options):
    path = converted(raw, *options)
    before = Path(path).read_bytes()
    record = images().inspect(path)
    assert (record.format, record.virtual_size_bytes, record.firmware) == (options[0][2:], SIZE, "both")
    assert Path(path).read_bytes() == before


def test_a_linked_clone_shows_its_bases_partitions(raw):
    clone = str(raw.with_name("clone"))
    subprocess.run([TOOL, "create", "-q", "-fqcow2", f"-b{raw}", "-Fraw", clone], check=True)
    record = images().inspect(clone, lambda: [str(raw.parent)])
    assert (record.firmware, record.unsafe_reason) == ("both", None)
    assert [one.path for one in record.backing_chain] == [clone, str(raw)]


def test_an_empty_disk_needs_nothing(tmp_path):
    path = str(tmp_path / "empty.qcow2")
    subprocess.run([TOOL, "create", "-q", "-fqcow2", path, "1G"], check=True)
    record = images().inspect(path)
    assert (record.virtual_size_bytes, record.firmware) == (1 << 30, "none")


def test_without_the_tool_a_qcow2_is_known_but_not_what_is_in_it(raw):
    record = images(None).inspect(converted(raw, "-Oqcow2"))
    assert (record.format, record.virtual_size_bytes, record.firmware) == ("qcow2", SIZE, "unknown")


def test_a_broken_image_says_so(tmp_path):
    path = tmp_path / "broken.qcow2"
    path.write_bytes(b"QFI\xfb" + b"\xff" * 200)
    record = images().inspect(str(path))
    assert record.format == "unknown"
    assert "broken.qcow2 looks like a qcow2 image" in record.unsafe_reason


def test_a_name_that_looks_like_an_option_or_a_protocol_is_a_file(tmp_path, raw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.link(raw, tmp_path / "-U")
    assert images().inspect(f"{tmp_path}/-U").format == "raw"
    os.link(raw, tmp_path / "nbd:x:1")
    assert images().inspect(f"{tmp_path}/nbd:x:1").firmware == "both"


def test_no_file_no_record(tmp_path, raw):
    assert images().inspect(str(tmp_path / "none")) is None
    assert images().inspect(f"{raw}/none") is None


def test_what_is_no_file_is_a_problem(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert images().inspect(str(tmp_path)).format == "directory"
    assert "not a file or a block device" in images().inspect(str(tmp_path / "fifo")).access_problem
    assert "not a file or a block device" in images().inspect("/dev/zero").access_problem


def test_who_cannot_reach_it_is_named(tmp_path, raw):
    user = QemuUser("libvirt-qemu", 64055, frozenset({64055}), owns_files=True)
    os.chmod(tmp_path, 0o700)
    problem = images(user=user).inspect(str(raw)).access_problem
    assert "libvirt-qemu" in problem


QEMU_IMG = str(find_command("qemu-img"))
MIB = 1 << 20


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A qcow2 image with content, whose backing file has more content."""
    raw = tmp_path / "content"
    raw.write_bytes(b"base" * (MIB // 4) + bytes(7 * MIB))
    for words in (
        ["convert", "-f", "raw", "-O", "qcow2", raw, tmp_path / "base.qcow2"],
        ["create", "-f", "qcow2", "-b", tmp_path / "base.qcow2", "-F", "qcow2", tmp_path / "clone.qcow2"],
    ):
        subprocess.run([QEMU_IMG, *map(str, words)], check=True, capture_output=True)
    return tmp_path / "clone.qcow2"


def test_the_copy_has_the_content_of_the_chain_and_no_backing_file(clone: Path, tmp_path: Path) -> None:
    target = tmp_path / "disk"
    target.write_bytes(b"\xff" * (9 * MIB))
    reported: list[float] = []
    copy_image(str(clone), "qcow2", str(target), "raw", reported.append)
    content = target.read_bytes()
    assert content[: 8 * MIB] == b"base" * (MIB // 4) + bytes(7 * MIB)
    assert len(content) == 9 * MIB
    assert reported == sorted(reported)
    assert reported[-1] == 100.0


def test_the_formats_are_those_given_whatever_the_content_says(tmp_path: Path) -> None:
    image, target = tmp_path / "disk.raw", tmp_path / "disk"
    subprocess.run([QEMU_IMG, "create", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", image, "1M"], check=True)
    size = -(-image.stat().st_size // 512) * 512
    target.write_bytes(bytes(size))
    copy_image(str(image), "raw", str(target), "raw", lambda _: None)
    assert target.read_bytes()[: image.stat().st_size] == image.read_bytes()


def test_an_error_is_that_of_qemu_img(tmp_path: Path) -> None:
    image = tmp_path / "disk.qcow2"
    image.write_bytes(b"nothing like it" * 100)
    (tmp_path / "disk").write_bytes(bytes(MIB))
    with pytest.raises(FileFailed, match="Image is not in qcow2 format") as caught:
        copy_image(str(image), "qcow2", str(tmp_path / "disk"), "raw", lambda _: None)
    assert caught.value.facts["path"] == str(image)


def endless(directory: Path) -> str:
    """Return a qemu-img that writes its pid, reports one percent and never ends."""
    program = directory / "qemu-img"
    program.write_text(
        f"#!{sys.executable}\nimport os, signal\nopen({str(directory / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "print('    (1.00/100%)', end='\\r', flush=True)\nsignal.pause()\n"
    )
    program.chmod(0o755)
    return str(program)


def test_a_refusal_of_the_progress_kills_qemu_img(clone: Path, tmp_path: Path) -> None:
    program = endless(tmp_path)

    def stop(percent: float) -> None:
        if percent:
            raise KeyboardInterrupt

    def find(name: str) -> str | None:
        return program if name == "qemu-img" else find_command(name)

    with pytest.raises(KeyboardInterrupt):
        copy_image(str(clone), "qcow2", "/dev/null", "raw", stop, find)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_qemu_img_dies_with_vgpuctl(clone: Path, tmp_path: Path) -> None:
    """A copy that outlives vgpuctl would write to a volume that reconcile deletes, or somebody else's by then."""
    program = endless(tmp_path)
    code = (
        "from vgpuctl.host.commands import find_command\nfrom vgpuctl.host.images import copy_image\n"
        f"find = lambda name: {program!r} if name == 'qemu-img' else find_command(name)\n"
        "report = lambda percent: print(percent, flush=True)\n"
        f"copy_image({str(clone)!r}, 'qcow2', '/dev/null', 'raw', report, find)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert any(line == b"1.0\n" for line in child.stdout)
        copying = os.pidfd_open(int((tmp_path / "pid").read_text()))
        child.send_signal(signal.SIGKILL)
    try:
        assert select.select([copying], [], [], 30)[0] == [copying]
    finally:
        os.close(copying)


def test_a_missing_program_is_named(clone: Path) -> None:
    with pytest.raises(HostCannot, match="qemu-img is not installed"):
        copy_image(
            str(clone), "qcow2", "/dev/null", "raw", lambda _: None, lambda name: None if name == "qemu-img" else name
        )
