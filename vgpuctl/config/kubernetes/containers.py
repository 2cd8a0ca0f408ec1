# SPDX-License-Identifier: Apache-2.0
"""Reads the containers of a pod's specification, and says what else they have: a unit of the guest has only some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vgpuctl.config.kubernetes.pods import Container
from vgpuctl.config.kubernetes.quantity import parse_quantity
from vgpuctl.config.kubernetes.values import (
    as_mapping,
    as_scalar,
    as_shown,
    as_text,
    list_at,
    mapping_at,
    place_of,
    problem_at,
)
from vgpuctl.config.yaml_reader import Document, KeyPath
from vgpuctl.value import EMPTY_MAPPING, replace

_READ = frozenset({
    "name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "resources", "workingDir", "volumeMounts",
    "restartPolicy", "ports",
})  # fmt: skip
"""What is read, or says nothing about a VM; all else is said to be left out."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- the path in a container
_NO_LIMIT = 0


def read_containers(
    document: Document, spec: Mapping[str, Any], path: KeyPath
) -> tuple[tuple[Container, ...], tuple[Container, ...]]:
    """Return the containers of a pod that run together, and those that run before them, one after the other.

    One of `initContainers` that is always restarted runs beside the others.

    Raises:
        InvalidInput: they are none.
    """
    volumes = volumes_of(document, spec, path)
    before: list[Container] = []
    beside: list[Container] = []
    for value, container in _read_list(document, spec, "initContainers", path, volumes):
        (beside if as_mapping(value).get("restartPolicy") == "Always" else before).append(container)
    containers = [container for _, container in _read_list(document, spec, "containers", path, volumes)]
    return (*containers, *beside), tuple(before)


def volumes_of(document: Document, spec: Mapping[str, Any], path: KeyPath) -> Mapping[str, Mapping[str, Any]]:
    """Return the volumes of a pod's specification by name.

    Raises:
        InvalidInput: they are none.
    """
    volumes = list_at(document, spec, "volumes", path)
    return {as_text(as_mapping(volume).get("name"), ""): as_mapping(volume) for volume in volumes}


def _read_list(
    document: Document, spec: Mapping[str, Any], key: str, path: KeyPath, volumes: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[object, Container]]:
    for number, value in enumerate(list_at(document, spec, key, path)):
        yield value, read_container(document, value, (*path, key, number), volumes)


def read_container(
    document: Document, value: object, path: KeyPath, volumes: Mapping[str, Mapping[str, Any]] = EMPTY_MAPPING
) -> Container:
    """Return one container. `volumes`: of its pod, by name.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, Mapping):
        raise problem_at(document, path, "expected a container")
    env, left_out = _variables(document, value, path)
    left_out += [str(key) for key, item in value.items() if key not in _READ and item]
    left_out += _ports(list_at(document, value, "ports", path))
    resources = mapping_at(document, value, "resources", path)
    container = Container(
        name=as_text(value.get("name"), "container"),
        image=as_text(value.get("image"), ""),
        command=tuple(map(as_scalar, list_at(document, value, "command", path))),
        args=tuple(map(as_scalar, list_at(document, value, "args", path))),
        env=tuple(env),
        resources=_amounts(document, as_mapping(resources.get("limits")), as_mapping(resources.get("requests")), path),
        at=place_of(document, path),
        left_out=tuple(left_out),
        working_dir=as_scalar(value.get("workingDir")),
    )
    return _with_volumes(document, container, value, path, volumes)


def _ports(ports: Sequence[Any]) -> list[str]:
    """Return what is to do for a container's ports, which are the guest's own."""
    texts = []
    for port in map(as_mapping, ports[:20]):
        inside, outside = as_shown(port.get("containerPort")), as_shown(port.get("hostPort") or "")
        texts.append(f"{inside} (hostPort {outside})" if outside not in ("", inside) else inside)
    return [f"ports {', '.join(texts)}: they are the guest's own, allow them in its firewall"] if texts else []


def _variables(document: Document, value: Mapping[str, Any], path: KeyPath) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the variables with a value, and those whose values are in the cluster."""
    env: list[tuple[str, str]] = []
    left_out: list[str] = []
    for number, entry in enumerate(list_at(document, value, "env", path)):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise problem_at(document, (*path, "env", number), "expected a name and a value")
        if "valueFrom" in entry:
            left_out.append(f"env {entry['name']}, whose value is in the cluster: {_origin(entry['valueFrom'])}")
        else:
            env.append((entry["name"], as_scalar(entry.get("value"))))
    left_out += [
        f"envFrom, values of the cluster: {_origin(entry)}" for entry in list_at(document, value, "envFrom", path)
    ]
    return env, left_out


