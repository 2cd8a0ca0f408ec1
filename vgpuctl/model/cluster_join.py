# SPDX-License-Identifier: Apache-2.0
"""What a guest needs to join a cluster of Kubernetes as a node."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.errors import VgpuctlError
from vgpuctl.value import Value


class ClusterKind(StrEnum):
    """By what the cluster was made, and so how a node joins it."""

    KUBEADM = "kubeadm"
    K3S = "k3s"


class ClusterJoin(Value):
    """How a node joins a cluster: a secret, of which only the name is ever shown.

    `server`: HOST:PORT with kubeadm, an https URL with k3s. `ca_hash`: the SHA-256 of the cluster's CA, by which a node
    knows the server; k3s has it in the token. `problem`: why it cannot be used now; a command that gives it to no guest
    goes on.
    """

    name: str
    kind: ClusterKind = ClusterKind.KUBEADM
    server: str = ""
    token: str = ""
    ca_hash: str = ""
    problem: VgpuctlError | None = None

    def __repr__(self) -> str:
        return f"ClusterJoin(name={self.name!r})"
