"""Builds the tiny guest L3: the smallest VM that lists its devices and reacts to the power button.

It comes in three forms: kernel and initrd for a direct boot, a disk that boots under SeaBIOS without
options, and such a disk that has the driver of virtio-gpu and says who draws for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.lab import kernel, recipe
from tests.lab.cpio import Ramdisk
from tests.lab.tools_tree import inside, qemu_img, workshop
from vgpuctl.value import EMPTY_MAPPING

DISK_MIB = 32
COMMAND_LINE = "console=ttyS0 quiet mitigations=off no_timer_check nokaslr panic=-1"
NO_SCREEN = "video=Virtual-1:d"
"""Has a guest with the driver of virtio-gpu show nothing: a console that is drawn on the CPU takes minutes of it."""
SYSLINUX = """DEFAULT tiny
PROMPT 0
LABEL tiny
KERNEL vmlinuz
APPEND initrd=initrd {command_line}
"""


def make_guest(place: Path, tools: Path, module_tree: Path) -> None:
    """Write vmlinuz, initrd, cmdline, tiny.qcow2 and drawing.qcow2 to `place`."""
    shutil.copy(kernel.image(tools), place / "vmlinuz")
    init = recipe.FILES / "guest/init"
    initrd = ramdisk(tools, init, module_tree, recipe.GUEST_MODULES)
    (place / "initrd").write_bytes(initrd)
    (place / "cmdline").write_text(COMMAND_LINE + "\n")
    _make_disk(place / "tiny.qcow2", tools, place / "vmlinuz", initrd, COMMAND_LINE)
    modules = (*recipe.GUEST_MODULES, *recipe.DRAWING_MODULES)
    drawing = ramdisk(tools, init, module_tree, modules, {"bin/renderer": _make_renderer(tools)})
    _make_disk(place / "drawing.qcow2", tools, place / "vmlinuz", drawing, f"{COMMAND_LINE} {NO_SCREEN}")


def _make_renderer(tools: Path) -> bytes:
    with workshop(tools) as work:
        shutil.copy(recipe.DRAWING, work)
        words = ["gcc", "-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wall", "-Werror"]
        inside(tools, work, [*words, "-o", "renderer", recipe.DRAWING.name])
        return (work / "renderer").read_bytes()


def ramdisk(
    tools: Path,
    init: Path,
    module_tree: Path,
    modules: tuple[str, ...],
    programs: Mapping[str, bytes] = EMPTY_MAPPING,
) -> bytes:
    """Return a ramdisk with busybox, an init script, and the modules that it loads in the order of /modules/order.

    `programs`: more programs, by path.
    """
    disk = Ramdisk()
    disk.add_node("dev/console", 5, 1)
    disk.add_file("bin/busybox", (tools / "usr/bin/busybox").read_bytes(), 0o755)
    disk.add_file("init", init.read_bytes(), 0o755)
    for path, content in programs.items():
        disk.add_file(path, content, 0o755)
    loaded = kernel.with_dependencies(module_tree, modules)
    for name, content in loaded:
        disk.add_file(f"modules/{name}", content)
    disk.add_file("modules/order", "".join(f"{name}\n" for name, _ in loaded).encode())
    return disk.content()


def _make_disk(target: Path, tools: Path, kernel_image: Path, initrd: bytes, command_line: str) -> None:
    """Make a FAT disk without partitions: SeaBIOS needs only a boot sector."""
    with workshop(tools) as work:
        shutil.copy(kernel_image, work / "vmlinuz")
        (work / "initrd").write_bytes(initrd)
        (work / "syslinux.cfg").write_text(SYSLINUX.format(command_line=command_line))
        with (work / "disk").open("wb") as handle:
            handle.truncate(DISK_MIB << 20)
        inside(tools, work, ["mkfs.vfat", "-n", "TINY", "disk"])
        inside(tools, work, ["mcopy", "-i", "disk", "vmlinuz", "initrd", "syslinux.cfg", "::"])
        inside(tools, work, ["syslinux", "--install", "disk"])
        qemu_img(tools, "convert", "-f", "raw", "-O", "qcow2", work / "disk", target)
