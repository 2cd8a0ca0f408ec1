# SPDX-License-Identifier: Apache-2.0
"""The settings in `gpus:` of host.yaml for one GPU of this host. Entries name GPUs by address, by model, or `all`.

For each key the most specific entry wins: the address before a model, a model before `all`; of two models that both
match, the later one in the file. `vfs` belongs to `mode`: it counts only from an entry that is at least as specific as
the one that sets the mode. `all` and models match GPUs with a PCI address; another device, such as a network card's
function, is named only by its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config.host_spec import GpuSpec, dump_value
from vgpuctl.model.address import is_pci_address
from vgpuctl.model.gpu import Gpu
from vgpuctl.value import field_names

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
            merged.pop("vfs", None)
        merged |= given
    return GpuSpec(**merged)


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
