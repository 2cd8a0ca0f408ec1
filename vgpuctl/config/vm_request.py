# SPDX-License-Identifier: Apache-2.0
"""The fields of a VM, each declared once. `vm_fields` says what a declaration can have and what follows from it.

Size: one declaration for each field, in the order of the options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vgpuctl.config import cluster_join, device_rules, domain_join, guest_drivers, guest_rules, licenses, rules
from vgpuctl.config import labels as label_rules
from vgpuctl.config.arguments import (
    CPU_PIN_AUTO,
    DEFAULT_PLACEMENT_POLICY,
    MAX_VGPUS_PER_VM,
    NAME_PATTERN,
    NETWORK_MODELS,
    NONE,
    OS_KINDS,
    PCI_WINDOW_AUTO,
    PLACEMENT_CHOICES,
    RESERVE_MODES,
    SCHEDULER_POLICIES,
    VM_MODES,
    WINDOWS_11,
)
from vgpuctl.config.shape import nonempty_list, single_or_list
from vgpuctl.config.vm_fields import (
    DeclaredFields,
    VmField,
    as_is,
    enum_schema,
    integer_schema,
    list_schema,
    pairs_schema,
    pattern_schema,
    vm_field,
)
from vgpuctl.model.autostart import (
    AUTOSTART_MODES,
    AUTOSTART_NEVER,
    AUTOSTART_STORAGES,
    DEFAULT_START_ORDER,
    MAX_START_ORDER,
)
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.domain_join import DOMAIN_JOIN_DIRECTORY
from vgpuctl.model.guest_sharing import GuestSharing
from vgpuctl.model.numbers import SIZE_PATTERN, format_mib, parse_disk_size, parse_memory_size
from vgpuctl.model.request import CloudInit, ExistingDisk, GpuConstraints, GuestSecrets, GuestSetup, NewDisk
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import Nic
from vgpuctl.value import EMPTY_MAPPING, field_names, replace

_ADDRESS_OR_MODEL = "ADDRESS|MODEL"
_PATH_SCHEMA = {"pattern": "^/", "type": "string"}
_NAME_SCHEMA = {"pattern": "^[^/]+$", "type": "string"}
_NETWORK_SCHEMA = {
    "anyOf": [
        {"minLength": 1, "pattern": "^[^/]+$", "type": "string"},
        {
            "additionalProperties": False,
            "oneOf": [{"required": ["network"]}, {"required": ["bridge"]}],
            "properties": {
                "network": _NAME_SCHEMA,
                "bridge": pattern_schema(device_rules.BRIDGE_PATTERN),
                "vlan": integer_schema(1, device_rules.MAX_VLAN),
                "model": enum_schema(NETWORK_MODELS),
                "mac": {"type": "string"},
            },
            "type": "object",
        },
    ]
}


def _count_profiles(entries: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return (profile, count), one entry for each profile, in the order of first mention."""
    counts: dict[str, int] = {}
    for entry in entries:
        profile_name, count = rules.split_profile(entry)
        counts[profile_name] = counts.get(profile_name, 0) + count
    return tuple(counts.items())


def each_profile(profiles: tuple[tuple[str, int], ...]) -> list[str]:
    """Return one profile for each vGPU."""
    return [profile for profile, count in profiles for _ in range(count)]


def names_text(names: tuple[str, ...]) -> object:
    """Return the names of GPUs as the record has them: one, several, or none."""
    return (names[0] if len(names) == 1 else list(names)) if names else None


def _parse_disks(texts: tuple[str, ...]) -> tuple[NewDisk | ExistingDisk, ...]:
    return tuple(ExistingDisk(text) if rules.is_path(text) else NewDisk(parse_disk_size(text)) for text in texts)


def _disk_texts(disks: tuple[NewDisk | ExistingDisk, ...]) -> list[str]:
    return sorted(disk.path if isinstance(disk, ExistingDisk) else format_mib(disk.size_mib) for disk in disks)


def _parse_nics(texts: tuple[str, ...]) -> tuple[Nic, ...]:
    return tuple(device_rules.parse_nic(text) for text in texts if text != NONE)


