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
from vgpuctl.config.kubernetes.values import as_list, as_mapping, as_shown
from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

CLAIM, CLAIM_TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
GPU_CLASS, MIG_CLASS, VFIO_CLASS = "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"
RESOURCES = {
    GPU_CLASS: "nvidia.com/gpu", MIG_CLASS: "nvidia.com/mig-{profile}", VFIO_CLASS: "nvidia.com/gpu",
    "gpu.amd.com": "amd.com/gpu", "gpu.intel.com": "gpu.intel.com/xe",
}  # fmt: skip
"""By class, the word of the maker's device plugin that asks for the same."""
_OF_GPUS = re.compile(r"(^|[.-])v?(gpu|mig|npu|dcu|mlu|gcu|xpu)s?([.-]|$)", re.ASCII)
"""Names of classes that are for GPUs: one that is not known is an error, and no other device that a VM goes without."""
COMPUTE_DOMAIN = "ComputeDomain"
_PROFILE = re.compile(
    r"""\s*device\.attributes\[(['"])gpu\.nvidia\.com\1\]\.profile\s*==\s*(['"])(?P<profile>[0-9a-z.+]{1,20})\2\s*""",
    re.ASCII,
)
_MAX_REQUESTS = 32


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
    """Return whether an object is a claim or a template of claims, or makes one."""
    group, kind = str(value.get("apiVersion")).partition("/")[0], value.get("kind")
    return (group == "resource.k8s.io" and kind in (CLAIM, CLAIM_TEMPLATE)) or kind == COMPUTE_DOMAIN


def parse_refs(spec: Mapping[str, Any]) -> tuple[ClaimRef, ...]:
    """Return the claims that a pod's specification names."""
    refs = []
    for entry in as_list(spec.get("resourceClaims")):
        for key, kind in (("resourceClaimName", CLAIM), ("resourceClaimTemplateName", CLAIM_TEMPLATE)):
            name = as_mapping(entry).get(key) or as_mapping(as_mapping(entry).get("source")).get(key)
            if name:
                refs.append(ClaimRef(kind, as_shown(name)))
    return tuple(refs)


def parse_claim(value: Mapping[str, Any], name: str, namespace: str, lines: Mapping[int | None, str]) -> DeviceClaim:
    """Return a claim. `lines`: `file:line` of each of its requests by number, and of itself by None.

    Raises:
        InvalidInput: how many devices, or which GPU instances, is not plain.
    """
    spec = as_mapping(value.get("spec"))
    if value["kind"] == COMPUTE_DOMAIN:
        made = as_mapping(as_mapping(spec.get("channel")).get("resourceClaimTemplate")).get("name")
        lost = f"{COMPUTE_DOMAIN} {name}: its pods reach each other's GPU memory by NVLink, and VMs do not"
        return DeviceClaim(CLAIM_TEMPLATE, as_shown(made), namespace, lines[None], (), (lost,))
    devices = as_mapping((as_mapping(spec.get("spec")) if value["kind"] == CLAIM_TEMPLATE else spec).get("devices"))
    requests = as_list(devices.get("requests"))
    if len(requests) > _MAX_REQUESTS:
        raise _error(lines[None], f"{len(requests)} requests, and a claim has at most {_MAX_REQUESTS}")
    claimed: list[ClaimedDevices] = []
    left_out = [f"claim {name}: {key}" for key in ("constraints", "config") if devices.get(key)]
    for number, request in enumerate(requests):
        kind, one = _exactly(as_mapping(request), lines[number])
        if kind not in RESOURCES and _OF_GPUS.search(kind) is not None:
            raise _error(
                lines[number],
                f"devices of the class {kind}, which vgpuctl does not know",
                f"write the class whose devices it selects into a copy of the file: {', '.join(RESOURCES)}",
            )
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
    """Return the claims that a pod names: one for each name of a template, and each ResourceClaim once.

    Raises:
        InvalidInput: a claim is in none of the files; `at` is where the pod is.
    """
    result = []
    named: set[ClaimRef] = set()
    for ref in refs:
        if ref.kind == CLAIM and ref in named:
            continue
        named.add(ref)
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
    one = as_mapping(request.get("exactly")) or request
    return as_shown(one.get("deviceClassName") or "without a name"), one


def _devices(one: Mapping[str, Any], kind: str, at: str) -> ClaimedDevices:
    if one.get("allocationMode", "ExactCount") != "ExactCount":
        raise _error(
            at,
            f"allocationMode {as_shown(one['allocationMode'])} is for all devices of a node",
            "write count: N and allocationMode: ExactCount into a copy of the file",
        )
    try:
        count = parse_count(one.get("count", 1))
    except ValueError as error:
        raise _error(at, f"count: {error}") from error
    selectors = [str(as_mapping(as_mapping(s).get("cel")).get("expression", "")) for s in as_list(one.get("selectors"))]
    profiles = [match["profile"] for text in selectors if (match := _PROFILE.fullmatch(text)) is not None]
    if kind == MIG_CLASS and len(profiles) != 1:
        raise _error(
            at,
            "of which profile the GPU instances are is not plain",
            """keep one selector like device.attributes['gpu.nvidia.com'].profile == '1g.5gb'""",
        )
    others = [text for text in selectors if kind != MIG_CLASS or _PROFILE.fullmatch(text) is None]
    word = RESOURCES[kind].format(profile="".join(profiles[:1]))
    return ClaimedDevices(word, count, at, tuple(f"selector {as_shown(text)}: choose by gpu:" for text in others))


def _error(at: str, problem: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(f"{at}: {problem}", hint=hint)
