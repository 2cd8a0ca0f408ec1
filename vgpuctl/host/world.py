# SPDX-License-Identifier: Apache-2.0
"""The real host put together: one `World` for a root directory and a libvirt connection."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.host.atomic import unfinished_below
from vgpuctl.host.claims import RUN_DIR, ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.files import HostFiles, resolved
from vgpuctl.host.host_file import PATH as HOST_FILE
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.identity import machine_id
from vgpuctl.host.journal import JournalSocket
from vgpuctl.host.kernel_log import HostKernelLog
from vgpuctl.host.nvml import HostNvml, NoNvml
from vgpuctl.host.parked import ParkedWriter
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.scratch import HostScratch
from vgpuctl.host.system import HostSystem
from vgpuctl.host.vendor import HostVendorCommands
from vgpuctl.model.world import World

if TYPE_CHECKING:
    from vgpuctl.model.seams import Hypervisor, Nvml, Storage


def local_world(
    *,
    root: str = "/",
    connect: str | None = None,
    new_uuid: Callable[[], str] | None = None,
    euid: int | None = None,
) -> World:
    """Return this host, or the one whose files lie below `root`. `euid`: whose rights count, this process's if None.

    A captured tree is only looked at: NVML and commands would answer for the machine that looks, and so would
    libvirt unless a connection is named.
    """
    root = os.path.abspath(root)
    captured = root != "/"
    if captured and not os.path.isdir(root):
        raise InvalidInput(f"--root: there is no directory {root}", value=root)
    clock = HostClock()
    processes = HostProcesses(root)
    claims = ClaimStore(_run_dir(root), processes, processes.command(), clock=clock, read_only=captured)
    parked = None if captured else ParkedWriter(claims, processes)
    nvml: Nvml = NoNvml("--root") if captured else HostNvml()
    hypervisor, storage = _libvirt(connect, clock, claims, commands=not captured, ask=not captured or bool(connect))
    identity = machine_id(root)
    return World(
        name=root if captured else "local",
        sysfs=HostFiles(root, lock_held=lambda: claims.held, parked=parked),
        nvml=nvml,
        hypervisor=hypervisor,
        storage=storage,
        processes=processes,
        claims=claims,
        clock=clock,
        machine_id=identity or "",
        new_uuid=new_uuid or _random_uuid,
        scratch=None if captured else HostScratch(_run_dir(root) / "scratch"),
        read_only=_read_only(root, captured, identity),
        unprivileged=None if captured else _unprivileged(os.geteuid() if euid is None else euid),
        audit=None if captured else JournalSocket(),
        system=None if captured else HostSystem(),
        host_file=None if captured else HostFileOnDisk(lock_held=lambda: claims.held),
        vendor=None
        if captured
        else HostVendorCommands(lock_held=lambda: claims.held, records=claims, processes=processes),
        kernel_log=None if captured else HostKernelLog(),
        unfinished=None if captured else unfinished_below(Path(root), RUN_DIR, HOST_FILE, processes),
    )


def _run_dir(root: str) -> Path:
    """Return /run/vgpuctl below the root: a captured /run may be a link, and must not lead out of the capture."""
    if root == "/":
        return RUN_DIR
    try:
        return Path(resolved(root, "/run/vgpuctl"))
    except OSError as error:
        raise InvalidInput(f"--root: {root}/run/vgpuctl cannot be followed: {error.strerror}", value=root) from error


def _libvirt(
    connect: str | None, clock: HostClock, claims: ClaimStore, *, commands: bool, ask: bool
) -> tuple[Hypervisor, Storage]:
    """Return both halves of one connection, or their absence."""
    if not ask:
        from vgpuctl.host.virt.absent import AbsentHypervisor, AbsentStorage

        return AbsentHypervisor("--root"), AbsentStorage("--root")
    from vgpuctl.host.access import QemuUser, qemu_user, this_user
    from vgpuctl.host.images import Images
    from vgpuctl.host.virt.connection import Connection
    from vgpuctl.host.virt.domains import LibvirtHypervisor
    from vgpuctl.host.virt.storage import LibvirtStorage

    connection = Connection(connect, lambda: claims.held)

    def user() -> QemuUser | None:
        if connection.uri.startswith("test"):
            return None
        return this_user() if connection.uri.partition("?")[0].endswith("/session") else qemu_user()

    def tool(name: str) -> str | None:
        from vgpuctl.host.commands import find_command

        return find_command(name) if commands else None

    images = Images(user, tool)
    return LibvirtHypervisor(connection, clock), LibvirtStorage(connection, clock, images.look)


def _read_only(root: str, captured: bool, identity: str | None) -> str | None:
    if captured:
        return f"--root {root}: a host's files below another directory are only looked at"
    if identity is None:
        return "this host has no machine id, so its VMs cannot be told from copies; run systemd-machine-id-setup"
    return None


def _unprivileged(euid: int) -> str | None:
    """Return who runs this when that is not root: sysfs, /etc and /run are root's alone."""
    if euid == 0:
        return None
    import pwd

    try:
        return f"user {pwd.getpwuid(euid).pw_name}"
    except KeyError:
        return f"uid {euid}"


def _random_uuid() -> str:
    import uuid

    return str(uuid.uuid4())
