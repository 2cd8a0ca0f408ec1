# SPDX-License-Identifier: Apache-2.0
"""The Sysfs port of a simulated host. Only /etc has real files, below the state directory."""

from __future__ import annotations

import errno
import os
import posixpath
from pathlib import Path

from vgpuctl.errors import Stuck
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.regular_file import read_regular_file
from vgpuctl.sim import agent_service, gim
from vgpuctl.sim.core import Core, FaultInjected, StateChange, serialize_calls
from vgpuctl.sim.host_key import KEY_PATH
from vgpuctl.sim.host_tree import build_root
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.objects import BlockedWrite
from vgpuctl.sim.refusals import WriteWouldBlock
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Tree, kernel_error

START_TICKS = 1
"""All simulated processes started at the same tick. Their pids are never reused."""


@serialize_calls
class SimSysfs:
    """/sys, /proc, /dev and /etc of the simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tree: Tree | None = None
        self._tree_version: tuple[object, int] | None = None

    # ---------------------------------------------------------------- reading

    def read(self, path: str) -> str:
        """Return the whole file as text."""
        self._check_fault("sysfs-read", path)
        real = self._real_path(path)
        if real is not None:
            if not real.exists():
                raise kernel_error(errno.ENOENT, path)
            return read_regular_file(real).decode("utf-8", "replace")
        node = agent_service.find_file(self._core.directory, path) or self._find_node(path)[1]
        if isinstance(node, DirectoryNode):
            raise kernel_error(errno.EISDIR, path)
        if not isinstance(node, FileNode) or node.show is None:
            raise kernel_error(errno.EACCES, path)
        return node.show()

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""
        self._check_fault("sysfs-listdir", path)
        real = self._real_path(path)
        names = os.listdir(real) if real is not None and real.exists() else []
        if real is not None and posixpath.normpath(path) != "/etc":
            if not real.exists():
                raise kernel_error(errno.ENOENT, path)
            return tuple(sorted(names))
        _, node = self._find_node(path)
        if not isinstance(node, DirectoryNode):
            raise kernel_error(errno.ENOTDIR, path)
        return tuple(sorted({*names, *node.children()}))

    def readlink(self, path: str) -> str:
        """Return a symbolic link's target, relative to the link's directory."""
        self._check_fault("sysfs-readlink", path)
        link_path, node = self._find_node(path, follow=False)
        if not isinstance(node, LinkNode):
            raise kernel_error(errno.EINVAL, path)
        return _relative_path(node.target, posixpath.dirname(link_path))

    def permissions(self, path: str) -> FilePermissions:
        """Return mode and owner, which is always root. Files that really exist have their real mode."""
        self._check_fault("sysfs-read", path)
        real = self._real_path(path) or self._run_path(path)
        if real is not None:
            try:
                return FilePermissions(real.stat().st_mode & 0o7777, 0, 0)
            except OSError as exc:
                raise kernel_error(exc.errno or errno.EIO, path) from None
        socket_permissions = agent_service.find_permissions(self._core.directory, path)
        if socket_permissions is not None:
            return socket_permissions
        _, node = self._find_node(path)
        if not isinstance(node, FileNode):
            return FilePermissions(0o755, 0, 0)
        return FilePermissions((0o444 if node.show else 0) | (0o200 if node.store else 0), 0, 0)

    # ---------------------------------------------------------------- writing

    def write(self, path: str, text: str) -> None:
        """Write in one call.

        Raises:
            AssertionError: on a real host this write would hang forever. Use `write_uninterruptible` for it.
        """
        try:
            with self._core.operation("sysfs-write", path) as change:
                if change.is_parked:
                    raise WriteWouldBlock(("an injected fault",), [])
                if not self._write_real(path, text, change):
                    change.records += self._store_records(path, text)
        except WriteWouldBlock as exc:
            raise AssertionError(f"a plain write to {path} would hang in the kernel: it {exc}") from exc
        except FaultInjected as exc:
            raise exc.fault.os_error(path) from exc

    def write_uninterruptible(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write, or leave the write hanging in the kernel and raise at once: no simulated time passes."""
        blocked: int | None = None
        try:
            with self._core.operation("sysfs-write", path) as change:
                try:
                    change.records += self._store_records(path, text)
                    if change.is_parked:
                        raise WriteWouldBlock(("an injected fault",), change.records)
                except WriteWouldBlock as exc:
                    blocked = self._core.state.next_pid
                    change.records = []
                    change.add("park", blocked, gpu, path, text, list(exc.carriers), exc.records)
        except FaultInjected as exc:
            raise exc.fault.os_error(path) from exc
        if blocked is not None:
            raise Stuck(
                f"the kernel has not finished writing {path} after {deadline_seconds:g} s",
                hint="stop the VM that uses the device; then the write continues",
                pid=blocked,
                path=path,
                gpu=gpu,
            )

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that hang in the simulated kernel."""
        return tuple(_stuck_write(blocked) for blocked in self._core.read_state().blocked_writes.values())

    # --------------------------------------------------------------- plumbing

    def _check_fault(self, call: str, path: str) -> None:
        try:
            self._core.read_state(call, path)
        except FaultInjected as exc:
            raise exc.fault.os_error(path) from exc

    def _find_node(self, path: str, *, follow: bool = True) -> tuple[str, DirectoryNode | FileNode | LinkNode]:
        state = self._core.state
        version = (state, state.generation)
        if self._tree is None or self._tree_version != version:
            self._tree = Tree(build_root(state, self._core.machine_id))
            self._tree_version = version
        return self._tree.find(path, follow=follow)

    def _store_records(self, path: str, text: str) -> list[JournalRecord]:
        _, node = self._find_node(path)
        if isinstance(node, DirectoryNode):
            raise kernel_error(errno.EISDIR, path)
        if not isinstance(node, FileNode) or node.store is None:
            raise kernel_error(errno.EACCES, path)
        try:
            return node.store(text)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, path) from exc

    def _real_path(self, path: str) -> Path | None:
        """Return the real file behind a path below /etc, unless the simulator generates that file itself."""
        normalised = posixpath.normpath(path)
        if (
            normalised == "/etc/machine-id"
            or not f"{normalised}/".startswith("/etc/")
            or _is_libvirt_config(normalised)
        ):
            return None
        real = self._core.directory / normalised.lstrip("/")
        return None if normalised in (gim.CONFIG_PATH, KEY_PATH) and not real.exists() else real

    def _run_path(self, path: str) -> Path | None:
        """Return the real directory or file behind a path at or below /run/vgpuctl."""
        relative = f"{posixpath.normpath(path)}/".removeprefix("/run/vgpuctl/")
        return self._core.directory / "run" / relative if not relative.startswith("/") else None

    def _write_real(self, path: str, text: str, change: StateChange) -> bool:
        real = self._real_path(path)
        if real is None:
            return False
        if not real.exists():
            raise kernel_error(errno.ENOENT, path)
        if not change.is_lost:
            real.write_text(text)
        return True


def _is_libvirt_config(path: str) -> bool:
    return f"{path}/".startswith("/etc/libvirt/qemu/")


def _stuck_write(blocked: BlockedWrite) -> StuckWrite:
    return StuckWrite(ProcessId(blocked.pid, START_TICKS), blocked.gpu, blocked.path, blocked.text)


def _relative_path(target: str, start: str) -> str:
    """Return a path relative to another, both absolute and normalised. It is five times as fast as os.path.relpath."""
    target_parts, start_parts = target.split("/"), start.rstrip("/").split("/")
    common = 0
    while common < min(len(target_parts), len(start_parts)) and target_parts[common] == start_parts[common]:
        common += 1
    return "/".join([".."] * (len(start_parts) - common) + target_parts[common:])
