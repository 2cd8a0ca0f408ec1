# SPDX-License-Identifier: Apache-2.0
"""set-vm and ensure-vm change what a guest is set up with: its seed, which counts at the next boot, and the record."""

from __future__ import annotations

import pytest

from tests.callers import host_of
from tests.hosts import open_sim_host
from tests.licenses import MARKER, put_license, token_text
from tests.meanwhile import unchanged
from vgpuctl.errors import HostCannot, InvalidInput, NotFound, Refused
from vgpuctl.model.vm import DiskRole
from vgpuctl.observe import observe, scope_of_vm

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
WARNINGS = 2
"""Of MPS on a vGPU."""


@pytest.fixture
def calls(host):
    """Return the library's calls; the VM runs, and its seed has the license."""
    put_license(host.sim.host_file.parent)
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C", image=IMAGE, license="cad")
    return calls


def seed(host):
    (vm,) = observe(host.ports, scope_of_vm("vm")).vms
    disk = next(disk for disk in vm.record.disks if disk.role is DiskRole.SEED)
    return host.ports.storage.read_private_volume(disk.pool, disk.volume)


def test_sharing_changes_while_the_vm_runs_and_the_license_stays(host, calls):
    done = calls.set_vm("vm", guest_sharing="mps")
    assert [step.split(" ")[0] for step in done.steps] == ["write", "change"]
    assert "license cad and guest_sharing mps" in done.steps[0]
    assert (done.data.guest_sharing, done.data.license, len(done.warnings)) == ("mps", "cad", WARNINGS)
    assert done.notes == ("the guest of vm gets it at its next boot",)
    image = seed(host)
    assert (MARKER.encode() in image, b"vgpuctl-mps.service" in image) == (True, True)
    with unchanged(host):
        assert not calls.set_vm("vm", guest_sharing="mps").changed
    calls.set_vm("vm", guest_sharing="none")
    assert calls.show_vm("vm").data.guest_sharing == "none"
    assert b"disable vgpuctl-mps.service" in seed(host)


def test_together_with_what_needs_the_vm_off(host, calls):
    calls.stop_vm("vm", force=True)
    done = calls.set_vm("vm", guest_sharing="mps:4", memory="6GiB", license="none")
    assert (done.data.guest_sharing, done.data.license, done.data.memory_mib) == ("mps:4", "none", 6144)
    assert done.steps[0].startswith("write guest_sharing mps:4 into the cloud-init seed")
    assert MARKER.encode() not in seed(host)


def test_another_license(host, calls):
    put_license(host.sim.host_file.parent, "lab")
    assert calls.set_vm("vm", license="lab").data.license == "lab"
    dry = calls.set_vm("vm", license="cad", dry_run=True)
    assert (dry.data.license, calls.show_vm("vm").data.license) == ("cad", "lab")


def test_ensure_vm_changes_it_too(host, calls):
    done = calls.ensure_vm("vm", profile="A100-4C", image=IMAGE, license="cad", guest_sharing="mps")
    assert (done.changed, calls.show_vm("vm").data.guest_sharing) == (True, "mps")
    assert b"vgpuctl-mps.service" in seed(host)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"license": "no"}, NotFound, "there is no license no on this host: there are cad"),
        ({"license": "whole"}, InvalidInput, "the license whole is for a whole GPU"),
        ({"guest_sharing": "mps,memory=5GiB"}, InvalidInput, "a program may take 5 GiB, and A100-4C has 4 GiB"),
    ],
)
@pytest.mark.parametrize("off", [True, False])
def test_what_cannot_be_is_refused_before_anything_is_written(host, calls, fields, error, words, off):
    put_license(host.sim.host_file.parent, "whole", a_tok="e30.e30.c2ln", feature="2")
    if off:
        calls.stop_vm("vm", force=True)
    more = {"memory": "6GiB"} if off else {}
    before = seed(host)
    with unchanged(host), pytest.raises(error, match=words):
        calls.set_vm("vm", **fields, **more)
    assert seed(host) == before


def test_a_vm_without_a_seed_is_refused(tmp_path):
    host = open_sim_host(tmp_path)
    calls = host_of(host, None)
    calls.create_vm("vm", profile="A100-4C")
    with (
        unchanged(host),
        pytest.raises(Refused, match="vm has no seed for cloud-init"),
    ):
        calls.set_vm("vm", guest_sharing="mps")


def test_mps_is_refused_where_the_vms_own_profile_has_no_cuda(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    calls = host_of(host, None)
    put_license(host.sim.host_file.parent)
    calls.create_vm("vm", profile="T4-2B", image=IMAGE, license="cad")
    with unchanged(host), pytest.raises(HostCannot, match="needs CUDA, which T4-2B does not have"):
        calls.set_vm("vm", guest_sharing="mps")


def test_a_seed_from_which_the_license_was_taken_stays_without_it(host, calls):
    calls.refresh_license("vm", clear=True)
    calls.set_vm("vm", guest_sharing="mps")
    assert MARKER.encode() not in seed(host)
    calls.set_vm("vm", license="cad", guest_sharing="none")
    assert MARKER.encode() not in seed(host), "the license does not change"


def test_sharing_changes_although_the_license_has_ended(host, calls):
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=1))
    done = calls.set_vm("vm", guest_sharing="time-slicing:2")
    assert done.warnings[0].startswith("the seed of vm has no license any more: the token of the license cad expired")
    assert calls.show_vm("vm").data.guest_sharing == "time-slicing:2"
    with unchanged(host), pytest.raises(InvalidInput, match="the token of the license cad expired"):
        calls.refresh_license("vm")
    done = calls.ensure_vm("vm", profile="A100-4C", image=IMAGE, license="none", guest_sharing="none")
    assert (done.changed, calls.show_vm("vm").data.license) == (True, "none")
