# SPDX-License-Identifier: Apache-2.0
"""vGPUs without a VM: host.yaml keeps them, and whoever makes VMs with virsh or virt-install refers to them.

What keeps a VM's vGPU is the VM's promise; here it is an entry of host.yaml. So creating is claim, write the entry,
make; and removing is the same backwards. A claim alone is leaked, an entry alone is made again by restore-host.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import of
from vgpuctl.capacity.ownership import backend_of, named_owner
from vgpuctl.capacity.profiles import is_named, means
from vgpuctl.capacity.where import matching, selected
from vgpuctl.errors import Busy, Exists, InUse, InvalidInput, NotFound, SpecDiffers
from vgpuctl.model.address import is_pci
from vgpuctl.model.gpu import MDEV, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import WITHOUT_VM, NamedVgpu, Promise, PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.choose import choose, make_steps, params_text
from vgpuctl.plan.remove import not_provably_ours
from vgpuctl.steps.claims import ReleaseClaim
from vgpuctl.steps.host_file import DropVgpu, KeepVgpu
from vgpuctl.value import replace


def holder_of(machine_id: str, name: str, vgpu: PromisedVgpu) -> tuple[Vm, Promise]:
    """Return who has a vGPU without a VM, as claims and devices want it: nobody that libvirt knows, and its promise."""
    owner = named_owner(machine_id, name)
    promise = Promise(PromiseState.READY, owner, machine_id, (vgpu,), (), "{}")
    return Vm(f"{WITHOUT_VM}{name}", owner, VmState.UNKNOWN, 0, 0, promise=promise), promise


def promised(named: NamedVgpu, seen: Vgpu | None = None) -> PromisedVgpu:
    """Return an entry of host.yaml as steps want it, where it was `seen`, or where its carrier says."""
    mdev = ":" not in named.carrier
    return PromisedVgpu(
        index=0,
        backend=seen.backend if seen is not None and seen.backend is not None else backend_of(named.carrier, None),
        gpu=named.gpu,
        function=seen.function if seen is not None else named.gpu if mdev else named.carrier,
        carrier=named.carrier,
        profile=named.profile,
        framebuffer_mib=seen.framebuffer_mib if seen is not None else None,
        params=named.params,
        placement_id=seen.placement_id if seen is not None else None,
    )


def refuse_unread(snapshot: Snapshot) -> None:
    """Refuse to decide whose a vGPU is while host.yaml, which may name it, cannot be understood.

    Raises:
        InvalidInput: with the file's problems.
    """
    if snapshot.host_file_problem is not None:
        raise InvalidInput(
            snapshot.host_file_problem,
            hint=f"it says which vGPUs are kept: {snapshot.host_file_hint}",
        )


def conflicts(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a sentence for each vGPU of host.yaml whose carrier is the vGPU of a VM."""
    seen = {v.carrier: v for v in snapshot.vgpus}
    return tuple(
        f"vGPU {n.name} of host.yaml has no place of its own: {n.carrier} is the vGPU of {seen[n.carrier].holder}"
        for n in snapshot.named
        if n.carrier in seen and seen[n.carrier].name != n.name
    )


