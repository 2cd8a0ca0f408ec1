# SPDX-License-Identifier: Apache-2.0
"""VMs whose guests join a domain: where the blob goes, that it is used once, and that nothing shows it."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from lxml import etree

from tests.callers import ADA, host_of
from tests.domain_joins import MARKER, as_saved, blob_text, put_blob, put_program
from tests.faults import Trial, failing, fault_points, outcome
from tests.hosts import SimulatedHost, context, create, open_sim_host, operation, picture, request, run_reconcile
from tests.licenses import put_license
from tests.meanwhile import unchanged
from tests.unit.operations.test_change_faults import whole
from vgpuctl.domain.cloud_init_seed import _read, read_setup
from vgpuctl.domain.guest_setup import secrets_in
from vgpuctl.errors import Busy, Failed, FileFailed, InvalidInput, NeedsBlob, NotAllowed, NotFound, Refused
from vgpuctl.host.domain_joins import DomainJoinFiles
from vgpuctl.library import GpuHost
from vgpuctl.model.domain_join import BlobUse, DomainJoin, JoinSource
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.model.vm import DiskRole
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.domain_joins import forget_blob, plan_blob, take_blob
from vgpuctl.operations.guards import find_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

OLD, IMAGE = "/srv/images/ubuntu-24.04.qcow2", "/srv/images/ubuntu-24.04-new.qcow2"
NEW = {"profile": "A100-4C", "image": OLD, "os": "windows11", "domain_join": "corp"}
NS = {"u": "urn:schemas-microsoft-com:unattend"}
DATA = "u:settings[@pass='specialize']/u:component/u:Identification/u:Provisioning/u:AccountData"
FIRST, SECOND, THIRD = (blob_text(number) for number in (1, 2, 3))
READY = f"printf '%s\\n' {FIRST}"


def etc_of(host: SimulatedHost) -> Path:
    return host.sim.host_file.parent


def seed_of(host: SimulatedHost, name: str = "w1") -> bytes:
    record = find_vm(observe(host.ports, scope_of_vm(name)), name).record
    seed = next(disk for disk in record.disks if disk.role is DiskRole.SEED)
    return host.ports.storage.read_private_volume(seed.pool, seed.volume)


def blobs_in(host: SimulatedHost, name: str = "w1") -> list[str]:
    """Return the texts of AccountData in a VM's seed."""
    root = etree.fromstring(_read(seed_of(host, name))["Unattend.xml"].encode())
    return [element.text for element in root.iterfind(DATA, NS)]


def kept(host: SimulatedHost) -> list[str]:
    """Return the files of the domain's folder."""
    return sorted(path.name for path in (etc_of(host) / "domain-joins/corp").iterdir())


def refresh(calls: GpuHost, image: str | None = IMAGE) -> object:
    calls.stop_vm("w1", force=True)
    return calls.refresh_vm("w1", image)


@pytest.fixture
def calls(host):
    put_blob(etc_of(host), "w1", as_saved(FIRST))
    return host_of(host, None)


def test_the_blob_is_in_the_answer_file_and_in_nothing_else(host, calls):
    planned = calls.create_vm("w1", **NEW, dry_run=True)
    assert kept(host) == ["w1.blob"]
    made = calls.create_vm("w1", **NEW)
    assert (made.data.domain_join, calls.show_vm("w1").data.domain_join) == ("corp", "corp")
    assert (blobs_in(host), kept(host)) == ([FIRST], [])
    assert secrets_in(read_setup(seed_of(host))) == {"domain_join"}
    assert made.steps[-1] == planned.steps[-1]
    assert made.steps[-1] == "delete the used blob of w1 for the domain corp"
    shown = f"{planned} {made} {calls.show_vm('w1')} {calls.list_vms()} {calls.export_host()} {calls.log()}"
    xml = host.ports.hypervisor.definition(made.data.uuid)
    assert (MARKER in shown, MARKER in xml) == (False, False)
    others = [p for p in host.directory.rglob("*") if p.is_file() and MARKER.encode() in p.read_bytes()]
    assert {path.parent.name for path in others} == {"volumes"}
    assert MARKER not in repr(made)


def test_a_second_vm_needs_a_blob_of_its_own(host, calls):
    calls.create_vm("w1", **NEW)
    with unchanged(host), pytest.raises(NeedsBlob) as raised:
        calls.create_vm("w2", **NEW)
    assert raised.value.message == (
        "w2 cannot join corp: /etc/vgpuctl/domain-joins/corp/w2.blob does not exist, or was used"
    )
    assert "djoin /provision /domain DOMAIN /machine w2 /savefile w2.blob /reuse; then" in raised.value.hint
    assert (raised.value.code, raised.value.status) == ("needs-blob", 3)
    assert raised.value.facts == {"domain": "corp", "computer": "w2"}


