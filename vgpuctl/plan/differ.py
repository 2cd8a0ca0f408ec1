# SPDX-License-Identifier: Apache-2.0
"""Compare what was typed with a VM that exists. Only typed fields count: a default never makes a difference.

A profile may be typed by its short name, the driver's full name or a type id, and a GPU by address or model. The
record keeps both texts as they were typed, so that the same spec means the same VM, also after a driver update
gave its types new ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from vgpuctl.capacity.profiles import is_named, means
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.scheduler import Policy
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.model.wish import ExistingDisk, NewDisk, VmWish, Where

Side = dict[str, object]
_PLACED = ("not_gpu", "numa_node", "spread_group", "scheduler")


def differences(
    vm: Vm, wish: VmWish, meant_gpus: Set[str] = frozenset(), types: Sequence[VgpuType] = ()
) -> tuple[Side, Side]:
    """Return (before, after) of the typed fields in which the VM differs from the wish; empty when it does not.

    What a domain shows is compared with the domain; what it does not show (os, template, spare ports, plugin
    parameters, the path of the user-data) with the spec that its record keeps. `meant_gpus`: the addresses that a
    typed model means on this host, `types`: those of the VM's GPUs; only the engine can say, and need not when the
    record keeps the same text.
    """
    kept = _kept(vm)
    before = _observed(vm, kept)
    after = _wanted(wish)
    after["profile"] = _count(meant_profile(vm, p, types) for p, n in wish.profiles for _ in range(n))
    if same_gpu(vm, wish) or (promise_gpus(vm) and promise_gpus(vm) <= meant_gpus):
        before["gpu"] = after["gpu"]
    changed = [f for f in after if wish.typed(f) and f in before and before[f] != after[f]]
    return {f: before[f] for f in changed}, {f: after[f] for f in changed}


def same_gpu(vm: Vm, wish: VmWish) -> bool:
    """Say whether the VM's GPUs are among those typed, or these are the texts it was made with; none typed is any."""
    typed = wish.where.gpus
    has = promise_gpus(vm)
    return not typed or (bool(has) and has <= set(typed)) or _texts(_kept(vm).get("gpu")) == typed


def meant_profile(vm: Vm, text: str, types: Sequence[VgpuType] = ()) -> str:
    """Return the profile that a typed text means on this VM, or the text itself. `types`: those of its GPUs now."""
    recorded = _short_name(vm, _kept(vm), text)
    have = {v.profile for v in vm.promise.vgpus} if vm.promise else set()
    if recorded in have:
        return recorded
    return next((t.profile for t in types if t.profile in have and means(t, text)), recorded)


def types_of(snapshot: Snapshot, vm: Vm) -> tuple[VgpuType, ...]:
    """Return the types that a snapshot has of a VM's GPUs."""
    addresses = promise_gpus(vm)
    return tuple(t for g in snapshot.gpus if g.address in addresses for t in g.types)


def _kept(vm: Vm) -> Side:
    return vm.promise.asked if vm.promise else {}


def _short_name(vm: Vm, kept: Side, text: str) -> str:
    """Return the profile that a typed text means on this VM: its record says it, its name, or a full name's last word.

    A VM that was made with one full name does not match another one with the same last word. Of several with `|`
    between them each one counts. A driver that hides types of a GPU in use need not be asked for any of these.
    """
    vgpus = vm.promise.vgpus if vm.promise else ()
    texts = kept.get("profile")
    typed = [str(t) for t in texts] if isinstance(texts, list) and len(texts) == len(vgpus) else [""] * len(vgpus)
    for vgpu, was in zip(vgpus, typed, strict=True):
        if vgpu.profile and (text == was or any(_says(vgpu.profile, was, one) for one in text.split("|"))):
            return vgpu.profile
    return text


def _says(profile: str, was: str, one: str) -> bool:
    return is_named(profile, one) or (" " not in was and one.lower().split()[-1:] == [profile.lower()])


