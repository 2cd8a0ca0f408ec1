# SPDX-License-Identifier: Apache-2.0
"""Compare a request with existing VMs, and say how they differ and which command changes each field.

Only explicit fields count: a default never makes a difference. A profile may be given by its short name, the driver's
full name or a type id, and a GPU by address or model. The record keeps both texts as they were given. So the same
request matches the same VM, even after a driver update changed the ids of its types.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import CPU_PIN_AUTO, NONE
from vgpuctl.config.name_patterns import name_range
from vgpuctl.config.vm_request import (
    CHANGE_FIELDS,
    CONSTRAINT_FIELDS,
    FIELDS,
    LABEL_FIELDS,
    RECORDED_FIELDS,
    VmRequest,
    recorded_values,
    request_of_record,
    requested_values,
)
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.gpu.profiles import matches_profile_name, matches_type
from vgpuctl.model.gpu import VgpuType, address_of_render_link
from vgpuctl.model.guest_driver import is_driver_disc
from vgpuctl.model.numbers import format_mib, format_ranges
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm
from vgpuctl.value import replace

FieldValues = dict[str, object]
ADDRESSES_FIELD = "static_addresses"
"""The record's field of the addresses in the VM's network configuration."""
_PLACEMENT_FIELDS = tuple(name for name in CONSTRAINT_FIELDS if name != "gpu" and FIELDS[name].compared)
"""Fields that restrict on which GPU a VM is placed, besides the GPU itself; the record keeps them."""


def diff_vm(
    vm: Vm, request: VmRequest, matching_gpus: Set[str] = frozenset(), types: Sequence[VgpuType] = ()
) -> tuple[FieldValues, FieldValues]:
    """Return (before, after) of the explicit fields in which the VM differs from the request; empty if none do.

    Fields that a domain shows are compared with the domain. The others (os, template, spare ports, plugin parameters,
    the path of the user-data) are compared with the fields in its record. `matching_gpus`: the addresses on this host
    that match a requested model. `types`: those of the VM's GPUs. Only an operation can supply these; they are not
    needed when the record keeps the same text.
    """
    request = with_all_labels(vm, request)
    before = current_values(vm, request)
    after = requested_values(request)
    after["profile"] = _count_profiles(resolve_vm_profile(vm, p, types) for p, n in request.profiles for _ in range(n))
    if is_on_requested_gpu(vm, request) or (record_gpus(vm) and record_gpus(vm) <= matching_gpus):
        before["gpu"] = after["gpu"]
    changed = [f for f in after if request.is_explicit(f) and f in before and before[f] != after[f]]
    return {f: before[f] for f in changed}, {f: after[f] for f in changed}


def with_all_labels(vm: Vm, request: VmRequest) -> VmRequest:
    """Return a request whose `labels` are all that the VM has after the changes of labels."""
    if not request.label_changes:
        return request
    merged = {**(vm.record.labels if vm.record else {}), **request.label_changes}
    labels = {key: value for key, value in sorted(merged.items()) if value is not None}
    return replace(request, labels=labels, label_changes={})


def is_on_requested_gpu(vm: Vm, request: VmRequest) -> bool:
    """Say whether the VM's GPUs are among the requested ones, or were requested by the same texts.

    True if no GPU is requested.
    """
    requested = request.gpu
    vm_gpus = record_gpus(vm)
    return (
        not requested
        or (bool(vm_gpus) and vm_gpus <= set(requested))
        or request_of_record(_request_fields(vm)).gpu == requested
    )


def resolve_vm_profile(vm: Vm, text: str, types: Sequence[VgpuType] = ()) -> str:
    """Return the profile that a text names on this VM, or the text itself. `types`: those of its GPUs now."""
    recorded = _recorded_profile(vm, _request_fields(vm), text)
    vm_profiles = {v.profile for v in vm.record.vgpus} if vm.record else set()
    if recorded in vm_profiles:
        return recorded
    return next((t.profile for t in types if t.profile in vm_profiles and matches_type(t, text)), recorded)


def vm_gpu_types(snapshot: Snapshot, vm: Vm) -> tuple[VgpuType, ...]:
    """Return the snapshot's types of a VM's GPUs."""
    addresses = record_gpus(vm)
    return tuple(t for g in snapshot.gpus if g.address in addresses for t in g.types)


def _request_fields(vm: Vm) -> FieldValues:
    return vm.record.request_fields if vm.record else {}


def _recorded_profile(vm: Vm, request_fields: FieldValues, text: str) -> str:
    """Return the profile that a text names on this VM: by its record, its name, or a full name's last word.

    A VM made with one full name does not match another full name with the same last word. In a text with `|`, each
    alternative counts. This works even if the driver hides the types of a GPU in use.
    """
    vgpus = vm.record.vgpus if vm.record else ()
    texts = request_fields.get("profile")
    recorded_texts = (
        [str(t) for t in texts] if isinstance(texts, list) and len(texts) == len(vgpus) else [""] * len(vgpus)
    )
    for vgpu, recorded_text in zip(vgpus, recorded_texts, strict=True):
        if vgpu.profile and (
            text == recorded_text
            or any(_is_profile_text(vgpu.profile, recorded_text, alternative) for alternative in text.split("|"))
        ):
            return vgpu.profile
    return text


def _is_profile_text(profile: str, recorded_text: str, text: str) -> bool:
    return matches_profile_name(profile, text) or (
        " " not in recorded_text and text.lower().split()[-1:] == [profile.lower()]
    )


def current_values(vm: Vm, request: VmRequest) -> FieldValues:
    """Return the fields that a VM has, in the terms of the request: from its domain, or from its record."""
    record, request_fields = vm.record, _request_fields(vm)
    data_disks = record.data_disks() if record else ()
    empty_sizes_mib = [d.capacity_bytes >> 20 for d in data_disks if d.image is None]
    managed_paths = {d.path for d in record.disks} if record else set()
    existing = [d.source for d in vm.disks if d.device == "disk" and d.source not in managed_paths]
    cdroms = [d.source for d in vm.disks if d.device == "cdrom"]
    values: FieldValues = {
        "profile": _count_profiles(v.profile for v in record.vgpus if v.profile) if record else {},
        "memory": vm.memory_mib,
        "vcpus": vm.vcpus,
        "image": record.image if record else None,
        "disk": sorted([format_mib(m) for m in empty_sizes_mib] + [str(p) for p in existing]),
        "cdrom": next((path for path in cdroms if path not in managed_paths and not is_driver_disc(path)), None),
        "storage_pool": data_disks[0].pool if data_disks else None,
        "reserve": record.reserve if record else None,
    }
    nothing = VmRequest()
    recorded = {name: FIELDS[name].text_in(nothing) for name in RECORDED_FIELDS}
    recorded |= {name: value for name, value in request_fields.items() if name != "profile"}
    recorded["gpus"] = count_devices(record.vgpus) if record else 0
    gpu = request_fields.get("gpu") or ", ".join(sorted(record_gpus(vm))) or None
    return values | recorded | {"gpu": gpu} | _current_devices(vm, request)


def _current_devices(vm: Vm, request: VmRequest) -> FieldValues:
    """Return the fields that only a VM's domain shows, in the terms of the request.

    Of a card only what the request names counts: libvirt chose the MAC address and vgpuctl the model of the others.
    A VM pinned by `auto` is pinned by `auto` still, whatever CPUs that meant.
    """
    cards = [nic for nic in vm.nics if nic.has_network]
    requested = [*request.nics, *[None] * len(cards)]
    pinned: str = format_ranges(vm.pinned_cpus) or NONE
    if vm.pinned_cpus and request.cpu_pin == CPU_PIN_AUTO == _request_fields(vm).get("cpu_pin"):
        pinned = CPU_PIN_AUTO
    return (
        dict.fromkeys(SETTINGS, NONE)
        | dict(vm.settings)
        | {
            "networks": [nic.shown_like(wanted_card).text for nic, wanted_card in zip(cards, requested, strict=False)]
            or [NONE],
            "cpu_pin": pinned,
            "display": vm.has_display,
        }
    )


def count_devices(vgpus: Iterable[AssignedVgpu]) -> int:
    """Return how many whole GPUs and plain VFs a VM has; the other functions of a GPU's slot go with it."""
    whole = [v for v in vgpus if v.profile is None]
    return len({v.gpu if backend_for(v.backend).takes_whole_gpu else v.carrier for v in whole})


