# SPDX-License-Identifier: Apache-2.0
"""Bring back what a boot takes away: the vGPUs of host.yaml, then those of every VM, before libvirt starts.

libvirt is not asked: it is not there yet, and starts its autostart VMs as soon as it is. Its own files say which VMs
there are. Nothing is waited for by time alone: a GPU is ready when its driver is bound, its VFs are there and it lists
its types. A VM that fails stops no other, and a GPU that is not ready holds libvirt back for a while only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vgpuctl.engine.boot import LibvirtHold, Timer, autostarted, read_domain_files, start_late
from vgpuctl.engine.devices import (
    UNASKED,
    has_devices,
    lacks_devices,
    look_at,
    look_for,
    make_devices,
    planned_devices,
)
from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.layout import Restored, restore_layout
from vgpuctl.engine.observe.host_file import named_vgpus
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
)
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NamedVgpu, Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.plan.kept import gpu_lacks, where_made
from vgpuctl.plan.vgpus import holder_of, promised, refuse_promised
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import HostSpec, VgpuSpec

PAUSE_SECONDS = 1.0
TRY_LATER = tuple(kind.code for kind in (Busy, Locked, Stuck, Temporary))


class _Part(Value):
    """One thing to restore: a VM's vGPUs, or one vGPU of host.yaml (`vm` is then nobody that libvirt knows)."""

    name: str
    kind: str
    vm: Vm
    promise: Promise
    named: NamedVgpu | None = None


def restore_host(
    world: World,
    spec: HostSpec,
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
    unread: InvalidInput | None = None,
    timer: Callable[[float, Callable[[], None]], Timer] = threading.Timer,
) -> Outcome:
    """Make every vGPU that host.yaml and the VMs' promises name and that is missing.

    `unread`: why host.yaml could not be read; the VMs' vGPUs do not need it, and come back all the same. `timer`: what
    lets libvirt go when it was held long enough.

    Raises:
        Failed: some could not be made; `failed` in its facts lists each with its reason. The others are there.
        Busy: as Failed, where each of them only waits for another process.
    """
    if not dry_run:
        require_writable(world)
    vms, problems = read_domain_files(world)
    parts = [*_parts_of_host(world, spec.vgpus), *_parts_of_vms(vms)]
    hold = LibvirtHold(world, spec.boot.hold_libvirt_seconds, timer)
    work = _Restoration(world, spec, vms, parts, wait_seconds, progress, hold)
    if dry_run:
        work.set_up(dry_run=True)
        planned = _planned(world, _incomplete(world, parts), vms, (*problems, *work.unseen()), len(parts))
        steps = (*work.steps(), *planned.steps)
        return replace(planned, changed=bool(steps), steps=steps)
    with hold:
        late = work.run()
        hold.release()
    started, unstarted = start_late(world, late, wait_seconds, progress)
    restored, failed, steps = work.restored(), work.failures(), work.steps()
    failed += [{**_vm_value(vm), **_why(error)} for vm, error in unstarted]
    if unread is not None:
        failed.append({"kind": "file", "name": "host.yaml", "carriers": [], **_why(unread)})
    total = len(parts) + len(work.gpus) + (unread is not None)
    if failed:
        raise _failed(failed, restored, started, total)
    data: dict[str, object] = {"restored": restored, "complete": total - len(restored), "started": started}
    return Outcome(bool(steps or started), data, steps, (*problems, *work.unseen()))


class _Unasked:
    """A libvirt that is not asked: before a boot's end it would wait for this very restore."""

    def status(self) -> HypervisorStatus:
        """Say so."""
        return UNASKED

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name}: libvirt is not asked while a host is restored")


