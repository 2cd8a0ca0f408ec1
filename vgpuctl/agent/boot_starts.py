# SPDX-License-Identifier: Apache-2.0
"""After a boot of the host the agent starts the VMs that should run (`model.autostart`), the lowest start order first.

Which VMs these are is decided once after each boot, when libvirt first answers, and kept in a file. A VM that ran since
the boot, or was made after it, is none of them, so nothing that somebody stopped is started again; and hours after the
boot nothing is started any more. libvirt may start VMs of its own (virsh autostart), which changes nothing here.

A VM waits until its GPUs are ready. One with a disk that another host may use, too, is left to a person, or to a
controller, unless its `autostart_storage` says so.
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
from vgpuctl.agent.operation import failure_text, wait_for_end
from vgpuctl.agent.operations import ROOT, AgentOperations
from vgpuctl.agent.protocol import RequestOptions
from vgpuctl.agent.request import CallRequest
from vgpuctl.agent.shared_disks import find_shared_disk
from vgpuctl.errors import VgpuctlError
from vgpuctl.host.atomic_files import write_file
from vgpuctl.library.call_table import CALLS
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.autostart import may_use_shared_storage, start_order, starts_after_boot
from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import AuditQuery
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.power import why_not_startable
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

BOOT_ID = "/proc/sys/kernel/random/boot_id"
UPTIME = "/proc/uptime"
LATEST_UPTIME_SECONDS = 7200.0
"""Later than this after a boot nothing is started: people use the host. The boot unit waits 70 minutes at most."""
LOOK_SECONDS = 20.0
MAX_TRIES = 6
FIRST_WAIT_SECONDS = 60.0
"""Between a start that failed and the next try; each further wait is twice as long."""
AT_ONCE = 4
"""So many VMs start at once: the other turns are for users."""
_MAX_FILE_BYTES = 1 << 20
_FILE_NAME = "boot-starts.json"


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
        self._lock = Lock()
        """Held where several starts that end at once change what is left."""
        self._last_event = events.last_id
        self._tries: dict[str, tuple[int, float]] = {}
        self._reasons: dict[str, str] = {}
        self._shared: set[str] = set()
        self._is_restore_reported = False

    async def run(self) -> None:
        """Start what is to be started; return when nothing is left."""
        while True:
            try:
                if not await self.check():
                    return
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the VMs to start after the boot are not known or not started: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> bool:
        """Look once and start what is ready; return whether anything is left to start.

        Raises:
            VgpuctlError, OSError: the host or the file cannot be read or written.
        """
        vms = await asyncio.to_thread(self._select)
        for _, group in groupby(vms, key=_order):
            waiting = list(group)
            while waiting:
                batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
                await asyncio.gather(*(self._start(vm) for vm in batch))
        return self._state is None or self._state.pending != ()

    async def _start(self, vm: Vm) -> None:
        """Start a VM, unless its record has changed since the look: somebody may have asked to stop it."""
        tries, _ = self._tries.get(vm.uuid, (0, 0.0))
        self._tries[vm.uuid] = (tries + 1, self._host.clock.monotonic() + FIRST_WAIT_SECONDS * 2**tries)
        options = RequestOptions(
            if_generation=None if vm.record is None else vm.record.generation, override_controller=True
        )
        try:
            request = CallRequest(CALLS["start-vm"], {"name": vm.uuid}, options, ROOT, vm_name=vm.name)
            operation = self._operations.begin(request)
        except (OSError, VgpuctlError) as error:
            self._reasons[vm.uuid] = str(error)
            return
        await wait_for_end(operation)
        reason = failure_text(operation.stored.document)
        if reason is None:
            await asyncio.to_thread(self._forget, vm.uuid)
        else:
            self._reasons[vm.uuid] = reason

    # ------------------------------------------------------------- in a thread

    def _select(self) -> tuple[Vm, ...]:
        """Return the VMs to start now, in their order."""
        uptime = float(self._host.sysfs.read(UPTIME).split()[0])
        if self._state is None:
            self._state = self._begin(uptime)
        if self._state.pending == ():
            return ()
        self._report_failed_restore(uptime)
        if uptime > LATEST_UPTIME_SECONDS:
            self._give_up(uptime)
            return ()
        host = for_another_operation(self._host)
        try:
            if not read_spec_of_host(host).agent.self_healing:
                self._set_pending(())  # also for later in this boot
                return ()
            snapshot = observe(host, ReadScope(models=False))
            if not snapshot.hypervisor.available:
                return ()
            ready = [vm for vm in self._still_wanted(snapshot.vms) if self._is_ready(host, snapshot, vm)]
        finally:
            host.operations.end()
        return tuple(sorted(ready, key=_order))

    def _begin(self, uptime: float) -> BootStarts:
        """Return the state for this boot: that of the file, or a new one."""
        boot_id = self._host.sysfs.read(BOOT_ID).strip()
        known = self._read_file()
        if known is not None and known.boot_id == boot_id:
            return known
        is_after_boot = known is not None and uptime <= LATEST_UPTIME_SECONDS
        state = BootStarts(boot_id, None if is_after_boot else ())
        self._write_file(state)
        return state

    def _report_failed_restore(self, uptime: float) -> None:
        """Publish that the boot unit failed to set the GPUs up, once."""
        if self._is_restore_reported or self._host.audit_log is None:
            return
        since = self._host.clock.now() - uptime
        for entry in self._host.audit_log.read_entries(AuditQuery(limit=50, since=since, failed=True)).entries:
            if entry.command == "restore-host":
                self._events.publish(EventType.RESTORE_FAILED, reason=entry.message or entry.result)
                self._is_restore_reported = True
                return

    def _give_up(self, uptime: float) -> None:
        """Start nothing more after this boot, and publish which VMs that concerns, as far as they are known."""
        pending = None if self._state is None else self._state.pending
        self._set_pending(())
        count = "the VMs that should run" if pending is None else f"{len(pending)} VMs"
        reason = f"{count} were not started, and are not {uptime / 3600:.0f} hours after the boot: vgpuctl list-vms"
        self._events.publish(EventType.AUTOSTART_FAILED, reason=reason)

    def _still_wanted(self, vms: Iterable[Vm]) -> tuple[Vm, ...]:
        """Return the VMs that are still to be started, and remember them."""
        started = self._read_started()
        state = self._state
        known = None if state is None else state.pending
        wanted = tuple(
            vm
            for vm in vms
            if vm.state is VmState.STOPPED
            and vm.record is not None
            and starts_after_boot(vm.record)
            and (known is None or (vm.uuid in known and vm.uuid not in started))
        )
        given_up = {vm.uuid for vm in wanted if self._tries.get(vm.uuid, (0, 0.0))[0] >= MAX_TRIES}
        self._set_pending(tuple(vm.uuid for vm in wanted if vm.uuid not in given_up))
        for vm in wanted:
            if vm.uuid in given_up:
                self._fail(vm, f"it did not start in {MAX_TRIES} tries: {self._reasons.get(vm.uuid)}")
        return tuple(vm for vm in wanted if vm.uuid not in given_up)

    def _read_started(self) -> frozenset[str]:
        """Return the VMs that started since the last look, whoever started them."""
        events = self._events.since(self._last_event)
        if events:
            self._last_event = events[-1].id
        return frozenset(event.vm_uuid for event in events if event.type is EventType.VM_STARTED and event.vm_uuid)

    def _is_ready(self, host: Host, snapshot: Snapshot, vm: Vm) -> bool:
        """Return whether a VM can be started now; a shared disk is published once."""
        _, next_try = self._tries.get(vm.uuid, (0, 0.0))
        if vm.record is None or host.clock.monotonic() < next_try:
            return False
        try:
            shared = None if may_use_shared_storage(vm.record) else find_shared_disk(host, vm)
            problem = why_not_startable(host, snapshot, vm)
        except VgpuctlError as error:
            log.warning("VM %s is not started yet: %s", vm.name, error)
            return False
        if shared is not None and vm.uuid not in self._shared:
            self._shared.add(vm.uuid)
            self._fail(
                vm,
                f"another host may use {shared}, too, or it is missing: make sure that {vm.name} runs nowhere else, "
                f"then vgpuctl start-vm {vm.name}; for every boot: vgpuctl set-vm {vm.name} --autostart-storage any",
            )
        return shared is None and problem is None

    def _fail(self, vm: Vm, reason: str) -> None:
        self._events.publish(EventType.AUTOSTART_FAILED, vm=vm.name, vm_uuid=vm.uuid, reason=reason)

    def _forget(self, uuid: str) -> None:
        """Note that a VM was started: who stops it from now on wants it to be off."""
        with self._lock:
            pending = () if self._state is None else self._state.pending or ()
            self._set_pending(tuple(one for one in pending if one != uuid))

    def _set_pending(self, pending: tuple[str, ...]) -> None:
        """Remember what is left to start; the file first, so that a failure leaves both as they were."""
        if self._state is not None and pending != self._state.pending:
            state = replace(self._state, pending=pending)
            self._write_file(state)
            self._state = state

    def _read_file(self) -> BootStarts | None:
        """Return what the file says; None if there is none, as at a first start. A damaged one is set aside."""
        try:
            content = json.loads(read_regular_file(str(self._file), _MAX_FILE_BYTES))
            pending = content["pending"]
            return BootStarts(str(content["boot_id"]), None if pending is None else tuple(map(str, pending)))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            self._file.replace(self._file.with_suffix(".damaged"))
            reason = f"{self._file} was damaged ({error}): no VM is started after this boot; vgpuctl list-vms"
            self._events.publish(EventType.AUTOSTART_FAILED, reason=reason)
            return None

    def _write_file(self, state: BootStarts) -> None:
        write_file(self._file, json.dumps({"boot_id": state.boot_id, "pending": state.pending}).encode())


def _order(vm: Vm) -> int:
    return 0 if vm.record is None else start_order(vm.record)
