# SPDX-License-Identifier: Apache-2.0
"""Read files of other programs: mdevctl's definitions, and those of NVIDIA's vgpu-device-manager and mig-parted.

The top-level keys show the format: `vgpu-configs:`, `mig-configs:`, or a list of parents as `mdevctl list -d
--dumpjson` prints it. A file of /etc/mdevctl.d/PARENT/UUID is one definition. Sources: mdevctl's manual page; the
README files of vgpu-device-manager and mig-parted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vgpuctl.config.gpu_spec import check_instance_name
from vgpuctl.config.yaml_reader import Document, LocatedProblem, load_document, problems_error
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import MigSpec
from vgpuctl.value import Value

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KeyPath = tuple[str | int, ...]
FORMATS_HELP = (
    "a file with vgpu-configs: or mig-configs:, a ConfigMap with one, what mdevctl list -d --dumpjson prints, "
    "or /etc/mdevctl.d"
)


class MdevDefinition(Value):
    """An mdev that mdevctl defines.

    `params`: of NVIDIA's plugin; `other_attributes`: the names of further attributes.
    """

    uuid: str
    parent: str
    type_id: str
    auto: bool
    params: str
    other_attributes: tuple[str, ...]
    position: str


class DeviceConfig(Value):
    """The desired state that one entry of vgpu-device-manager or mig-parted describes for some GPUs.

    `indexes` None: all GPUs; `device_filter`: only those, as `0x20B010DE`, device before vendor. `vgpus`: profiles of
    vgpu-device-manager and how many of each, None where it does not say; `mig`: what mig-parted requests, None in the
    other's files; `unsupported`: parts that vgpuctl cannot express, each as the end of a sentence.
    """

    indexes: tuple[int, ...] | None
    device_filter: tuple[str, ...]
    vgpus: tuple[tuple[str, int | None], ...]
    mig: MigSpec | None
    position: str
    unsupported: tuple[str, ...] = ()


class ImportedConfig(Value):
    """The content of a file: mdevctl's definitions, or the entries of the one chosen configuration."""

    source: str
    definitions: tuple[MdevDefinition, ...] = ()
    device_configs: tuple[DeviceConfig, ...] = ()


def parse_import(text: str, name: str, config: str | None) -> ImportedConfig:
    """Read a text of any of the formats. `config`: which configuration of several.

    Raises:
        InvalidInput: each problem as `file:line:column`; or there are several configurations and none is chosen.
    """
    return _parse_text(text, name, config, 0)


def _parse_text(text: str, name: str, config: str | None, lines_before: int) -> ImportedConfig:
    document = load_document(text, name, lines_before=lines_before)
    top = document.value
    if isinstance(top, Mapping):
        for key, source in (("vgpu-configs", "vgpu-device-manager"), ("mig-configs", "mig-parted")):
            if key in top:
                return ImportedConfig(source, device_configs=_parse_chosen_config(document, top, key, config))
        if top.get("kind") == "ConfigMap":
            return _parse_config_map(document, top, config)
    if isinstance(top, list):
        return ImportedConfig("mdevctl", definitions=_parse_mdevctl_list(document, top))
    raise _problem_error(document, (), f"this is not one of the known formats: {FORMATS_HELP}")


def _parse_config_map(document: Document, top: Mapping[str, Any], config: str | None) -> ImportedConfig:
    """Read the only file of a Kubernetes ConfigMap that is in one of the formats; lines are those of the ConfigMap."""
    files: dict[str, str] = {}
    for key, text in (_require_mapping(document, ("data",), top.get("data") or {})).items():
        if isinstance(text, str) and re.search(r"^(vgpu|mig)-configs:", text, re.MULTILINE):
            files[key] = text
    if len(files) != 1:
        which = f"several files, {', '.join(files)}" if files else "no file with vgpu-configs: or mig-configs:"
        raise _problem_error(
            document,
            ("data",) if "data" in top else (),
            f"this ConfigMap has {which}: save the one to import in a file of its own (kubectl get configmap NAME "
            "-o yaml shows them below data:)",
        )
    ((key, text),) = files.items()
    lines_before = document.position(("data", key)).line if "\n" in text else 0
    return _parse_text(text, document.name, config, lines_before)


def parse_mdevctl_definition(text: str, name: str, parent: str, uuid: str) -> MdevDefinition:
    """Read one file of /etc/mdevctl.d/PARENT/UUID.

    Raises:
        InvalidInput: it is no definition.
    """
    return _parse_definition(load_document(text, name), (), parent, uuid)


def _parse_mdevctl_list(document: Document, top: list[Any]) -> tuple[MdevDefinition, ...]:
    definitions = []
    for number, parents in enumerate(top):
        for parent, devices in _require_mapping(document, (number,), parents).items():
            for index, entry in enumerate(_require_list(document, (number, parent), devices)):
                path = (number, parent, index)
                uuids = _require_mapping(document, path, entry)
                definitions += [_parse_definition(document, (*path, uuid), parent, uuid) for uuid in uuids]
    return tuple(definitions)


