# SPDX-License-Identifier: Apache-2.0
"""What pods claim by Kubernetes' dynamic resource allocation: devices of a class, in objects of their own.

A pod names a ResourceClaim or a ResourceClaimTemplate. Its requests are for devices of classes, whose drivers publish
them. Conditions in CEL are not evaluated, except one that plainly names the profile of a GPU instance. Sources:
Kubernetes, Dynamic Resource Allocation, resource.k8s.io/v1beta1 to v1; NVIDIA/k8s-dra-driver-gpu, demo/specs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vgpuctl.config.kubernetes.quantity import parse_count
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import is_visible
from vgpuctl.value import EMPTY_MAPPING, Value

CLAIM, CLAIM_TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
GPU_CLASS, MIG_CLASS, VFIO_CLASS = "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"
RESOURCES = {GPU_CLASS: "nvidia.com/gpu", MIG_CLASS: "nvidia.com/mig-{profile}", VFIO_CLASS: "nvidia.com/gpu"}
"""By class, the word of NVIDIA's device plugin that asks for the same."""
_PROFILE = re.compile(
    r"""\s*device\.attributes\[(['"])gpu\.nvidia\.com\1\]\.profile\s*==\s*(['"])(?P<profile>[0-9a-z.+]{1,20})\2\s*""",
    re.ASCII,
)
_MAX_REQUESTS = 32
_MAX_SHOWN = 100


class ClaimRef(Value):
    """A pod's reference to a claim. `kind`: `CLAIM`, of which all pods have the same devices, or `CLAIM_TEMPLATE`."""

    kind: str
    name: str


class ClaimedDevices(Value):
    """What one request of a claim is for: an amount of a word. `left_out`: what else it says. `at`: `file:line`."""

    word: str
    count: int
    at: str
    left_out: tuple[str, ...] = ()


class DeviceClaim(Value):
    """A claim. `devices`: of NVIDIA's classes; `left_out`: its other parts. `at`: `file:line`."""

    kind: str
    name: str
    namespace: str
    at: str
    devices: tuple[ClaimedDevices, ...]
    left_out: tuple[str, ...] = ()


def is_claim(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a claim or a template of claims."""
    group = str(value.get("apiVersion")).partition("/")[0]
    return group == "resource.k8s.io" and value.get("kind") in (CLAIM, CLAIM_TEMPLATE)


def parse_refs(spec: Mapping[str, Any]) -> tuple[ClaimRef, ...]:
    """Return the claims that a pod's specification names."""
    refs = []
    for entry in _list(spec.get("resourceClaims")):
        for key, kind in (("resourceClaimName", CLAIM), ("resourceClaimTemplateName", CLAIM_TEMPLATE)):
            name = _mapping(entry).get(key) or _mapping(_mapping(entry).get("source")).get(key)
            if name:
                refs.append(ClaimRef(kind, _shown(name)))
    return tuple(refs)


def parse_claim(value: Mapping[str, Any], name: str, namespace: str, lines: Mapping[int | None, str]) -> DeviceClaim:
    """Return a claim. `lines`: `file:line` of each of its requests by number, and of itself by None.

    Raises:
        InvalidInput: how many devices, or which GPU instances, is not plain.
    """
    spec = _mapping(value.get("spec"))
    devices = _mapping((_mapping(spec.get("spec")) if value["kind"] == CLAIM_TEMPLATE else spec).get("devices"))
    requests = _list(devices.get("requests"))
    if len(requests) > _MAX_REQUESTS:
        raise _error(lines[None], f"{len(requests)} requests, and a claim has at most {_MAX_REQUESTS}")
    claimed: list[ClaimedDevices] = []
    left_out = [f"claim {name}: {key}" for key in ("constraints", "config") if devices.get(key)]
    for number, request in enumerate(requests):
        kind, one = _exactly(_mapping(request), lines[number])
        if kind not in RESOURCES:
            left_out.append(f"claim {name}: devices of the class {kind}, which vgpuctl does not know")
        elif one.get("adminAccess") is True:
            left_out.append(f"claim {name}: adminAccess, which takes no device away")
        else:
            claimed.append(_devices(one, kind, lines[number]))
    return DeviceClaim(str(value["kind"]), name, namespace, lines[None], tuple(claimed), tuple(left_out))


def find_claims(
    refs: Iterable[ClaimRef], namespace: str, claims: Sequence[DeviceClaim], at: str
) -> tuple[DeviceClaim, ...]:
    """Return the claims that a pod names.

    Raises:
        InvalidInput: a claim is in none of the files; `at` is where the pod is.
    """
    result = []
    for ref in dict.fromkeys(refs):
        one = next((c for c in claims if (c.kind, c.name, c.namespace) == (ref.kind, ref.name, namespace)), None)
        if one is None:
            raise _error(
                at,
                f"the {ref.kind} {ref.name} of the namespace {namespace} is in none of the files",
                "give it too: kubectl get resourceclaims,resourceclaimtemplates -A -o yaml prints all",
            )
        result.append(one)
    return tuple(result)


def _exactly(request: Mapping[str, Any], at: str) -> tuple[str, Mapping[str, Any]]:
    """Return the class of a request, and the mapping that says more: `exactly` since v1beta2."""
    if request.get("firstAvailable"):
        raise _error(at, "firstAvailable has several choices", "keep one of them in a copy of the file, as exactly:")
    one = _mapping(request.get("exactly")) or request
    return _shown(one.get("deviceClassName") or "without a name"), one


def _devices(one: Mapping[str, Any], kind: str, at: str) -> ClaimedDevices:
    if one.get("allocationMode", "ExactCount") != "ExactCount":
        raise _error(
            at,
            f"allocationMode {_shown(one['allocationMode'])} is for all devices of a node",
            "write count: N and allocationMode: ExactCount into a copy of the file",
        )
    try:
        count = parse_count(one.get("count", 1))
    except ValueError as error:
        raise _error(at, f"count: {error}") from error
    selectors = [str(_mapping(_mapping(s).get("cel")).get("expression", "")) for s in _list(one.get("selectors"))]
    profiles = [match["profile"] for text in selectors if (match := _PROFILE.fullmatch(text)) is not None]
    if kind == MIG_CLASS and len(profiles) != 1:
        raise _error(
            at,
            "of which profile the GPU instances are is not plain",
            """keep one selector like device.attributes['gpu.nvidia.com'].profile == '1g.5gb'""",
        )
    others = [text for text in selectors if kind != MIG_CLASS or _PROFILE.fullmatch(text) is None]
    word = RESOURCES[kind].format(profile="".join(profiles[:1]))
    return ClaimedDevices(word, count, at, tuple(f"selector {_shown(text)}: choose by gpu:" for text in others))


def _shown(value: object) -> str:
    """Return a text of a claim in one line of visible characters."""
    text = " ".join(str(value).split())
    return "".join(character if is_visible(character) else "?" for character in text)[:_MAX_SHOWN]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else EMPTY_MAPPING


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _error(at: str, problem: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(f"{at}: {problem}", hint=hint)
