# SPDX-License-Identifier: Apache-2.0
"""Recreate after a boot the vGPUs of host.yaml, then those of every VM, before libvirt starts.

This module does not call libvirt: libvirt is not running yet, and starts its autostart VMs as soon as it is. Its own
files list the VMs. Nothing waits for a fixed time: a GPU is ready when its driver is bound, its VFs exist and it lists
its types. A VM that fails does not stop the others. A GPU that is not ready delays libvirt only for a limited time.

Size: the rounds, what they report and their dry run handle the same items.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vgpuctl.errors import (
    Busy,
    Failed,
    HostCannot,
    Interrupted,
    InvalidInput,
    Locked,
    NotFound,
    Stuck,
    Temporary,
    VgpuctlError,
    named_message,
)
from vgpuctl.makers import vgpu_driver_hint
from vgpuctl.model.hint_commands import recreate_vgpu_command
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.results.host import NotRestoredResult, RestoredResult, RestoreResult
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, HostVgpu, RecordState, Vm, VmRecord
from vgpuctl.observe.host_file import named_vgpus
from vgpuctl.operations.boot import (
    LibvirtHold,
    Timer,
    place_displaced_vms,
    read_domain_files,
    select_autostart_vms,
    start_autostart_vms,
)
from vgpuctl.operations.claim import LIBVIRT_NOT_QUERIED
from vgpuctl.operations.devices import (
    devices_in_place,
    find_displaced,
    lacks_devices,
    make_devices,
    needs_device_creation,
    observe_carriers,
    observe_record_gpus,
)
from vgpuctl.operations.gpu_mode import GPU_ABSENT_CHECK, RestoredGpu, restore_gpus
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.host_vgpus import assign_free_slot, gpu_problem
from vgpuctl.operations.plans.vgpus import assigned_from_entry, placeholder_owner, refuse_assigned_carrier
from vgpuctl.value import Value, extend, replace

if TYPE_CHECKING:
    from vgpuctl.config.host_spec import HostSpec, VgpuSpec
    from vgpuctl.ports.host import Host

PAUSE_SECONDS = 1.0
RETRY_CODES = tuple(kind.code for kind in (Busy, Locked, Stuck, Temporary))


class _RestoreItem(Value):
    """One thing to restore: a VM's vGPUs, or one vGPU of host.yaml (`vm` is then a placeholder unknown to libvirt)."""

    name: str
    kind: str
    vm: Vm
    record: VmRecord
    named: HostVgpu | None = None


def restore_host(
    host: Host,
    context: Context,
    spec: HostSpec,
    *,
    host_file_error: InvalidInput | None = None,
    make_timer: Callable[[float, Callable[[], None]], Timer] = threading.Timer,
) -> Outcome[RestoreResult]:
    """Create every missing vGPU that host.yaml or a VM's record names.

    `host_file_error`: why host.yaml could not be read; the VMs' vGPUs do not need it and are restored all the same.
    `make_timer`: makes the timer that lets libvirt start when it has been held for long enough.

    Raises:
        Failed: some could not be created; `failed` in its facts lists each with its reason. The others exist.
        Busy: as Failed, if each of them only waits for another process.
    """
    require_writable(host, context)
    vms, problems = read_domain_files(host)
    items = [*_host_vgpu_items(host, spec.vgpus), *_vm_items(vms)]
    libvirt_hold = LibvirtHold(host, spec.boot.hold_libvirt_seconds, make_timer)
    restoration = _Restoration(host, context, spec, vms, items, libvirt_hold)
    if context.dry_run:
        restoration.set_up()
        outcome = _dry_run_outcome(
            host, _incomplete_items(host, items), vms, (*problems, *restoration.unverified()), len(items)
        )
        steps = (*restoration.steps(), *outcome.steps)
        return replace(outcome, changed=bool(steps), steps=steps)
    with libvirt_hold:
        late_vms = restoration.run()
        libvirt_hold.release()
    placed, unplaced = place_displaced_vms(host, context, restoration.displaced_vms)
    late_vms += select_autostart_vms(host, [vm for vm, _ in placed])
    started, unstarted = start_autostart_vms(host, context, late_vms)
    restored, failed, steps = restoration.restored(), restoration.failures(), restoration.steps()
    restored += tuple(_placed_result(vm, outcome) for vm, outcome in placed)
    steps += tuple(step for _, outcome in placed for step in outcome.steps)
    failed += [_not_restored(_vm_result(vm), error) for vm, error in unplaced]
    failed += [_not_restored(_vm_result(vm), error) for vm, error in unstarted]
    if host_file_error is not None:
        failed.append(_not_restored(RestoredResult("file", "host.yaml", ()), host_file_error))
    total_count = len(items) + len(restoration.gpus) + (host_file_error is not None)
    if failed:
        raise _failed_error(failed, restored, started, total_count)
    data = RestoreResult(restored, total_count - len(restored), tuple(started))
    return Outcome(bool(steps or started), data, steps, (*problems, *restoration.unverified()))


