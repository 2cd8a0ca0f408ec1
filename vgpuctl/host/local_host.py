# SPDX-License-Identifier: Apache-2.0
"""Builds the real host: one `Host` for a root directory and a libvirt connection."""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.host.absent import AbsentHypervisor, AbsentNvml, AbsentStorage
from vgpuctl.host.atomic_files import open_unfinished_files
from vgpuctl.host.claim_store import RUN_DIR, ClaimStore
from vgpuctl.host.commands import HostVendorCommands, find_command
from vgpuctl.host.domain_joins import DomainJoinFiles
from vgpuctl.host.driver_discs import DIRECTORY as DISC_DIRECTORY
from vgpuctl.host.driver_discs import DriverDiscFiles
from vgpuctl.host.files import HostFiles, read_machine_id, resolve_below
from vgpuctl.host.guest_reports import GuestReportFiles
from vgpuctl.host.host_file import HOST_FILE_PATH, HostFileOnDisk
from vgpuctl.host.image_folders import HostImageFolders
from vgpuctl.host.images import ImageInspector
from vgpuctl.host.kernel_messages import HostKernelMessages
from vgpuctl.host.logs import HostKernelLog, JournalSocket
from vgpuctl.host.nvml import HostNvml
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostClock, HostProcesses
from vgpuctl.host.qemu_access import QemuUser, read_qemu_user, session_qemu_user
from vgpuctl.host.system_files import HostScratch, HostSystem
from vgpuctl.host.uninterruptible import UninterruptibleWriter
from vgpuctl.host.usage import HostUsage
from vgpuctl.host.usage_history import HISTORY_NAME, UsageHistoryFile
from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.domains import LibvirtHypervisor
from vgpuctl.host.virt.events import LibvirtDomainEvents
from vgpuctl.host.virt.guest_agent import LibvirtGuestAgent
from vgpuctl.host.virt.guest_channels import LibvirtGuestChannels
from vgpuctl.host.virt.storage import LibvirtStorage
from vgpuctl.host.virt.volume_bin import LibvirtVolumeBin
from vgpuctl.model.agent_service import STATE_DIRECTORY
from vgpuctl.model.domain_join import DOMAIN_JOIN_DIRECTORY
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Nvml
    from vgpuctl.ports.libvirt import Hypervisor, Storage


def open_local_host(
    *,
    root: str = "/",
    connect: str | None = None,
    new_uuid: Callable[[], str] | None = None,
    euid: int | None = None,
    clock: HostClock | None = None,
    wait_seconds: float = 60.0,
) -> Host:
    """Return this host, or the captured one whose files are under `root`. `euid` None: this process's own.

    A captured tree is read-only. It has no NVML, commands and, without `connect`, libvirt: they are not the host's.
    """
    captured = (root := _existing_root(root)) != "/"
    clock = clock or HostClock()
    processes = HostProcesses(root)
    run_dir = _run_dir(root)
    operations = OperationFiles(run_dir, processes, captured=captured)
    claims = ClaimStore(run_dir, processes, operations, clock=clock, read_only=captured, wait_seconds=wait_seconds)
    writer = None if captured else UninterruptibleWriter(claims, processes)
    nvml: Nvml = AbsentNvml("--root") if captured else HostNvml()
    hypervisor, storage, domain_events, close_libvirt = _open_libvirt(connect, clock, claims, captured=captured)
    machine_id = read_machine_id(root)
    host = Host(
        name=root if captured else "local",
        sysfs=HostFiles(root, lock_held=lambda: claims.is_locked, writer=writer),
        nvml=nvml,
        hypervisor=hypervisor,
        storage=storage,
        processes=processes,
        operations=operations,
        claims=claims,
        clock=clock,
        machine_id=machine_id or "",
        new_uuid=new_uuid or _random_uuid,
        read_only_reason=_read_only_reason(root, captured, machine_id),
        domain_events=domain_events,
        volume_bin=LibvirtVolumeBin(storage) if isinstance(storage, LibvirtStorage) else None,
        close=close_libvirt,
    )
    if captured:
        return host
    host = replace(host, unprivileged_user=_unprivileged_user(os.geteuid() if euid is None else euid))
    if isinstance(hypervisor, LibvirtHypervisor):
        connection = hypervisor.connection
        host = replace(host, guest_channels=LibvirtGuestChannels(connection), guest_agent=LibvirtGuestAgent(connection))
    host = replace(host, guest_reports=GuestReportFiles(run_dir), image_folders=HostImageFolders())
    host = replace(host, domain_joins=DomainJoinFiles(Path(DOMAIN_JOIN_DIRECTORY)))
    host = replace(host, driver_discs=DriverDiscFiles(Path(DISC_DIRECTORY), host.clock, of_root=True))
    return _with_own_ports(host, run_dir, claims, processes, wait_seconds)


