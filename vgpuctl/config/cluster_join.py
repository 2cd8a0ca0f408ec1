# SPDX-License-Identifier: Apache-2.0
"""How guests join clusters of Kubernetes: a secret file of the host for each, /etc/vgpuctl/clusters/NAME.

In it is the line that `kubeadm token create --print-join-command` prints, or the two lines `server:` and `token:` of
k3s's own config.yaml (docs.k3s.io, "token"). Every node shows its token to whoever is root there, so it must be one
that can only add nodes: the token of k3s's servers is refused. No error quotes what is in a file.
"""

from __future__ import annotations

import re
import shlex

from vgpuctl.config.rules import as_text
from vgpuctl.model.cluster_join import ClusterJoin, ClusterKind

CLUSTER_DIRECTORY = "/etc/vgpuctl/clusters"
CLUSTER_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
_ENDPOINT = re.compile(r"(\[[0-9a-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}", re.ASCII)
_BOOTSTRAP = r"[a-z0-9]{6}\.[a-z0-9]{16}"
_CA_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_OPTIONS = ("--token", "--discovery-token-ca-cert-hash")
_URL = re.compile(r"https://(\[[0-9a-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?/?", re.ASCII)
_LINE = re.compile(r"(server|token):\s*([\"']?)(\S+)\2", re.ASCII)
_K3S_TOKEN = re.compile(rf"K10[0-9a-f]{{64}}::(node:[!#-~]{{1,200}}|{_BOOTSTRAP})", re.ASCII)


def cluster_name(value: object) -> str:
    """Check the name of a cluster, that of its file; or `none`."""
    text = as_text(value)
    if not re.fullmatch(CLUSTER_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a cluster: letters, digits, '_' and '-' only")
    return text


def parse_join(name: str, text: str) -> ClusterJoin:
    """Return what a cluster's file says.

    Raises:
        ValueError: it is neither form, or has a token that no node may have.
    """
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    if lines and re.match(r"\s*(sudo\s+)?kubeadm\s+join\b", lines[0]):
        return _parse_kubeadm(name, lines)
    matches = [_LINE.fullmatch(line.strip()) for line in lines]
    values = {match[1]: match[3] for match in matches if match is not None}
    if None in matches or len(lines) != 2 or values.keys() != {"server", "token"}:
        raise ValueError("it is neither a line of `kubeadm join` nor `server:` and `token:` of k3s")
    if not _URL.fullmatch(values["server"]):
        raise ValueError("its server: is no https URL")
    if "::server:" in values["token"]:
        raise ValueError("its token: is the servers', with which a node is the cluster's administrator")
    if not _K3S_TOKEN.fullmatch(values["token"]):
        raise ValueError("its token: is none for agents with the hash of the cluster's CA, K10...::...")
    return ClusterJoin(name, ClusterKind.K3S, values["server"], values["token"])


def _parse_kubeadm(name: str, lines: list[str]) -> ClusterJoin:
    try:
        words = shlex.split(" ".join(lines))
        server, *options = words[words.index("join") + 1 :]
    except ValueError:
        raise ValueError("its line of `kubeadm join` is not complete") from None
    others = [word for word in options if word.startswith("-") and word not in _OPTIONS]
    if others:
        raise ValueError(f"its line of `kubeadm join` has {others[0].partition('=')[0]!a}, which no worker needs")
    values = dict(zip(options[::2], options[1::2], strict=False))
    token, ca_hash = values.get("--token", ""), values.get("--discovery-token-ca-cert-hash", "")
    if not _ENDPOINT.fullmatch(server):
        raise ValueError("its line of `kubeadm join` has no HOST:PORT")
    if not re.fullmatch(_BOOTSTRAP, token, re.ASCII):
        raise ValueError("its --token is none of kubeadm's")
    if not _CA_HASH.fullmatch(ca_hash):
        raise ValueError("its --discovery-token-ca-cert-hash is missing: without it a node trusts any server")
    return ClusterJoin(name, ClusterKind.KUBEADM, server, token, ca_hash)