def test_several_vms_get_each_its_own_or_none_is_made(host, calls):
    fields = {**NEW, "count": 2}
    with unchanged(host), pytest.raises(NeedsBlob, match="w2 cannot join corp"):
        calls.create_vms("w{}", **fields)
    put_blob(etc_of(host), "w2", SECOND)
    calls.create_vms("w{}", **fields)
    assert [blobs_in(host, name) for name in ("w1", "w2")] == [[FIRST], [SECOND]]
    assert kept(host) == []


def test_what_exists_needs_none_and_is_not_made_again(host, calls):
    calls.create_vm("w1", **NEW)
    assert not calls.ensure_vm("w1", **NEW).changed
    (etc_of(host) / "domain-joins/corp").rmdir()
    assert not calls.ensure_vm("w1", **NEW).changed
    with unchanged(host), pytest.raises(NotFound, match="there is no domain corp"):
        calls.create_vm("w2", **NEW)


def test_a_new_disk_needs_a_fresh_one_before_the_vm_is_stopped(host, calls):
    calls.create_vm("w1", **NEW)
    with unchanged(host), pytest.raises(NeedsBlob):
        calls.refresh_vm("w1", IMAGE, drain=True)
    with unchanged(host), pytest.raises(NeedsBlob):
        calls.refresh_vm("w1", IMAGE, drain=True, dry_run=True)
    put_blob(etc_of(host), "w1", SECOND)
    calls.refresh_vm("w1", IMAGE, drain=True)
    assert (blobs_in(host), kept(host)) == ([SECOND], [])


def test_a_license_that_is_gone_keeps_no_new_disk_from_its_domain(host, calls):
    token = put_license(etc_of(host))
    calls.create_vm("w1", **NEW, license="cad", start=False)
    put_blob(etc_of(host), "w1", SECOND)
    token.rename(token.with_name("former"))
    refreshed = calls.refresh_vm("w1", IMAGE)
    assert "w1 has a new disk, whose guest gets no license: " in " ".join(refreshed.warnings)
    assert (blobs_in(host), kept(host)) == ([SECOND], [])
    assert secrets_in(read_setup(seed_of(host))) == {"domain_join"}
    put_blob(etc_of(host), "w1", THIRD).parent.rename(etc_of(host) / "former")
    with unchanged(host), pytest.raises(NotFound, match="there is no domain corp"):
        calls.refresh_vm("w1", IMAGE)


def test_what_was_prepared_has_joined_already(host, calls):
    calls.create_vm("w1", **NEW, off_after_setup=True)
    calls.stop_vm("w1")
    prepared = calls.prepare_vm("w1")
    assert (
        prepared.steps[0] == f"write off_after_setup, with no domain_join, into the cloud-init seed {seed_path(host)}"
    )
    assert (blobs_in(host), secrets_in(read_setup(seed_of(host))), prepared.notes) == ([], frozenset(), ())
    (etc_of(host) / "domain-joins/corp").rename(etc_of(host) / "domain-joins/former")
    assert not [text for text in calls.refresh_vm("w1").warnings if "domain" in text]
    (etc_of(host) / "domain-joins/former").rename(etc_of(host) / "domain-joins/corp")
    assert blobs_in(host) == []
    with unchanged(host), pytest.raises(NeedsBlob):
        calls.refresh_vm("w1", IMAGE)
    put_blob(etc_of(host), "w1", SECOND)
    calls.refresh_vm("w1", IMAGE)
    assert blobs_in(host) == [SECOND]


def seed_path(host: SimulatedHost) -> str:
    record = find_vm(observe(host.ports, scope_of_vm("w1")), "w1").record
    return next(disk.path for disk in record.disks if disk.role is DiskRole.SEED)


def test_the_password_stays_only_where_the_guest_shuts_down_to_be_kept(host, calls):
    calls.create_vm("w1", **NEW)
    assert "DisablePasswordChange" not in read_setup(seed_of(host))
    calls.stop_vm("w1")
    (note,) = calls.prepare_vm("w1", dry_run=True).notes
    assert "changes its password every 30 days" in note
    assert calls.prepare_vm("w1").notes == (note,)
    put_blob(etc_of(host), "w2", SECOND)
    calls.create_vm("w2", **NEW, off_after_setup=True)
    assert "DisablePasswordChange" in read_setup(seed_of(host, "w2"))


