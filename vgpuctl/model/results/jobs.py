# SPDX-License-Identifier: Apache-2.0
"""Results about jobs of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.value import Value


class JobUnitResult(Value):
    """A unit of systemd that starts one container in the guest. `name`: of the unit's file; `text`: its content.

    `variables_path`: where the file with the container's variables belongs, null without any; `variables`: its content,
    which may be secret.
    """

    name: str
    text: str
    variables_path: str | None
    variables: str


class JobResult(Value):
    """Pods that are alike, and the VM that gives each of them the same on this host.

    `at`: where they were read, `FILE:LINE`. `job`: what `--job` takes for them alone. `role`: which of the pods of
    `name`, such as `worker`, empty for all.
    `pods`: how many there are. `words`: what they ask for. `spec`: of the VM, null where `problem` says why this host
    has none. `kept`: how the request became the spec; `first`: what has to be done before a VM gets that; `left_out`:
    what the VM does not have, and why. `units`: one for each container, empty if they are not asked for.
    """

    at: str
    kind: str
    name: str
    job: str
    role: str
    namespace: str
    pods: int
    words: tuple[str, ...]
    spec: Mapping[str, object] | None
    problem: str | None
    kept: tuple[str, ...]
    first: tuple[str, ...]
    left_out: tuple[str, ...]
    units: tuple[JobUnitResult, ...]


class CapacityResult(Value):
    """What a VM, or a host, is as a node of Kubernetes. `vm`: its name, null for the host itself.

    `labels`: of the node, as NVIDIA's GPU feature discovery has them. `resources`: how many of each its pods can ask
    for. `device_plugin`: the manifest of a ConfigMap with the configuration of NVIDIA's device plugin, in YAML. Its key
    is the value of the label `nvidia.com/device-plugin.config`, or `default` where there is no such label.
    """

    vm: str | None
    labels: Mapping[str, str]
    resources: Mapping[str, int]
    device_plugin: str
