# SPDX-License-Identifier: Apache-2.0
"""What `gpus:` of host.yaml says of one GPU of this host. It names GPUs by address, by model, or all of them.

Key by key the most specific entry counts: the address before a model, a model before `all`; of two models that both
fit, the one further down in the file. `vfs` goes with `mode`: it counts only from an entry that is as specific as
the one that says the mode. `all` and models mean GPUs with a PCI address; another device, as a network card's
function, is named by its address alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.model.address import is_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.spec.host import GpuSpec, as_written
from vgpuctl.value import field_names

ALL = "all"
KEYS = field_names(GpuSpec)


def by_model(gpus: Mapping[str, GpuSpec]) -> tuple[str, ...]:
    """Return the models that `gpus:` names, in its order."""
    return tuple(key for key in gpus if key != ALL and not is_pci(key))


def said_of_gpu(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> GpuSpec:
    """Return what is said of a GPU; nothing when no entry means it."""
    merged: dict[str, Any] = {}
    for entry in _entries(gpus, gpu):
        given = {key: value for key in KEYS if (value := getattr(entry, key)) is not None}
        if "mode" in given:
            merged.pop("vfs", None)
        merged |= given
    return GpuSpec(**merged)


def meant_by(key: str, gpu: Gpu) -> bool:
    """Say whether an entry of `gpus:` means a GPU, by its key."""
    if is_pci(key) or not is_pci(gpu.address):
        return key == gpu.address
    return gpu.display_class and (key == ALL or gpu.called(key))


def _entries(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> tuple[GpuSpec, ...]:
    """Return the entries that mean a GPU, the most specific last."""
    return tuple(gpus[key] for key in (ALL, *by_model(gpus), gpu.address) if key in gpus and meant_by(key, gpu))


def entry_changes(
    gpus: Mapping[str, GpuSpec], gpu: Gpu, wanted: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return what makes a GPU's own entry say this of it, and what the entry says now; both empty when it is said.

    A key that is wanted to be nothing is taken out; a truth value becomes false where a wider entry says true.
    """
    said = said_of_gpu(gpus, gpu)
    if all((as_written(getattr(said, key)) or None) == (as_written(value) or None) for key, value in wanted.items()):
        return {}, {}
    others = said_of_gpu({key: entry for key, entry in gpus.items() if key != gpu.address}, gpu)
    own = gpus.get(gpu.address, GpuSpec())
    changes = dict(wanted)
    for key in ("cordoned", "mixed_size"):
        if key in wanted and not wanted[key]:
            changes[key] = False if getattr(others, key) else None
    return changes, {key: as_written(getattr(own, key)) for key in changes}
