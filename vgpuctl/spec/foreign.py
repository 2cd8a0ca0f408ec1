# SPDX-License-Identifier: Apache-2.0
"""Read what other programs keep: mdevctl's definitions, and the files of NVIDIA's vgpu-device-manager and mig-parted.

Which it is shows in its top-level keys: `vgpu-configs:`, `mig-configs:`, or a list of parents as `mdevctl list -d
--dumpjson` prints it. A file of /etc/mdevctl.d/PARENT/UUID is one definition. Sources: mdevctl's manual page; the
README files of vgpu-device-manager and mig-parted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vgpuctl.errors import InvalidInput
from vgpuctl.model.partition import MigSpec
from vgpuctl.spec.mig import instance_name
from vgpuctl.spec.read import Document, Found, load, refusal
from vgpuctl.value import Value

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_Path = tuple[str | int, ...]
FORMATS = "a file with vgpu-configs: or mig-configs:, what mdevctl list -d --dumpjson prints, or /etc/mdevctl.d"


class Definition(Value):
    """An mdev that mdevctl defines. `params`: of NVIDIA's plugin; `others`: further attributes, by name."""

    uuid: str
    parent: str
    type_id: str
    auto: bool
    params: str
    others: tuple[str, ...]
    where: str


class Carving(Value):
    """What one entry of vgpu-device-manager or mig-parted wants on some GPUs.

    `indexes` None: on all; `device_ids`: only on those, as `0x20B010DE`, device before vendor. `vgpus`: profiles of
    vgpu-device-manager and how many of each, None where it does not say; `mig`: what mig-parted asks for, None in the
    other's files; `unsaid`: what of it cannot be said, a sentence's rest each.
    """

    indexes: tuple[int, ...] | None
    device_ids: tuple[str, ...]
    vgpus: tuple[tuple[str, int | None], ...]
    mig: MigSpec | None
    where: str
    unsaid: tuple[str, ...] = ()


class Foreign(Value):
    """What was read: mdevctl's definitions, or the entries of the one configuration that was chosen."""

    source: str
    definitions: tuple[Definition, ...] = ()
    carvings: tuple[Carving, ...] = ()


def read_foreign(text: str, name: str, config: str | None) -> Foreign:
    """Read a text of any of the formats. `config`: which configuration of several.

    Raises:
        InvalidInput: each problem as `file:line:column`; or several configurations are there, and none is chosen.
    """
    document = load(text, name)
    top = document.value
    if isinstance(top, Mapping):
        for key, source in (("vgpu-configs", "vgpu-device-manager"), ("mig-configs", "mig-parted")):
            if key in top:
                return Foreign(source, carvings=_configured(document, top, key, config))
    if isinstance(top, list):
        return Foreign("mdevctl", definitions=_listed(document, top))
    raise _wrong(document, (), f"this is none of the formats that are known: {FORMATS}")


def read_definition(text: str, name: str, parent: str, uuid: str) -> Definition:
    """Read one file of /etc/mdevctl.d/PARENT/UUID.

    Raises:
        InvalidInput: it is no definition.
    """
    return _definition(load(text, name), (), parent, uuid)


def _listed(document: Document, top: list[Any]) -> tuple[Definition, ...]:
    found = []
    for number, parents in enumerate(top):
        for parent, devices in _mapping(document, (number,), parents).items():
            for place, entry in enumerate(_list(document, (number, parent), devices)):
                here = (number, parent, place)
                uuids = _mapping(document, here, entry)
                found += [_definition(document, (*here, uuid), parent, uuid) for uuid in uuids]
    return tuple(found)


def _definition(document: Document, path: _Path, parent: str, uuid: str) -> Definition:
    if not _UUID.fullmatch(uuid):
        raise _wrong(document, path, f"'{uuid}' is no UUID of an mdev")
    entry = _mapping(document, path, _at(document.value, path))
    type_id = _text(document, (*path, "mdev_type"), entry.get("mdev_type"))
    attributes: dict[str, str] = {}
    for number, one in enumerate(_list(document, (*path, "attrs"), entry.get("attrs") or [])):
        for key, value in _mapping(document, (*path, "attrs", number), one).items():
            attributes[key] = str(value)
    params = attributes.pop("nvidia/vgpu_params", "")
    where = f"{document.name}:{document.position(path, of_key=True).line}"
    auto = entry.get("start", "manual") == "auto"
    return Definition(uuid.lower(), parent, type_id, auto, params.strip(), tuple(attributes), where)


