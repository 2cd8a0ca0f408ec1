# SPDX-License-Identifier: Apache-2.0
"""The license in the seed of a VM: taken out, written again, and written for the new disk of a refresh."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, picture, request, stop
from tests.licenses import MARKER, put_license, token_text
from tests.meanwhile import unchanged
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.domain.cloud_init_seed import read_setup
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.vm import DiskRole
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.licenses import read_license
from vgpuctl.operations.guest_license import refresh_license
from vgpuctl.operations.refresh import refresh_vm

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
USER = CloudInitFile("/root/user-data", "#cloud-config\npassword: hunter2\n")


@pytest.fixture
def folder(host):
    return put_license(host.sim.host_file.parent)


def make(host, sharing="none", *, start=True):
    fields = {"license_name": "cad", "guest_sharing": parse_guest_sharing(sharing)}
    seed = CloudInit(USER, license=read_license(host.ports, "cad"))
    return create(host.ports, with_seed(request("A100-4C", name="vm", image=IMAGE, **fields), seed), start=start)


def run(host, *, clear=False, dry_run=False):
    return refresh_license(host.ports, context(dry_run=dry_run), "vm", clear=clear)


def seed_disk(host):
    (vm,) = observe(host.ports, scope_of_vm("vm")).vms
    return next(disk for disk in vm.record.disks if disk.role is DiskRole.SEED)


def seed(host):
    disk = seed_disk(host)
    return host.ports.storage.read_private_volume(disk.pool, disk.volume)


@pytest.mark.parametrize("sharing", ["none", "mps"])
@pytest.mark.parametrize("start", [True, False])
def test_it_is_taken_out_and_written_again_and_the_users_part_stays(host, folder, sharing, start):
    make(host, sharing, start=start)
    first = seed(host)
    assert MARKER.encode() in first
    assert (
        run(host, clear=True).steps[0].startswith(f"write {'guest_sharing mps' if sharing == 'mps' else 'nothing but'}")
    )
    cleared = seed(host)
    assert (len(cleared), MARKER.encode() in cleared, b"hunter2" in cleared) == (len(first), False, True)
    assert (read_setup(cleared) is None) is (sharing == "none")
    with unchanged(host):
        assert not run(host, clear=True).changed
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=4e9))
    done = run(host)
    assert done.notes == (("the guest of vm gets it at its next boot",) if start else ())
    assert token_text(exp=4e9).encode() in seed(host)
    with unchanged(host):
        assert not run(host).changed


def test_a_dry_run_says_what_it_would_write_and_writes_nothing(host, folder):
    make(host)
    before = seed(host)
    with unchanged(host):
        assert run(host, clear=True, dry_run=True).steps == (
            f"write nothing but the files of its user into the cloud-init seed {seed_disk(host).path}",
        )
    assert seed(host) == before


def test_a_new_disk_gets_it_again(host, folder):
    make(host)
    run(host, clear=True)
    stop(host.ports, "vm")
    done = refresh_vm(host.ports, context(), "vm", IMAGE, drain=False)
    assert any(step.startswith("write license cad into") for step in done.steps)
    assert MARKER.encode() in seed(host)


def test_a_license_that_is_gone_or_has_ended_is_told_before_anything_is_changed(host, folder):
    make(host, start=False)
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=1))
    for work in (run, lambda one: refresh_vm(one.ports, context(), "vm", IMAGE, drain=False)):
        with unchanged(host), pytest.raises(InvalidInput, match="the token of the license cad expired at 1970-01-01"):
            work(host)
    folder.rename(folder.with_name("other"))
    with unchanged(host), pytest.raises(NotFound, match="there is no license cad on this host: there are other"):
        run(host)
    assert run(host, clear=True).changed, "taking it out needs no license"


def test_a_vm_without_one_is_left_alone(host):
    create(host.ports, request("A100-4C", name="vm", image=IMAGE))
    with unchanged(host):
        done = run(host)
    assert (done.changed, done.notes) == (False, ("VMs that were created without --license are left alone",))


def test_a_seed_that_is_none_any_more_is_said(host, folder):
    make(host)
    disk = seed_disk(host)
    host.ports.storage.rewrite_private_volume(disk.pool, disk.volume, b"rubbish" * 1000)
    before = picture(host)
    with pytest.raises(HostCannot, match=f"the seed {disk.path} of vm cannot be changed: it is no seed of vgpuctl's"):
        run(host)
    assert picture(host) == before
