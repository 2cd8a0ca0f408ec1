# SPDX-License-Identifier: Apache-2.0
"""All fields of a VM spec in one table: name, option, help and example of each.

The command line's options, the rules of the spec, the documentation and later an Ansible module read this table.
It imports nothing heavy, because `vgpuctl --help` and shell completion need it.
"""

from __future__ import annotations

from vgpuctl.value import Value


class SpecField(Value):
    """One field: `name` in a spec file, `option` on the command line ("" = only in a spec file).

    `optional_value`: the value of an option that is given without one. `change_help`: the help where the option changes
    a VM that exists, if it is another.
    """

    name: str
    option: str
    help: str
    example: str
    repeatable: bool = False
    flag: bool = False
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: object = None
    optional_value: str = ""
    change_help: str = ""


VM_MODES = ("vgpu", "sriov", "passthrough")
OS_KINDS = ("linux", "generic", "windows11")
RESERVE_MODES = ("always", "running")
PLACEMENT_POLICIES = ("least-waste", "depth", "breadth", "first-fit")
DEFAULT_PLACEMENT_POLICY = "least-waste"
PCI_WINDOW_AUTO, PCI_WINDOW_NONE = "auto", "none"
NONE = "none"
"""No network card, no huge pages, no pinned CPUs."""
CPU_PIN_AUTO = "auto"
HUGEPAGES_KIB = {"2MiB": 2048, "1GiB": 1 << 20}
"""The sizes of huge pages in KiB."""
NETWORK_MODELS = ("virtio", "e1000e")
SCHEDULER_POLICIES = ("best_effort", "equal_share", "fixed_share")
GPU_MODES = ("vgpu", "sriov", "passthrough", "unmanaged")

VM_FIELDS: tuple[SpecField, ...] = (
    SpecField(
        "profile",
        "--profile",
        "vGPU profile (4C matches any GPU model); append :N for N vGPUs of it; repeat it to mix profiles "
        "(at most 16 vGPUs in a VM; the VM gets all of them or none)",
        "A100-4C",
        repeatable=True,
        metavar="PROFILE[:N]",
    ),
    SpecField(
        "gpu",
        "--gpu",
        "use this GPU, by address or by model; repeat it to allow several, or to pass several through",
        "0000:3b:00.0",
        repeatable=True,
        metavar="ADDRESS|MODEL",
        change_help="put the vGPUs on this GPU, by address or by model; repeat it to allow several",
    ),
    SpecField(
        "gpus",
        "--gpus",
        "how many whole GPUs (--mode passthrough) or plain VFs (--mode sriov) the VM gets, all of them or none; whole "
        "GPUs near each other are preferred: one PCIe switch, then one NUMA node",
        "2",
        metavar="N",
    ),
    SpecField(
        "not_gpu",
        "--not-gpu",
        "do not use this GPU, by address or by model; repeatable",
        "A16",
        repeatable=True,
        metavar="ADDRESS|MODEL",
        change_help="put the vGPUs that are on this GPU on another one; by address or by model; repeatable",
    ),
    SpecField("numa_node", "--numa-node", "use only GPUs of this NUMA node", "0", metavar="N"),
    SpecField(
        "spread_group",
        "--spread-group",
        "place the VMs of this group on different GPUs; the VM keeps the group, so later VMs respect it",
        "exam-1",
        metavar="NAME",
    ),
    SpecField(
        "scheduler",
        "--scheduler",
        "use only GPUs whose NVIDIA vGPU scheduler has this policy",
        "fixed_share",
        choices=SCHEDULER_POLICIES,
    ),
    SpecField(
        "placement",
        "--placement",
        "how to choose among the GPUs with room. least-waste: the GPU where other profiles lose the least room; "
        "depth: the GPU with the most vGPUs; breadth: the GPU with the fewest; first-fit: the lowest address. "
        "Default: placement: of host.yaml, else " + DEFAULT_PLACEMENT_POLICY,
        "depth",
        choices=PLACEMENT_POLICIES,
    ),
    SpecField(
        "mode",
        "--mode",
        "vgpu: vGPUs of --profile; sriov: plain VFs, of --gpu; passthrough: whole GPUs, every address of --gpu or "
        "--gpus N",
        "vgpu",
        choices=VM_MODES,
        default="vgpu",
    ),
    SpecField("memory", "--memory", "guest memory; 8G is 8GiB, 8 is 8MiB", "8GiB", metavar="SIZE", default="4GiB"),
    SpecField("vcpus", "--vcpus", "number of virtual CPUs", "4", metavar="N", default=2),
    SpecField(
        "hugepages",
        "--hugepages",
        "back the guest's memory with huge pages that the host has reserved: 2MiB (without a value), 1GiB, or none",
        "1GiB",
        metavar="SIZE|none",
        default=NONE,
        optional_value="2MiB",
    ),
    SpecField(
        "cpu_pin",
        "--cpu-pin",
        "run the guest only on these CPUs of the host, and bind its memory to their NUMA nodes. auto (without a "
        "value): the CPUs of the GPU's NUMA node; or a list of CPUs; or none",
        "8-15,24-31",
        metavar="CPUS|auto|none",
        default=NONE,
        optional_value=CPU_PIN_AUTO,
    ),
    SpecField(
        "image",
        "--image",
        "base image; the first disk becomes a linked clone of it, or a full copy in a logical storage pool",
        "/var/lib/libvirt/images/debian.qcow2",
        metavar="PATH",
    ),
    SpecField(
        "disk",
        "--disk",
        "a new disk by size (a bare number is GiB), or an existing one by path; repeatable",
        "100GiB",
        repeatable=True,
        metavar="SIZE|PATH",
    ),
    SpecField("cdrom", "--cdrom", "ISO image to boot from", "/var/lib/libvirt/images/debian.iso", metavar="PATH"),
    SpecField(
        "cloud_init",
        "--cloud-init",
        "user-data file; cloud-init configures the guest with it at its first boot",
        "/root/user-data.yaml",
        metavar="PATH",
    ),
    SpecField(
        "network_config",
        "--network-config",
        "network configuration for cloud-init, version 1 or 2, for instance with a static address",
        "/root/network-config.yaml",
        metavar="PATH",
    ),
    SpecField(
        "networks",
        "--network",
        "a network card: a libvirt network by name (or network=NAME), or bridge=BRIDGE of the host with vlan=N if "
        "it is tagged; then model=virtio or model=e1000e, and mac=ADDRESS; repeatable; none: no network card",
        "bridge=br0,vlan=30",
        repeatable=True,
        metavar="NAME|KEY=VALUE,…|none",
        default="default",
    ),
    SpecField(
        "display",
        "--display",
        "show the first vGPU's screen, from the firmware on, in the VM's VNC console; the VM gets no other video card",
        "",
        flag=True,
        default=False,
    ),
    SpecField(
        "os",
        "--os",
        "linux: UEFI if the image can boot with it; generic: BIOS unless the image needs UEFI; "
        "windows11: UEFI with secure boot, a TPM 2.0, and devices that Windows supports without virtio drivers",
        "linux",
        choices=OS_KINDS,
        default="linux",
    ),
    SpecField(
        "storage_pool",
        "--storage-pool",
        "libvirt storage pool for new disks: a directory, or a logical one (LVM)",
        "default",
        metavar="NAME",
        default="default",
    ),
    SpecField(
        "hotplug_slots",
        "--hotplug-slots",
        "number of spare PCIe root ports for devices that you attach later",
        "4",
        metavar="N",
        default=4,
    ),
    SpecField(
        "pci_window",
        "--pci-window",
        "address space above 4 GiB for the guest's PCI devices. auto: larger than UEFI's default if the BARs of a GPU "
        "that is passed through need it; none: UEFI's default; or a size",
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
        "domain template: NAME.xml.j2 in /etc/vgpuctl/templates, or a built-in one",
        "vm",
        metavar="NAME",
        default="vm",
    ),
    SpecField(
        "reserve",
        "--reserve",
        "always: the VM keeps the place of its vGPU while it is off; running: it has a place only while it runs, so "
        "you can define more VMs than fit at once",
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
        change_help="set this label, or remove it with KEY-; repeatable",
    ),
    SpecField(
        "owner",
        "--owner",
        "the person or team that uses the VM",
        "cad-team",
        metavar="NAME",
        change_help="set the person or team that uses the VM; '' removes it",
    ),
    SpecField(
        "force_console",
        "--force-console",
        "pass through a GPU even if it is the host's console",
        "",
        flag=True,
        default=False,
    ),
)