class _Restoration:
    """Sets GPUs up and makes the vGPUs on them, round by round: a GPU that is not ready holds up its own alone.

    On each GPU, what it is set up for comes before vGPUs without a VM, and those before the VMs': each needs the one
    before.
    """

    def __init__(
        self,
        world: World,
        spec: HostSpec,
        vms: tuple[Vm, ...],
        parts: list[_Part],
        wait_seconds: float,
        progress: Progress,
        hold: LibvirtHold,
    ) -> None:
        self._world = world
        self._spec = spec
        self._vms = vms
        self._parts = parts
        self._wait_seconds = wait_seconds
        self._progress = progress
        self._hold = hold
        self._quiet = replace(world, hypervisor=_Unasked())
        self._made: list[dict[str, object]] = []
        self._failed: list[dict[str, object]] = []
        self._steps: list[str] = []
        self._waiting: list[_Part] = []
        self._open: frozenset[str] | None = None
        """The GPUs that are not set up yet; None: not looked at yet."""
        self.gpus: dict[str, Restored] = {}

    def run(self) -> tuple[Vm, ...]:
        """Do all that can be done until the deadline.

        Returns the VMs with a record that libvirt starts itself, but whose GPUs were not ready when it was let go.

        Raises:
            Interrupted: a signal came.
        """
        clock = self._world.clock
        deadline = clock.monotonic() + self._spec.boot.deadline_seconds
        ours = tuple(vm for vm in self._vms if vm.promise is not None and vm.promise.state is PromiseState.READY)
        behind = tuple(vm for vm in ours if _gpus_of(vm))
        late: tuple[Vm, ...] | None = None
        first = True
        while True:
            self.set_up(dry_run=False)
            if first:
                self._waiting, first = _incomplete(self._world, self._parts), False
            over = clock.monotonic() >= deadline
            self._make_ready(over)
            late = behind if late is None and self._hold.early else late
            if over or not (self._waiting or self._open):
                return autostarted(self._world, (vm for vm in late or () if not self._has_failed(vm)))
            behind = tuple(vm for vm in ours if self._waits(vm))
            clock.pause(PAUSE_SECONDS)
            late = behind if late is None and self._hold.early else late

    def set_up(self, *, dry_run: bool) -> None:
        """Set each GPU up that is not yet; one that is not ready, as without its driver, is left for the next round."""
        if self._open is not None and not self._open:
            return
        for gpu in restore_layout(
            self._quiet,
            self._spec.gpus,
            vms=self._vms,
            only=self._open,
            dry_run=dry_run,
            wait_seconds=self._wait_seconds,
            progress=self._progress,
        ):
            self.gpus[gpu.address] = gpu
        self._open = frozenset(address for address, gpu in self.gpus.items() if _not_yet(gpu))

    def _make_ready(self, over: bool) -> None:
        """Make the parts whose GPUs are ready; when the time is over, the others fail."""
        if not self._waiting:
            return
        later = []
        # One look for all: it reads every VF.
        seen = look_at(self._world, tuple(part.promise for part in self._waiting), self._vms)
        for part in self._waiting:
            try:
                why = self._lacking(seen, part)
                if why is not None and not over:
                    later.append(part)
                    continue
                if why is not None:
                    raise _too_late(why, part, self._spec.boot.deadline_seconds)
                self._steps += _make(self._world, part, self._vms, seen, self._wait_seconds, self._progress)
                self._made.append(_value(part))
            except Interrupted:
                raise
            except VgpuctlError as error:
                self._failed.append({**_value(part), **_why(error)})
            except Exception as error:  # noqa: BLE001 - one VM must not keep fifty others without their vGPUs
                bug = VgpuctlError(f"{type(error).__name__}: {error}", hint="this is a bug in vgpuctl")
                self._failed.append({**_value(part), **_why(bug)})
        self._waiting = later

    def _lacking(self, seen: Snapshot, part: _Part) -> str | None:
        """Say what a part's GPUs lack, or None when its vGPUs can be made, or refused, now."""
        unset = sorted((self._open or frozenset()) & {v.gpu for v in part.promise.vgpus})
        if unset and (error := self.gpus[unset[0]].error) is not None:
            return f"{unset[0]} is not set up yet: {error.message}"
        return _not_ready(seen, part)

    def _waits(self, vm: Vm) -> bool:
        return any(part.vm.uuid == vm.uuid for part in self._waiting) or bool(
            _gpus_of(vm) & (self._open or frozenset())
        )

    def _has_failed(self, vm: Vm) -> bool:
        broken = {address for address, gpu in self.gpus.items() if gpu.error is not None}
        return bool(_gpus_of(vm) & broken) or any((f["kind"], f["name"]) == ("vm", vm.name) for f in self._failed)

    def restored(self) -> list[dict[str, object]]:
        """Return what was set up and made."""
        return [_gpu_value(g) for g in self._by_address() if g.steps and not g.error] + self._made

    def failures(self) -> list[dict[str, object]]:
        """Return what could not be, each with the reason."""
        return [{**_gpu_value(g), **_why(g.error)} for g in self._by_address() if g.error] + self._failed

    def steps(self) -> tuple[str, ...]:
        """Return the steps done, or with a dry run those of the GPUs that would be."""
        return (*(s for gpu in self._by_address() for s in gpu.steps), *self._steps)

    def unseen(self) -> tuple[str, ...]:
        """Return what of the GPUs could not be seen."""
        return tuple(gpu.unseen for gpu in self._by_address() if gpu.unseen is not None)

    def _by_address(self) -> list[Restored]:
        return [self.gpus[address] for address in sorted(self.gpus)]


def _gpus_of(vm: Vm) -> frozenset[str]:
    """Return the GPUs that a VM of this host has a part of, by its record."""
    return frozenset() if vm.promise is None else frozenset(v.gpu for v in vm.promise.vgpus)


def _vm_value(vm: Vm) -> dict[str, object]:
    carriers = [] if vm.promise is None else [v.carrier for v in vm.promise.vgpus]
    return {"kind": "vm", "name": vm.name, "carriers": carriers}


def _not_yet(gpu: Restored) -> bool:
    driver = isinstance(gpu.error, HostCannot) and gpu.error.facts.get("check") == "driver"
    return driver or isinstance(gpu.error, NotFound | Temporary)