def refuse_existing(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that host.yaml has.

    Raises:
        Exists: saying where it is, and whether its device is there.
    """
    known = next((n for n in snapshot.named if n.name == name), None)
    if known is not None:
        there = any(v.name == name and v.present for v in snapshot.vgpus)
        raise Exists(
            f"a vGPU {name} exists already: {known.profile} on {known.gpu} ({known.carrier})"
            f"{'' if there else ', its device is missing'}",
            hint="choose another name" if there else "vgpuctl restore-host makes it again",
            vgpu=name,
            carrier=known.carrier,
        )


def refuse_changed(snapshot: Snapshot, entry: NamedVgpu, seen: Vgpu) -> None:
    """Refuse to call a vGPU the one of host.yaml when its device is not as host.yaml says: somebody changed it by hand.

    Raises:
        SpecDiffers: facts hold what was seen.
    """
    if seen.present and seen.reason is not None and entry.carrier not in snapshot.unreadable_claims:
        raise SpecDiffers(
            f"vGPU {entry.name} is not as host.yaml says: {seen.reason}",
            hint=f"vgpuctl delete-vgpu {entry.name}, then run the command again",
            vgpu=entry.name,
            carrier=entry.carrier,
        )


def refuse_different(snapshot: Snapshot, entry: NamedVgpu, wish: VmWish) -> None:
    """Refuse a wish that asks for something else than the vGPU of that name is; what was not typed does not count.

    Nor does how its GPU was chosen, but for those that were named or left out by name.

    `snapshot` has the types of its GPU when a profile was typed, and models when a GPU was.

    Raises:
        SpecDiffers: facts hold before and after.
        NotFound: no GPU here is the one that was typed.
    """
    gpu = snapshot.gpu(entry.gpu)
    types = [t for t in gpu.types if t.profile == entry.profile] if gpu is not None else []
    profiles = [text for text, _ in wish.profiles]
    same = {
        "profile": all(_same(entry.profile, types, text) for text in profiles),
        "gpu": gpu is None or gpu in selected(snapshot, wish.where),
        "not_gpu": gpu is None or not any(matching((gpu,), text) for text in wish.where.not_gpus),
        "vgpu_params": not wish.vgpu_params or params_text(wish) == entry.params,
    }
    before = {"profile": entry.profile, "gpu": entry.gpu, "not_gpu": entry.gpu, "vgpu_params": entry.params}
    after = {
        "profile": ", ".join(profiles),
        "gpu": " or ".join(wish.where.gpus),
        "not_gpu": f"not {' or '.join(wish.where.not_gpus)}",
        "vgpu_params": params_text(wish),
    }
    changed = [field for field, is_same in same.items() if not is_same]
    if changed:
        said = "; ".join(f"{field}: it is {before[field] or 'none'}, not {after[field]}" for field in changed)
        raise SpecDiffers(
            f"vGPU {entry.name} is there and differs: {said}",
            hint=f"choose another name, or remove it first: vgpuctl delete-vgpu {entry.name}",
            vgpu=entry.name,
            before={field: before[field] for field in changed},
            after={field: after[field] for field in changed},
        )


def _same(profile: str, types: Sequence[VgpuType], text: str) -> bool:
    """Say whether a text means a profile; `types`: what the driver says of it now, nothing where it hides it."""
    return any(means(known, text) for known in types) or any(is_named(profile, one) for one in text.split("|"))


def chosen(snapshot: Snapshot, wish: VmWish, owner: str, exclude: frozenset[str]) -> PromisedVgpu:
    """Return the one vGPU that is asked for.

    Raises:
        InvalidInput: several are asked for, or its GPU has no PCI address, by which host.yaml names GPUs.
        VgpuctlError: as `choose`.
    """
    if sum(count for _, count in wish.profiles) != 1:
        raise InvalidInput("create-vgpu makes one vGPU", hint="run it once for each, with a NAME each")
    (vgpu,) = choose(snapshot, wish, owner, exclude)
    if not is_pci(vgpu.gpu):
        raise InvalidInput(
            f"{vgpu.gpu} has no PCI address, by which host.yaml names GPUs",
            hint="vgpuctl create-vm gives its vGPUs to VMs",
            gpu=vgpu.gpu,
        )
    return vgpu


def named_as(name: str, vgpu: PromisedVgpu) -> NamedVgpu:
    """Return the entry for host.yaml."""
    return NamedVgpu(name, vgpu.profile or "", vgpu.gpu, vgpu.carrier, vgpu.params)


def create_plan(snapshot: Snapshot, name: str, vgpu: PromisedVgpu) -> Plan:
    """Return the steps after the claim: write the entry, make the device."""
    return Plan((KeepVgpu(named_as(name, vgpu)), *make_steps(snapshot, vgpu)))


def find_named(snapshot: Snapshot, name: str) -> tuple[NamedVgpu, Vgpu]:
    """Return an entry of host.yaml and what is seen of it.

    Raises:
        NotFound: with names that are near.
        InUse: a VM was promised its carrier.
    """
    entry = next((n for n in snapshot.named if n.name == name), None)
    if entry is None:
        import difflib

        near = difflib.get_close_matches(name, [n.name for n in snapshot.named], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "vgpuctl list-vgpus shows those there are"
        raise NotFound(f"there is no vGPU {name} in host.yaml", hint=hint, vgpu=name, near=near)
    seen = next(v for v in snapshot.vgpus if v.carrier == entry.carrier)
    if seen.name != name:
        raise InUse(
            f"{entry.carrier}, which host.yaml names for vGPU {name}, is the vGPU of {seen.holder}",
            hint="take the entry out of host.yaml by hand",
            vgpu=name,
            carrier=entry.carrier,
        )
    return entry, seen


def refuse_used(snapshot: Snapshot, entry: NamedVgpu) -> None:
    """Refuse to take a vGPU from VMs that refer to it, whether they run or not, unless they lend it while they are off.

    Raises:
        InUse: naming them.
    """
    vms = [vm.name for vm in snapshot.vms if vm.refers_to(entry.carrier)]
    if vms:
        raise _used(entry, vms)


def _used(entry: NamedVgpu, vms: list[str]) -> InUse:
    return InUse(
        f"vGPU {entry.name} ({entry.carrier}) is in use by {', '.join(vms)}",
        hint=f"take it away from there first: virsh detach-device {vms[0]} FILE --persistent (--live --config)",
        vgpu=entry.name,
        carrier=entry.carrier,
        vms=vms,
    )


def somebody_elses(snapshot: Snapshot, entry: NamedVgpu, vgpu: PromisedVgpu) -> frozenset[str]:
    """Return the carrier when the device there may be somebody else's; to be asked before it is claimed."""
    return not_provably_ours(snapshot, *holder_of(snapshot.machine_id, entry.name, vgpu))


def removal_plan(machine_id: str, entry: NamedVgpu, vgpu: PromisedVgpu, leave: frozenset[str]) -> Plan:
    """Return the steps that remove a vGPU without a VM: its device unless it is to be left, its entry, its claim."""
    holder, _ = holder_of(machine_id, entry.name, vgpu)
    steps: list[Step] = [] if leave else list(of(vgpu.backend).remove(vgpu))
    steps += [DropVgpu(entry), ReleaseClaim(vgpu.carrier, holder.uuid)]
    notes = tuple(f"what is on {c} is not {entry.name}: somebody else set it; it stays" for c in sorted(leave))
    return Plan(tuple(steps), notes=notes, undo_on_failure=False)


def refuse_promised(vms: tuple[Vm, ...], entry: NamedVgpu) -> None:
    """Refuse to make a vGPU of host.yaml whose carrier a VM was promised for always.

    Raises:
        Busy: naming the VM.
    """
    for vm in vms:
        kept = vm.promise.vgpus if vm.promise is not None and not vm.promise.lends else ()
        if any(v.carrier == entry.carrier for v in kept):
            raise Busy(
                f"{entry.carrier} is taken by {vm.name}",
                hint=f"take vGPU {entry.name} out of host.yaml; vgpuctl show-gpu {entry.gpu}",
                carrier=entry.carrier,
                vm=vm.name,
            )


def hostdev(vgpu: PromisedVgpu) -> str:
    """Return the element for a VM's definition, without an alias: libvirt finds one that is free there."""
    from vgpuctl.domain.edit import hostdev_xml  # with lxml, which a host without such vGPUs spares

    return hostdev_xml(replace(of(vgpu.backend).hostdev(vgpu), alias=""), indented=True)


def usage(vgpu: PromisedVgpu) -> tuple[str, ...]:
    """Return how a VM gets it.

    virt-install takes the node device's name, which since libvirt 7.3 is the mdev's UUID and its parent. Of a PCI
    function it would say managed='yes', with which libvirt waits for ever for a vendor's VF: it is given the element.
    """
    attach = "virsh attach-device VM FILE --persistent"
    if vgpu.backend in MDEV:
        device = f"mdev_{vgpu.carrier}_{vgpu.function}".translate(str.maketrans("-:.", "___"))
        return attach, f"virt-install --hostdev {device}"
    return attach, "virt-install --print-xml > VM.xml, put the element before </devices>, virsh define VM.xml"
