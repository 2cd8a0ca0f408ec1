# SPDX-License-Identifier: Apache-2.0
"""What goes away when one host.yaml replaces another: each entry with the keys that the new one does not have.

Of a list these are the elements, of a mapping its keys. A value that only changes does not go, and neither does a key
of a GPU's entry that every GPU here keeps by another entry: export names each GPU by its address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vgpuctl.model.gpu import Gpu
from vgpuctl.spec.gpus import KEYS, meant_by, said_of_gpu
from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec, as_written, one_line
from vgpuctl.value import Value, as_dict

_SECTIONS = ("defaults", "placement", "boot")


class Removal(Value):
    """An entry that goes away, or some of its keys. `entry` as in `gpus.A16`; the values are as host.yaml has them."""

    entry: str
    keys: Mapping[str, object]

    @property
    def data(self) -> dict[str, object]:
        """The JSON value."""
        return {"entry": self.entry, "keys": dict(self.keys)}

    @property
    def line(self) -> str:
        """One line for people."""
        return f"{self.entry}: {', '.join(f'{key} {one_line(value)}' for key, value in self.keys.items()) or 'empty'}"


def removals(wanted: HostSpec, now: HostSpec, gpus: tuple[Gpu, ...]) -> tuple[Removal, ...]:
    """Return what `now` says and `wanted` does not, section by section. `gpus`: those of the host."""
    found = [Removal(f"gpus.{name}", _keys_that_go(name, entry, wanted, now, gpus)) for name, entry in now.gpus.items()]
    for name, vgpu in now.vgpus.items():
        found.append(Removal(f"vgpus.{name}", _lost_keys(_said(vgpu), _said(wanted.vgpus.get(name)))))
    for section in _SECTIONS:
        found.append(Removal(section, _lost_keys(_set(getattr(now, section)), _set(getattr(wanted, section)))))
    return tuple(one for one in found if one.keys)


def _keys_that_go(
    name: str, entry: GpuSpec, wanted: HostSpec, now: HostSpec, gpus: tuple[Gpu, ...]
) -> dict[str, object]:
    meant = [gpu for gpu in gpus if meant_by(name, gpu)]
    sides = [(said_of_gpu(now.gpus, gpu), said_of_gpu(wanted.gpus, gpu)) for gpu in meant]
    same = {key for key in KEYS if sides and all(_worth(one, key) == _worth(other, key) for one, other in sides)}
    gone = _lost_keys(_written(entry), _written(wanted.gpus.get(name)))
    return {key: value for key, value in gone.items() if key not in same}


def _written(entry: GpuSpec | None) -> dict[str, object]:
    return {key: as_written(value) for key in KEYS if (value := getattr(entry, key, None)) is not None}


def _worth(said: GpuSpec, key: str) -> object:
    return as_written(getattr(said, key)) or None


def _said(entry: VgpuSpec | None) -> dict[str, object]:
    return {} if entry is None else {key: value for key, value in as_dict(entry).items() if value}


def _set(section: Value) -> dict[str, object]:
    unset = as_dict(type(section)())
    return {key: value for key, value in as_dict(section).items() if value != unset[key]}


def _lost_keys(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the keys that the new mapping lacks, with their values, and of the others what their values lose."""
    lost = {key: _lost(value, new[key]) if key in new else value for key, value in old.items()}
    return {key: value for key, value in lost.items() if value is not None}


def _lost(old: object, new: object) -> object:
    """Return the keys of a mapping, or the elements of a list, that the new one lacks; None when there are none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _lost_keys(old, new) or None
    if isinstance(old, list) and isinstance(new, list):
        return list((Counter(old) - Counter(new)).elements()) or None
    return None
