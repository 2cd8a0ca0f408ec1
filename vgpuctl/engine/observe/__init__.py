# SPDX-License-Identifier: Apache-2.0
"""Observe a host through its seams: one reader per source, joined by a pure function.

Nothing is written and no lock is needed. A device that cannot be read is kept and named in its `problem`; it
never stops the others from being seen, and never counts as free. Claims and stuck writes that may not be read, as
without root, are told and not taken for none.
"""

from __future__ import annotations

from vgpuctl.capacity.ownership import join
from vgpuctl.engine.observe.host_file import HostFileRead, read_host_file
from vgpuctl.engine.observe.pci import Found, read_gpus
from vgpuctl.errors import FileFailed
from vgpuctl.model.address import normal_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.records import ClaimsRead, HypervisorStatus, NvmlStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, NamedVgpu, StuckWrite, Vm
from vgpuctl.model.wish import VmWish
from vgpuctl.model.world import World
from vgpuctl.steps.claims import reading
from vgpuctl.value import Value, replace


class Want(Value):
    """How much to read.

    `types`: the vGPU types and what can be made now (thousands of files on a large mdev host).
    `every_function`: also SR-IOV functions of other classes and endpoints on vfio-pci or no driver (`--all`).
    `models`: product names for people. `only`: these GPUs alone, by address.
    `profiles`: read what can be made now only of types that one of these texts names.
    `known`: GPUs seen a moment ago; what does not change is taken from them (names, types, NVML), and of the
    availability files only those of `type_ids` are read. This is the look under the host lock: milliseconds.
    `functions`: of the VFs of a GPU in `known` that have NVIDIA's vendor-specific VFIO, these alone are read again: who
    makes a device needs its own VF as it is now, and of the others what is claimed. A card may have 48 of them.
    `carriers`: the claims on these alone.
    `named`: the vGPUs that host.yaml keeps, seen a moment ago; then the file is not read, which takes most of a short
    command's time. None: it is read. Who neither places anything nor shows GPUs, as mostly libvirt's hook, gives none:
    what is claimed for them says enough.
    """

    types: bool = False
    every_function: bool = False
    models: bool = True
    only: frozenset[str] | None = None
    type_ids: frozenset[str] | None = None
    known: tuple[Gpu, ...] = ()
    profiles: frozenset[str] | None = None
    functions: frozenset[str] | None = None
    carriers: frozenset[str] | None = None
    named: tuple[NamedVgpu, ...] | None = None


def looked_for(wish: VmWish) -> Want:
    """Return how much must be read to place the vGPUs of a VM."""
    by_model = any(normal_pci(text) is None for text in (*wish.where.gpus, *wish.where.not_gpus))
    return Want(
        types=wish.mode == "vgpu",
        models=by_model,
        every_function=wish.mode != "vgpu",
        profiles=frozenset(text for text, _ in wish.profiles),
    )


def observe(world: World, want: Want) -> Snapshot:
    """Take one look at the whole host."""
    from vgpuctl.engine.observe.vms import read_vms  # needs lxml, which libvirt's hook does without

    status = world.hypervisor.status()
    vms: tuple[Vm, ...] = ()
    warnings: list[str] = []
    if status.available:
        vms, problems = read_vms(world)
        warnings += problems
    else:
        warnings.append(f"VMs are unknown: {status.reason}")
    return observe_devices(world, want, vms=vms, status=status, warnings=tuple(warnings))


def observe_vm(world: World, uuid: str) -> Snapshot:
    """Look at one VM and its GPUs: what a command that made or changed it reports, however many others there are.

    The other VMs are not read, so whose the other devices on these GPUs are is not known here.
    """
    from vgpuctl.engine.observe.vms import read_vm

    status = world.hypervisor.status()
    record = world.hypervisor.find_domain(uuid)
    vms = () if record is None else (read_vm(world, record),)
    promised = [v for vm in vms if vm.promise is not None for v in vm.promise.vgpus]
    carriers = frozenset(v.carrier for v in promised)
    gpus = frozenset(v.gpu for v in promised) | claimed_gpus(world, uuid, carriers)
    want = Want(models=False, only=gpus, carriers=carriers, named=())
    return observe_devices(world, want, vms=vms, status=status)