CONSTRAINT_FIELDS = ("gpu", "not_gpu", "numa_node", "spread_group", "scheduler", "placement")
"""The fields that restrict the placement."""

UPDATABLE_FIELDS = ("profile", "gpu", "memory", "vcpus", "hugepages", "cpu_pin", "networks", "display", "reserve")
"""The fields of a VM that can change while it is off, without creating it again."""

LABEL_FIELDS = ("labels", "owner")
"""The fields that only a VM's record has: they can change at any time."""

CHANGE_FIELDS = tuple(
    field.name
    for field in VM_FIELDS
    if field.name in {*UPDATABLE_FIELDS, *LABEL_FIELDS, *CONSTRAINT_FIELDS} - {"spread_group"}
)
"""What set-vm takes: with a change of profile or GPU also where the vGPUs go. Only a new VM can join a spread group."""

OTHER_COMMANDS = {
    "image": "vgpuctl refresh-vm VM --image IMAGE gives a VM a new first disk",
    "disk": "vgpuctl resize-disk VM SIZE grows a disk",
    "gpus": "vgpuctl attach-gpu VM --gpus N and vgpuctl detach-gpu VM --gpu ADDRESS",
}
"""The commands that change other fields."""

FIELD_BY_NAME = {f.name: f for f in VM_FIELDS}

DEFAULTABLE_FIELDS = ("image", "memory", "vcpus", "networks", "os", "storage_pool", "labels", "owner")
"""Fields that `defaults:` in host.yaml may fill."""

LIST_DEFAULT_FIELDS = ("networks",)
"""Fields whose built-in value is the only entry of a list."""

DEFAULT_DISK_GIB = 40
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
MAX_VGPUS_PER_VM = 16