def _gpu_value(gpu: Restored) -> dict[str, object]:
    return {"kind": "gpu", "name": gpu.address, "carriers": []}


def _why(error: VgpuctlError | None) -> dict[str, object]:
    return {} if error is None else {"code": error.code, "message": error.message, "hint": error.hint}


def _value(part: _Part) -> dict[str, object]:
    carriers = [v.carrier for v in part.promise.vgpus]
    return {"kind": part.kind, "name": part.name, "carriers": carriers}


def _failed(
    failed: list[dict[str, object]], restored: list[dict[str, object]], started: list[str], total: int
) -> Failed | Busy:
    lines = "; ".join(f"{f['kind']} {f['name']}: {f['message']}" for f in failed)
    later = all(f["code"] in TRY_LATER for f in failed)
    return (Busy if later else Failed)(
        f"{len(failed)} of {total} could not be restored: {lines}",
        hint=str(failed[0]["hint"] or "put that right, then: vgpuctl restore-host"),
        failed=failed,
        restored=restored,
        started=started,
    )


def _too_late(why: str, part: _Part, seconds: int) -> HostCannot:
    gpus = sorted({v.gpu for v in part.promise.vgpus})
    return HostCannot(
        f"{why}, {seconds} seconds after the restore began",
        hint="journalctl -k -b; a later deadline is boot: deadline_seconds: in /etc/vgpuctl/host.yaml",
        check="gpu-ready",
        gpus=gpus,
        deadline_seconds=seconds,
    )


def _parts_of_vms(vms: tuple[Vm, ...]) -> list[_Part]:
    """Return the VMs of this host that keep their vGPUs always; a copy's promise is nobody's here."""
    own = [(vm, vm.promise) for vm in vms if vm.promise is not None]
    return [
        _Part(vm.name, "vm", vm, promise)
        for vm, promise in own
        if not promise.lends and promise.state is PromiseState.READY and has_devices(promise)
    ]


def _parts_of_host(world: World, vgpus: Mapping[str, VgpuSpec]) -> list[_Part]:
    """Return the vGPUs of host.yaml, each as a promise to nobody that libvirt knows."""
    return [_named_part(world, named, promised(named)) for named in named_vgpus(vgpus)]


def _named_part(world: World, named: NamedVgpu, vgpu: PromisedVgpu) -> _Part:
    holder, promise = holder_of(world.machine_id, named.name, vgpu)
    return _Part(named.name, "vgpu", holder, promise, named)


def _incomplete(world: World, parts: list[_Part]) -> list[_Part]:
    """Return the parts of which something is missing, after one look for all."""
    snapshot = look_for(world, tuple(p.promise for p in parts), tuple(p.vm for p in parts))
    return [part for part in parts if _lacks(snapshot, part)]


def _lacks(snapshot: Snapshot, part: _Part) -> bool:
    try:
        return lacks_devices(snapshot, part.vm, part.promise)
    except VgpuctlError:
        return True  # whatever it is, making it tells


def _not_ready(snapshot: Snapshot, part: _Part) -> str | None:
    """Say what a part's GPUs still lack, or None when its vGPUs can be made, or refused, now."""
    for vgpu in part.promise.vgpus:
        why = gpu_lacks(snapshot, vgpu)
        if why is not None:
            return why
    return None


def _on_a_function(world: World, part: _Part, vms: tuple[Vm, ...]) -> _Part:
    """Return a vGPU of host.yaml as it can be made now: with its size and placement, and an mdev on a VF that is free.

    Raises:
        Busy: a VM was promised its carrier.
        NoCapacity: no VF has room for it.
    """
    if part.named is None:
        return part
    refuse_promised(vms, part.named)
    return _named_part(world, part.named, where_made(look_at(world, (part.promise,), vms), part.named))


def _make(
    world: World, part: _Part, vms: tuple[Vm, ...], seen: Snapshot, wait_seconds: float, progress: Progress
) -> tuple[str, ...]:
    part = _on_a_function(world, part, vms)
    return make_devices(world, part.vm, part.promise, vms, wait_seconds, progress, known=seen)


def _planned(world: World, waiting: list[_Part], vms: tuple[Vm, ...], problems: tuple[str, ...], total: int) -> Outcome:
    """Return what would be done now; what is not ready yet is said in a warning."""
    steps: list[str] = []
    warnings = list(problems)
    seen = look_at(world, tuple(part.promise for part in waiting), vms)
    for part in waiting:
        try:
            why = _not_ready(seen, part)
            if why is not None:
                warnings.append(f"{part.kind} {part.name} would be waited for: {why}")
            else:
                there = _on_a_function(world, part, vms)
                steps += [s.describe() for s in planned_devices(world, there.vm, there.promise, vms).steps]
        except VgpuctlError as error:
            warnings.append(f"{part.kind} {part.name} would fail: {error.message}")
    data: dict[str, object] = {
        "restored": [_value(p) for p in waiting],
        "complete": total - len(waiting),
        "started": [],
    }
    return Outcome(bool(waiting), data, tuple(steps), tuple(warnings), dry_run=True)