def _parse_definition(document: Document, path: _KeyPath, parent: str, uuid: str) -> MdevDefinition:
    if not _UUID.fullmatch(uuid):
        raise _problem_error(document, path, f"'{uuid}' is not the UUID of an mdev")
    entry = _require_mapping(document, path, _value_at(document.value, path))
    type_id = _require_text(document, (*path, "mdev_type"), entry.get("mdev_type"))
    attributes: dict[str, str] = {}
    for number, attribute in enumerate(_require_list(document, (*path, "attrs"), entry.get("attrs") or [])):
        for key, value in _require_mapping(document, (*path, "attrs", number), attribute).items():
            attributes[key] = str(value)
    params = attributes.pop("nvidia/vgpu_params", "")
    position = f"{document.name}:{document.position(path, of_key=True).line}"
    auto = entry.get("start", "manual") == "auto"
    return MdevDefinition(uuid.lower(), parent, type_id, auto, params.strip(), tuple(attributes), position)


def _parse_chosen_config(
    document: Document, top: Mapping[str, Any], key: str, config: str | None
) -> tuple[DeviceConfig, ...]:
    configs = _require_mapping(document, (key,), top[key])
    names = list(configs)
    chosen = config or (names[0] if len(names) == 1 else "default" if "default" in names else None)
    if chosen is None or chosen not in configs:
        which = f"there is no configuration '{config}'" if config else "there are several configurations"
        raise InvalidInput(
            f"{document.name}: {which}: {', '.join(names[:20]) or 'none'}", hint="--config NAME chooses one"
        )
    path = (key, chosen)
    parse_entry: Callable[[Document, _KeyPath, Any], DeviceConfig] = (
        _parse_vgpu_entry if key == "vgpu-configs" else _parse_mig_entry
    )
    return tuple(
        parse_entry(document, (*path, n), entry)
        for n, entry in enumerate(_require_list(document, path, configs[chosen]))
    )


def _parse_vgpu_entry(document: Document, path: _KeyPath, entry: Any) -> DeviceConfig:
    """Read an entry: a mapping with devices and vgpu-devices, or only the profile's name, as in older files."""
    if isinstance(entry, str):
        return DeviceConfig(None, (), ((entry, None),), None, _format_position(document, path))
    given = _require_mapping(document, path, entry)
    requested = _require_mapping(document, (*path, "vgpu-devices"), given.get("vgpu-devices"))
    counts = tuple((name, _require_count(document, (*path, "vgpu-devices", name), n)) for name, n in requested.items())
    return _make_device_config(document, path, given, counts, None)


def _parse_mig_entry(document: Document, path: _KeyPath, entry: Any) -> DeviceConfig:
    given = _require_mapping(document, path, entry)
    if not isinstance(given.get("mig-enabled"), bool):
        raise _problem_error(document, (*path, "mig-enabled"), "mig-enabled is missing, or not true or false")
    requested = _require_mapping(document, (*path, "mig-devices"), given.get("mig-devices") or {})
    if not given["mig-enabled"]:
        return _make_device_config(document, path, given, (), MigSpec())
    names: list[str] = []
    unsupported: list[str] = []
    for name, number in requested.items():
        count = _require_count(document, (*path, "mig-devices", name), number)
        try:
            names += [check_instance_name(name)] * count
        except ValueError:
            unsupported.append(
                f"{count} of {name}, which is not a GPU instance profile: vgpuctl creates no compute instances"
            )
    if not names:
        unsupported.append("MIG without GPU instances, which carries no vGPUs")
    return _make_device_config(document, path, given, (), MigSpec(tuple(names)) if names else None, tuple(unsupported))


def _make_device_config(
    document: Document,
    path: _KeyPath,
    given: Mapping[str, Any],
    vgpus: tuple[tuple[str, int], ...],
    mig: MigSpec | None,
    unsaid: tuple[str, ...] = (),
) -> DeviceConfig:
    devices = given.get("devices")
    if devices != "all" and not (isinstance(devices, list) and all(type(n) is int and n >= 0 for n in devices)):
        raise _problem_error(document, (*path, "devices"), "devices is missing, or neither all nor a list of numbers")
    device_filter = given.get("device-filter") or []
    ids = (
        [device_filter]
        if isinstance(device_filter, str)
        else _require_list(document, (*path, "device-filter"), device_filter)
    )
    return DeviceConfig(
        None if devices == "all" else tuple(devices),
        tuple(_require_text(document, (*path, "device-filter"), device_id) for device_id in ids),
        vgpus,
        mig,
        _format_position(document, path),
        unsaid,
    )


def _require_count(document: Document, path: _KeyPath, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _problem_error(document, path, "expected a number")
    return value


def _format_position(document: Document, path: _KeyPath) -> str:
    return f"{document.name}:{document.position(path).line}"


def _value_at(value: Any, path: _KeyPath) -> Any:
    for part in path:
        value = value[part]
    return value


def _require_mapping(document: Document, path: _KeyPath, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _problem_error(document, path, "expected a mapping")
    return value


def _require_list(document: Document, path: _KeyPath, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _problem_error(document, path, "expected a list")
    return value


def _require_text(document: Document, path: _KeyPath, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _problem_error(document, path, f"{path[-1]} is missing, or not text")
    return value


def _problem_error(document: Document, path: _KeyPath, text: str) -> InvalidInput:
    position = document.position(path)
    return problems_error(
        document.name,
        [LocatedProblem(position.line, position.column, document.format_path(path) if path else "", text)],
    )