def record_gpus(vm: Vm) -> set[str]:
    """Return the addresses of the GPUs that hold a VM's vGPUs, or draw for it."""
    drawn = {address} if (address := address_of_render_link(vm.render_node)) else set()
    return drawn | ({v.gpu for v in vm.record.vgpus} if vm.record else set())


def request_fields_json(request: VmRequest, static_addresses: Sequence[str] = ()) -> str:
    """Return, as JSON, the fields that a domain does not show; the VM's record keeps them.

    The profiles are kept as given, one text for each vGPU, in the order of the record's vGPUs.
    """
    fields = recorded_values(request)
    if static_addresses:
        fields[ADDRESSES_FIELD] = list(static_addresses)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _count_profiles(profiles: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(profiles).items()))


def _describe_value(value: object) -> str:
    """Return the value of a field in one line, as a spec has it; `none` for one that is not set."""
    if isinstance(value, Mapping):
        value = [f"{key}={each}" for key, each in value.items()]
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def describe_differences(before: FieldValues, after: FieldValues) -> str:
    """Return every field that differs: `memory: 4 GiB -> 8 GiB, profile: A16-2Q -> A16-4Q`."""
    return ", ".join(describe_change(field, before, after) for field in sorted(before))


def describe_change(field: str, before: FieldValues, after: FieldValues) -> str:
    """Return how one field differs: `memory: 4 GiB -> 8 GiB`."""
    return f"{field}: {_describe_field(field, before[field])} -> {_describe_field(field, after[field])}"


