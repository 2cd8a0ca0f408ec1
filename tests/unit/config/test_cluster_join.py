# SPDX-License-Identifier: Apache-2.0
"""The files by which guests join clusters of Kubernetes: both forms, and tokens that no node may have."""

from __future__ import annotations

import pytest

from tests.clusters import HASH, K3S, K3S_TOKEN, KUBEADM, MARKERS
from vgpuctl.config.cluster_join import cluster_name, parse_join
from vgpuctl.model.cluster_join import ClusterKind

WRAPPED = KUBEADM.replace(" --token", " \\\n\t--token")


@pytest.mark.parametrize("text", [KUBEADM, WRAPPED, f"# made today\n\n{KUBEADM}", f"sudo {WRAPPED}"])
def test_the_line_that_kubeadm_prints(text: str) -> None:
    join = parse_join("lab", text)
    assert (join.kind, join.server, join.token) == (ClusterKind.KUBEADM, "10.0.0.1:6443", "abcdef.0123456789abcdef")
    assert join.ca_hash == f"sha256:{HASH}"
    assert repr(join) == "ClusterJoin(name='lab')"


@pytest.mark.parametrize("token", [K3S_TOKEN, f"K10{HASH}::abcdef.0123456789abcdef"])
def test_the_two_lines_of_k3s(token: str) -> None:
    join = parse_join("lab", K3S.replace(K3S_TOKEN, token))
    assert (join.kind, join.server, join.token) == (ClusterKind.K3S, "https://k3s.example.org:6443", token)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is neither a line of `kubeadm join` nor `server:` and `token:` of k3s"),
        ("server: https://a\n", "it is neither"),
        (f"{K3S}token: x\n", "it is neither"),
        (f"{K3S}node-label: x\n", "it is neither"),
        (K3S.replace("https", "http"), "its server: is no https URL"),
        (K3S.replace(":6443", ":6443/$(id)"), "its server: is no https URL"),
        (K3S.replace("::node:", "::server:"), "its token: is the servers', with which a node is the cluster's adm"),
        (K3S.replace(f"K10{HASH}::node:", ""), "its token: is none for agents with the hash of the cluster's CA"),
        (K3S.replace("c2VjcmV0", 'c2"VjcmV0'), "its token: is none for agents"),
        ("kubeadm join", "its line of `kubeadm join` is not complete"),
        ("kubeadm join 10.0.0.1:6443 --token", "its --token is none of kubeadm's"),
        (f"{KUBEADM.strip()} --control-plane --certificate-key x", "has '--control-plane', which no worker needs"),
        (f"{KUBEADM.strip()} --certificate-key=c2VjcmV0", "has '--certificate-key', which no worker needs"),
        (KUBEADM.replace(":6443", ""), "its line of `kubeadm join` has no HOST:PORT"),
        (KUBEADM.replace("abcdef.", "abcdef"), "its --token is none of kubeadm's"),
        (KUBEADM.partition(" --disc")[0], "its --discovery-token-ca-cert-hash is missing"),
        (KUBEADM.replace("sha256:", "unsafe:"), "its --discovery-token-ca-cert-hash is missing"),
    ],
)
def test_another_text_is_refused_and_not_quoted(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        parse_join("lab", text)
    assert not [marker for marker in MARKERS if marker in str(raised.value)]


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 33])
def test_a_name_is_one_of_a_file(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a cluster"):
        cluster_name(name)
