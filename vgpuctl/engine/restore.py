# SPDX-License-Identifier: Apache-2.0
"""Bring back what a boot takes away: the vGPUs of host.yaml, then those of every VM, before libvirt starts.

libvirt is not asked: it is not there yet, and starts its autostart VMs as soon as it is. Its own files say which VMs
there are. Nothing is waited for by time alone: a GPU is ready when its driver is bound, its VFs are there and it lists
its types. A VM that fails stops no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.domain.parse import parse
from vgpuctl.engine.devices import (
    DOMAINS,
    UNASKED,
    has_devices,
    lacks_devices,
    look_at,
    look_for,
    make_devices,
    planned_devices,
)
from vgpuctl.engine.guards import require_writable, unreadable
from vgpuctl.engine.layout import Restored, restore_layout
from vgpuctl.engine.observe.host_file import named_vgpus
from vgpuctl.errors import (
    Failed,
    HostCannot,
    Interrupted,
    InvalidInput,
    LibvirtFailed,
    NotFound,
    Temporary,
    VgpuctlError,
)
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NamedVgpu, Promise, PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.plan.kept import gpu_lacks, where_made
from vgpuctl.plan.vgpus import holder_of, promised, refuse_promised
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec

PAUSE_SECONDS = 1.0


class _Part(Value):
    """One thing to restore: a VM's vGPUs, or one vGPU of host.yaml (`vm` is then nobody that libvirt knows)."""

    name: str
    kind: str
    vm: Vm
    promise: Promise
    named: NamedVgpu | None = None


def read_domain_files(world: World) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return the VMs of libvirt's own files, and a sentence for each file that cannot be understood.

    Raises:
        Failed: the directory cannot be read, so nobody knows which VMs there are.
    """
    vms: list[Vm] = []
    problems: list[str] = []
    try:
        names = world.sysfs.listdir(DOMAINS)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        raise unreadable(DOMAINS, error) from error
    for name in (n for n in names if n.endswith(".xml")):
        path = f"{DOMAINS}/{name}"
        try:
            vms.append(parse(_without_declaration(world.sysfs.read(path)), VmState.UNKNOWN, world.machine_id))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LibvirtFailed) as error:
            problems.append(f"{path} cannot be read: {error}")
    return tuple(vms), tuple(problems)


def _without_declaration(text: str) -> str:
    """Lxml refuses text that names its own encoding."""
    return re.sub(r"^\s*<\?xml[^>]*\?>", "", text)


def restore_host(
    world: World,
    spec: HostSpec,
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
    unread: InvalidInput | None = None,
) -> Outcome:
    """Make every vGPU that host.yaml and the VMs' promises name and that is missing.

    `unread`: why host.yaml could not be read; the VMs' vGPUs do not need it, and come back all the same.

    Raises:
        Failed: some could not be made; `failed` in its facts lists each with its reason. The others are there.
    """
    if not dry_run:
        require_writable(world)
    vms, problems = read_domain_files(world)
    # What a GPU is set up for comes before vGPUs without a VM, and those before the VMs': each needs the one before.
    deadline = world.clock.monotonic() + spec.boot.deadline_seconds
    gpus = _restore_gpus(world, spec.gpus, vms, deadline, dry_run, wait_seconds, progress)
    problems += tuple(gpu.unseen for gpu in gpus if gpu.unseen is not None)
    parts = [*_parts_of_host(world, spec.vgpus), *_parts_of_vms(vms)]
    waiting = _incomplete(world, parts)
    if dry_run:
        planned = _planned(world, waiting, vms, problems, len(parts))
        steps = (*(s for gpu in gpus for s in gpu.steps), *planned.steps)
        return replace(planned, changed=bool(steps), steps=steps)
    restored, failed, done = _restore(world, waiting, vms, deadline, spec, wait_seconds, progress)
    restored = [_gpu_value(g) for g in gpus if g.steps and not g.error] + restored
    failed = [{**_gpu_value(g), **_why(g.error)} for g in gpus if g.error] + failed
    if unread is not None:
        failed.append({"kind": "file", "name": "host.yaml", "carriers": [], **_why(unread)})
    total = len(parts) + len(gpus) + (unread is not None)
    if failed:
        raise _failed(failed, restored, total)
    steps = (*(s for gpu in gpus for s in gpu.steps), *done)
    return Outcome(bool(steps), {"restored": restored, "complete": total - len(restored)}, steps, problems)


class _Unasked:
    """A libvirt that is not asked: before a boot's end it would wait for this very restore."""

    def status(self) -> HypervisorStatus:
        """Say so."""
        return UNASKED

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name}: libvirt is not asked while a host is restored")


