"""Runs the programs of the tools tree on L1, because L1's own QEMU and Python are too old.

Programs that only access the files in their arguments (QEMU, qemu-img, mke2fs, Python) run outside any
chroot, through the tree's own dynamic linker. Programs that start other programs (the compiler, syslinux) run
in a chroot.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab.command import run
from tests.namespaces import unshare


def program(tools: Path, path: str) -> list[str]:
    """Return the command that starts `path` of the tree with the tree's libraries. The caller appends its arguments."""
    return [
        str(tools / "lib64/ld-linux-x86-64.so.2"),
        *("--library-path", str(tools / "usr/lib/x86_64-linux-gnu"), "--argv0", Path(path).name),
        str(tools / path),
    ]


def qemu_environment(tools: Path) -> dict[str, str]:
    """Return QEMU's environment: QEMU loads its accelerator from this module directory."""
    return {"QEMU_MODULE_DIR": str(tools / "usr/lib/x86_64-linux-gnu/qemu")}


def qemu(tools: Path) -> list[str]:
    """Return the command that starts the tree's QEMU with its own firmware."""
    firmware = (word for name in ("qemu", "seabios") for word in ("-L", str(tools / "usr/share" / name)))
    return [*program(tools, "usr/bin/qemu-system-x86_64"), *firmware]


def qemu_img(tools: Path, *arguments: str | Path) -> str:
    """Run the tree's qemu-img: it has the same qcow2 code as the QEMU that later runs the image."""
    argv = [*program(tools, "usr/bin/qemu-img"), *map(str, arguments)]
    return run(argv, deadline_seconds=120, env=qemu_environment(tools))


def compile_python(tools: Path, tree: Path, shown_as: str) -> None:
    """Create .pyc files with L2's version of Python; `shown_as` is the directory of the files in L2."""
    words = ["-m", "compileall", "-q", "-s", str(tree), "-p", shown_as, str(tree)]
    run(
        [*program(tools, "usr/bin/python3.13"), *words],
        deadline_seconds=300,
        env={"PYTHONHOME": str(tools / "usr"), "PYTHONPATH": ""},
    )


@contextmanager
def workshop(tools: Path) -> Iterator[Path]:
    """Yield an empty directory inside the tree, for programs that need the chroot."""
    work = Path(tempfile.mkdtemp(prefix="vgpulab-", dir=tools / "tmp"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def inside(tools: Path, work: Path, argv: Sequence[str], *, deadline_seconds: float = 300) -> str:
    """Run a program in a chroot of the tree, with a workshop as its directory and its own mount of /proc."""
    place = "/" + str(work.relative_to(tools))
    enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" /usr/bin/env "$@"'
    words = ["-C", place, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", *argv]
    return run([*unshare(), "sh", "-c", enter, tools, *words], deadline_seconds=deadline_seconds)
