# SPDX-License-Identifier: Apache-2.0
"""What a host has room for, as its agent says it to a controller (`GET /v1/fleet/room`).

GPUs are described by the rules by which they are divided and by what is on them now, so that the controller counts for
any mix of desktops what the host itself would count.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.value import EMPTY_MAPPING, Value

MUCH_MIB = 65536


class ProfileRule(Value):
    """What one vGPU of a profile takes; which fields count depends on the `form` of its `DivisionRule`.

    `starts`, `size`: it covers so many adjacent slices, from one of these. `units`: what it takes of pools, each as the
    number of the pool and the units. `maximum`: how many of it a GPU takes, or a GPU instance. `instance_profile`: the
    GPU instance profile that it needs.
    """

    profile: str
    framebuffer_mib: int
    starts: tuple[int, ...] = ()
    size: int = 0
    units: tuple[tuple[int, ...], ...] = ()
    maximum: int = 0
    instance_profile: int = 0


class DivisionRule(Value):
    """How GPUs of one model are divided.

    `form`: `slices`, `one-size` or `instances`. `slices`: how many a GPU has; `pools`: the units of each pool.
    `one_type`: all vGPUs on a GPU are of one type, not only of one size. `instances`: the profile of each GPU instance;
    `carriers`: how many vGPUs its VFs carry.
    """

    form: str
    name: str
    framebuffer_mib: int
    profiles: tuple[ProfileRule, ...]
    slices: int = 0
    pools: tuple[int, ...] = ()
    one_type: bool = False
    instances: tuple[int, ...] = ()
    carriers: int = 0


class GpuRoom(Value):
    """A GPU that VMs get. `rule`: the number of its rule; null: it is not divided.

    `state`: what is on it, in the form of its rule. `vgpus`: how many vGPUs are on it. `whole`: VMs get it as a whole;
    `free`: one can get it so now. `reserved_for`: the patterns of the names of VMs that it is reserved for, empty for
    all. `address`: its PCI address; null: an older agent does not say it. `framebuffer_mib`: of the whole GPU; null: it
    is not known.
    """

    model: str
    pci_id: str | None
    rule: int | None
    state: tuple[int | str, ...]
    vgpus: int
    whole: bool
    free: bool
    reserved_for: tuple[str, ...] = ()
    address: str | None = None
    framebuffer_mib: int | None = None


class HostRoom(Value):
    """What a host has room for. `gpus`: those that may get something new, now or when they are empty.

    `memory_mib`: its memory less that of its VMs that run and of all desktops of a controller; null: not known.
    `cpus`: how many are online; null: not known. `storage_mib`: about what is free in each storage pool that is
    active: where that is much, the host says so in steps, and no more than `MUCH_MIB`. `own_addresses`: its own.
    `networks`: how each libvirt network forwards (nat, route, open, bridge); one that does not is left out.
    """

    rules: tuple[DivisionRule, ...]
    gpus: tuple[GpuRoom, ...]
    memory_mib: int | None
    cpus: int | None
    storage_mib: Mapping[str, int]
    own_addresses: tuple[str, ...] = ()
    networks: Mapping[str, str] = EMPTY_MAPPING


NO_ROOM = HostRoom((), (), None, None, {})
"""Of a host that does not say what it has room for."""