def test_another_change_keeps_it_and_clear_takes_it_out_for_good(host, calls):
    calls.create_vm("w1", **NEW)
    calls.set_vm("w1", guest_helper=True)
    assert blobs_in(host) == [FIRST]
    with unchanged(host):
        done = calls.refresh_license("w1")
    assert not done.changed
    assert calls.refresh_license("w1", clear=True).changed
    assert (blobs_in(host), FIRST.encode() in seed_of(host)) == ([], False)
    calls.set_vm("w1", guest_helper=False)
    assert blobs_in(host) == []


def test_the_entry_may_be_gone_when_something_else_changes(host, calls):
    calls.create_vm("w1", **NEW)
    (etc_of(host) / "domain-joins/corp").rmdir()
    assert not any(
        "domain_join" in text for text in calls.set_vm("w1", guest_helper=True).warnings[1:] if "any" in text
    )
    assert blobs_in(host) == [FIRST]


def test_a_vm_that_exists_joins_with_its_next_disk(host, calls):
    calls.create_vm("w1", **{**NEW, "domain_join": "none"}, guest_helper=True)
    set_later = calls.set_vm("w1", domain_join="corp")
    expected = f"the guest of w1 joins corp with vgpuctl refresh-vm w1 --image {OLD}"
    assert (expected in set_later.warnings, calls.show_vm("w1").data.domain_join) == (True, "corp")
    assert (blobs_in(host), kept(host)) == ([], ["w1.blob"])
    refresh(calls, OLD)
    assert (blobs_in(host), kept(host)) == ([FIRST], [])
    calls.set_vm("w1", domain_join="none")
    assert (blobs_in(host), calls.show_vm("w1").data.domain_join) == ([], "none")


def test_another_domain_takes_out_the_blob_of_the_former_one(host, calls):
    calls.create_vm("w1", **NEW)
    put_blob(etc_of(host), "w1", SECOND, name="lab")
    calls.set_vm("w1", domain_join="lab")
    assert blobs_in(host) == []


def test_a_disk_that_exists_already_gets_none(host, calls):
    disk = {key: value for key, value in NEW.items() if key != "image"}
    calls.create_vm("w1", **disk, disk=OLD)
    assert (blobs_in(host), kept(host)) == ([], ["w1.blob"])


def test_a_program_is_asked_once_and_only_when_the_seed_is_written(host):
    asked = etc_of(host) / "asked"
    put_program(etc_of(host), f"echo $1 >> {asked}\n{READY}")
    calls = host_of(host, None)
    calls.create_vm("w1", **NEW, dry_run=True)
    assert not asked.exists()
    made = calls.create_vm("w1", **NEW)
    assert not [step for step in made.steps if "used blob" in step]
    assert not calls.ensure_vm("w1", **NEW).changed
    calls.set_vm("w1", guest_helper=True)
    assert (asked.read_text(), blobs_in(host)) == ("w1\n", [FIRST])
    refresh(calls)
    assert asked.read_text() == "w1\nw1\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"echo {FIRST} >&2; exit 3", "it ended with status 3"),
        (f"printf {MARKER} | sed 's/./&\\x00/g' >&2; echo password >&2; kill -9 $$", "signal 9 ended it"),
        (f"echo {FIRST}; echo {FIRST}", "it has 2 lines, and a blob is one"),
        (f"echo {FIRST[:-1]}", "it is no base64"),
        (f"printf '{FIRST[:40]}\\000{FIRST[41:]}'", "it is no base64"),
        ("true", "it is empty"),
        ("yes", "it prints more than"),
    ],
)
def test_a_program_without_a_blob_undoes_the_vm(host, script, problem):
    put_program(etc_of(host), script)
    calls = host_of(host, None)
    before = picture(host)
    with pytest.raises(Failed) as raised:
        calls.create_vm("w1", **NEW)
    error = raised.value
    assert error.message.startswith(f"w1 cannot join corp: /etc/vgpuctl/domain-joins/corp: {problem}")
    assert error.hint == "sudo /etc/vgpuctl/domain-joins/corp w1 > /dev/null"
    assert "password" not in error.message
    assert (picture(host) == before, error.left) == (True, [])
    shown = f"{error.message}{error.hint}{error.facts}{error.undone}{error.__context__}{calls.log()}"
    assert MARKER not in shown


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (lambda path: path.chmod(0o640), Refused, r"w1.blob is not root's alone"),
        (lambda path: path.parent.chmod(0o770), Refused, "corp is not root's alone"),
        (lambda path: path.write_text("hello"), InvalidInput, r"corp/w1.blob: it has 5 characters"),
        (lambda path: path.write_bytes(b"A" * 200_000), FileFailed, "it is larger than 128 KiB"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/shadow")), Refused, r"w1.blob is no regular file"),
        (lambda path: (path.unlink(), path.mkdir()), Refused, r"w1.blob is no regular file"),
        (lambda path: (path.unlink(), path.parent.rmdir()), NotFound, "there is no domain corp on this host"),
        (lambda path: (path.unlink(), path.parent.rmdir(), path.parent.touch()), Refused, "neither a folder nor a"),
    ],
)
def test_what_is_no_blob_of_roots_is_refused_and_nothing_written(host, calls, change, error, problem):
    change(etc_of(host) / "domain-joins/corp/w1.blob")
    with unchanged(host), pytest.raises(error, match=problem) as raised:
        calls.create_vm("w1", **NEW)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("where", "mode", "change"),
    [("", 0o777, "go-w"), ("domain-joins", 0o770, "go-w"), ("domain-joins/corp", 0o750, "go=")],
)
def test_the_command_makes_just_what_is_open_roots_alone(host, calls, where, mode, change):
    path = etc_of(host) / where
    path.chmod(mode)
    with pytest.raises(Refused, match="is not root's alone") as raised:
        calls.create_vm("w1", **NEW)
    assert raised.value.hint == f"sudo chown root: {path} && sudo chmod {change} {path}"
    subprocess.run(["sh", "-c", raised.value.hint.rpartition("sudo ")[2]], check=True)
    assert calls.create_vm("w1", **NEW).changed