class _UnusedHypervisor:
    """A libvirt that must not be called: until the boot ends, libvirt waits for this very restore."""

    def status(self) -> HypervisorStatus:
        """Return that libvirt was not queried."""
        return LIBVIRT_NOT_QUERIED

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name}: libvirt is not used while a host is restored")


class _Restoration:
    """Sets up GPUs and creates the vGPUs on them, in rounds: a GPU that is not ready delays only its own vGPUs.

    On each GPU, its setup comes first, then the vGPUs without a VM, then those of VMs: each needs the one before.
    """

    def __init__(
        self,
        host: Host,
        context: Context,
        spec: HostSpec,
        vms: tuple[Vm, ...],
        items: list[_RestoreItem],
        hold: LibvirtHold,
    ) -> None:
        self._host = host
        self._context = context
        self._spec = spec
        self._vms = vms
        self._items = items
        self._hold = hold
        self._offline_host = replace(host, hypervisor=_UnusedHypervisor())
        self._made: list[RestoredResult] = []
        self._failed: list[NotRestoredResult] = []
        self._steps: list[str] = []
        self._waiting: list[_RestoreItem] = []
        self.displaced_vms: tuple[Vm, ...] = ()
        """The VMs that need another place, which only a change of their definition can give them."""
        self._pending_gpus: frozenset[str] | None = None
        """The GPUs that are not set up yet; None: not checked yet."""
        self.gpus: dict[str, RestoredGpu] = {}

    def run(self) -> tuple[Vm, ...]:
        """Restore what can be restored until the deadline.

        Returns the autostart VMs with a record whose GPUs were not ready when libvirt was allowed to start.

        Raises:
            Interrupted: a signal came.
        """
        clock = self._host.clock
        deadline = clock.monotonic() + self._spec.boot.deadline_seconds
        ready_vms = tuple(vm for vm in self._vms if vm.record is not None and vm.record.state is RecordState.READY)
        waiting_vms = tuple(vm for vm in ready_vms if _gpus_of(vm))
        late_vms: tuple[Vm, ...] | None = None
        is_first_round = True
        while True:
            self.set_up()
            if is_first_round:
                self._waiting, is_first_round = _incomplete_items(self._host, self._items), False
            is_over = clock.monotonic() >= deadline
            self._make_ready(is_over)
            late_vms = waiting_vms if late_vms is None and self._hold.released_early else late_vms
            if is_over or not (self._waiting or self._pending_gpus):
                return select_autostart_vms(self._host, (vm for vm in late_vms or () if not self._has_failed(vm)))
            waiting_vms = tuple(vm for vm in ready_vms if self._is_waiting(vm))
            clock.sleep(PAUSE_SECONDS)
            late_vms = waiting_vms if late_vms is None and self._hold.released_early else late_vms

    def set_up(self) -> None:
        """Set up each GPU that is not set up yet; one that is not ready (no driver, say) is left for the next round."""
        if self._pending_gpus is not None and not self._pending_gpus:
            return
        for gpu in restore_gpus(
            self._offline_host,
            self._context,
            self._spec.gpus,
            vms=self._vms,
            gpu_addresses=self._pending_gpus,
        ):
            self.gpus[gpu.address] = gpu
        self._pending_gpus = frozenset(address for address, gpu in self.gpus.items() if _is_not_ready(gpu))

    def _make_ready(self, is_over: bool) -> None:
        """Create the items whose GPUs are ready; when the time is over, the others fail."""
        if not self._waiting:
            return
        still_waiting = []
        # One snapshot for all items: it reads every VF.
        snapshot = observe_record_gpus(self._host, tuple(item.record for item in self._waiting), self._vms)
        for item in self._waiting:
            try:
                if self._is_displaced(snapshot, item):
                    continue
                reason = self._missing_reason(snapshot, item)
                if reason is not None:
                    _refuse_on_vfio(snapshot, item)
                if reason is not None and not is_over:
                    still_waiting.append(item)
                    continue
                if reason is not None:
                    raise _deadline_error(reason, item, self._spec.boot.deadline_seconds)
                steps = _make(self._host, self._context, item, self._vms, snapshot)
                self._steps += steps
                self._made += [_item_result(item)] * bool(steps)
            except Interrupted:
                raise
            except VgpuctlError as error:
                self._failed.append(_not_restored(_item_result(item), error))
            except Exception as error:  # noqa: BLE001 - one VM must not keep fifty others without their vGPUs
                bug = VgpuctlError(f"{type(error).__name__}: {error}", hint="this is a bug in vgpuctl")
                self._failed.append(_not_restored(_item_result(item), bug))
        self._waiting = still_waiting

    def _is_displaced(self, snapshot: Snapshot, item: _RestoreItem) -> bool:
        """Say whether an item's slot cannot come back, so that a VM gets another one when libvirt runs.

        Raises:
            HostCannot: a vGPU of host.yaml cannot come back.
        """
        reason = _why_displaced(self._host, snapshot, item)
        if reason is not None and item.named is not None:
            raise _displaced_vgpu_error(item.named, reason)
        self.displaced_vms += (item.vm,) if reason is not None else ()
        return reason is not None

    def _missing_reason(self, snapshot: Snapshot, item: _RestoreItem) -> str | None:
        """Return what an item's GPUs lack, or None when its vGPUs can be created, or refused, now."""
        pending = sorted((self._pending_gpus or frozenset()) & {v.gpu for v in item.record.vgpus})
        if pending and (error := self.gpus[pending[0]].error) is not None:
            return f"{pending[0]} is not set up yet: {error.message}"
        return _not_ready_reason(snapshot, item)

    def _is_waiting(self, vm: Vm) -> bool:
        return any(item.vm.uuid == vm.uuid for item in self._waiting) or bool(
            _gpus_of(vm) & (self._pending_gpus or frozenset())
        )

    def _has_failed(self, vm: Vm) -> bool:
        failed_gpus = {address for address, gpu in self.gpus.items() if gpu.error is not None}
        return bool(_gpus_of(vm) & failed_gpus) or any((f.kind, f.name) == ("vm", vm.name) for f in self._failed)

    def restored(self) -> tuple[RestoredResult, ...]:
        """Return the GPUs that were set up and the items that were created."""
        return (*(_gpu_result(g) for g in self._by_address() if g.steps and not g.error), *self._made)

    def failures(self) -> list[NotRestoredResult]:
        """Return the GPUs and items that could not be restored, each with the reason."""
        return [_not_restored(_gpu_result(g), g.error) for g in self._by_address() if g.error] + self._failed

    def steps(self) -> tuple[str, ...]:
        """Return the steps done; with a dry run, the steps that the GPUs would need."""
        return (*(s for gpu in self._by_address() for s in gpu.steps), *self._steps)

    def unverified(self) -> tuple[str, ...]:
        """Return what could not be verified on the GPUs."""
        return tuple(gpu.unverified for gpu in self._by_address() if gpu.unverified is not None)

    def _by_address(self) -> list[RestoredGpu]:
        return [self.gpus[address] for address in sorted(self.gpus)]


