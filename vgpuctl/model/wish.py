# SPDX-License-Identifier: Apache-2.0
"""What is asked for, checked, and the design of a domain that follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.scheduler import Policy
from vgpuctl.model.vm import Promise
from vgpuctl.value import NOTHING, Value


class NewDisk(Value):
    """A disk to make, thin, of this size."""

    size_mib: int


class ExistingDisk(Value):
    """A disk image that exists; vgpuctl never deletes it."""

    path: str


class UserData(Value):
    """What cloud-init is to do in a guest: a file's text, checked. It holds secrets, so it is never shown."""

    path: str
    text: str

    def __repr__(self) -> str:
        return f"UserData(path={self.path!r})"


class Where(Value):
    """On which GPUs something may be placed, and which of them is taken. Nothing given: on all, as the host has it.

    `gpus`, `not_gpus`: addresses or models; none of `gpus` means any. `numa_node`: that of the GPU. `spread_group`: no
    other VM of this group may be on the GPU. `scheduler`: the policy that must run on it. `policy`: the name of the
    placement policy, None for the host's.
    """

    gpus: tuple[str, ...] = ()
    not_gpus: tuple[str, ...] = ()
    numa_node: int | None = None
    spread_group: str | None = None
    scheduler: Policy | None = None
    policy: str | None = None


ANYWHERE = Where()


class PlacementSpec(Value):
    """How this host places, by `placement:` of host.yaml. `demand`: which profiles are asked for, by weight.

    No demand: that of the VMs which are there.
    """

    policy: str | None = None
    demand: Mapping[str, float] = NOTHING


class VmWish(Value):
    """A VM as asked for, every value filled in; made by `vgpuctl.spec`, read by `vgpuctl.plan`.

    `profiles` holds (profile, count). `sources` says for each field where its value came from: "typed",
    "host.yaml" or "built in". Only typed fields are compared with a VM that exists. `disks` is empty when
    none was asked for. `name` None: vgpu-<8 of uuid>. `reserve`: "always" or "running", see `Promise`.
    """

    name: str | None
    profiles: tuple[tuple[str, int], ...]
    where: Where
    mode: str
    memory_mib: int
    vcpus: int
    image: str | None
    disks: tuple[NewDisk | ExistingDisk, ...]
    cdrom: str | None
    network: str
    os: str
    storage_pool: str
    hotplug_slots: int
    vgpu_params: tuple[tuple[str, str], ...]
    template: str
    force_console: bool
    sources: Mapping[str, str] = NOTHING
    cloud_init: UserData | None = None
    reserve: str = "always"
    pci_window: str = "auto"

    def typed(self, name: str) -> bool:
        """Say whether the field was typed, not filled from defaults."""
        return self.sources.get(name) == "typed"


class DesignDisk(Value):
    """A disk or CD-ROM of a design: `device` is "disk" or "cdrom", `format` as QEMU names it ("qcow2", "raw")."""

    device: str
    path: str
    format: str


class DesignHostdev(Value):
    """A host device of a design: `kind` "mdev" (carrier a UUID) or "pci" (carrier an address)."""

    kind: str
    carrier: str
    managed: bool
    alias: str


class DomainDesign(Value):
    """Everything a domain template gets to see. `firmware` "uefi" or "bios"; `boot` device kinds in order.

    `os` is the wish's: "linux", "generic" or "windows11". `pci_window_mib`: the address space for PCI devices above
    4 GiB, None for the firmware's own; `host_width`: then the guest's addresses are as wide as the host's.
    """

    name: str
    uuid: str
    memory_mib: int
    vcpus: int
    kvm: bool
    emulator: str
    firmware: str
    disks: tuple[DesignDisk, ...]
    network: str
    hostdevs: tuple[DesignHostdev, ...]
    hotplug_slots: int
    boot: tuple[str, ...]
    promise: Promise
    numa_node: int | None = None
    os: str = "linux"
    pci_window_mib: int | None = None
    host_width: bool = False
