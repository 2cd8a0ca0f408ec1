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

from vgpuctl.backends import of
from vgpuctl.capacity.room import room
from vgpuctl.domain.parse import parse
from vgpuctl.engine.claim import claims_of, reclaim
from vgpuctl.engine.devices import (
    DOMAINS,
    UNASKED,
    has_devices,
    look_at,
    make_devices,
    missing_devices,
    planned_devices,
)
from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.layout import Restored, restore_layout
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import (
    Busy,
    Failed,
    HostCannot,
    Interrupted,
    InvalidInput,
    LibvirtFailed,
    NoCapacity,
    NotFound,
    Temporary,
    VgpuctlError,
)
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Promise, PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.plan.choose import type_id_now
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec

PAUSE_SECONDS = 1.0
_MDEV = (Backend.MDEV_PF, Backend.MDEV_VF)


class _Part(Value):
    """One thing to restore: a VM's vGPUs, or one vGPU of host.yaml (`vm` is then only its name)."""

    name: str
    kind: str
    vm: Vm
    promise: Promise


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
        raise _unreadable(DOMAINS, error) from error
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


def _unreadable(path: str, error: OSError) -> Failed:
    return Failed(
        f"{path} cannot be read: {error.strerror or error}",
        hint=f"run this as root; ls -ld {path}",
        path=path,
        errno=error.errno,
    )


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
    parts = [*_parts_of_host(world, spec.vgpus), *_parts_of_vms(vms)]
    waiting = [part for part in parts if _incomplete(world, part)]
    if dry_run:
        planned = _planned(world, waiting, vms, problems, len(parts))
        steps = (*(s for gpu in gpus for s in gpu.steps), *planned.steps)
        return replace(planned, changed=bool(steps), steps=steps)
    restored, failed, done = _restore(world, waiting, vms, deadline, spec, wait_seconds, progress)
    restored = [_gpu_value(g) for g in gpus if g.steps and not g.error] + restored
    failed = [{**_gpu_value(g), **_why(g.error)} for g in gpus if g.error] + failed
    if unread is not None:
        failed.append({"kind": "file", "name": "host.yaml", "carriers": [], **_why(unread)})
    total = len(parts) + len(gpus)
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
    while True:
        todo = {address: gpu for address, gpu in gpus.items() if address not in done or _not_yet(done[address])}
        for gpu in restore_layout(quiet, todo, vms=vms, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress):
            done[gpu.address] = gpu
        late = world.clock.monotonic() >= deadline
        if late or dry_run or not any(_not_yet(gpu) for gpu in done.values()):
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
        for part in waiting:
            try:
                why = _not_ready(world, part, vms)
                if why is not None and not late:
                    later.append(part)
                    continue
                if why is not None:
                    raise _too_late(why, part, spec.boot.deadline_seconds)
                steps += _make(world, part, vms, wait_seconds, progress)
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
    """Return the vGPUs of host.yaml, each as a promise to nobody: its carrier stands for the VM it does not have."""
    parts = []
    for name, spec in sorted(vgpus.items()):
        mdev = ":" not in spec.carrier
        backend = Backend.MDEV_PF if mdev else Backend.VENDOR_VF
        function = spec.gpu if mdev else spec.carrier
        vgpu = PromisedVgpu(0, backend, spec.gpu, function, spec.carrier, spec.profile)
        owner = spec.carrier
        promise = Promise(PromiseState.READY, owner, world.machine_id, (vgpu,), (), "{}")
        parts.append(_Part(name, "vgpu", Vm(f"vgpu {name}", owner, VmState.UNKNOWN, 0, 0, promise=promise), promise))
    return parts


def _incomplete(world: World, part: _Part) -> bool:
    if part.kind == "vm":
        try:
            return missing_devices(world, part.vm, part.promise)
        except VgpuctlError:
            return True  # whatever it is, making it tells
    snapshot = look_at(world, part.promise, (part.vm,))
    return not any(v.present and v.carrier == part.promise.vgpus[0].carrier for v in snapshot.vgpus)


def _not_ready(world: World, part: _Part, vms: tuple[Vm, ...]) -> str | None:
    """Say what a part's GPUs still lack, or None when its vGPUs can be made, or refused, now."""
    snapshot = look_at(world, part.promise, vms)
    for promised in part.promise.vgpus:
        why = _gpu_lacks(snapshot, snapshot.gpu(promised.gpu), promised)
        if why is not None:
            return why
    return None


