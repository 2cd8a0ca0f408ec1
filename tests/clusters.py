# SPDX-License-Identifier: Apache-2.0
"""Files by which guests join clusters of Kubernetes, for tests."""

from __future__ import annotations

from pathlib import Path

HASH = "ab" * 32
KUBEADM = f"kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:{HASH} \n"
K3S_TOKEN = f"K10{HASH}::node:c2VjcmV0"
K3S = f"# the lab's\nserver: https://k3s.example.org:6443\ntoken: '{K3S_TOKEN}'\n"
MARKERS = ("0123456789abcdef", "c2VjcmV0")
"""What must be in no output."""


def put_cluster(etc: Path, name: str = "lab", text: str = KUBEADM, *, mode: int = 0o600) -> Path:
    """Write the file of a cluster below a host's /etc/vgpuctl, which is `etc` on this machine; return it."""
    path = etc / "clusters" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path