def fixed_field_hint(vms: Sequence[str], fields: Collection[str], before: FieldValues, after: FieldValues) -> str:
    """Return what to do about fields that ensure-vm never changes: the command that does, or another VM."""
    names = _command_words(vms)
    hints, rest = [], set(fields)
    if "image" in rest and before["image"] and after["image"]:
        rest.discard("image")
        image = shlex.quote(str(after["image"]))
        hints.append(
            f"vgpuctl refresh-vm {names} --image {image} gives {_it(vms)} a new disk; the current disk is lost"
        )
    if "disk" in rest:
        rest.discard("disk")
        hints.append(f"vgpuctl resize-disk {names} SIZE grows a disk; otherwise write the current sizes into the spec")
    if "gpus" in rest and "mode" not in rest:
        rest.discard("gpus")
        hints.append(_gpus_hint(names, before["gpus"], after["gpus"]))
    restrictions = sorted(rest & set(_PLACEMENT_FIELDS))
    if restrictions:
        hints.append(f"only a new VM is placed by {', '.join(restrictions)}: omit that for one that exists")
    fixed = sorted(rest - set(restrictions))
    if fixed:
        hints.append(
            f"{', '.join(fixed)} cannot be changed in place: use the current value"
            f" (vgpuctl show-vm {names} -o yaml), or another name for a new VM"
        )
    return "; ".join(hints)


def _gpus_hint(names: str, before: object, after: object) -> str:
    """Return the command that gives VMs the requested number of whole GPUs."""
    if not isinstance(before, int) or not isinstance(after, int) or before < after:
        missing = after - before if isinstance(before, int) and isinstance(after, int) else "N"
        return f"vgpuctl attach-gpu {names} --gpus {missing} adds the missing GPUs while the VM is off"
    return f"vgpuctl detach-gpu {names} --gpu ADDRESS removes one; vgpuctl show-vm {names} shows their addresses"


def set_vm_command(vms: Sequence[str], fields: Collection[str], before: FieldValues, after: FieldValues) -> str:
    """Return the command that gives VMs the requested values of fields that set-vm changes."""
    words = [word for field in CHANGE_FIELDS if field in fields for word in _option_words(field, before, after)]
    return f"vgpuctl set-vm {_command_words(vms)} {shlex.join(words)}"


def _option_words(field: str, before: FieldValues, after: FieldValues) -> list[str]:
    option, value = FIELDS[field].option, after[field]
    if field == "display":
        return [option if value else f"--no-{option[2:]}"]
    values = value if isinstance(value, list) else [value or ""]
    if isinstance(value, Mapping) and field == "profile":
        values = _counted(value)
    elif isinstance(value, Mapping):
        old = before[field]
        values = [f"{key}={each}" for key, each in value.items()]
        values += [f"{key}-" for key in old if key not in value] if isinstance(old, Mapping) else []
    elif field == "memory" and isinstance(value, int):
        values = [format_mib(value).replace(" ", "")]
    return [word for each in values for word in (option, str(each))]


def difference_hint(vms: Mapping[str, tuple[FieldValues, FieldValues]], updatable: Collection[str]) -> str:
    """Return which commands change several VMs, each with its (before, after). `updatable`: fields to change while off.

    The value of a field is the first VM's that differs in it: all are compared with one request.
    """
    before: FieldValues = {}
    after: FieldValues = {}
    for values, requested in vms.values():
        before, after = {**values, **before}, {**requested, **after}
    fields = before.keys()
    labels = fields & set(LABEL_FIELDS)
    while_off = (fields - labels) & set(updatable)
    fixed = fields - labels - while_off

    def having(some: Collection[str]) -> list[str]:
        return [name for name, (values, _) in vms.items() if any(field in values for field in some)]

    hints = [fixed_field_hint(having(fixed), fixed, before, after)] if fixed else []
    if while_off:
        command = set_vm_command(having(while_off), while_off, before, after)
        hints.append(f"vgpuctl stop-vm {_command_words(having(while_off))}, then: {command}")
    hints += [set_vm_command(having(labels), labels, before, after)] if labels else []
    return "; ".join(hints)


def _command_words(vms: Sequence[str]) -> str:
    """Return names as words of a command, numbered ones as one range: `'vdi-{001..100}'`."""
    numbered = name_range(vms) if len(vms) > 1 else None
    return shlex.quote(numbered) if numbered is not None else shlex.join(vms)


def _it(vms: Sequence[str]) -> str:
    return "it" if len(vms) == 1 else "each"


def _describe_field(field: str, value: object) -> str:
    if field == "profile" and isinstance(value, Mapping):
        return _describe_value(_counted(value))
    return format_mib(value) if field == "memory" and isinstance(value, int) else _describe_value(value)


def _counted(profiles: Mapping[str, int]) -> list[str]:
    """Return profiles as a spec has them: A16-2Q, or A16-2Q:2 for two vGPUs of it."""
    return [profile if count == 1 else f"{profile}:{count}" for profile, count in profiles.items()]