def _origin(value: object) -> str:
    """Return where a value comes from: `secretKeyRef hf token`."""
    texts = []
    for kind, item in as_mapping(value).items():
        words = [as_shown(word) for key, word in as_mapping(item).items() if key in ("name", "key", "fieldPath")]
        texts.append(" ".join([as_shown(kind), *words]))
    return ", ".join(texts)[:200] or "nothing"


def _with_volumes(
    document: Document,
    container: Container,
    value: Mapping[str, Any],
    path: KeyPath,
    volumes: Mapping[str, Mapping[str, Any]],
) -> Container:
    """Return a container with the size of its shared memory, and the volumes that it does not get."""
    left_out = list(container.left_out)
    shm_mib = None
    for number, entry in enumerate(list_at(document, value, "volumeMounts", path)):
        mount = as_mapping(entry)
        if not isinstance(mount.get("name"), str) or not isinstance(mount.get("mountPath"), str):
            raise problem_at(document, (*path, "volumeMounts", number), "expected a name and a mountPath")
        name, where = as_text(mount["name"], ""), as_shown(mount["mountPath"], 200)
        volume = volumes.get(name, EMPTY_MAPPING)
        memory = as_mapping(volume.get("emptyDir"))
        if where == _SHARED_MEMORY and memory.get("medium") == "Memory":
            shm_mib = _mib(document, memory.get("sizeLimit"), (*path, "volumeMounts", number))
        else:
            left_out.append(f"volume {name} at {where}: {_volume_text(volume)}")
    return replace(container, left_out=tuple(left_out), shm_mib=shm_mib)


def _mib(document: Document, limit: object, path: KeyPath) -> int:
    if limit is None:
        return _NO_LIMIT
    try:
        return max(int(parse_quantity(limit)) >> 20, 1)
    except ValueError as error:
        raise problem_at(document, path, f"sizeLimit: {error}") from error


def _volume_text(volume: Mapping[str, Any]) -> str:
    """Return what a volume is: its kind, and the name or the path that it has there."""
    for kind, item in volume.items():
        if kind == "name":
            continue
        keys = ("claimName", "secretName", "name", "path", "server", "driver")
        words = [as_shown(as_mapping(item)[key]) for key in keys if as_mapping(item).get(key)]
        return " ".join([as_shown(kind), *words])[:200]
    return "it is not in the manifest"


def _amounts(
    document: Document, limits: Mapping[str, Any], requests: Mapping[str, Any], path: KeyPath
) -> Mapping[str, object]:
    """Return what a container asks for: the larger of limit and request for CPUs and memory.

    Kubernetes takes no other resource whose request is another amount than its limit.
    """
    result: dict[str, object] = {}
    for name in dict.fromkeys((*limits, *requests)):
        given = [amounts[name] for amounts in (limits, requests) if name in amounts]
        try:
            numbers = [parse_quantity(amount) for amount in given]
        except ValueError as error:
            raise problem_at(document, (*path, "resources"), f"{name}: {error}") from error
        if "/" in name and len(set(numbers)) > 1:
            raise problem_at(document, (*path, "resources"), f"{name}: request {given[1]} and limit {given[0]} differ")
        result[name] = given[numbers.index(max(numbers))]
    return result or EMPTY_MAPPING