def _with_own_ports(
    host: Host, run_dir: Path, claims: ClaimStore, processes: HostProcesses, wait_seconds: float
) -> Host:
    """Add the ports that only the host itself has, and no captured tree."""
    usage = HostUsage(run_dir)
    return replace(
        host,
        scratch=HostScratch(run_dir / "scratch"),
        audit_log=JournalSocket(),
        system=HostSystem(),
        host_file=HostFileOnDisk(lock_held=lambda: claims.is_locked, clock=host.clock, wait_seconds=wait_seconds),
        vendor_commands=HostVendorCommands(lock_held=lambda: claims.is_locked, store=claims, processes=processes),
        system_log=HostKernelLog(),
        unfinished_files=open_unfinished_files(Path("/"), RUN_DIR, HOST_FILE_PATH, processes),
        kernel_messages=HostKernelMessages(),
        usage=usage,
        usage_history=UsageHistoryFile(Path(STATE_DIRECTORY) / HISTORY_NAME),
        close=partial(_close_all, host.close, usage.close),
    )


def _close_all(*closes: Callable[[], None] | None) -> None:
    for close in closes:
        if close is not None:
            close()


def _existing_root(root: str) -> str:
    path = os.path.abspath(root)
    if not os.path.isdir(path):
        raise InvalidInput(f"--root: directory {path} does not exist", value=path)
    return path


def _run_dir(root: str) -> Path:
    """Return /run/vgpuctl under the root: a captured /run may be a link, and must not lead out of the capture."""
    if root == "/":
        return RUN_DIR
    try:
        return Path(resolve_below(root, "/run/vgpuctl"))
    except OSError as error:
        raise InvalidInput(f"--root: {root}/run/vgpuctl cannot be followed: {error.strerror}", value=root) from error


def _open_libvirt(
    connect: str | None, clock: HostClock, claims: ClaimStore, *, captured: bool
) -> tuple[Hypervisor, Storage, LibvirtDomainEvents | None, Callable[[], None] | None]:
    """Return the ports of one libvirt and what closes its connection, or their absent versions."""
    if captured and not connect:
        return AbsentHypervisor("--root"), AbsentStorage("--root"), None, None
    connection = LibvirtConnection(connect, lambda: claims.is_locked)

    def find_qemu_user() -> QemuUser | None:
        if connection.uri.startswith("test"):
            return None
        return session_qemu_user() if connection.uri.partition("?")[0].endswith("/session") else read_qemu_user()

    def find_tool(name: str) -> str | None:
        return None if captured else find_command(name)

    images = ImageInspector(find_qemu_user, find_tool)
    storage = LibvirtStorage(connection, clock, images.inspect)
    return LibvirtHypervisor(connection, clock), storage, LibvirtDomainEvents(connection), connection.close


def _read_only_reason(root: str, captured: bool, identity: str | None) -> str | None:
    if captured:
        return f"--root {root}: a host's files below another directory are read-only"
    if identity is None:
        return "this host has no machine id, so vgpuctl cannot tell its VMs from copies; run systemd-machine-id-setup"
    return None


def _unprivileged_user(euid: int) -> str | None:
    """Return who runs this if not root: only root can write to sysfs, /etc and /run."""
    if euid == 0:
        return None
    try:
        return f"user {pwd.getpwuid(euid).pw_name}"
    except KeyError:
        return f"uid {euid}"


def _random_uuid() -> str:
    return str(uuid.uuid4())