def _restore_gpus(
    world: World,
    gpus: Mapping[str, GpuSpec],
    vms: tuple[Vm, ...],
    deadline: float,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> tuple[Restored, ...]:
    """Set each GPU up; one that is not ready yet, as without its driver, is tried again until the deadline."""
    quiet = replace(world, hypervisor=_Unasked())
    done: dict[str, Restored] = {}
    again: frozenset[str] | None = None
    while True:
        for gpu in restore_layout(
            quiet, gpus, vms=vms, only=again, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress
        ):
            done[gpu.address] = gpu
        again = frozenset(address for address, gpu in done.items() if _not_yet(gpu))
        late = world.clock.monotonic() >= deadline
        if late or dry_run or not again:
            return tuple(done[address] for address in sorted(done))
        world.clock.pause(PAUSE_SECONDS)


def _not_yet(gpu: Restored) -> bool:
    driver = isinstance(gpu.error, HostCannot) and gpu.error.facts.get("check") == "driver"
    return driver or isinstance(gpu.error, NotFound | Temporary)


def _gpu_value(gpu: Restored) -> dict[str, object]:
    return {"kind": "gpu", "name": gpu.address, "carriers": []}


def _why(error: VgpuctlError | None) -> dict[str, object]:
    return {} if error is None else {"code": error.code, "message": error.message, "hint": error.hint}


def _restore(
    world: World,
    waiting: list[_Part],
    vms: tuple[Vm, ...],
    deadline: float,
    spec: HostSpec,
    wait_seconds: float,
    progress: Progress,
) -> tuple[list[dict[str, object]], list[dict[str, object]], list[str]]:
    """Make each part when its GPUs are ready; returns what was restored, what failed, and the steps done."""
    restored: list[dict[str, object]] = []
    failed: list[dict[str, object]] = []
    steps: list[str] = []
    while waiting:
        late = world.clock.monotonic() >= deadline
        later = []
        seen = look_at(world, tuple(part.promise for part in waiting), vms)  # one look for all: it reads every VF
        for part in waiting:
            try:
                why = _not_ready(seen, part)
                if why is not None and not late:
                    later.append(part)
                    continue
                if why is not None:
                    raise _too_late(why, part, spec.boot.deadline_seconds)
                steps += _make(world, part, vms, seen, wait_seconds, progress)
                restored.append(_value(part))
            except Interrupted:
                raise
            except VgpuctlError as error:
                failed.append({**_value(part), **_why(error)})
            except Exception as error:  # noqa: BLE001 - one VM must not keep fifty others without their vGPUs
                bug = VgpuctlError(f"{type(error).__name__}: {error}", hint="this is a bug in vgpuctl")
                failed.append({**_value(part), **_why(bug)})
        waiting = later
        if waiting:
            world.clock.pause(PAUSE_SECONDS)
    return restored, failed, steps


def _value(part: _Part) -> dict[str, object]:
    carriers = [v.carrier for v in part.promise.vgpus]
    return {"kind": part.kind, "name": part.name, "carriers": carriers}


def _failed(failed: list[dict[str, object]], restored: list[dict[str, object]], total: int) -> Failed:
    lines = "; ".join(f"{f['kind']} {f['name']}: {f['message']}" for f in failed)
    return Failed(
        f"{len(failed)} of {total} could not be restored: {lines}",
        hint=str(failed[0]["hint"] or "put that right, then: vgpuctl restore-host"),
        failed=failed,
        restored=restored,
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
    data: dict[str, object] = {"restored": [_value(p) for p in waiting], "complete": total - len(waiting)}
    return Outcome(bool(waiting), data, tuple(steps), tuple(warnings), dry_run=True)