def _gpu_lacks(snapshot: Snapshot, gpu: Gpu | None, promised: PromisedVgpu) -> str | None:
    if gpu is None:
        return f"the GPU {promised.gpu} is not there"
    wanted = (Backend.MDEV_PF, Backend.MDEV_VF) if promised.backend in _MDEV else (promised.backend,)
    if gpu.backend not in wanted:
        vfs = f", {gpu.vfs_enabled} of {gpu.vfs_total} VFs" if gpu.vfs_total else ""
        return f"the GPU {gpu.address} offers no vGPUs yet (driver {gpu.driver or 'none'}{vfs})"
    if gpu.backend is promised.backend and promised.function != gpu.address:
        function = gpu.function_at(promised.function)
        if function is None:
            return f"the VF {promised.function} is not there"
        if function.problem is not None:
            return f"{function.address}: {function.problem}"
    if not gpu.types and not any(v.present for v in snapshot.taken_on(gpu.address)):
        return f"the driver of {gpu.address} lists no vGPU types"
    return None


def _on_a_function(snapshot: Snapshot, part: _Part) -> _Part:
    """Return a vGPU of host.yaml with the backend its GPU has, and on VFs that carry mdevs with a free one."""
    promised = part.promise.vgpus[0]
    gpu = snapshot.gpu(promised.gpu)
    if gpu is None or gpu.backend is not Backend.MDEV_VF:
        return part
    known = next((t for t in gpu.types if t.profile == promised.profile), None)
    others = tuple(v for v in snapshot.taken_on(gpu.address) if v.carrier != promised.carrier)
    space = None if known is None else room(gpu, others, known)
    if space is None or not space.some:
        raise NoCapacity(
            f"no room for {promised.profile} on {gpu.address}",
            hint=f"vgpuctl explain {promised.profile}",
            gpu=gpu.address,
        )
    vgpus = (replace(promised, backend=Backend.MDEV_VF, function=space.functions[0]),)
    return replace(part, promise=replace(part.promise, vgpus=vgpus))


def _make(world: World, part: _Part, vms: tuple[Vm, ...], wait_seconds: float, progress: Progress) -> tuple[str, ...]:
    if part.kind == "vm":
        return make_devices(world, part.vm, part.promise, vms, wait_seconds, progress)
    part = _on_a_function(look_at(world, part.promise, vms), part)
    reclaim(world, claims_of(world, part.vm.name, part.promise), wait_seconds)
    try:
        plan = _plan_without_vm(world, part, vms)
        carry_out(world, plan, progress)
    finally:  # no VM stands behind this claim: it kept the place while the device was made
        for vgpu in part.promise.vgpus:
            world.claims.remove(vgpu.carrier, part.vm.uuid)
    return tuple(s.describe() for s in plan.steps)


def _plan_without_vm(world: World, part: _Part, vms: tuple[Vm, ...]) -> Plan:
    promised = part.promise.vgpus[0]
    snapshot = look_at(world, part.promise, vms)
    taken = [v for v in snapshot.vgpus if v.carrier == promised.carrier and v.vm_uuid != part.vm.uuid]
    if taken:
        raise Busy(
            f"{promised.carrier} is taken by {taken[0].vm or 'somebody else'}",
            hint=f"vgpuctl show-gpu {promised.gpu}",
            carrier=promised.carrier,
            vm=taken[0].vm,
        )
    return Plan(steps=of(promised.backend).make(promised, type_id_now(snapshot, promised)))


def _planned(world: World, waiting: list[_Part], vms: tuple[Vm, ...], problems: tuple[str, ...], total: int) -> Outcome:
    """Return what would be done now; what is not ready yet is said in a warning."""
    steps: list[str] = []
    warnings = list(problems)
    for part in waiting:
        why = _not_ready(world, part, vms)
        try:
            if why is not None:
                warnings.append(f"{part.kind} {part.name} would be waited for: {why}")
            elif part.kind == "vm":
                steps += [s.describe() for s in planned_devices(world, part.vm, part.promise, vms).steps]
            else:
                there = _on_a_function(look_at(world, part.promise, vms), part)
                steps += [s.describe() for s in _plan_without_vm(world, there, vms).steps]
        except VgpuctlError as error:
            warnings.append(f"{part.kind} {part.name} would fail: {error.message}")
    data: dict[str, object] = {"restored": [_value(p) for p in waiting], "complete": total - len(waiting)}
    return Outcome(bool(waiting), data, tuple(steps), tuple(warnings), dry_run=True)
