# SPDX-License-Identifier: Apache-2.0
"""What is removed when one host.yaml replaces another: each entry, with the keys that the new one lacks.

For a list these are its elements, for a mapping its keys. A changed value is no removal. Neither is a key of a GPU's
entry that every GPU here still gets from another entry: export names each GPU by its address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vgpuctl.config.gpu_entries import GPU_SPEC_KEYS, entry_matches, merge_gpu_entries
from vgpuctl.config.host_spec import GpuSpec, HostSpec, VgpuSpec, dump_value, format_one_line
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.results.host import RemovedResult
from vgpuctl.value import Value, as_dict

_SECTIONS = ("defaults", "placement", "boot")


def describe_removed(removed: RemovedResult) -> str:
    """Return one line for people."""
    keys = ", ".join(f"{key} {format_one_line(value)}" for key, value in removed.keys.items())
    return f"{removed.entry}: {keys or 'empty'}"


def find_removed_entries(desired: HostSpec, current: HostSpec, gpus: tuple[Gpu, ...]) -> tuple[RemovedResult, ...]:
    """Return what `current` has and `desired` lacks, section by section. `gpus`: those of the host."""
    removed = [
        RemovedResult(f"gpus.{name}", _removed_gpu_keys(name, entry, desired, current, gpus))
        for name, entry in current.gpus.items()
    ]
    for name, vgpu in current.vgpus.items():
        removed.append(
            RemovedResult(f"vgpus.{name}", _removed_keys(_vgpu_values(vgpu), _vgpu_values(desired.vgpus.get(name))))
        )
    for section in _SECTIONS:
        removed.append(
            RemovedResult(
                section,
                _removed_keys(_section_values(getattr(current, section)), _section_values(getattr(desired, section))),
            )
        )
    return tuple(removed_entry for removed_entry in removed if removed_entry.keys)


def _removed_gpu_keys(
    name: str, entry: GpuSpec, desired: HostSpec, current: HostSpec, gpus: tuple[Gpu, ...]
) -> dict[str, object]:
    matching = [gpu for gpu in gpus if entry_matches(name, gpu)]
    spec_pairs = [(merge_gpu_entries(current.gpus, gpu), merge_gpu_entries(desired.gpus, gpu)) for gpu in matching]
    unchanged_keys = {
        key
        for key in GPU_SPEC_KEYS
        if spec_pairs
        and all(_key_value(old_spec, key) == _key_value(new_spec, key) for old_spec, new_spec in spec_pairs)
    }
    removed = _removed_keys(_gpu_values(entry), _gpu_values(desired.gpus.get(name)))
    return {key: value for key, value in removed.items() if key not in unchanged_keys}


def _gpu_values(entry: GpuSpec | None) -> dict[str, object]:
    return {key: dump_value(value) for key in GPU_SPEC_KEYS if (value := getattr(entry, key, None)) is not None}


def _key_value(spec: GpuSpec, key: str) -> object:
    return dump_value(getattr(spec, key)) or None


def _vgpu_values(entry: VgpuSpec | None) -> dict[str, object]:
    return {} if entry is None else {key: value for key, value in as_dict(entry).items() if value}


def _section_values(section: Value) -> dict[str, object]:
    default_values = as_dict(type(section)())
    return {key: value for key, value in as_dict(section).items() if value != default_values[key]}


def _removed_keys(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the keys that the new mapping lacks, with their values, and what remaining values lose."""
    removed = {key: _removed_part(value, new[key]) if key in new else value for key, value in old.items()}
    return {key: value for key, value in removed.items() if value is not None}


def _removed_part(old: object, new: object) -> object:
    """Return the keys of a mapping, or the elements of a list, that the new one lacks; None if there are none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _removed_keys(old, new) or None
    if isinstance(old, list) and isinstance(new, list):
        return list((Counter(old) - Counter(new)).elements()) or None
    return None
