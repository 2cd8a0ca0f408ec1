# SPDX-License-Identifier: Apache-2.0
"""What a user requests, already validated, and the domain design that follows from it."""

from __future__ import annotations

from vgpuctl.errors import VgpuctlError
from vgpuctl.model.cluster_join import ClusterJoin
from vgpuctl.model.domain_join import DomainJoin
from vgpuctl.model.guest_sharing import GuestSharing
from vgpuctl.model.license import License
from vgpuctl.model.numbers import parse_memory_size
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import Nic, VmRecord
from vgpuctl.value import Value


class NewDisk(Value):
    """A thin disk of this size to create."""

    size_mib: int


class ExistingDisk(Value):
    """An existing disk image; vgpuctl never deletes it."""

    path: str


class CloudInitFile(Value):
    """A file for cloud-init: its text, validated. It may hold secrets, so it is never shown."""

    path: str
    text: str

    def __repr__(self) -> str:
        return f"CloudInitFile(path={self.path!r})"


class GuestSecrets(Value):
    """Secrets of the host that a guest gets: each has the name of the VM's field that names it."""

    license: License | None = None
    k8s_join: ClusterJoin | None = None
    domain_join: DomainJoin | None = None

    @property
    def problem(self) -> VgpuctlError | None:
        """Why a guest cannot get one of them now; None if it can."""
        read = (self.license, self.k8s_join, self.domain_join)
        return next((secret.problem for secret in read if secret is not None and secret.problem is not None), None)


class GuestSetup(GuestSecrets):
    """What a script of vgpuctl's sets up in a guest: each part has the name of the VM's field that asks for it.

    `guest_driver`: the file that is on the VM's driver disc. `guest_helper`: whether the guest gets vgpuctl's helper.
    `off_after_setup`: it shuts down once all of that was done for the first time.
    `for_windows`: the guest has Windows.
    """

    guest_driver: str | None = None
    guest_sharing: GuestSharing | None = None
    guest_helper: bool = False
    off_after_setup: bool = False
    for_windows: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that ask for its parts, with their values; empty if nothing is set up."""
        texts = {
            "license": self.license and self.license.name,
            "k8s_join": self.k8s_join and self.k8s_join.name,
            "domain_join": self.domain_join and self.domain_join.name,
            "guest_driver": self.guest_driver,
            "guest_sharing": self.guest_sharing and self.guest_sharing.text,
        }
        return (
            *(f"{name} {text}" for name, text in texts.items() if text),
            *(name for name in ("guest_helper", "off_after_setup") if getattr(self, name)),
        )


class CloudInit(Value):
    """What cloud-init configures a guest with: the user's files, and `setup`, which is vgpuctl's."""

    user_data: CloudInitFile | None = None
    network_config: CloudInitFile | None = None
    setup: GuestSetup = GuestSetup()

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the files were read."""
        return tuple(file.path for file in (self.user_data, self.network_config) if file is not None)

    @property
    def sources(self) -> tuple[str, ...]:
        """The files and the fields that it is made from."""
        return (*self.paths, *self.setup.fields)


class GpuConstraints(Value):
    """Which GPUs a request allows, and how to choose among them. The default allows all and uses the host's policy.

    `gpus`, `not_gpus`: addresses or models; empty `gpus` means any. `numa_node`: the GPU's node. `spread_group`: no
    other VM of this group may be on the GPU. `scheduler`: the policy that the GPU must run. `policy`: the name of the
    placement policy, None for the host's.
    """

    gpus: tuple[str, ...] = ()
    not_gpus: tuple[str, ...] = ()
    numa_node: int | None = None
    spread_group: str | None = None
    scheduler: SchedulerPolicy | None = None
    policy: str | None = None


NO_CONSTRAINTS = GpuConstraints()


class PlacementSpec(Value):
    """The `placement:` section of host.yaml."""

    policy: str | None = None


class DesignDisk(Value):
    """A disk or CD-ROM of a design: `device` is "disk" or "cdrom", `format` as QEMU names it ("qcow2", "raw").

    `is_optional`: the VM starts without it where the file is gone.
    """

    device: str
    path: str
    format: str
    is_optional: bool = False


class DesignHostdev(Value):
    """A host device of a design: `kind` "mdev" (carrier a UUID) or "pci" (carrier an address).

    `display`: its screen is in the VM's console.
    """

    kind: str
    carrier: str
    managed: bool
    alias: str
    display: bool = False


class DomainDesign(Value):
    """Everything that a domain template receives. `firmware`: "uefi" or "bios"; `boot`: device kinds in order.

    `os`: the request's: "linux", "generic" or "windows11". `pci_window_mib`: the address space for PCI devices above 4
    GiB, None for the firmware's default; `host_width`: the guest's physical addresses then have the host's width.
    `pinned_cpus`: the only CPUs that the guest runs on, `memory_nodes`: the NUMA nodes of its memory, both as lists
    like 0-7, empty for any. `settings`: pairs of a field and its text, as `domain.settings` has them, without those
    that are "none"; a template may write them or not. `nics`: every card has a model. `arch`, `machine`: the host's
    architecture, and its machine type with PCI Express. `render_node`: the device node by which QEMU draws for the
    guest, None without.
    """

    name: str
    uuid: str
    memory_mib: int
    vcpus: int
    kvm: bool
    emulator: str
    firmware: str
    disks: tuple[DesignDisk, ...]
    nics: tuple[Nic, ...]
    hostdevs: tuple[DesignHostdev, ...]
    hotplug_slots: int
    boot: tuple[str, ...]
    record: VmRecord
    memory_nodes: str = ""
    pinned_cpus: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    os: str = "linux"
    pci_window_mib: int | None = None
    host_width: bool = False
    display_needs_gl: bool = False
    arch: str = "x86_64"
    machine: str = "q35"
    render_node: str | None = None

    @property
    def hugepages_kib(self) -> int | None:
        """The size of its huge pages as a number, for templates; None without them."""
        size = dict(self.settings).get("hugepages")
        return None if size is None else parse_memory_size(size) << 10
