# SPDX-License-Identifier: Apache-2.0
"""The license in the seed of a VM: taken out, written again, and written for the new disk of a refresh."""

from __future__ import annotations

from functools import partial

import pytest

from tests.callers import host_of
from tests.hosts import context, create, picture, request, stop
from tests.licenses import MARKER, put_license, token_text
from tests.meanwhile import unchanged, with_calls
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.domain.cloud_init_seed import read_setup
from vgpuctl.domain.guest_setup import is_unread, secrets_in
from vgpuctl.errors import HostCannot, InvalidInput, NotAllowed, NotFound, Refused
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup
from vgpuctl.model.vm import DiskRole
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.licenses import read_license
from vgpuctl.operations.guest_setup import refresh_license
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
USER = CloudInitFile("/root/user-data", "#cloud-config\npassword: hunter2\n")


@pytest.fixture
def folder(host):
    return put_license(host.sim.host_file.parent)


def make(host, sharing="none", *, start=True):
    fields = {"license_name": "cad", "guest_sharing": parse_guest_sharing(sharing)}
    seed = CloudInit(USER, setup=GuestSetup(read_license(host.ports, "cad")))
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
    (step,) = run(host, clear=True).steps
    expected = "guest_sharing mps, with no license, into" if sharing == "mps" else "no license into"
    assert step.startswith(f"write {expected}")
    cleared = seed(host)
    assert (len(cleared), MARKER.encode() in cleared, b"hunter2" in cleared) == (len(first), False, True)
    assert not secrets_in(read_setup(cleared))
    with unchanged(host):
        assert not run(host, clear=True).changed
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=4e9))
    done = run(host)
    assert done.notes == (("the guest of vm gets it at its next boot",) if start else ())
    assert token_text(exp=4e9).encode() in seed(host)
    assert is_unread(read_setup(seed(host))) is start
    with unchanged(host):
        assert not run(host).changed


def test_a_dry_run_says_what_it_would_write_and_writes_nothing(host, folder):
    make(host)
    before = seed(host)
    with unchanged(host):
        assert run(host, clear=True, dry_run=True).steps == (
            f"write no license into the cloud-init seed {seed_disk(host).path}",
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
    with unchanged(host), pytest.raises(InvalidInput, match="the token of the license cad expired at 1970-01-01"):
        run(host)
    folder.rename(folder.with_name("other"))
    with unchanged(host), pytest.raises(NotFound, match="there is no license cad on this host: there are other"):
        run(host)
    done = refresh_vm(host.ports, context(), "vm", IMAGE, drain=False)
    assert done.warnings == (
        "vm has a new disk, whose guest gets no license: there is no license cad on this host: there are other",
    )
    assert run(host, clear=True).changed, "taking it out needs no license"


def test_a_license_that_has_ended_stops_no_command_that_gives_it_to_nobody(host, folder):
    calls = host_of(host, None)
    fields = {"profile": "A100-4C", "image": IMAGE, "license": "cad"}
    calls.create_vm("vm", **fields)
    put_license(host.sim.host_file.parent, client_tok=token_text(exp=1))
    assert not calls.ensure_vm("vm", **fields).changed
    calls.ensure_vm("vm", **fields, state="stopped")
    calls.ensure_vm("vm", **fields, state="started")
    assert calls.ensure_vm("vm", **fields, state="absent").changed
    with unchanged(host), pytest.raises(InvalidInput, match="the token of the license cad expired"):
        calls.ensure_vm("vm", **fields)


def test_a_member_gets_only_licenses_that_host_yaml_lists(host, folder):
    """A VM's record names what it was given; since then the list may have become shorter."""
    make(host)
    run(host, clear=True)
    for licenses, allowed in ((("cad",), True), ((), False)):
        member = Caller(7, "ada", Rights.OPERATOR, licenses=licenses)
        work = partial(refresh_license, host.ports, replace(context(dry_run=True), caller=member), "vm", clear=False)
        if allowed:
            assert work().changed
        else:
            with pytest.raises(NotAllowed, match="the license cad is not allowed"):
                work()


def test_a_write_that_fails_leaves_what_was_there(host, folder):
    make(host)
    before, storage = seed(host), host.ports.storage
    writes = []

    def fail_once(pool, volume, data):
        writes.append(data)
        storage.rewrite_private_volume(pool, volume, data[:3000] + before[3000:] if len(writes) == 1 else data)
        if len(writes) == 1:
            raise HostCannot("the connection broke")

    broken = with_calls(host.ports, "storage", rewrite_private_volume=fail_once)
    with pytest.raises(HostCannot, match="the connection broke"):
        refresh_license(broken, context(), "vm", clear=True)
    assert (len(writes), seed(host)) == (2, before)


@pytest.mark.parametrize(
    ("path", "mode"), [("cad", 0o750), ("cad/client.tok", 0o640), ("", 0o777)], ids=["folder", "file", "parent"]
)
def test_a_license_that_is_not_roots_alone_is_refused(host, folder, path, mode):
    (folder.parent / path).chmod(mode)
    with pytest.raises(Refused, match="the license cad is not root's alone: /etc/vgpuctl/licenses"):
        read_license(host.ports, "cad")


def test_a_license_that_is_another_users_is_refused(host, folder):
    theirs = with_calls(host.ports, "sysfs", permissions=lambda path: FilePermissions(0o600, 1000, 1000))
    with pytest.raises(Refused, match=r"is not root's alone: .*client\.tok") as caught:
        read_license(theirs, "cad")
    assert str(caught.value.hint).startswith("sudo chown root: /etc/vgpuctl/licenses")


def test_a_vm_without_one_is_left_alone(host):
    create(host.ports, request("A100-4C", name="vm", image=IMAGE))
    with unchanged(host):
        done = run(host)
    assert (done.changed, done.notes) == (
        False,
        ("VMs without a license or a cluster to join are left alone",),
    )


def test_a_seed_that_is_none_any_more_is_said(host, folder):
    make(host)
    disk = seed_disk(host)
    host.ports.storage.rewrite_private_volume(disk.pool, disk.volume, b"rubbish" * 1000)
    before = picture(host)
    with pytest.raises(HostCannot, match="of vm cannot be changed: it is no seed of vgpuctl's"):
        run(host)
    assert picture(host) == before