@pytest.mark.parametrize("name", ["w_1", "w.1", "desktop-with-16c", "2026", "w-"])
def test_a_name_that_no_windows_computer_has_is_refused(host, calls, name):
    with unchanged(host), pytest.raises(InvalidInput, match=f"{name} cannot join corp: a Windows computer's name"):
        calls.create_vm(name, **NEW)


@pytest.mark.parametrize("name", ["../licenses", "/etc", "a/b", ""])
def test_a_domain_is_no_path(host, calls, name):
    with unchanged(host), pytest.raises(InvalidInput, match="is not the name of a domain's entry"):
        calls.create_vm("w1", **{**NEW, "domain_join": name})


def test_linux_joins_none(host, calls):
    with unchanged(host), pytest.raises(InvalidInput, match="domain_join is for guests with Windows, and os is linux"):
        calls.create_vm("w1", **{**NEW, "os": "linux"})


def test_members_give_only_domains_that_host_yaml_lists(host, calls):
    host_of(host, replace(ADA, domains=("corp",))).create_vm("w1", **{**NEW, "domain_join": "none"}, guest_helper=True)
    with pytest.raises(NotAllowed, match="the domain corp is not allowed") as raised:
        host_of(host, ADA).set_vm("w1", domain_join="corp")
    assert raised.value.facts["rule"] == "agent.allow.domains"
    hers = host_of(host, replace(ADA, domains=("corp",)))
    hers.set_vm("w1", domain_join="corp")
    hers.stop_vm("w1", force=True)
    with pytest.raises(NotAllowed):
        host_of(host, ADA).refresh_vm("w1", IMAGE)
    assert kept(host) == ["w1.blob"]
    hers.refresh_vm("w1", IMAGE)
    assert blobs_in(host) == [FIRST]


def made_with_blob(directory: Path) -> SimulatedHost:
    """Return a host with a VM that has joined, is off, and has a fresh blob for its next disk."""
    host = open_sim_host(directory)
    put_blob(etc_of(host), "vm", FIRST)
    calls = host_of(host, None)
    calls.create_vm("vm", **NEW, start=False)
    put_blob(etc_of(host), "vm", SECOND)
    return host.again()


def make_again(ports: Host) -> object:
    with operation(ports):
        return refresh_vm(ports, context(wait_seconds=5), "vm", IMAGE, drain=False)