def _why_displaced(host: Host, snapshot: Snapshot, item: _RestoreItem) -> str | None:
    """Return why an item's slot cannot come back; a vGPU of host.yaml may be on any function of its GPU."""
    reasons = find_displaced(host, snapshot, item.record, any_function=item.named is not None)
    return next(iter(reasons.values()), None)


def _displaced_vgpu_error(named: HostVgpu, reason: str) -> HostCannot:
    """Return the error for a vGPU of host.yaml that needs another place; the hint creates it there."""
    return HostCannot(reason, hint=recreate_vgpu_command(named), check="displaced", gpu=named.gpu)


def _refuse_on_vfio(snapshot: Snapshot, item: _RestoreItem) -> None:
    """Refuse to wait for vGPUs on a GPU that vfio-pci has: no other driver takes it while it is bound.

    Raises:
        HostCannot: naming the GPU, and what gives it back to its driver.
    """
    for gpu in filter(None, map(snapshot.gpu, {v.gpu for v in item.record.vgpus})):
        if gpu.driver == "vfio-pci":
            raise HostCannot(
                f"vfio-pci has {gpu.address}, so it offers no vGPUs",
                hint=vgpu_driver_hint(gpu),
                check="gpu-driver",
                gpu=gpu.address,
            )


def _gpus_of(vm: Vm) -> frozenset[str]:
    """Return the GPUs on which a VM of this host has vGPUs, according to its record."""
    return frozenset() if vm.record is None else frozenset(v.gpu for v in vm.record.vgpus)


