# SPDX-License-Identifier: Apache-2.0
"""What goes away when one host.yaml replaces another: each entry with the keys that the new one does not have.

A key of a GPU's entry that every GPU here keeps by another entry does not go: export names each GPU by its address.
"""

from __future__ import annotations

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
    found += [Removal(f"vgpus.{name}", _said(now.vgpus[name])) for name in now.vgpus if name not in wanted.vgpus]
    for section in _SECTIONS:
        new, old = getattr(wanted, section), getattr(now, section)
        unset = as_dict(type(old)())
        keys = {key: value for key, value in as_dict(old).items() if value != unset[key]}
        gone = {key: _lost(value, as_dict(new)[key], unset[key]) for key, value in keys.items()}
        found.append(Removal(section, {key: value for key, value in gone.items() if value is not None}))
    return tuple(one for one in found if one.keys)


def _keys_that_go(
    name: str, entry: GpuSpec, wanted: HostSpec, now: HostSpec, gpus: tuple[Gpu, ...]
) -> dict[str, object]:
    meant = [gpu for gpu in gpus if meant_by(name, gpu)]
    sides = [(said_of_gpu(now.gpus, gpu), said_of_gpu(wanted.gpus, gpu)) for gpu in meant]
    found: dict[str, object] = {}
    for key in KEYS:
        value = getattr(entry, key)
        if value is None or getattr(wanted.gpus.get(name), key, None) is not None:
            continue
        if not sides or any(_worth(one, key) != _worth(other, key) for one, other in sides):
            found[key] = as_written(value)
    return found


def _worth(said: GpuSpec, key: str) -> object:
    return as_written(getattr(said, key)) or None


def _said(entry: VgpuSpec) -> dict[str, object]:
    return {key: value for key, value in as_dict(entry).items() if value}


def _lost(old: object, new: object, unset: object) -> object:
    """Return what of a setting's value goes: of a mapping the names that the new one lacks, else all or nothing."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: value for name, value in old.items() if name not in new} or None
    return old if new == unset else None
