# SPDX-License-Identifier: Apache-2.0
"""The rules of what is set up inside a guest; `rules` explains how a rule works.

How many pods can share a GPU: NVIDIA's device plugin refuses fewer than 2, and with MPS more than 48 on Volta and later
(its api/config/v1/replicas.go and cmd/mps-control-daemon/mps/device.go, version 0.20).
"""

from __future__ import annotations

import re

from vgpuctl.config import rules
from vgpuctl.config.arguments import NONE
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.numbers import SIZE_PATTERN, parse_memory_size

MIN_REPLICAS = 2
MIN_MEMORY_MIB = 64
"""Less than any program with CUDA takes: a number without a unit, which is MiB, was meant as another one."""
MAX_REPLICAS = {SharingMethod.MPS: 48, SharingMethod.TIME_SLICING: 100}
GUEST_SHARING_PATTERN = (
    f"({NONE}|mps(,(threads=[0-9]{{1,3}}|memory={SIZE_PATTERN})){{0,2}}|(mps|time-slicing):[0-9]{{1,3}})"
)
GUEST_LISTS = {
    "license": ("license", "licenses"),
    "guest_driver": ("driver", "drivers"),
    "k8s_join": ("cluster", "clusters"),
    "domain_join": ("domain", "domains"),
}
"""What guests get of the host, by field: how an error calls it, and the key of host.yaml's `allow:` for members."""
_FORMS = "none, mps, mps,threads=PERCENT,memory=SIZE, mps:PODS or time-slicing:PODS"
_PODS = re.compile(r"(mps|time-slicing):([0-9]{1,3})", re.ASCII)
_PERCENT = re.compile(r"[0-9]{1,3}", re.ASCII)


def guest_sharing(value: object) -> str:
    """Return the canonical text of how the programs of a guest share its GPU, or `none`."""
    text = rules.as_text(value).strip()
    return NONE if text == NONE else _parse(text).text


def parse_guest_sharing(text: str) -> GuestSharing | None:
    """Return what a checked text means; None for `none`."""
    return None if text == NONE else _parse(text)


def _parse(text: str) -> GuestSharing:
    pods = _PODS.fullmatch(text)
    if pods is not None:
        return _for_pods(SharingMethod(pods[1]), int(pods[2]))
    method, *limits = text.split(",")
    if method == SharingMethod.TIME_SLICING:
        raise ValueError(
            "time-slicing needs the number of pods that share each GPU, as in time-slicing:4; programs without "
            "Kubernetes take turns on a GPU without any setting"
        )
    if method != SharingMethod.MPS:
        raise ValueError(f"{text!a} is not {_FORMS}")
    given: dict[str, int] = {}
    for limit in limits:
        key, _, number = limit.partition("=")
        if key in given:
            raise ValueError(f"{key} is given twice in {text!a}")
        if key == "threads":
            given[key] = _percent(number)
        elif key == "memory":
            given[key] = _memory(number)
        else:
            raise ValueError(f"{limit!a} is no limit of mps: threads=PERCENT and memory=SIZE are")
    return GuestSharing(SharingMethod.MPS, threads_percent=given.get("threads"), memory_mib=given.get("memory"))


def _for_pods(method: SharingMethod, replicas: int) -> GuestSharing:
    most = MAX_REPLICAS[method]
    if not MIN_REPLICAS <= replicas <= most:
        raise ValueError(f"{method}:{replicas}: from {MIN_REPLICAS} to {most} pods can share a GPU by {method}")
    return GuestSharing(method, replicas)


def _memory(text: str) -> int:
    mib = parse_memory_size(text)
    if mib < MIN_MEMORY_MIB:
        raise ValueError(
            f"memory={text}: that is {mib} MiB, and a program needs {MIN_MEMORY_MIB} MiB at least; 4GiB is 4 GiB"
        )
    return mib


def _percent(text: str) -> int:
    percent = int(text) if _PERCENT.fullmatch(text) else 0
    if not 1 <= percent <= 100:
        raise ValueError(f"threads={text!a}: a percentage is 1 to 100")
    return percent