def _vm_result(vm: Vm) -> RestoredResult:
    carriers = () if vm.record is None else tuple(v.carrier for v in vm.record.vgpus)
    return RestoredResult("vm", vm.name, carriers)


def _placed_result(vm: Vm, outcome: Outcome[VmReport]) -> RestoredResult:
    return RestoredResult("vm", vm.name, tuple(v.carrier for v in outcome.data.vgpus))


def _is_not_ready(gpu: RestoredGpu) -> bool:
    if gpu.error is not None and gpu.error.facts.get("check") == GPU_ABSENT_CHECK:
        return False
    driver = isinstance(gpu.error, HostCannot) and gpu.error.facts.get("check") == "driver"
    return driver or isinstance(gpu.error, NotFound | Temporary)


def _gpu_result(gpu: RestoredGpu) -> RestoredResult:
    return RestoredResult("gpu", gpu.address, ())


def _item_result(item: _RestoreItem) -> RestoredResult:
    return RestoredResult(item.kind, item.name, tuple(v.carrier for v in item.record.vgpus))


def _not_restored(item: RestoredResult, error: VgpuctlError) -> NotRestoredResult:
    return extend(NotRestoredResult, item, code=error.code, message=error.message, hint=error.hint)


def _failed_error(
    failed: list[NotRestoredResult], restored: tuple[RestoredResult, ...], started: list[str], total: int
) -> Failed | Busy:
    lines = "; ".join(f"{f.kind} {named_message(f.name, f.message)}" for f in failed)
    can_retry = all(f.code in RETRY_CODES for f in failed)
    return (Busy if can_retry else Failed)(
        f"{len(failed)} of {total} could not be restored: {lines}",
        hint=failed[0].hint or "fix this, then run vgpuctl restore-host",
        failed=failed,
        restored=restored,
        started=started,
    )


def _deadline_error(reason: str, item: _RestoreItem, seconds: int) -> HostCannot:
    gpus = sorted({v.gpu for v in item.record.vgpus})
    return HostCannot(
        f"{reason}, {seconds} seconds after the restore began",
        hint="journalctl -k -b; boot: deadline_seconds: in /etc/vgpuctl/host.yaml sets a later deadline",
        check="gpu-ready",
        gpus=gpus,
        deadline_seconds=seconds,
    )


def _vm_items(vms: tuple[Vm, ...]) -> list[_RestoreItem]:
    """Return the VMs of this host that always keep their vGPUs; the record of a copied VM does not count."""
    with_record = [(vm, vm.record) for vm in vms if vm.record is not None]
    return [
        _RestoreItem(vm.name, "vm", vm, record)
        for vm, record in with_record
        if record.always_reserves and record.state is RecordState.READY and needs_device_creation(record)
    ]