def claimed_gpus(world: World, uuid: str, carriers: frozenset[str]) -> frozenset[str]:
    """Return the GPUs of a VM's claims: an mdev that is made at each start may be on another one than its record says.

    Claims that may not be read are told by the look itself.
    """
    try:
        return frozenset(c.gpu for c in world.claims.read(carriers).claims if c.vm_uuid == uuid)
    except OSError:
        return frozenset()


def observe_devices(
    world: World,
    want: Want,
    *,
    vms: tuple[Vm, ...],
    status: HypervisorStatus,
    warnings: tuple[str, ...] = (),
) -> Snapshot:
    """Look at the devices and claims only, and join them with VMs seen before; makes no libvirt call."""
    said = read_host_file(world) if want.named is None else HostFileRead(named=want.named)
    found = _found(world, replace(want, models=True) if said.by_model else want)
    gpus = said.desired(found.gpus, () if want.named is None else want.known)
    named = tuple(n for n in said.named if want.only is None or n.gpu in want.only)
    read, stuck, problems = _records(world, want)
    live = _live(world, read.claims, vms)
    known = status.available and said.problem is None
    notes = [*warnings, *found.warnings, *problems, *said.warnings]
    notes += [f"the claim on {c} cannot be read; {c} counts as taken" for c in read.unreadable]
    return Snapshot(
        gpus=gpus,
        vms=vms,
        claims=read.claims,
        vgpus=join(gpus, vms, read.claims, live, read.unreadable, named=named, owners_known=known),
        stuck=stuck,
        hypervisor=status,
        nvml=found.nvml,
        machine_id=world.machine_id,
        live_claims=live,
        unreadable_claims=read.unreadable,
        warnings=tuple(notes),
        host_file_problem=said.problem,
        host_file_hint=said.hint,
        named=said.named,
        placement=said.placement,
        partial=want.only is not None,
        left_out=found.warnings,
    )


def _records(world: World, want: Want) -> tuple[ClaimsRead, tuple[StuckWrite, ...], list[str]]:
    """Read the claims and the stuck writes; what only root may see is told, anything else that fails is an error."""
    read = ClaimsRead((), ())
    stuck: tuple[StuckWrite, ...] = ()
    closed: list[str] = []
    with reading("the claims"):
        try:
            read = world.claims.read(want.carriers)
        except PermissionError as error:
            closed.append(f"the claims ({error.filename})")
    with reading("the records of stuck writes"):
        try:
            stuck = world.claims.stuck()
        except PermissionError as error:
            closed.append(f"the records of stuck writes ({error.filename})")
    if not closed:
        return read, stuck, []
    text = " and ".join(closed)
    return read, stuck, [f"{text} cannot be read without root: what they say is missing here"]


def _live(world: World, claims: tuple[Claim, ...], vms: tuple[Vm, ...]) -> frozenset[str]:
    """Return the carriers whose claiming process still lives.

    Under the host lock only claims of VMs that were not seen are asked about: the others' processes do not change
    what is taken, and asking about hundreds takes milliseconds.
    """
    if world.claims.held:
        known = frozenset(vm.uuid for vm in vms)
        claims = tuple(c for c in claims if c.vm_uuid not in known)
    processes = {(c.process.pid, c.process.start_ticks): c.process for c in claims}
    alive = frozenset(key for key, process in processes.items() if world.processes.alive(process))
    return frozenset(c.carrier for c in claims if (c.process.pid, c.process.start_ticks) in alive)


def _found(world: World, want: Want) -> Found:
    """Read the GPUs; a listing that fails as a whole does not mean that there are none."""
    try:
        return read_gpus(world, want)
    except OSError as error:
        raise FileFailed(
            f"the devices of this host cannot be read: {error.strerror or error} ({error.filename})",
            hint="the kernel log says more: journalctl -k -n 20",
            errno=error.errno,
            path=error.filename,
        ) from error


__all__ = ["Claim", "NvmlStatus", "Want", "claimed_gpus", "looked_for", "observe", "observe_devices", "observe_vm"]
