# SPDX-License-Identifier: Apache-2.0
"""`/etc/vgpuctl/host.yaml`: the desired state of this host, and which of its settings hold for a GPU.

`version: 1` is required, and unknown keys are refused from the first release on, so that an older vgpuctl never
silently ignores a later key.

Entries of `gpus:` name GPUs by address, by model, or `all`. For each key the most specific entry wins: the address
before a model, a model before `all`; of two models that both match, the later one in the file. `vfs` belongs to `mode`:
it counts only from an entry that is at least as specific as the one that sets the mode. `all` and models match GPUs
with a PCI address; another device, such as a network card's function, is named only by its address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.agent_spec import AGENT_SHAPE, AgentSpec, parse_agent
from vgpuctl.config.arguments import COMPUTE_PARTITIONS, GPU_MODES, MEMORY_PARTITIONS
from vgpuctl.config.gpu_spec import (
    MIG_JSON_SCHEMA,
    MODE_KEYS,
    SCHEDULER_SHAPE,
    check_gpu_keys,
    dump_mig,
    dump_scheduler,
    parse_mig_spec,
    parse_scheduler_spec,
)
from vgpuctl.config.shape import Key, Shape, mapping_of, nonempty_list
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, MigSpec
from vgpuctl.model.names import is_pci_address
from vgpuctl.model.numbers import parse_memory_size
from vgpuctl.model.request import PlacementSpec
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.value import EMPTY_MAPPING, Value, field_names


def _parse_placement(value: object) -> PlacementSpec:
    """Check `placement:`: how vgpuctl chooses a GPU for a new vGPU."""
    checked: dict[str, Any] = PLACEMENT_SHAPE.check(value)
    return PlacementSpec(**checked)


PLACEMENT_SHAPE = Shape(
    "Placement",
    "On which GPU a new vGPU goes, of those with room.",
    (
        Key(
            "policy",
            rules.placement,
            FIELDS["placement"].help,
            FIELDS["placement"].schema,
        ),
    ),
)


FORMAT_VERSION = 1


DEFAULTS_SHAPE = Shape(
    "Defaults",
    "Values for fields that neither the VM spec nor the command line sets.",
    tuple(field.key() for field in FIELDS.values() if field.in_defaults),
)
_NONE_EACH = dict.fromkeys(DEFAULTS_SHAPE.names)
Defaults: type[Value] = type(
    "Defaults",
    (Value,),
    {
        "__doc__": "Values for fields that a VM spec or a command line omits; None: none.",
        "__annotations__": _NONE_EACH,
        **_NONE_EACH,
    },
)

NO_DEFAULTS = Defaults()


class GpuSpec(Value):
    """The configuration of a GPU. `vfs` None: as many as the driver creates itself; `cordoned`: no new vGPUs on it.

    `vf_memory`: the GPU memory of each plain VF. `scheduler` None: the driver decides. `profiles`: only these are
    placed on it; `reserved_for`: only for VMs whose names match one of these patterns. `mig` None: its MIG mode and
    instances stay as they are; `mixed_size`: whether vGPUs of several sizes may be on it at once. `compute_partition`,
    `memory_partition`: the partition modes of an AMD GPU. `reason`: why it is so, for people.
    """

    mode: str | None = None
    vfs: int | None = None
    cordoned: bool | None = None
    scheduler: SchedulerSpec | None = None
    profiles: tuple[str, ...] | None = None
    reserved_for: tuple[str, ...] | None = None
    mig: MigSpec | None = None
    mixed_size: bool | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    reason: str | None = None
    vf_memory: str | None = None


class VgpuSpec(Value):
    """A vGPU without a VM, created again after each boot: its profile, and where it is (an mdev's UUID or a VF)."""

    profile: str
    gpu: str
    carrier: str
    vgpu_params: Mapping[str, str] = EMPTY_MAPPING


class BootSpec(Value):
    """Settings for restore-host after a boot. `deadline_seconds`: how long it waits for drivers and VFs.

    `hold_libvirt_seconds`: how long libvirt's start waits for them; VMs of GPUs that become ready later start
    afterwards.
    """

    deadline_seconds: int = 300
    hold_libvirt_seconds: int = 30


class HostSpec(Value):
    """The host file /etc/vgpuctl/host.yaml. `gpus` by PCI address, model or "all", `vgpus` by name.

    `placement`: on which GPU new vGPUs go, of those with room. `agent`: what members of the group vgpuctl may do.
    """

    version: int
    defaults: Value = NO_DEFAULTS
    gpus: Mapping[str, GpuSpec] = EMPTY_MAPPING
    vgpus: Mapping[str, VgpuSpec] = EMPTY_MAPPING
    boot: BootSpec = BootSpec()
    placement: PlacementSpec = PlacementSpec()
    agent: AgentSpec = AgentSpec()


def parse_host_spec(text: str, path: str) -> HostSpec:
    """Read host.yaml; `path` is its path, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`; also for an empty text, as a broken pipe
            or a full disk leaves it.
    """
    from vgpuctl.config import yaml_reader

    if all(not line or line.startswith("#") for line in (line.strip() for line in text.splitlines())):
        raise InvalidInput(f"{path} is empty: a host.yaml has at least 'version: {FORMAT_VERSION}'", path=path)
    given: dict[str, Any] = yaml_reader.parse_document(text, path, HOST_SHAPE)
    return HostSpec(**given)


def dump_keys(entry: Value | None, keys: Iterable[str]) -> dict[str, object]:
    """Return the values of some keys of a host.yaml entry, as the file has them; None for keys that are not set."""
    return {key: dump_value(getattr(entry, key, None)) for key in keys}


def dump_value(value: object) -> object:
    """Return a value as host.yaml writes it: a tuple as a list, a scheduler as a mapping, an empty value as None."""
    if isinstance(value, SchedulerSpec):
        return dump_scheduler(value)
    if isinstance(value, MigSpec):
        return dump_mig(value)
    if isinstance(value, tuple):
        return list(value) or None
    if isinstance(value, Mapping):
        return dict(value) or None
    return value if value or value is False else None


def format_one_line(value: object) -> str:
    """Return a value as host.yaml writes it, in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {format_one_line(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_one_line, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_version(value: object) -> object:
    if value != FORMAT_VERSION or isinstance(value, bool | float):
        raise ValueError(
            f"this vgpuctl reads version {FORMAT_VERSION} of host.yaml, written 'version: {FORMAT_VERSION}'"
        )
    return value


def _parse_defaults(value: object) -> Value:
    given: dict[str, Any] = DEFAULTS_SHAPE.check(value)
    return Defaults(**given)


def _parse_gpus(value: object) -> dict[str, GpuSpec]:
    given: Any = mapping_of(rules.gpu_key, GPU_SHAPE)(value)
    return {address: GpuSpec(**entry) for address, entry in given.items()}


def _parse_vgpus(value: object) -> dict[str, VgpuSpec]:
    given: Any = mapping_of(rules.name, VGPU_SHAPE)(value)
    name_by_carrier: dict[object, str] = {}
    duplicates: list[rules.Problem] = []
    for name, entry in given.items():
        other = name_by_carrier.setdefault(entry["carrier"], name)
        if other != name:
            duplicates.append(
                rules.Problem((name, "carrier"), f"{entry['carrier']} is also the carrier of vGPU {other}")
            )
    if duplicates:
        raise rules.ValidationError(tuple(duplicates))
    return {name: VgpuSpec(**entry) for name, entry in given.items()}


def _parse_boot(value: object) -> BootSpec:
    given: dict[str, Any] = BOOT_SHAPE.check(value)
    return BootSpec(**given)


_TEXT_LIST_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    ]
}
GPU_SHAPE = Shape(
    "Gpu",
    "What a GPU is set up for; vgpuctl apply, set-mode, set-mig, set-mixed-size, set-scheduler and cordon write it.",
    (
        Key("mode", rules.gpu_mode, "what the GPU is set up for", {"enum": list(GPU_MODES), "type": "string"}),
        Key("vfs", rules.vfs, "how many virtual functions are on", {"minimum": 0, "maximum": 256, "type": "integer"}),
        Key("vf_memory", rules.vf_memory, "GPU memory of each plain VF", {"type": ["string", "integer"]}),
        Key("cordoned", rules.boolean, "true: no new vGPU is placed on it", {"type": "boolean"}),
        Key(
            "scheduler",
            parse_scheduler_spec,
            "how the driver divides the GPU's time",
            nested_shape=SCHEDULER_SHAPE,
        ),
        Key(
            "profiles",
            nonempty_list(rules.allowed_profile),
            "only these vGPU profiles are placed on it",
            _TEXT_LIST_SCHEMA,
        ),
        Key(
            "reserved_for",
            nonempty_list(rules.name_pattern),
            "only for VMs with such names, like vdi-*",
            _TEXT_LIST_SCHEMA,
        ),
        Key(
            "mig",
            parse_mig_spec,
            "off, a list of GPU instances, or the vGPUs to have room for",
            MIG_JSON_SCHEMA,
        ),
        Key("mixed_size", rules.boolean, "true: vGPUs of several sizes can be on it at once", {"type": "boolean"}),
        Key(
            "compute_partition",
            rules.one_of(COMPUTE_PARTITIONS),
            "the compute partition mode of AMD's GPUs with gim",
            {"enum": list(COMPUTE_PARTITIONS), "type": "string"},
        ),
        Key(
            "memory_partition",
            rules.one_of(MEMORY_PARTITIONS),
            "the memory partition mode of AMD's GPUs with gim",
            {"enum": list(MEMORY_PARTITIONS), "type": "string"},
        ),
        Key("reason", rules.reason, "why it is set up so; show-gpu shows it", {"maxLength": 255, "type": "string"}),
    ),
    check_gpu_keys,
)
VGPU_SHAPE = Shape(
    "Vgpu",
    "A vGPU without a VM. restore-host creates it again after each boot; create-vgpu and delete-vgpu write the entry.",
    (
        Key("profile", rules.profile, "the vGPU profile", {"minLength": 1, "type": "string"}, required=True),
        Key("gpu", rules.pci_address, "the GPU's PCI address", {"type": "string"}, required=True),
        Key("carrier", rules.carrier, "the mdev's UUID, or the VF's PCI address", {"type": "string"}, required=True),
        FIELDS["vgpu_params"].key(),
    ),
)
BOOT_SHAPE = Shape(
    "Boot",
    "How vGPUs are restored after a boot.",
    (
        Key(
            "deadline_seconds",
            rules.deadline_seconds,
            "how long to wait for drivers and VFs (default 300)",
            {"minimum": 1, "maximum": 3600, "type": "integer"},
        ),
        Key(
            "hold_libvirt_seconds",
            rules.hold_seconds,
            "how long libvirt's start waits for GPUs that are not ready (default 30)",
            {"minimum": 0, "maximum": 3600, "type": "integer"},
        ),
    ),
)
HOST_SHAPE = Shape(
    "HostSpec",
    "The host file /etc/vgpuctl/host.yaml.",
    (
        Key("version", _check_version, "the version of this file's format", {"const": FORMAT_VERSION}, required=True),
        Key("defaults", _parse_defaults, "defaults for new VMs", nested_shape=DEFAULTS_SHAPE),
        Key(
            "gpus",
            _parse_gpus,
            "the setup of each GPU, by PCI address (in quotes), by model, or all",
            map_value_shape=GPU_SHAPE,
        ),
        Key("vgpus", _parse_vgpus, "vGPUs without a VM, by name", map_value_shape=VGPU_SHAPE),
        Key("boot", _parse_boot, "restoring after a boot", nested_shape=BOOT_SHAPE),
        Key("placement", _parse_placement, "how the GPU for a new vGPU is chosen", nested_shape=PLACEMENT_SHAPE),
        Key("agent", parse_agent, "what members of the group vgpuctl may do", nested_shape=AGENT_SHAPE),
    ),
)


ALL_GPUS = "all"
GPU_SPEC_KEYS = field_names(GpuSpec)


def list_models(gpus: Mapping[str, GpuSpec]) -> tuple[str, ...]:
    """Return the models that `gpus:` names, in file order."""
    return tuple(key for key in gpus if key != ALL_GPUS and not is_pci_address(key))


def merge_gpu_entries(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> GpuSpec:
    """Return the settings of a GPU; empty when no entry matches it."""
    merged: dict[str, Any] = {}
    for entry in _matching_entries(gpus, gpu):
        given = {key: value for key in GPU_SPEC_KEYS if (value := getattr(entry, key)) is not None}
        if "mode" in given:
            for key in MODE_KEYS:
                merged.pop(key, None)
        merged |= given
    return GpuSpec(**merged)


def vf_memory_mib(spec: GpuSpec) -> int | None:
    """Return the GPU memory of each plain VF in MiB, None if it is not set."""
    return None if spec.vf_memory is None else parse_memory_size(spec.vf_memory)


def entry_matches(key: str, gpu: Gpu) -> bool:
    """Return whether an entry of `gpus:` matches a GPU, by its key."""
    if is_pci_address(key) or not is_pci_address(gpu.address):
        return key == gpu.address
    return gpu.is_display_class and (key == ALL_GPUS or gpu.has_model_name(key))


def _matching_entries(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> tuple[GpuSpec, ...]:
    """Return the entries that match a GPU, the most specific last."""
    return tuple(
        gpus[key] for key in (ALL_GPUS, *list_models(gpus), gpu.address) if key in gpus and entry_matches(key, gpu)
    )


def plan_entry_changes(
    gpus: Mapping[str, GpuSpec], gpu: Gpu, desired: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the changes to a GPU's own entry for these settings, and the current values of the changed keys.

    Both are empty if nothing changes. A key whose desired value is None is removed; a boolean becomes false where a
    less specific entry says true.
    """
    configured = merge_gpu_entries(gpus, gpu)
    if all(
        (dump_value(getattr(configured, key)) or None) == (dump_value(value) or None) for key, value in desired.items()
    ):
        return {}, {}
    inherited = merge_gpu_entries({key: entry for key, entry in gpus.items() if key != gpu.address}, gpu)
    own = gpus.get(gpu.address, GpuSpec())
    changes = dict(desired)
    for key in ("cordoned", "mixed_size"):
        if key in desired and not desired[key]:
            changes[key] = False if getattr(inherited, key) else None
    return changes, {key: dump_value(getattr(own, key)) for key in changes}
