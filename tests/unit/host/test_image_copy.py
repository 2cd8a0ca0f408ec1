# SPDX-License-Identifier: Apache-2.0
"""Copies of images with the real qemu-img: their content, progress, errors, and their end with vgpuctl."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vgpuctl.errors import FileFailed, HostCannot
from vgpuctl.host.commands import find_command
from vgpuctl.host.images import copy_image

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
        poll = select.poll()
        poll.register(copying, select.POLLIN)
        assert poll.poll(30_000)
    finally:
        os.close(copying)


def test_a_missing_program_is_named(clone: Path) -> None:
    with pytest.raises(HostCannot, match="qemu-img is not installed"):
        copy_image(
            str(clone), "qcow2", "/dev/null", "raw", lambda _: None, lambda name: None if name == "qemu-img" else name
        )