def _nic_texts(nics: tuple[Nic, ...]) -> list[str]:
    return [nic.text for nic in nics] or [NONE]


def _pairs_text(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={entry}" for key, entry in pairs.items())


class VmRequest(DeclaredFields):
    """A requested VM with every value filled in, or what the record of a VM says of it.

    `name` None: vgpu-<first 8 hex digits of the uuid>. `profiles`: (profile, count) pairs. `gpu`, `not_gpu`: addresses
    or models, empty for any. `gpus`: how many whole GPUs or plain VFs, in the modes that give these. `placement`: the
    placement policy, None for the host's. `disks` is empty when none was requested. `hugepages`: their size, or "none".
    `cpu_pin`: "auto", "none", or a list of CPUs. `reserve`: "always" or "running", see `VmRecord`.

    These have no declaration: `sources`: the source of each field's value: "given", "host.yaml" or "default";
    only "given" fields are compared with an existing VM. `seed`: the files in `cloud_init` and `network_config`,
    read. `label_changes`: instead of `labels`, labels to set on a VM that exists, and to remove from it (None); its
    other labels stay. `account`: who makes the VM, `desktop`: the mark of a pool's desktop; only the
    operation sets them.
    """

    name: str | None = vm_field(
        rules.name,
        pattern_schema(NAME_PATTERN),
        "the VM's name; without one vgpu-<8 digits of its uuid>",
        default=None,
        option="NAME",
    )
    profiles: tuple[tuple[str, int], ...] = vm_field(
        single_or_list(rules.profile),
        list_schema({"minLength": 1, "type": "string"}),
        "vGPU profile (4C matches any GPU model); append :N for N vGPUs of it; repeat it to mix profiles "
        "(at most 16 vGPUs in a VM; the VM gets all of them or none)",
        default=None,
        name="profile",
        example="A100-4C",
        metavar="PROFILE[:N]",
        repeatable=True,
        parse=_count_profiles,
        text=each_profile,
        changes="off",
        recorded="always",
    )
    gpu: tuple[str, ...] = vm_field(
        single_or_list(rules.gpu),
        list_schema({"type": "string"}),
        "use this GPU, by address, UUID or model; repeat it to allow several, or to pass several through",
        default=None,
        example="0000:3b:00.0",
        metavar=_ADDRESS_OR_MODEL,
        repeatable=True,
        text=names_text,
        changes="off",
        change_help="put the vGPUs on this GPU, by address or by model; repeat it to allow several",
        restricts_placement=True,
        recorded="always",
    )
    gpus: int = vm_field(
        rules.gpus,
        integer_schema(1, MAX_VGPUS_PER_VM),
        "how many whole GPUs (--mode passthrough) or plain VFs (--mode sriov) the VM gets, all of them or none; whole "
        "GPUs near each other are preferred: one PCIe switch, then one NUMA node",
        default=None,
        example="2",
        metavar="N",
        empty=1,
        changed_by="vgpuctl attach-gpu VM --gpus N and vgpuctl detach-gpu VM --gpu ADDRESS",
        recorded="given",
    )
    not_gpu: tuple[str, ...] = vm_field(
        single_or_list(rules.gpu),
        list_schema({"type": "string"}),
        "do not use this GPU, by address, UUID or model; repeatable",
        default=None,
        example="A16",
        metavar=_ADDRESS_OR_MODEL,
        repeatable=True,
        text=names_text,
        changes="placing",
        change_help="put the vGPUs that are on this GPU on another one; by address or by model; repeatable",
        restricts_placement=True,
        recorded="given",
    )
    numa_node: int | None = vm_field(
        rules.numa_node,
        integer_schema(0, rules.MAX_NUMA_NODES - 1),
        "use only GPUs of this NUMA node",
        default=None,
        example="0",
        metavar="N",
        changes="placing",
        restricts_placement=True,
        recorded="given",
    )
    spread_group: str | None = vm_field(
        rules.name,
        pattern_schema(NAME_PATTERN),
        "place the VMs of this group on different GPUs; the VM keeps the group, so later VMs respect it",
        default=None,
        example="exam-1",
        metavar="NAME",
        restricts_placement=True,
        recorded="given",
    )
    scheduler: SchedulerPolicy | None = vm_field(
        rules.scheduler,
        enum_schema(SCHEDULER_POLICIES),
        "use only GPUs whose NVIDIA vGPU scheduler has this policy",
        default=None,
        example="fixed_share",
        parse=SchedulerPolicy,
        text=lambda policy: None if policy is None else str(policy),
        changes="placing",
        restricts_placement=True,
        recorded="given",
    )
    placement: str | None = vm_field(
        rules.placement,
        enum_schema(PLACEMENT_CHOICES),
        "how to choose among the GPUs with room. least-waste: the GPU where other profiles lose the least room; "
        "depth or binpack: the GPU with the most vGPUs; breadth or spread: the GPU with the fewest; first-fit: the "
        "lowest address. "
        "Default: placement: of host.yaml, else " + DEFAULT_PLACEMENT_POLICY,
        default=None,
        example="depth",
        changes="placing",
        restricts_placement=True,
        recorded="given",
        compared=False,
    )
    mode: str = vm_field(
        rules.mode,
        enum_schema(VM_MODES),
        "vgpu: vGPUs of --profile; sriov: plain VFs, of --gpu; passthrough: whole GPUs, every address of --gpu or "
        "--gpus N; virtio-gpu: QEMU draws for the guest on a GPU that it shares with all others, and gives it none",
        default="vgpu",
        example="vgpu",
        shown=as_is,
        recorded="always",
    )
    memory_mib: int = vm_field(
        rules.memory,
        {"anyOf": [pattern_schema(SIZE_PATTERN), {"type": "integer"}]},
        "guest memory; 8G is 8GiB, 8 is 8MiB",
        default="4GiB",
        name="memory",
        example="8GiB",
        metavar="SIZE",
        parse=parse_memory_size,
        shown=format_mib,
        changes="off",
        in_defaults=True,
    )
    vcpus: int = vm_field(
        rules.vcpus,
        integer_schema(1, rules.MAX_VCPUS),
        "number of virtual CPUs",
        default=2,
        example="4",
        metavar="N",
        shown=as_is,
        changes="off",
        in_defaults=True,
    )
    hugepages: str = vm_field(
        device_rules.hugepages,
        pattern_schema(f"({NONE}|2M(iB)?|1G(iB)?)"),
        "back the guest's memory with huge pages that the host has reserved: 2MiB (without a value), 1GiB, or none",
        default=NONE,
        example="1GiB",
        metavar="SIZE|none",
        optional_value="2MiB",
        shown=as_is,
        changes="off",
    )
    cpu_pin: str = vm_field(
        device_rules.cpu_pin,
        {"anyOf": [pattern_schema(f"({CPU_PIN_AUTO}|{NONE}|[0-9]+([-,][0-9]+)*)"), {"minimum": 0, "type": "integer"}]},
        "run the guest only on these CPUs of the host, and bind its memory to their NUMA nodes. auto (without a "
        "value): the CPUs of the GPU's NUMA node; or a list of CPUs; or none",
        default=NONE,
        example="8-15,24-31",
        metavar="CPUS|auto|none",
        optional_value=CPU_PIN_AUTO,
        shown=as_is,
        changes="off",
        recorded="given",
    )
    image: str | None = vm_field(
        rules.path,
        _PATH_SCHEMA,
        "base image; the first disk becomes a linked clone of it, or a full copy in a logical storage pool",
        default=None,
        example="/var/lib/libvirt/images/debian.qcow2",
        metavar="PATH",
        shown=as_is,
        changed_by="vgpuctl refresh-vm VM --image IMAGE gives a VM a new first disk",
        in_defaults=True,
    )
    disks: tuple[NewDisk | ExistingDisk, ...] = vm_field(
        single_or_list(rules.disk),
        list_schema({"anyOf": [pattern_schema(f"(/.*|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]}),
        "a new disk by size (a bare number is GiB), or an existing one by path; repeatable",
        default=None,
        name="disk",
        example="100GiB",
        metavar="SIZE|PATH",
        repeatable=True,
        parse=_parse_disks,
        text=_disk_texts,
        changed_by="vgpuctl resize-disk VM SIZE grows a disk",
    )
    cdrom: str | None = vm_field(
        rules.path,
        _PATH_SCHEMA,
        "ISO image to boot from",
        default=None,
        example="/var/lib/libvirt/images/debian.iso",
        metavar="PATH",
    )
    cloud_init: str | None = vm_field(
        rules.secret_path,
        _PATH_SCHEMA,
        "user-data file; cloud-init configures the guest with it at its first boot",
        default=None,
        example="/root/user-data.yaml",
        metavar="PATH",
        shown=as_is,
        recorded="given",
    )
    network_config: str | None = vm_field(
        rules.secret_path_or_mapping,
        {"anyOf": [_PATH_SCHEMA, {"type": "object"}]},
        "network configuration for cloud-init, version 1 or 2, for instance with a static address",
        default=None,
        example="/root/network-config.yaml",
        metavar="PATH",
        argument="str | Mapping[str, object] | None",
        shown=as_is,
        recorded="given",
    )
    guest_driver: str | None = vm_field(
        guest_drivers.guest_driver,
        pattern_schema(f"({NONE}|/.*)"),
        "NVIDIA's driver for the guest, a file of the host, which is installed there from a disc; for many VMs, "
        "better in the image",
        default=NONE,
        example="/srv/drivers/NVIDIA-Linux-x86_64-580.159.03-grid.run",
        metavar="none|FILE",
        parse=lambda path: None if path == NONE else path,
        text=lambda path: path or NONE,
        shown=as_is,
        changes="off",
        change_help="install this driver in the guest at its next boot; none: install none, what is installed stays",
        recorded="given",
    )
    guest_sharing: GuestSharing | None = vm_field(
        guest_rules.guest_sharing,
        pattern_schema(guest_rules.GUEST_SHARING_PATTERN),
        "how the programs of the guest share its GPU, which cloud-init sets up there. mps: NVIDIA's MPS runs them at "
        "the same time, each with at most threads=PERCENT of the GPU's threads and memory=SIZE of its memory; mps:N, "
        "time-slicing:N: the guest is a node of Kubernetes, and N pods share each GPU",
        default=NONE,
        example="mps,threads=25,memory=4GiB",
        metavar="none|METHOD",
        parse=guest_rules.parse_guest_sharing,
        text=lambda sharing: NONE if sharing is None else sharing.text,
        shown=lambda sharing: sharing.text,
        changes="any",
        change_help="how the programs of the guest share its GPU, from its next boot on; as create-vm has it",
        recorded="given",
    )
    license_name: str | None = vm_field(
        licenses.license_name,
        pattern_schema(licenses.LICENSE_PATTERN),
        "the guest's license for NVIDIA's vGPU software, which the seed brings: a folder in "
        f"{licenses.LICENSE_DIRECTORY} with the token",
        default=NONE,
        name="license",
        example="cad",
        metavar="none|NAME",
        parse=lambda name: None if name == NONE else name,
        text=lambda name: name or NONE,
        shown=as_is,
        changes="any",
        change_help="give the guest this license at its next boot; none: no more, and it keeps what it has",
        recorded="given",
    )
    k8s_join: str | None = vm_field(
        cluster_join.cluster_name,
        pattern_schema(cluster_join.CLUSTER_PATTERN),
        "the guest joins this cluster of Kubernetes as a node, which cloud-init has it do: the name of a file in "
        f"{cluster_join.CLUSTER_DIRECTORY} with a join token",
        default=NONE,
        example="lab",
        metavar="none|NAME",
        parse=lambda name: None if name == NONE else name,
        text=lambda name: name or NONE,
        shown=as_is,
        changes="any",
        change_help="have the guest join this cluster at its next boot; none: it stays where it is",
        recorded="given",
    )
    domain_join: str | None = vm_field(
        domain_join.domain_join_name,
        pattern_schema(domain_join.DOMAIN_JOIN_PATTERN),
        "the guest, which has Windows, joins this domain while it is set up from an image: the name of an entry in "
        f"{DOMAIN_JOIN_DIRECTORY} with blobs of djoin /provision, or of a program that prints them",
        default=NONE,
        example="corp",
        metavar="none|NAME",
        parse=lambda name: None if name == NONE else name,
        text=lambda name: name or NONE,
        shown=as_is,
        changes="any",
        change_help="have the guest join this domain when refresh-vm makes it from an image; none: it stays as it is",
        recorded="given",
    )
    guest_helper: bool = vm_field(
        rules.boolean,
        {"type": "boolean"},
        "bring vgpuctl's helper into the guest by its seed: it reports who is logged on and which driver runs",
        default=False,
        shown=as_is,
        changes="any",
        change_help="bring vgpuctl's helper into the guest at its next boot; off: the guest keeps the one that it has",
        recorded="given",
    )
    off_after_setup: bool = vm_field(
        rules.boolean,
        {"type": "boolean"},
        "the guest shuts down once it has been set up for the first time, so that prepare-vm can keep its disk",
        default=False,
        shown=as_is,
        changes="any",
        change_help="the guest shuts down once after its next start, if all of its setup succeeds; off: it stays on",
        recorded="given",
    )
    nics: tuple[Nic, ...] = vm_field(
        nonempty_list(device_rules.network),
        list_schema(_NETWORK_SCHEMA),
        "a network card: a libvirt network by name (or network=NAME), or bridge=BRIDGE of the host with vlan=N if "
        "it is tagged; then model=virtio or model=e1000e, and mac=ADDRESS; repeatable; none: no network card",
        default=("default",),
        name="networks",
        option="--network",
        example="bridge=br0,vlan=30",
        metavar="NAME|KEY=VALUE,…|none",
        repeatable=True,
        argument="str | Mapping[str, object] | Sequence[str | Mapping[str, object]]",
        parse=_parse_nics,
        text=_nic_texts,
        shown=_nic_texts,
        changes="off",
        in_defaults=True,
    )
    display: bool = vm_field(
        rules.boolean,
        {"type": "boolean"},
        "show the first vGPU's screen, from the firmware on, in the VM's VNC console; the VM gets no other video card",
        default=False,
        shown=as_is,
        changes="off",
    )
    os: str = vm_field(
        rules.os_kind,
        enum_schema(OS_KINDS),
        "linux: UEFI if the image can boot with it; generic: BIOS unless the image needs UEFI; "
        "windows11: UEFI with secure boot, a TPM 2.0, and devices that Windows supports without virtio drivers",
        default="linux",
        example="linux",
        shown=as_is,
        recorded="always",
        in_defaults=True,
    )
    storage_pool: str = vm_field(
        rules.resource_name,
        _NAME_SCHEMA,
        "libvirt storage pool for new disks: a directory, or a logical one (LVM)",
        default="default",
        example="default",
        metavar="NAME",
        shown=as_is,
        in_defaults=True,
    )
    hotplug_slots: int = vm_field(
        rules.hotplug_slots,
        integer_schema(0, rules.MAX_HOTPLUG_SLOTS),
        "number of spare PCIe root ports for devices that you attach later",
        default=4,
        example="4",
        metavar="N",
        shown=as_is,
        recorded="always",
    )
    pci_window: str = vm_field(
        rules.pci_window,
        {"anyOf": [pattern_schema(f"([Aa]uto|[Nn]one|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]},
        "address space above 4 GiB for the guest's PCI devices. auto: larger than UEFI's default if the BARs of a GPU "
        "that is passed through need it; none: UEFI's default; or a size",
        default=PCI_WINDOW_AUTO,
        example="256GiB",
        metavar="auto|none|SIZE",
        shown=as_is,
        recorded="given",
    )
    vgpu_params: tuple[tuple[str, str], ...] = vm_field(
        rules.vgpu_params,
        pairs_schema(
            pattern_schema(rules.PARAM_PATTERN),
            {
                "additionalProperties": {"type": ["string", "integer"]},
                "propertyNames": {"pattern": "^[a-z_]+$"},
            },
        ),
        "vGPU plugin parameter; repeatable",
        default=None,
        option="--vgpu-param",
        example="frame_rate_limiter=0",
        metavar="KEY=VALUE",
        repeatable=True,
        argument="Texts | Mapping[str, str]",
        parse=lambda params: tuple(params.items()),
        text=dict,
        recorded="always",
    )
    template: str = vm_field(
        rules.template,
        pattern_schema(rules.TEMPLATE_PATTERN),
        "domain template: NAME.xml.j2 in /etc/vgpuctl/templates, or a built-in one",
        default="vm",
        example="vm",
        metavar="NAME",
        shown=as_is,
        recorded="always",
    )
    reserve: str = vm_field(
        rules.reserve,
        enum_schema(RESERVE_MODES),
        "always: the VM keeps the place of its vGPU while it is off; running: it has a place only while it runs, so "
        "you can define more VMs than fit at once",
        default="always",
        example="running",
        shown=as_is,
        changes="off",
    )
    autostart: str = vm_field(
        rules.autostart,
        enum_schema(AUTOSTART_MODES),
        "whether the host agent starts the VM after a boot of the host: disabled, enabled, or last-state: if the last "
        "request was to start it",
        default=AUTOSTART_NEVER,
        example="last-state",
        shown=as_is,
        changes="any",
        recorded="given",
        in_defaults=True,
    )
    autostart_storage: str = vm_field(
        rules.autostart_storage,
        enum_schema(AUTOSTART_STORAGES),
        "local: the host agent starts no VM with a disk that another host may use, too; any: it does",
        default=AUTOSTART_STORAGES[0],
        example="any",
        shown=as_is,
        changes="any",
        recorded="given",
        in_defaults=True,
    )
    start_order: int = vm_field(
        rules.start_order,
        integer_schema(0, MAX_START_ORDER),
        "the host agent starts VMs with a lower number first",
        default=DEFAULT_START_ORDER,
        example="10",
        metavar="N",
        shown=as_is,
        changes="any",
        recorded="given",
        in_defaults=True,
    )
    labels: Mapping[str, str] = vm_field(
        label_rules.labels,
        pairs_schema(
            pattern_schema(f"{label_rules.LABEL_PATTERN}=({label_rules.LABEL_PATTERN})?"),
            {
                "additionalProperties": {"type": "string"},
                "maxProperties": label_rules.MAX_LABELS,
                "propertyNames": pattern_schema(label_rules.LABEL_PATTERN),
            },
        ),
        "a label of the VM, to select it by later; repeatable",
        default=None,
        option="--label",
        example="team=cad",
        metavar="KEY=VALUE",
        repeatable=True,
        argument="Texts | Mapping[str, str]",
        change_argument="Texts | Mapping[str, str | None]",
        empty=EMPTY_MAPPING,
        text=dict,
        shown=_pairs_text,
        changes="any",
        change_help="set this label, or remove it with KEY-; repeatable",
        recorded="given",
        in_defaults=True,
    )
    owner: str | None = vm_field(
        label_rules.owner,
        {"maxLength": label_rules.MAX_OWNER_LENGTH, "minLength": 1, "type": "string"},
        "the person or team that uses the VM",
        default=None,
        example="cad-team",
        metavar="NAME",
        shown=as_is,
        changes="any",
        change_help="set the person or team that uses the VM; '' removes it",
        recorded="given",
        in_defaults=True,
    )
    force_console: bool = vm_field(
        rules.boolean,
        {"type": "boolean"},
        "pass through a GPU even if it is the host's console",
        default=False,
        recorded="given",
        compared=False,
    )
    force_reset: bool = vm_field(
        rules.boolean,
        {"type": "boolean"},
        "pass through a GPU even if its reset breaks it until the host boots",
        default=False,
        recorded="given",
        compared=False,
    )
    sources: Mapping[str, str] = EMPTY_MAPPING
    seed: CloudInit | None = None
    label_changes: Mapping[str, str | None] = EMPTY_MAPPING
    account: str | None = None
    desktop: DesktopMark | None = None

    @property
    def constraints(self) -> GpuConstraints:
        """Which GPUs it allows, and how to choose among them."""
        return GpuConstraints(
            gpus=self.gpu,
            not_gpus=self.not_gpu,
            numa_node=self.numa_node,
            spread_group=self.spread_group,
            scheduler=self.scheduler,
            policy=self.placement,
        )

    def is_explicit(self, name: str) -> bool:
        """Return whether an option or a spec gives the field: it is not filled from defaults."""
        return self.sources.get(name) == "given"


FIELDS: Mapping[str, VmField] = VmRequest.declared
"""Every field by name, in the order of the options."""
OPTION_FIELDS = tuple(field for field in FIELDS.values() if field.option.startswith("--"))
"""The fields that have an option: all but the name, which is an argument."""
UPDATABLE_FIELDS = tuple(name for name, field in FIELDS.items() if field.changes == "off")
"""The fields of a VM that can change while it is off, without creating it again."""
LABEL_FIELDS = tuple(name for name, field in FIELDS.items() if field.changes == "any")
"""The fields that only a VM's record has: they can change at any time."""
GUEST_FIELDS = tuple(name for name in field_names(GuestSetup) if name in FIELDS)
"""The fields that set up the guest by its seed: a change counts from its next boot on."""
SECRET_FIELDS = field_names(GuestSecrets)
"""The fields among them that name a secret of the host."""
RECORDED_FIELDS = tuple(name for name, field in FIELDS.items() if field.recorded == "given")
"""The fields that a VM's record has if they are given."""
CHANGE_FIELDS = tuple(name for name, field in FIELDS.items() if field.changes != "new")
"""What set-vm takes: with a change of profile or GPU also where the vGPUs go. Only a new VM can join a spread group."""
CONSTRAINT_FIELDS = tuple(name for name, field in FIELDS.items() if field.restricts_placement)
"""The fields that restrict the placement."""
OTHER_COMMANDS = {name: field.changed_by for name, field in FIELDS.items() if field.changed_by}
"""The commands that change other fields."""


def with_constraints(request: VmRequest, constraints: GpuConstraints) -> VmRequest:
    """Return a request with other constraints on its GPUs."""
    return replace(
        request,
        gpu=constraints.gpus,
        not_gpu=constraints.not_gpus,
        numa_node=constraints.numa_node,
        spread_group=constraints.spread_group,
        scheduler=constraints.scheduler,
        placement=constraints.policy,
    )


def guest_setup(request: VmRequest, secrets: GuestSecrets) -> GuestSetup:
    """Return what is set up in the guest of a request, with the secrets that were read for it."""
    others = {n: getattr(request, FIELDS[n].attribute) for n in GUEST_FIELDS if n not in SECRET_FIELDS}
    return GuestSetup(**{n: getattr(secrets, n) for n in SECRET_FIELDS}, **others, for_windows=request.os == WINDOWS_11)


def secret_names(request: VmRequest) -> dict[str, str]:
    """Return the secrets that the guest of a request gets: their names by field."""
    names = {field: getattr(request, FIELDS[field].attribute) for field in SECRET_FIELDS}
    return {field: name for field, name in names.items() if name is not None}


def requested_values(request: VmRequest) -> dict[str, Any]:
    """Return the fields that a VM can differ in, by name, as they are compared."""
    return {name: field.text_in(request) for name, field in FIELDS.items() if field.compared}


def recorded_values(request: VmRequest) -> dict[str, Any]:
    """Return the fields that a VM's record keeps, by name: those that the domain does not show."""
    return {
        name: field.text_in(request)
        for name, field in FIELDS.items()
        if field.recorded == "always" or (field.recorded and field.is_given(request))
    }


def request_of_record(recorded: Mapping[str, object]) -> VmRequest:
    """Return the request with the fields of a record; what is not recorded, or cannot be read, has its default."""
    given: dict[str, Any] = {}
    for name in FIELDS.keys() & recorded.keys():
        field = FIELDS[name]
        try:
            given[field.attribute] = field.value(None if recorded[name] is None else field.rule(recorded[name]))
        except ValueError:
            continue
    return VmRequest(**given)
