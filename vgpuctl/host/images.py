# SPDX-License-Identifier: Apache-2.0
"""Inspects disk images and ISOs given by path, and copies an image into a volume.

An inspection tells format, size, firmware to boot, and who can read the file. `backing_chain` detects the format and
refuses what QEMU must not open. Only then `qemu-img dd -U` reads the first bytes that a guest sees in a qcow2. It does
not take the image's lock, so it also works on an image in use. It gets the format explicitly, and limits on memory and
CPU time like OpenStack's Nova (nova/privsep/qemu.py, `QEMU_IMG_LIMITS`: 1 GiB, 30 s).

qemu-img copies, because it reports its progress and ends together with vgpuctl. libvirt can copy only from a volume of
a pool, says nothing meanwhile, and does not stop (virStorageVolCreateXMLFrom). The formats are always explicit:
qemu-img would detect them by content, which a guest can write. `backing_chain` has checked the image's backing files
before.
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Callable, Iterable

from vgpuctl.errors import FileFailed, HostCannot, NoSpace
from vgpuctl.host import backing_chain, commands, qemu_access
from vgpuctl.host.backing_chain import UnsafeImage, parse_header, read_backing_chain, read_image_head
from vgpuctl.model.port_values import ImageInfo

_DEADLINE_SECONDS = 30.0
_LIMITS = ("--as=1073741824", "--cpu=30", "--core=0", "--")

_PERCENT = re.compile(r"\(([0-9.]+)/100%\)")
_NO_SPACE = "No space left on device"


class ImageInspector:
    """Inspects image files for QEMU's user; `find_tool` returns a program's path by name, None if not installed."""

    def __init__(
        self, find_qemu_user: Callable[[], qemu_access.QemuUser | None], find_tool: Callable[[str], str | None]
    ) -> None:
        self._user = find_qemu_user
        self._tool = find_tool

    def inspect(self, path: str, pool_directories: Callable[[], Iterable[str]] = tuple) -> ImageInfo | None:
        """Return an image's properties, or None when there is no such file.

        `pool_directories` returns the directories in which an image's backing files may be.
        """
        try:
            _, size, head = read_image_head(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            format_name = "directory" if error.errno == errno.EISDIR else "unknown"
            return ImageInfo(path, format_name, 0, access_problem=f"{path}: {error.strerror}")
        user = self._user()
        problem = None if user is None else qemu_access.find_access_problem(path, user)
        try:
            header, chain = read_backing_chain(path, pool_directories)
        except UnsafeImage as error:
            format_name = _detect_format(head, size)
            return ImageInfo(
                path,
                format_name,
                0,
                access_problem=problem,
                unsafe_reason=str(error),
                convert_format=error.convert_format,
            )
        firmware, firmware_problem = backing_chain.detect_firmware(head), None
        if header.format == "qcow2":
            firmware, firmware_problem = self._detect_firmware(path, header.format)
        exposures = (
            ()
            if user is None
            else tuple(e for c in chain if (e := qemu_access.find_exposure(c.path, user)) is not None)
        )
        return ImageInfo(
            path,
            header.format,
            header.size_bytes,
            firmware,
            problem or firmware_problem,
            backing_chain=chain,
            exposures=exposures,
        )

    def _detect_firmware(self, path: str, kind: str) -> tuple[str, str | None]:
        """Return the firmware that a formatted image needs, and why QEMU cannot open it, if so."""
        qemu_img, prlimit = self._tool("qemu-img"), self._tool("prlimit")
        if qemu_img is None or prlimit is None:
            return "unknown", None
        head, problem = _read_guest_head([prlimit, *_LIMITS, qemu_img], path, kind)
        return "unknown" if head is None else backing_chain.detect_firmware(head), problem


def _detect_format(head: bytes, size: int) -> str:
    try:
        return parse_header(head, size).format
    except ValueError:
        return "unknown"


def _read_guest_head(tool: list[str], path: str, kind: str) -> tuple[bytes | None, str | None]:
    """Return the first bytes that a guest sees in a formatted image, through a small temporary file, or the error."""
    with tempfile.TemporaryDirectory(prefix="vgpuctl-") as directory:
        target = f"{directory}/head"
        one_block = (f"bs={backing_chain.HEAD_BYTES}", "count=1")
        try:
            result = commands.run_command(
                [*tool, "dd", "-U", "-f", kind, "-O", "raw", *one_block, f"if={path}", f"of={target}"],
                deadline_seconds=_DEADLINE_SECONDS,
            )
            return (read_image_head(target)[2], None) if result.status == 0 else (None, result.error_line)
        except OSError as error:
            return None, f"{path} cannot be inspected: {error}"


def copy_image(
    source: str,
    source_format: str,
    target: str,
    target_format: str,
    report: Callable[[float], None],
    find_command: Callable[[str], str | None] = commands.find_command,
) -> None:
    """Write what a guest sees in `source` into the existing file or block device `target`.

    `report` gets the percentage about twice a second; when it raises, qemu-img is killed. The kernel kills qemu-img
    when vgpuctl dies (PR_SET_PDEATHSIG, set by setpriv): nothing may write to a volume that `reconcile-host` deletes.
    On a block device qemu-img also writes the zeros, so nothing of earlier content is left below the image's size.

    Raises:
        HostCannot: a program is not installed.
        NoSpace, FileFailed: qemu-img's reason.
    """
    cache = "none" if target.startswith("/dev/") else "writeback"  # its default "unsafe" does not wait for the disk
    argv = [
        *(_require_command(find_command, "setpriv"), "--pdeathsig", "KILL", "--"),
        *(_require_command(find_command, "qemu-img"), "convert", "-p", "-n", "-t", cache),
        *("-f", source_format, "-O", target_format, source, target),
    ]

    percent = 0.0

    def report_output(text: str) -> None:
        nonlocal percent
        matches = _PERCENT.findall(text)
        percent = float(matches[-1]) if matches else percent
        report(percent)

    result = commands.run_watched(argv, report_output)
    if result.status != 0:
        kind = NoSpace if _NO_SPACE in result.stderr else FileFailed
        raise kind(
            f"cannot copy {source} to {target}: {result.error_line.removeprefix('qemu-img: ')}",
            hint=f"qemu-img info -U -f {source_format} {source}; ls -lL {target}",
            path=source,
            target=target,
        )


def _require_command(find_command: Callable[[str], str | None], name: str) -> str:
    path = find_command(name)
    if path is None:
        raise HostCannot(
            f"{name} is not installed, and vgpuctl copies images with it",
            hint="apt install util-linux" if name == "setpriv" else "apt install qemu-utils, or dnf install qemu-img",
            check="qemu-img",
        )
    return path
