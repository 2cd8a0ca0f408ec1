# SPDX-License-Identifier: Apache-2.0
"""Copies a disk image into a volume with qemu-img, which reports its progress and ends together with vgpuctl.

libvirt can copy only from a volume of a pool, says nothing meanwhile, and does not stop (virStorageVolCreateXMLFrom).
The formats are always explicit: qemu-img would detect them by content, which a guest can write. `backing_chain` has
checked the image's backing files before.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vgpuctl.errors import FileFailed, HostCannot, NoSpace
from vgpuctl.host import commands

_PERCENT = re.compile(r"\(([0-9.]+)/100%\)")
_NO_SPACE = "No space left on device"


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
