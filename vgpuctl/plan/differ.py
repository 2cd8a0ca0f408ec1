# SPDX-License-Identifier: Apache-2.0
"""Compare what was typed with a VM that exists. Only typed fields count: a default never makes a difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from vgpuctl.model.vm import Vm
from vgpuctl.model.wish import ExistingDisk, NewDisk, VmWish

Side = dict[str, object]


def differences(vm: Vm, wish: VmWish) -> tuple[Side, Side]:
    """Return (before, after) of the typed fields in which the VM differs from the wish; empty when it does not.

    What a domain shows is compared with the domain; what it does not show (os, template, spare ports, plugin
    parameters) with the spec that its record keeps.
    """
    before = _observed(vm)
    after = _wanted(wish)
    if promise_gpus(vm) == {after["gpu"]}:
        before["gpu"] = after["gpu"]
    changed = [f for f in after if wish.typed(f) and f in before and before[f] != after[f]]
    return {f: before[f] for f in changed}, {f: after[f] for f in changed}


def _observed(vm: Vm) -> Side:
    promise = vm.promise
    made = promise.disks if promise else ()
    clones = [d for d in made if d.base is not None]
    empty = [d.capacity_bytes >> 20 for d in made if d.base is None]
    paths = {d.path for d in made}
    existing = [d.source for d in vm.disks if d.device == "disk" and d.source not in paths]
    values: Side = {
        "profile": _count(v.profile for v in promise.vgpus if v.profile) if promise else {},
        "memory": vm.memory_mib,
        "vcpus": vm.vcpus,
        "network": vm.networks[0] if vm.networks else None,
        "image": clones[0].base if clones else None,
        "disk": sorted([f"{m} MiB" for m in empty] + [str(p) for p in existing]),
        "cdrom": next((d.source for d in vm.disks if d.device == "cdrom"), None),
        "storage_pool": made[0].pool if made else None,
    }
    return values | (json.loads(promise.spec) if promise else {})


def promise_gpus(vm: Vm) -> set[object]:
    """Return the addresses of the GPUs that a VM's vGPUs are on."""
    return {v.gpu for v in vm.promise.vgpus} if vm.promise else set()


def kept_spec(wish: VmWish) -> str:
    """Return, as JSON, the fields that a domain does not show: they are kept in the VM's record."""
    wanted = _wanted(wish)
    kept = {f: wanted[f] for f in ("gpu", "mode", "os", "template", "hotplug_slots", "vgpu_params")}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def _wanted(wish: VmWish) -> Side:
    sizes = [f"{d.size_mib} MiB" for d in wish.disks if isinstance(d, NewDisk)]
    paths = [d.path for d in wish.disks if isinstance(d, ExistingDisk)]
    return {
        "profile": _count(p for p, n in wish.profiles for _ in range(n)),
        "memory": wish.memory_mib,
        "vcpus": wish.vcpus,
        "network": wish.network,
        "image": wish.image,
        "disk": sorted(sizes + paths),
        "cdrom": wish.cdrom,
        "storage_pool": wish.storage_pool,
        "gpu": wish.gpu,
        "mode": wish.mode,
        "os": wish.os,
        "template": wish.template,
        "hotplug_slots": wish.hotplug_slots,
        "vgpu_params": dict(wish.vgpu_params),
    }


def _count(profiles: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(profiles).items()))