def _configured(document: Document, top: Mapping[str, Any], key: str, config: str | None) -> tuple[Carving, ...]:
    configs = _mapping(document, (key,), top[key])
    names = list(configs)
    chosen = config or (names[0] if len(names) == 1 else "default" if "default" in names else None)
    if chosen is None or chosen not in configs:
        which = f"there is no configuration '{config}'" if config else "several configurations are there"
        raise InvalidInput(
            f"{document.name}: {which}: {', '.join(names[:20]) or 'none'}", hint="--config NAME chooses one"
        )
    path = (key, chosen)
    read: Callable[[Document, _Path, Any], Carving] = _vgpus if key == "vgpu-configs" else _mig
    return tuple(read(document, (*path, n), one) for n, one in enumerate(_list(document, path, configs[chosen])))


def _vgpus(document: Document, path: _Path, entry: Any) -> Carving:
    """Read an entry: a mapping with devices and vgpu-devices, or the profile's name alone, as in older files."""
    if isinstance(entry, str):
        return Carving(None, (), ((entry, None),), None, _where(document, path))
    given = _mapping(document, path, entry)
    wanted = _mapping(document, (*path, "vgpu-devices"), given.get("vgpu-devices"))
    counts = tuple((name, _count(document, (*path, "vgpu-devices", name), n)) for name, n in wanted.items())
    return _carving(document, path, given, counts, None)


def _mig(document: Document, path: _Path, entry: Any) -> Carving:
    given = _mapping(document, path, entry)
    if not isinstance(given.get("mig-enabled"), bool):
        raise _wrong(document, (*path, "mig-enabled"), "mig-enabled is missing, or not true or false")
    wanted = _mapping(document, (*path, "mig-devices"), given.get("mig-devices") or {})
    if not given["mig-enabled"]:
        return _carving(document, path, given, (), MigSpec())
    names: list[str] = []
    unsaid: list[str] = []
    for name, number in wanted.items():
        count = _count(document, (*path, "mig-devices", name), number)
        try:
            names += [instance_name(name)] * count
        except ValueError:
            unsaid.append(f"{count} of {name}, which is no GPU instance profile: vgpuctl makes no compute instances")
    if not names:
        unsaid.append("MIG without GPU instances, in which there is no vGPU")
    return _carving(document, path, given, (), MigSpec(tuple(names)) if names else None, tuple(unsaid))


def _carving(
    document: Document,
    path: _Path,
    given: Mapping[str, Any],
    vgpus: tuple[tuple[str, int], ...],
    mig: MigSpec | None,
    unsaid: tuple[str, ...] = (),
) -> Carving:
    devices = given.get("devices")
    if devices != "all" and not (isinstance(devices, list) and all(type(n) is int and n >= 0 for n in devices)):
        raise _wrong(document, (*path, "devices"), "devices is missing, or neither all nor a list of numbers")
    named = given.get("device-filter") or []
    ids = [named] if isinstance(named, str) else _list(document, (*path, "device-filter"), named)
    return Carving(
        None if devices == "all" else tuple(devices),
        tuple(_text(document, (*path, "device-filter"), one) for one in ids),
        vgpus,
        mig,
        _where(document, path),
        unsaid,
    )


def _count(document: Document, path: _Path, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _wrong(document, path, "a number is due here")
    return value


def _where(document: Document, path: _Path) -> str:
    return f"{document.name}:{document.position(path).line}"


def _at(value: Any, path: _Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _mapping(document: Document, path: _Path, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(document, path, "a mapping is due here")
    return value


def _list(document: Document, path: _Path, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _wrong(document, path, "a list is due here")
    return value


def _text(document: Document, path: _Path, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(document, path, f"{path[-1]} is missing, or no text")
    return value


def _wrong(document: Document, path: _Path, text: str) -> InvalidInput:
    at = document.position(path)
    return refusal(document.name, [Found(at.line, at.column, document.shown(path) if path else "", text)])
