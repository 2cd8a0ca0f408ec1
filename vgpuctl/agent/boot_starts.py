# SPDX-License-Identifier: Apache-2.0
"""After a boot of the host the agent starts the VMs that should run (`model.autostart`), the lowest start order first.

Which VMs these are is decided once after each boot, at the first look that read libvirt whole, and kept in a file: a
VM that ran since the boot, or was made after it, is none of them, so nothing that somebody stopped is started again.
libvirt may start VMs of its own (virsh autostart), which changes nothing here.

A VM is started when its GPUs are ready: where its vGPUs cannot be made yet, and where a start fails, it waits for the
next try. A VM with a disk that another host may use, too, is left to a person, or to a controller, unless its
`autostart_storage` says so: two hosts that write to one disk destroy it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from threading import Lock

from vgpuctl.agent.events import EventLog
from vgpuctl.agent.operation import wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import VgpuctlError
from vgpuctl.host.atomic_files import write_file
from vgpuctl.library.call_table import CALLS
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.autostart import may_use_shared_storage, start_order, starts_after_boot
from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import AuditQuery
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.power import why_not_startable
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

BOOT_ID = "/proc/sys/kernel/random/boot_id"
UPTIME = "/proc/uptime"
LATEST_UPTIME_SECONDS = 3600.0
"""An agent that first runs later than this after a boot starts nothing: people have used the host meanwhile."""
LOOK_SECONDS = 20.0
MAX_TRIES = 6
FIRST_WAIT_SECONDS = 60.0
"""Before the second try; each further wait is twice as long."""
AT_ONCE = 4
"""So many VMs start at once: the other turns are for users."""
_MAX_FILE_BYTES = 1 << 20
_FILE_NAME = "boot-starts.json"
_LOCAL_POOLS = frozenset({"dir", "fs", "logical"})


class BootStarts(Value):
    """What the file says: the boot that it is about, and the uuids of the VMs to start; None: not decided yet."""

    boot_id: str
    pending: tuple[str, ...] | None = None


class BootStarter:
    """Starts VMs after a boot, by operations of the agent. `directory`: the agent's state directory."""

    def __init__(self, host: Host, operations: AgentOperations, events: EventLog, directory: Path) -> None:
        self._host = replace(host, snapshots=None)
        self._operations = operations
        self._events = events
        self._file = directory / _FILE_NAME
        self._state: BootStarts | None = None
        self._tries: dict[str, tuple[int, float]] = {}
        self._reasons: dict[str, str] = {}
        self._lock = Lock()
        """Held where several starts that end at once change what is left."""

    async def run(self) -> None:
        """Start what is to be started; return when nothing is left."""
        while await self.look():
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> bool:
        """Look once and start what is ready; return whether anything is left to start."""
        try:
            vms = await asyncio.to_thread(self._select)
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            log.warning("the VMs to start after the boot cannot be read: %s", error)
            return True
        for _, group in groupby(vms, key=_order):
            waiting = list(group)
            while waiting:
                batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
                await asyncio.gather(*(self._start(vm) for vm in batch))
        return self._state is None or self._state.pending != ()

    async def _start(self, vm: Vm) -> None:
        tries, _ = self._tries.get(vm.uuid, (0, 0.0))
        wait_seconds = FIRST_WAIT_SECONDS * 2**tries
        self._tries[vm.uuid] = (tries + 1, self._host.clock.monotonic() + wait_seconds)
        try:
            request = CallRequest(CALLS["start-vm"], {"name": vm.uuid}, RequestOptions(), ROOT)
            operation = self._operations.begin(request)
        except (OSError, VgpuctlError) as error:
            self._reasons[vm.uuid] = str(error)
            return
        await wait_for_end(operation)
        document = operation.stored.document or {}
        if document.get("ok"):
            await asyncio.to_thread(self._forget, vm.uuid)
            return
        error_part = document.get("error")
        self._reasons[vm.uuid] = str(error_part.get("message")) if isinstance(error_part, dict) else "it failed"

    # ------------------------------------------------------------- in a thread

    def _select(self) -> tuple[Vm, ...]:
        """Return the VMs to start now, in their order."""
        if self._state is None:
            self._state = self._begin()
        if self._state.pending == ():
            return ()
        host = for_another_operation(self._host)
        try:
            if not read_spec_of_host(host).agent.self_healing:
                self._set_pending(())  # also for later in this boot
                return ()
            snapshot = observe(host, ReadScope(models=False))
            if not snapshot.hypervisor.available or snapshot.unreadable_vms:
                return ()
            wanted = self._pending(snapshot.vms)
            due = [vm for vm in wanted if self._is_due(vm)]
            ready: list[Vm] = []
            for vm in due:
                reason = why_not_startable(host, snapshot, vm)
                if reason is None:
                    ready.append(vm)
                else:
                    self._note_failure(vm, reason)
        finally:
            host.operations.end()
        return tuple(sorted(ready, key=_order))

    def _begin(self) -> BootStarts:
        """Return the state for this boot: that of the file, or a new one; report a boot that did not go well."""
        boot_id = self._host.sysfs.read(BOOT_ID).strip()
        known = self._read_file()
        if known is not None and known.boot_id == boot_id:
            return known
        uptime = float(self._host.sysfs.read(UPTIME).split()[0])
        is_after_boot = known is not None and uptime <= LATEST_UPTIME_SECONDS
        state = BootStarts(boot_id, None if is_after_boot else ())
        self._write_file(state)
        if is_after_boot:
            self._report_restore(uptime)
        return state

    def _report_restore(self, uptime: float) -> None:
        """Publish that the boot unit failed to set the GPUs up, if it did."""
        if self._host.audit_log is None:
            return
        since = self._host.clock.now() - uptime
        for entry in self._host.audit_log.read_entries(AuditQuery(limit=50, since=since, failed=True)).entries:
            if entry.command == "restore-host":
                self._events.publish(EventType.RESTORE_FAILED, reason=entry.message or entry.result)
                return

    def _pending(self, vms: Iterable[Vm]) -> tuple[Vm, ...]:
        """Return the VMs that are still to be started, and remember them."""
        state = self._state
        if state is None:
            return ()
        wanted = tuple(
            vm
            for vm in vms
            if vm.state is VmState.STOPPED
            and vm.record is not None
            and starts_after_boot(vm.record)
            and (state.pending is None or vm.uuid in state.pending)
            and not self._is_given_up(vm, first_time=state.pending is None)
        )
        pending = tuple(vm.uuid for vm in wanted)
        self._set_pending(pending)
        return wanted

    def _forget(self, uuid: str) -> None:
        """Note that a VM was started: who stops it from now on wants it to be off."""
        with self._lock:
            pending = () if self._state is None else self._state.pending or ()
            self._set_pending(tuple(one for one in pending if one != uuid))

    def _set_pending(self, pending: tuple[str, ...]) -> None:
        if self._state is not None and pending != self._state.pending:
            self._state = replace(self._state, pending=pending)
            self._write_file(self._state)

    def _is_given_up(self, vm: Vm, *, first_time: bool) -> bool:
        """Return whether a VM is not started, and publish why: its disks, or because it failed too often."""
        tries, next_try = self._tries.get(vm.uuid, (0, 0.0))
        reason = None
        if first_time and vm.record is not None and not may_use_shared_storage(vm.record):
            shared = find_shared_disk(self._host, vm)
            if shared is not None:
                reason = (
                    f"another host may use {shared}, too: make sure that it does not run elsewhere, then vgpuctl "
                    f"start-vm {vm.name}; for every boot: vgpuctl set-vm {vm.name} --autostart-storage any"
                )
        if tries >= MAX_TRIES and self._host.clock.monotonic() >= next_try:
            reason = f"it did not start in {tries} tries: {self._reasons.get(vm.uuid)}"
        if reason is None:
            return False
        self._events.publish(EventType.AUTOSTART_FAILED, vm=vm.name, vm_uuid=vm.uuid, reason=reason)
        return True

    def _is_due(self, vm: Vm) -> bool:
        tries, next_try = self._tries.get(vm.uuid, (0, 0.0))
        return tries < MAX_TRIES and self._host.clock.monotonic() >= next_try

    def _note_failure(self, vm: Vm, reason: str) -> None:
        tries, _ = self._tries.get(vm.uuid, (0, 0.0))
        self._tries[vm.uuid] = (tries + 1, self._host.clock.monotonic() + FIRST_WAIT_SECONDS * 2**tries)
        self._reasons[vm.uuid] = reason

    def _read_file(self) -> BootStarts | None:
        """Return what the file says; None if there is none. What cannot be read counts as a boot that is over."""
        try:
            content = json.loads(read_regular_file(str(self._file), _MAX_FILE_BYTES))
            pending = content["pending"]
            return BootStarts(str(content["boot_id"]), None if pending is None else tuple(map(str, pending)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("%s cannot be read, so no VM is started because of it: %s", self._file, error)
            return None

    def _write_file(self, state: BootStarts) -> None:
        write_file(self._file, json.dumps({"boot_id": state.boot_id, "pending": state.pending}).encode())


def _order(vm: Vm) -> int:
    return 0 if vm.record is None else start_order(vm.record)


def find_shared_disk(host: Host, vm: Vm) -> str | None:
    """Return a disk of a VM that another host may use, too, as far as this host can know; None: they are all local.

    Local are files on local file systems and volumes of LVM. A block device may be a LUN of a storage network.
    """
    paths: list[str] = []
    for disk in (disk for disk in vm.disks if disk.device in ("disk", "lun")):
        if disk.volume is not None:
            pool = host.storage.pool(disk.volume[0])
            if pool is None or pool.kind not in _LOCAL_POOLS or pool.path is None:
                return f"the volume {disk.volume[1]} of the pool {disk.volume[0]}"
            paths.append(f"{pool.path}/{disk.volume[1]}")
        elif disk.source is None:
            return f"the disk {disk.target}"
        else:
            paths.append(disk.source)
    local = host.storage.image_files(paths, reachable=())
    groups = tuple(f"{pool.path}/" for pool in host.storage.pools() if pool.kind == "logical" and pool.path)
    for path in paths:
        file = local.get(path)
        if file is None or (file.identity.startswith("device ") and not path.startswith(groups)):
            return path
    return None