def once(host: SimulatedHost, where: str) -> None:
    """Check that the VM has its old disk, and its blob for the new one, or the new disk and no blob for another."""
    whole(host, where)
    calls = host_of(host, None)
    calls.stop_vm("vm", force=True)
    if calls.show_vm("vm").data.image == OLD:
        make_again(host.ports)
    assert blobs_in(host, "vm") == [SECOND], where
    with pytest.raises(NeedsBlob):
        make_again(host.ports)
    put_blob(etc_of(host), "vm", THIRD)
    make_again(host.ports)
    assert (blobs_in(host, "vm"), kept(host)) == ([THIRD], []), where


def test_a_kill_leaves_the_blob_to_the_same_setup_and_to_no_other(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, made_with_blob, make_again, once)
    calls = trial.calls()
    assert {"domain_joins.claim", "domain_joins.forget"} <= {*calls}
    trial.deaths(calls, spawn)


def test_whatever_call_fails_the_blob_is_not_lost(tmp_path: Path) -> None:
    trial = Trial(tmp_path, made_with_blob, make_again, once)
    assert trial.failures(trial.calls())


def test_a_refresh_that_fails_leaves_the_blob_fresh(tmp_path: Path) -> None:
    trial = Trial(tmp_path, made_with_blob, make_again)
    calls = trial.calls()
    number = calls.index("hypervisor.redefine") + 1
    assert calls.index("domain_joins.claim") < number
    host = trial.host("failed")
    assert outcome(partial(make_again, failing(host.ports, number))) is not None
    assert kept(host) == ["vm.blob"]
    assert (blobs_in(host, "vm"), SECOND.encode() in seed_of(host, "vm")) == ([], False), "the old disk's users"


def test_a_blob_that_comes_after_the_claim_is_for_the_next_setup(host, calls):
    class Late(DomainJoinFiles):
        def claim(self, use: BlobUse) -> None:
            super().claim(use)
            put_blob(etc_of(host), "w1", SECOND)

    joins = Late(etc_of(host) / "domain-joins", owner=os.geteuid())
    use = plan_blob(host.ports, "corp", "w1", "1")
    assert take_blob(replace(host.ports, domain_joins=joins), use).blob == FIRST
    forget_blob(host.ports, use)
    assert (kept(host), take_blob(host.ports, use).blob) == (["w1.blob"], SECOND)


def test_an_entry_that_becomes_another_one_meanwhile_claims_nothing(host, calls):
    as_folder = plan_blob(host.ports, "corp", "w1", "1")
    with pytest.raises(Busy, match="was a program a moment ago") as raised:
        take_blob(host.ports, replace(as_folder, source=JoinSource.PROGRAM))
    assert (raised.value.hint, kept(host)) == ("run the command again", ["w1.blob"])
    (etc_of(host) / "domain-joins/corp").rename(etc_of(host) / "domain-joins/former")
    put_program(etc_of(host), f"touch {etc_of(host)}/asked; {READY}")
    with pytest.raises(Busy, match="was a folder a moment ago"):
        take_blob(host.ports, as_folder)
    assert not (etc_of(host) / "asked").exists()


def ready_host(directory: Path) -> SimulatedHost:
    host = open_sim_host(directory)
    put_blob(etc_of(host), "vm", FIRST)
    return host


def make_new(ports: Host) -> object:
    setup = GuestSetup(domain_join=DomainJoin("corp"))
    fields = {
        "image": OLD,
        "memory_mib": 4096,
        "vcpus": 2,
        "os": "windows11",
        "domain_join": "corp",
        "seed": CloudInit(setup=setup),
    }
    return create(ports, request("A100-4C", name="vm", **fields))


def test_a_vm_that_could_not_be_made_leaves_its_blob_fresh(tmp_path: Path) -> None:
    trial = Trial(tmp_path, ready_host, make_new)
    calls, refused = trial.calls(), 0
    for number, done, _ in fault_points(calls, every_read=False):
        host = trial.host(f"{number}{done}")
        if outcome(partial(make_new, failing(host.ports, number, done=done))) is None:
            assert blobs_in(host, "vm") == [FIRST]
        else:
            refused += 1
            assert kept(host) == ["vm.blob"], (number, calls[number - 1], done)
        host.sim.close()
    assert refused > 5


def test_a_desktop_that_is_made_again_after_a_kill_has_its_blob(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, ready_host, make_new)
    for _, _, where, host in trial.killed(trial.calls(), spawn):
        run_reconcile(host.ports)
        assert len(kept(host)) <= 1, where
        vms = observe(host.ports, scope_of_vm("vm")).vms
        if vms:
            assert blobs_in(host, "vm") == [FIRST], where
        else:
            (left,) = kept(host)
            assert left.startswith("vm."), where
