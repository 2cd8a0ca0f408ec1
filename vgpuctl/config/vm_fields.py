# SPDX-License-Identifier: Apache-2.0
"""All fields of a VM spec in one table: name, option, help and example of each.

The command line's options, the rules of the spec, the documentation and later an Ansible module read this table.
It imports nothing heavy, because `vgpuctl --help` and shell completion need it.
"""

from __future__ import annotations

from vgpuctl.value import Value


class SpecField(Value):
    """One field: `name` in a spec file, `option` on the command line ("" = only in a spec file)."""

    name: str
    option: str
    help: str
    example: str
    repeatable: bool = False
    flag: bool = False
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: object = None


VM_MODES = ("vgpu", "sriov", "passthrough")
OS_KINDS = ("linux", "generic", "windows11")
RESERVE_MODES = ("always", "running")
PLACEMENT_POLICIES = ("least-waste", "depth", "breadth", "first-fit")
DEFAULT_PLACEMENT_POLICY = "least-waste"
PCI_WINDOW_AUTO, PCI_WINDOW_NONE = "auto", "none"
SCHEDULER_POLICIES = ("best_effort", "equal_share", "fixed_share")
GPU_MODES = ("vgpu", "sriov", "passthrough", "unmanaged")

VM_FIELDS: tuple[SpecField, ...] = (
    SpecField(
        "profile",
        "--profile",
        "vGPU profile (4C: of any model), with :N for several of it; repeat it for several vGPUs in one VM "
        "(at most 16, all or nothing)",
        "A100-4C",
        repeatable=True,
        metavar="PROFILE[:N]",
    ),
    SpecField(
        "gpu",
        "--gpu",
        "the GPU to use, by address or by model; repeat it to allow several",
        "0000:3b:00.0",
        repeatable=True,
        metavar="ADDRESS|MODEL",
    ),
    SpecField(
        "not_gpu",
        "--not-gpu",
        "a GPU that is not to be used, by address or by model; repeatable",
        "A16",
        repeatable=True,
        metavar="ADDRESS|MODEL",
    ),
    SpecField("numa_node", "--numa-node", "only GPUs of this NUMA node", "0", metavar="N"),
    SpecField(
        "spread_group",
        "--spread-group",
        "VMs of one group are on different GPUs; kept with the VM, so that later ones see it",
        "exam-1",
        metavar="NAME",
    ),
    SpecField(
        "scheduler",
        "--scheduler",
        "only GPUs on which NVIDIA's vGPU scheduler runs with this policy",
        "fixed_share",
        choices=SCHEDULER_POLICIES,
    ),
    SpecField(
        "placement",
        "--placement",
        "which GPU is taken of those with room. least-waste: where the least room is lost for other profiles; "
        "depth: the one with the most vGPUs; breadth: the one with the fewest; first-fit: the one with the lowest "
        "address. Without it: placement: of host.yaml, else " + DEFAULT_PLACEMENT_POLICY,
        "depth",
        choices=PLACEMENT_POLICIES,
    ),
    SpecField(
        "mode",
        "--mode",
        "vgpu: a profile; sriov: a plain VF of --gpu; passthrough: all of --gpu",
        "vgpu",
        choices=VM_MODES,
        default="vgpu",
    ),
    SpecField("memory", "--memory", "guest memory; a bare number is MiB", "8GiB", metavar="SIZE", default="4GiB"),
    SpecField("vcpus", "--vcpus", "virtual CPUs", "4", metavar="N", default=2),
    SpecField(
        "image",
        "--image",
        "base image; the first disk becomes a linked qcow2 clone of it",
        "/var/lib/libvirt/images/debian.qcow2",
        metavar="PATH",
    ),
    SpecField(
        "disk",
        "--disk",
        "a new thin disk by size (a bare number is GiB), or an existing one by path; repeatable",
        "100GiB",
        repeatable=True,
        metavar="SIZE|PATH",
    ),
    SpecField("cdrom", "--cdrom", "ISO image to boot from", "/var/lib/libvirt/images/debian.iso", metavar="PATH"),
    SpecField(
        "cloud_init",
        "--cloud-init",
        "user-data with which cloud-init sets the guest up at its first boot",
        "/root/user-data.yaml",
        metavar="PATH",
    ),
    SpecField("network", "--network", "libvirt network", "default", metavar="NAME", default="default"),
    SpecField(
        "os",
        "--os",
        "linux: UEFI where the image can boot it; generic: BIOS unless the image needs UEFI; "
        "windows11: UEFI with secure boot, a TPM 2.0, and devices that Windows knows without virtio drivers",
        "linux",
        choices=OS_KINDS,
        default="linux",
    ),
    SpecField(
        "storage_pool",
        "--storage-pool",
        "libvirt storage pool for new disks",
        "default",
        metavar="NAME",
        default="default",
    ),
    SpecField(
        "hotplug_slots",
        "--hotplug-slots",
        "spare pcie-root-ports for devices added later",
        "4",
        metavar="N",
        default=4,
    ),
    SpecField(
        "pci_window",
        "--pci-window",
        "address space above 4 GiB for the guest's PCI devices. auto: more than UEFI's own where the BARs of a GPU "
        "that is passed through need it; none: UEFI's own; or a size",
        "256GiB",
        metavar="auto|none|SIZE",
        default=PCI_WINDOW_AUTO,
    ),
    SpecField(
        "vgpu_params",
        "--vgpu-param",
        "vGPU plugin parameter; repeatable",
        "frame_rate_limiter=0",
        repeatable=True,
        metavar="KEY=VALUE",
    ),
    SpecField(
        "template",
        "--template",
        "domain template, NAME.xml.j2 in /etc/vgpuctl/templates or built in",
        "vm",
        metavar="NAME",
        default="vm",
    ),
    SpecField(
        "reserve",
        "--reserve",
        "always: the VM keeps the place of its vGPU while it is off; running: only while it runs, so that more VMs "
        "can be defined than fit at once",
        "running",
        choices=RESERVE_MODES,
        default="always",
    ),
    SpecField(
        "labels",
        "--label",
        "a label of the VM, to select it by later; repeatable",
        "team=cad",
        repeatable=True,
        metavar="KEY=VALUE",
    ),
    SpecField("owner", "--owner", "the person or team that uses the VM", "cad-team", metavar="NAME"),
    SpecField(
        "force_console",
        "--force-console",
        "pass a GPU through although the host's console is on it",
        "",
        flag=True,
        default=False,
    ),
)

CONSTRAINT_FIELDS = ("gpu", "not_gpu", "numa_node", "spread_group", "scheduler", "placement")
"""The fields that restrict the placement."""

FIELD_BY_NAME = {f.name: f for f in VM_FIELDS}

DEFAULTABLE_FIELDS = ("image", "memory", "vcpus", "network", "os", "storage_pool", "labels", "owner")
"""Fields that `defaults:` in host.yaml may fill."""

DEFAULT_DISK_GIB = 40
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
MAX_VGPUS_PER_VM = 16