def _observed(vm: Vm, kept: Side) -> Side:
    promise = vm.promise
    made = promise.own_disks() if promise else ()
    clones = [d for d in made if d.base is not None]
    empty = [d.capacity_bytes >> 20 for d in made if d.base is None]
    paths = {d.path for d in promise.disks} if promise else set()
    existing = [d.source for d in vm.disks if d.device == "disk" and d.source not in paths]
    values: Side = {
        "profile": _count(v.profile for v in promise.vgpus if v.profile) if promise else {},
        "memory": vm.memory_mib,
        "vcpus": vm.vcpus,
        "network": vm.networks[0] if vm.networks else None,
        "image": clones[0].base if clones else None,
        "disk": sorted([mib_text(m) for m in empty] + [str(p) for p in existing]),
        "cdrom": next((d.source for d in vm.disks if d.device == "cdrom" and d.source not in paths), None),
        "cloud_init": None,
        "storage_pool": made[0].pool if made else None,
        "reserve": promise.reserve if promise else None,
        **dict.fromkeys(_PLACED),
    }
    from vgpuctl.spec.fields import PCI_WINDOW_AUTO  # with every field, which libvirt's hook does without

    shown = {"pci_window": PCI_WINDOW_AUTO} | {f: v for f, v in kept.items() if f != "profile"}
    gpu = kept.get("gpu") or ", ".join(sorted(promise_gpus(vm))) or None
    return values | shown | {"gpu": gpu}


def promise_gpus(vm: Vm) -> set[str]:
    """Return the addresses of the GPUs that a VM's vGPUs are on."""
    return {v.gpu for v in vm.promise.vgpus} if vm.promise else set()


def kept_spec(wish: VmWish) -> str:
    """Return, as JSON, the fields that a domain does not show: they are kept in the VM's record.

    The profiles are kept as typed, one text for each vGPU in the order of the promise's.
    """
    from vgpuctl.spec.fields import PCI_WINDOW_AUTO  # as above

    wanted = _wanted(wish)
    kept = {f: wanted[f] for f in ("gpu", "mode", "os", "template", "hotplug_slots", "vgpu_params")}
    if wish.pci_window != PCI_WINDOW_AUTO:
        kept["pci_window"] = wish.pci_window
    kept |= {f: wanted[f] for f in _PLACED if wanted[f] is not None}
    if wish.where.policy is not None:
        kept["placement"] = wish.where.policy
    kept["profile"] = [p for p, n in wish.profiles for _ in range(n)]
    if wish.force_console:
        kept["force_console"] = True
    if wish.cloud_init is not None:
        kept["cloud_init"] = wish.cloud_init.path
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def kept_where(kept: Side) -> Where:
    """Return where a VM's vGPUs may go by what its record keeps of its spec."""
    node, group = kept.get("numa_node"), kept.get("spread_group")
    policy, scheduler = kept.get("placement"), kept.get("scheduler")
    return Where(
        gpus=_texts(kept.get("gpu")),
        not_gpus=_texts(kept.get("not_gpu")),
        numa_node=node if isinstance(node, int) else None,
        spread_group=str(group) if group is not None else None,
        scheduler=next((p for p in Policy if p == scheduler), None),
        policy=str(policy) if policy is not None else None,
    )


def _texts(kept: object) -> tuple[str, ...]:
    """Return the names of GPUs as a record keeps them: none, one, or a list."""
    return tuple(str(t) for t in kept) if isinstance(kept, list) else () if kept is None else (str(kept),)


def _written(texts: tuple[str, ...]) -> object:
    """Return the names of GPUs as a record keeps them."""
    return (texts[0] if len(texts) == 1 else list(texts)) if texts else None


def _wanted(wish: VmWish) -> Side:
    sizes = [mib_text(d.size_mib) for d in wish.disks if isinstance(d, NewDisk)]
    paths = [d.path for d in wish.disks if isinstance(d, ExistingDisk)]
    return {
        "memory": wish.memory_mib,
        "vcpus": wish.vcpus,
        "network": wish.network,
        "image": wish.image,
        "disk": sorted(sizes + paths),
        "cdrom": wish.cdrom,
        "cloud_init": wish.cloud_init.path if wish.cloud_init else None,
        "storage_pool": wish.storage_pool,
        "gpu": _written(wish.where.gpus),
        "not_gpu": _written(wish.where.not_gpus),
        "numa_node": wish.where.numa_node,
        "spread_group": wish.where.spread_group,
        "scheduler": str(wish.where.scheduler) if wish.where.scheduler is not None else None,
        "mode": wish.mode,
        "os": wish.os,
        "template": wish.template,
        "hotplug_slots": wish.hotplug_slots,
        "pci_window": wish.pci_window,
        "vgpu_params": dict(wish.vgpu_params),
        "reserve": wish.reserve,
    }


def _count(profiles: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(profiles).items()))
