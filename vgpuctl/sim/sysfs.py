# SPDX-License-Identifier: Apache-2.0
"""The Sysfs seam of a simulated host. /etc is the one part with real files, below the state directory."""

from __future__ import annotations

import errno
import os
import posixpath
from pathlib import Path

from vgpuctl.errors import Stuck
from vgpuctl.model.records import FilePermissions
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.regular_file import read_regular
from vgpuctl.sim.core import Change, Core, Met
from vgpuctl.sim.host_tree import root
from vgpuctl.sim.journal import Record
from vgpuctl.sim.rules import WouldPark
from vgpuctl.sim.things import Parked
from vgpuctl.sim.tree import Dir, File, Link, Tree, fail
from vgpuctl.sim.turns import in_turn

START_TICKS = 1
"""Simulated processes all started at the same tick; their pids are never used again."""


@in_turn
class SimSysfs:
    """/sys, /proc, /dev and /etc of the simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tree: Tree | None = None
        self._made_for: tuple[object, int] | None = None

    # ---------------------------------------------------------------- looking

    def read(self, path: str) -> str:
        """Return the whole file as text."""
        self._look("sysfs-read", path)
        real = self._real(path)
        if real is not None:
            if not real.exists():
                raise fail(errno.ENOENT, path)
            return read_regular(real).decode("utf-8", "replace")
        _, node = self._find(path)
        if isinstance(node, Dir):
            raise fail(errno.EISDIR, path)
        if not isinstance(node, File) or node.show is None:
            raise fail(errno.EACCES, path)
        return node.show()

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""
        self._look("sysfs-listdir", path)
        real = self._real(path)
        names = os.listdir(real) if real is not None and real.exists() else []
        if real is not None and posixpath.normpath(path) != "/etc":
            if not real.exists():
                raise fail(errno.ENOENT, path)
            return tuple(sorted(names))
        _, node = self._find(path)
        if not isinstance(node, Dir):
            raise fail(errno.ENOTDIR, path)
        return tuple(sorted({*names, *node.children()}))

    def readlink(self, path: str) -> str:
        """Return a symbolic link's text, relative to where the link stands."""
        self._look("sysfs-readlink", path)
        where, node = self._find(path, follow=False)
        if not isinstance(node, Link):
            raise fail(errno.EINVAL, path)
        return _relative(node.target, posixpath.dirname(where))

    def permissions(self, path: str) -> FilePermissions:
        """Return who may do what; everything is root's. The mode of what is really kept is the real one."""
        self._look("sysfs-read", path)
        real = self._real(path) or self._run(path)
        if real is not None:
            try:
                return FilePermissions(real.stat().st_mode & 0o7777, 0, 0)
            except OSError as exc:
                raise fail(exc.errno or errno.EIO, path) from None
        _, node = self._find(path)
        if not isinstance(node, File):
            return FilePermissions(0o755, 0, 0)
        return FilePermissions((0o444 if node.show else 0) | (0o200 if node.store else 0), 0, 0)

    # ---------------------------------------------------------------- writing

    def write(self, path: str, text: str) -> None:
        """Write in one call.

        Raises:
            AssertionError: on a real host this write would hang for ever: it is one for `write_parked`.
        """
        try:
            with self._core.change("sysfs-write", path) as change:
                if change.parks:
                    raise WouldPark(("an injected fault",), [])
                if not self._write_real(path, text, change):
                    change.records += self._store(path, text)
        except WouldPark as exc:
            raise AssertionError(f"a plain write to {path} would hang in the kernel: it {exc}") from exc
        except Met as exc:
            raise exc.fault.os_error(path) from exc

    def write_parked(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write, or leave the write waiting in the kernel and say so at once: no simulated time passes."""
        parked: int | None = None
        try:
            with self._core.change("sysfs-write", path) as change:
                try:
                    change.records += self._store(path, text)
                    if change.parks:
                        raise WouldPark(("an injected fault",), change.records)
                except WouldPark as exc:
                    parked = self._core.state.next_pid
                    change.records = []
                    change.add("park", parked, gpu, path, text, list(exc.carriers), exc.records)
        except Met as exc:
            raise exc.fault.os_error(path) from exc
        if parked is not None:
            raise Stuck(
                f"the kernel has not come back from writing {path} after {deadline_seconds:g} s",
                hint="stop the VM that uses the device; the write goes on by itself then",
                pid=parked,
                path=path,
                gpu=gpu,
            )

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes that wait in the simulated kernel."""
        return tuple(_stuck(parked) for parked in self._core.look().parked.values())

    # --------------------------------------------------------------- plumbing

    def _look(self, call: str, path: str) -> None:
        try:
            self._core.look(call, path)
        except Met as exc:
            raise exc.fault.os_error(path) from exc

    def _find(self, path: str, *, follow: bool = True) -> tuple[str, Dir | File | Link]:
        state = self._core.state
        wanted = (state, state.generation)
        if self._tree is None or self._made_for != wanted:
            self._tree = Tree(root(state, self._core.machine_id))
            self._made_for = wanted
        return self._tree.find(path, follow=follow)

    def _store(self, path: str, text: str) -> list[Record]:
        _, node = self._find(path)
        if isinstance(node, Dir):
            raise fail(errno.EISDIR, path)
        if not isinstance(node, File) or node.store is None:
            raise fail(errno.EACCES, path)
        try:
            return node.store(text)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, path) from exc

    def _real(self, path: str) -> Path | None:
        """Return the real file behind a path below /etc, unless the simulator makes that one itself."""
        plain = posixpath.normpath(path)
        if plain == "/etc/machine-id" or not f"{plain}/".startswith("/etc/") or _is_libvirts(plain):
            return None
        return self._core.directory / plain.lstrip("/")

    def _run(self, path: str) -> Path | None:
        """Return the real directory or file behind a path at or below /run/vgpuctl."""
        inside = f"{posixpath.normpath(path)}/".removeprefix("/run/vgpuctl/")
        return self._core.directory / "run" / inside if not inside.startswith("/") else None

    def _write_real(self, path: str, text: str, change: Change) -> bool:
        real = self._real(path)
        if real is None:
            return False
        if not real.exists():
            raise fail(errno.ENOENT, path)
        if not change.lost:
            real.write_text(text)
        return True


def _is_libvirts(path: str) -> bool:
    return f"{path}/".startswith("/etc/libvirt/qemu/")


def _stuck(parked: Parked) -> StuckWrite:
    return StuckWrite(ProcessId(parked.pid, START_TICKS), parked.gpu, parked.path, parked.text)


def _relative(target: str, start: str) -> str:
    """Return an absolute, normal path as seen from another, like os.path.relpath but in a fifth of its time."""
    there, here = target.split("/"), start.rstrip("/").split("/")
    common = 0
    while common < min(len(there), len(here)) and there[common] == here[common]:
        common += 1
    return "/".join([".."] * (len(here) - common) + there[common:])