def _host_vgpu_items(host: Host, vgpus: Mapping[str, VgpuSpec]) -> list[_RestoreItem]:
    """Return the vGPUs of host.yaml, each with the record of a placeholder VM unknown to libvirt."""
    return [_host_vgpu_item(host, named, assigned_from_entry(named)) for named in named_vgpus(vgpus)]


def _host_vgpu_item(host: Host, named: HostVgpu, vgpu: AssignedVgpu) -> _RestoreItem:
    owner, record = placeholder_owner(host.machine_id, named.name, vgpu)
    return _RestoreItem(named.name, "vgpu", owner, record, named)


def _incomplete_items(host: Host, items: list[_RestoreItem]) -> list[_RestoreItem]:
    """Return the items whose devices are not all present, from one snapshot for all items."""
    snapshot = observe_carriers(host, tuple(p.record for p in items), tuple(p.vm for p in items))
    return [item for item in items if _is_incomplete(snapshot, item)]


def _is_incomplete(snapshot: Snapshot, item: _RestoreItem) -> bool:
    try:
        return lacks_devices(snapshot, item.vm, item.record)
    except VgpuctlError:
        return True  # creating it will report the error


def _not_ready_reason(snapshot: Snapshot, item: _RestoreItem) -> str | None:
    """Return what an item's GPUs still lack, or None when its vGPUs can be created, or refused, now."""
    for vgpu in item.record.vgpus:
        reason = gpu_problem(snapshot, vgpu)
        if reason is not None:
            return reason
    return None


def _resolve_item(host: Host, item: _RestoreItem, vms: tuple[Vm, ...]) -> _RestoreItem:
    """Return a vGPU of host.yaml as it can be created now: with size and placement, and an mdev on a free VF.

    Raises:
        Busy: its carrier is assigned to a VM.
        NoCapacity: no VF has room for it.
    """
    if item.named is None:
        return item
    refuse_assigned_carrier(vms, item.named)
    return _host_vgpu_item(
        host, item.named, assign_free_slot(observe_record_gpus(host, (item.record,), vms), item.named)
    )


def _make(host: Host, context: Context, item: _RestoreItem, vms: tuple[Vm, ...], snapshot: Snapshot) -> tuple[str, ...]:
    item = _resolve_item(host, item, vms)
    return make_devices(host, context, item.vm, item.record, vms, cached=snapshot).steps


def _dry_run_outcome(
    host: Host, incomplete_items: list[_RestoreItem], vms: tuple[Vm, ...], problems: tuple[str, ...], total: int
) -> Outcome[RestoreResult]:
    """Return what would be done now; a warning names what is not ready yet."""
    steps: list[str] = []
    warnings = list(problems)
    snapshot = observe_record_gpus(host, tuple(item.record for item in incomplete_items), vms)
    for item in incomplete_items:
        try:
            displaced = _why_displaced(host, snapshot, item)
            reason = _not_ready_reason(snapshot, item)
            if displaced is not None and item.named is not None:
                raise _displaced_vgpu_error(item.named, displaced)
            if displaced is not None:
                warnings.append(f"{item.kind} {item.name} would get another place when libvirt runs: {displaced}")
            elif reason is not None:
                warnings.append(f"{item.kind} {item.name} would wait: {reason}")
            else:
                resolved = _resolve_item(host, item, vms)
                missing = devices_in_place(host, resolved.vm, resolved.record, vms)
                steps += [s.describe() for s in missing.plan(missing.seen, ()).steps] if missing is not None else []
        except VgpuctlError as error:
            warnings.append(f"{item.kind} {item.name} would fail: {error.message}")
    items = tuple(_item_result(item) for item in incomplete_items)
    data = RestoreResult(items, total - len(items), ())
    return Outcome(bool(incomplete_items), data, tuple(steps), tuple(warnings), dry_run=True)
