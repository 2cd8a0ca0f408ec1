# SPDX-License-Identifier: Apache-2.0
"""VMs whose guests join a cluster of Kubernetes: where the token goes, and where it does not."""

from __future__ import annotations

import pytest

from tests.callers import ADA, host_of
from tests.clusters import K3S, K3S_TOKEN, KUBEADM, MARKERS, put_cluster
from tests.licenses import put_license
from vgpuctl.domain.cloud_init_seed import read_setup
from vgpuctl.domain.guest_setup import secrets_in
from vgpuctl.errors import InvalidInput, NotAllowed, NotFound, Refused
from vgpuctl.model.vm import DiskRole
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
NEW = {"profile": "A100-4C", "image": IMAGE}


@pytest.fixture
def calls(host):
    put_cluster(host.sim.host_file.parent)
    return host_of(host, None)


def script(host):
    vm = find_vm(observe(host.ports, scope_of_vm("vm")), "vm")
    seed = next(disk for disk in vm.record.disks if disk.role is DiskRole.SEED)
    return read_setup(host.ports.storage.read_private_volume(seed.pool, seed.volume))


def test_the_token_is_in_the_seed_and_in_nothing_that_is_shown(host, calls):
    made = calls.create_vm("vm", **NEW, k8s_join="lab")
    assert (made.data.k8s_join, calls.show_vm("vm").data.k8s_join) == ("lab", "lab")
    text = script(host)
    assert (secrets_in(text), "abcdef.0123456789abcdef" in text, "vgpuctl-join.service" in text) == (
        {"k8s_join"}, True, True,
    )  # fmt: skip
    shown = f"{made} {calls.show_vm('vm')} {calls.list_vms()}"
    assert not [marker for marker in MARKERS if marker in shown]


def test_k3s_gets_its_own_file(host, calls):
    put_cluster(host.sim.host_file.parent, text=K3S)
    calls.create_vm("vm", **NEW, k8s_join="lab")
    assert f'server: https://k3s.example.org:6443\ntoken: "{K3S_TOKEN}"\n' in script(host)


def test_another_change_keeps_the_token_and_clear_takes_it_out(host, calls):
    calls.create_vm("vm", **NEW, k8s_join="lab")
    calls.set_vm("vm", guest_sharing="time-slicing:2")
    assert secrets_in(script(host)) == {"k8s_join"}
    cleared = calls.refresh_license("vm", clear=True)
    assert cleared.steps[0].startswith("write guest_sharing time-slicing:2, with no k8s_join, into")
    assert secrets_in(script(host)) == frozenset()
    calls.set_vm("vm", guest_sharing="time-slicing:3")
    assert secrets_in(script(host)) == frozenset(), "the guest has joined"
    assert calls.refresh_license("vm").changed
    assert secrets_in(script(host)) == {"k8s_join"}, "its next guest needs it"
    calls.set_vm("vm", k8s_join="none")
    assert calls.show_vm("vm").data.k8s_join == "none"
    calls.set_vm("vm", k8s_join="lab")
    assert secrets_in(script(host)) == {"k8s_join"}


def test_a_new_disk_joins_again_and_a_license_is_apart(host, calls):
    put_license(host.sim.host_file.parent)
    calls.create_vm("vm", **NEW, k8s_join="lab", license="cad")
    calls.refresh_license("vm", clear=True)
    calls.refresh_license("vm")
    assert secrets_in(script(host)) == {"license"}, "a license is written again, and a token for joining is not"
    calls.refresh_vm("vm", image="/srv/images/ubuntu-24.04-new.qcow2", drain=True)
    assert secrets_in(script(host)) == {"license", "k8s_join"}


def test_a_file_that_is_gone_is_only_a_warning_when_something_else_changes(host, calls):
    calls.create_vm("vm", **NEW, k8s_join="lab")
    (host.sim.host_file.parent / "clusters/lab").unlink()
    done = calls.set_vm("vm", guest_sharing="time-slicing:2")
    assert done.warnings[0].startswith("the seed of vm has no k8s_join any more: there is no cluster lab on this host")


@pytest.mark.parametrize(
    ("text", "mode", "error", "problem"),
    [
        (None, 0, NotFound, "there is no cluster lab on this host"),
        (KUBEADM, 0o640, Refused, "/etc/vgpuctl/clusters/lab is not root's alone, or its folder is not"),
        (KUBEADM, 0o604, Refused, "is not root's alone"),
        ("hello\n", 0o600, InvalidInput, "/etc/vgpuctl/clusters/lab: it is neither a line of `kubeadm join`"),
        (K3S.replace("::node:", "::server:"), 0o600, InvalidInput, "with which a node is the cluster's administrator"),
    ],
)
def test_a_token_that_no_guest_can_have_is_refused_and_nothing_written(host, text, mode, error, problem):
    if text is not None:
        put_cluster(host.sim.host_file.parent, text=text, mode=mode)
    calls = host_of(host, None)
    with pytest.raises(error, match=problem) as raised:
        calls.create_vm("vm", **NEW, k8s_join="lab")
    assert (bool(raised.value.hint), calls.list_vms().data) == (True, ())


def test_members_give_only_clusters_that_host_yaml_lists(host, calls):
    host_of(host, replace(ADA, clusters=("lab",))).create_vm("hers", **NEW, guest_sharing="time-slicing:3")
    with pytest.raises(NotAllowed, match="the cluster lab is not allowed") as raised:
        host_of(host, ADA).set_vm("hers", k8s_join="lab", guest_sharing="time-slicing:2")
    assert raised.value.facts["rule"] == "agent.allow.clusters"
    host_of(host, replace(ADA, clusters=("lab",))).set_vm("hers", k8s_join="lab")
