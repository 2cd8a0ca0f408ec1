# SPDX-License-Identifier: Apache-2.0
"""What manifests say of pods: their containers, and what these ask for together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vgpuctl.config.kubernetes.claims import ClaimRef
from vgpuctl.config.kubernetes.pod_gpus import NodeLabel
from vgpuctl.config.kubernetes.quantity import parse_quantity
from vgpuctl.value import Value


class Container(Value):
    """A container. `resources`: its limits, and the requests without a limit, as written. `at`: `file:line`.

    `env`: the variables with a plain value. `working_dir`: empty for the image's. `shm_mib`: the size of its shared
    memory, 0 for no limit, None for the usual one. `left_out`: what else it has.
    """

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    resources: Mapping[str, object]
    at: str
    left_out: tuple[str, ...] = ()
    working_dir: str = ""
    shm_mib: int | None = None


class PodTemplate(Value):
    """Pods that are alike. `kind`, `name`, `namespace`: of what makes them; `role`: of those in it, such as `worker`.

    `init_containers`: those that run before the others, one after the other. `annotations`, `labels`: of the pods;
    `node_labels`: what they require of their nodes. `queue`: the one that they wait in.
    `restart`: when systemd starts a container again. `claims`: of devices. `runtime`: of KServe, which has the
    containers that these ones change. `at`: `file:line`.
    """

    kind: str
    name: str
    namespace: str
    role: str
    pods: int
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    annotations: Mapping[str, str]
    node_labels: tuple[NodeLabel, ...]
    labels: Mapping[str, str]
    queue: str | None
    restart: str
    at: str
    left_out: tuple[str, ...] = ()
    claims: tuple[ClaimRef, ...] = ()
    runtime: str | None = None

    @property
    def stem(self) -> str:
        """Its name, with its role."""
        return f"{self.name}-{self.role}" if self.role else self.name


def cpus_of(containers: Sequence[Container]) -> int:
    """Return how many CPUs containers ask for together, rounded up; 0 if they do not say."""
    return math.ceil(sum(parse_quantity(c.resources.get("cpu", 0)) for c in containers))


def memory_mib_of(containers: Sequence[Container]) -> int:
    """Return how much memory containers ask for together in MiB, rounded up; 0 if they do not say."""
    return math.ceil(sum(parse_quantity(c.resources.get("memory", 0)) for c in containers) / (1 << 20))
