# SPDX-License-Identifier: Apache-2.0
"""Desktops of a pool: their controller's changes, which need its fence, and nobody else's, unless root overrides it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.callers import FLEET, OPERATOR, ROOT
from tests.failed_calls import failed_calls
from tests.faults import Trial
from tests.hosts import SimulatedHost, open_sim_host, operation, picture, run_reconcile, yes
from tests.hosts import context as plain_context
from tests.reserving_vms import vm_of
from tests.unit.operations.test_refresh import SCENARIO
from vgpuctl.errors import Controlled, Exists, InvalidInput, NotYours, RecordNewer, Refused, Stale, VgpuctlError
from vgpuctl.hook.run import CONTEXT
from vgpuctl.library import GpuHost
from vgpuctl.model.caller import Caller
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.model.outcome import CallSettings, Context, Outcome
from vgpuctl.operations.power import start_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

DESKTOP = "4b20d080-1b54-4048-85b3-a6a62d165c01"
CLEAN = DesktopMark(DESKTOP, "office", "db-1", 1)
ADAS = replace(CLEAN, generation=2, dirty=True, user="ada")
FREE = replace(CLEAN, generation=3)


class FenceOfTest:
    """A fence that obeys one incarnation. `breaks_at`: from this check on it refuses."""

    def __init__(self, incarnation: str = "db-1", *, adopted: bool = False, breaks_at: int = 10**6) -> None:
        self.incarnation = incarnation
        self.adopted = adopted
        self.breaks_at = breaks_at
        self.checks = 0
        self.deleted: list[str] = []

    def check(self, fence: Fence) -> bool:
        self.checks += 1
        if fence.incarnation != self.incarnation or self.checks >= self.breaks_at:
            raise Refused("another holder has the lease", hint="do nothing")
        return self.adopted

    def refuse_deleted(self, desktop_id: str) -> None:
        if desktop_id in self.deleted:
            raise Refused("it was deleted", hint="choose another id")

    def note_deletion(self, desktop_id: str) -> None:
        self.deleted.append(desktop_id)


def fleet(mark: DesktopMark | None = None, incarnation: str = "db-1") -> FleetRequest:
    return FleetRequest(Fence(incarnation, 1, "a"), mark)


def calls(
    host: SimulatedHost, caller: Caller | None = None, fleet: FleetRequest | None = None, **settings: Any
) -> GpuHost:
    ports = replace(host.ports, audit_log=host.sim.audit)
    made = CallSettings(5.0, confirm=yes, caller=caller, fleet=fleet, **settings)
    return GpuHost(ports, made, None, lambda made, _: GpuHost(ports, made))


def controller(
    host: SimulatedHost, mark: DesktopMark | None = None, fence: Any = None, incarnation: str = "db-1"
) -> GpuHost:
    return calls(host, FLEET, fleet(mark, incarnation), fence=fence or FenceOfTest(incarnation))


def mark_of(host: SimulatedHost) -> DesktopMark | None:
    record = vm_of(host, "vdi").record
    assert record is not None
    mark: DesktopMark | None = record.desktop
    return mark


def prepared(directory: Path, **fields: Any) -> SimulatedHost:
    """Return a host with a desktop that runs and was never used."""
    host = open_sim_host(directory, text=SCENARIO)
    controller(host, CLEAN).create_vm("vdi", profile="A100-4C", image="/old.qcow2", **fields)
    return host.again()


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return prepared(tmp_path)


def test_a_new_vm_is_the_desktop_that_was_asked_for(host: SimulatedHost) -> None:
    vm = vm_of(host, "vdi")
    assert (vm.uuid, mark_of(host), vm.record.account) == (DESKTOP, CLEAN, "fleet")
    reader = calls(host, ROOT)
    assert reader.show_vm("vdi").data.desktop == CLEAN
    assert [row.desktop for row in reader.list_vms().data] == [CLEAN]
    reader.create_vm("other", profile="A100-4C")
    assert reader.show_vm("other").data.desktop is None


def test_a_desktop_is_made_once(host: SimulatedHost) -> None:
    before = picture(host)
    with pytest.raises(Exists):
        controller(host, CLEAN).create_vm("vdi-2", profile="A100-4C")
    with pytest.raises(Refused, match="and not the desktop"):
        controller(host, replace(CLEAN, id=DESKTOP[:-1] + "2")).ensure_vm("vdi", profile="A100-4C")
    assert not controller(host, CLEAN).ensure_vm("vdi", profile="A100-4C", state="started").changed
    assert picture(host) == before


def test_ensure_vm_makes_it_too_and_a_fence_that_is_gone_makes_nothing(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=SCENARIO)
    before = picture(host)
    for breaks_at in (1, 2):
        with pytest.raises(Refused, match="another holder"):
            controller(host, CLEAN, FenceOfTest(breaks_at=breaks_at)).ensure_vm("vdi", profile="A100-4C")
        assert picture(host) == before
    controller(host, CLEAN).ensure_vm("vdi", profile="A100-4C")
    assert mark_of(host) == CLEAN


def test_a_desktop_that_was_deleted_is_not_made_again(host: SimulatedHost) -> None:
    fence = FenceOfTest()
    controller(host, fence=fence).delete_vm("vdi", dry_run=True)
    assert fence.deleted == []
    controller(host, fence=fence).delete_vm("vdi")
    assert fence.deleted == [DESKTOP]
    with pytest.raises(Refused, match="it was deleted"):
        controller(host, CLEAN, fence).ensure_vm("vdi", profile="A100-4C")
    controller(host, replace(CLEAN, id=DESKTOP[:-1] + "2"), fence).ensure_vm("vdi", profile="A100-4C")


def test_a_mark_is_written_once_and_the_guest_notices_nothing(host: SimulatedHost) -> None:
    before = vm_of(host, "vdi")
    assert controller(host, ADAS).mark_desktop("vdi", dry_run=True).changed
    assert mark_of(host) == CLEAN
    assert controller(host, ADAS).mark_desktop("vdi").changed
    after = vm_of(host, "vdi")
    assert mark_of(host) == ADAS
    assert after.record.generation == before.record.generation + 1
    assert replace(after, record=before.record) == before
    assert not controller(host, ADAS).mark_desktop("vdi").changed
    assert vm_of(host, "vdi").record == after.record


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (CLEAN, RecordNewer),
        (replace(ADAS, generation=1), RecordNewer),
        (replace(ADAS, user="eve"), RecordNewer),
        (replace(ADAS, user=None), RecordNewer),
        (replace(ADAS, dirty=False), Refused),
        (FREE, Refused),
        (replace(ADAS, id=DESKTOP[:-1] + "2"), Refused),
        (replace(ADAS, pool=""), InvalidInput),
        (replace(ADAS, user="x" * 256), InvalidInput),
        (replace(ADAS, generation=10**18), InvalidInput),
        (replace(ADAS, incarnation="db-2"), InvalidInput),
        (None, InvalidInput),
    ],
)
def test_a_mark_that_is_older_or_another_is_refused(
    host: SimulatedHost, mark: DesktopMark | None, error: type[VgpuctlError]
) -> None:
    controller(host, ADAS).mark_desktop("vdi")
    before = picture(host)
    with pytest.raises(error):
        controller(host, mark).mark_desktop("vdi")
    assert picture(host) == before


def test_marks_of_another_database_are_only_for_one_that_adopted_the_host(host: SimulatedHost) -> None:
    other = replace(ADAS, incarnation="db-2")
    acts: list[Callable[[GpuHost], object]] = [
        lambda one: one.mark_desktop("vdi"),
        lambda one: one.stop_vm("vdi", force=True),
        lambda one: one.refresh_vm("vdi", image="/new.qcow2", drain=True),
        lambda one: one.delete_vm("vdi"),
    ]
    before = picture(host)
    for act in acts:
        with pytest.raises(RecordNewer, match="db-1"):
            act(controller(host, other, incarnation="db-2"))
    assert picture(host) == before
    controller(host, other, FenceOfTest("db-2", adopted=True), incarnation="db-2").mark_desktop("vdi")
    assert mark_of(host) == other


def test_an_unmarked_vm_of_the_account_can_become_a_desktop(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=SCENARIO)
    uuid = str(controller(host).create_vm("vdi", profile="A100-4C").data.uuid)
    calls(host, ROOT).create_vm("roots", profile="A100-4C")
    controller(host, replace(ADAS, id=uuid)).mark_desktop("vdi")
    assert mark_of(host) == replace(ADAS, id=uuid)
    with pytest.raises(NotYours):
        controller(host, replace(ADAS, id=vm_of(host, "roots").uuid)).mark_desktop("roots")


CHANGES: dict[str, Callable[[GpuHost], object]] = {
    "start-vm": lambda one: one.start_vm("vdi"),
    "stop-vm": lambda one: one.stop_vm("vdi", force=True),
    "stop-vm --dry-run": lambda one: one.stop_vm("vdi", force=True, dry_run=True),
    "reboot-vm": lambda one: one.reboot_vm("vdi", force=True),
    "delete-vm": lambda one: one.delete_vm(DESKTOP),
    "refresh-vm": lambda one: one.refresh_vm("vdi", image="/new.qcow2", drain=True),
    "refresh-vm --from": lambda one: one.refresh_vm("vdi", image="/new.qcow2", from_image="/larger.qcow2"),
    "set-vm": lambda one: one.set_vm("vdi", owner="eve"),
    "set-vm --drain": lambda one: one.set_vm("vdi", memory="2GiB", drain=True),
    "set-vm --when-off": lambda one: one.set_vm("vdi", memory="2GiB", when_off=True),
    "ensure-vm": lambda one: one.ensure_vm("vdi", state="stopped"),
    "ensure-vm absent": lambda one: one.ensure_vm("vdi", state="absent"),
    "attach-vgpu": lambda one: one.attach_vgpu("vdi", profile="A100-4C"),
    "detach-vgpu": lambda one: one.detach_vgpu("vdi"),
    "resize-disk": lambda one: one.resize_disk("vdi", size="50GiB"),
    "adopt --release": lambda one: one.adopt("vdi", release=True),
    "refresh-license": lambda one: one.refresh_license("vdi", clear=True),
    "allow-logon": lambda one: one.allow_logon("vdi", "eve"),
    "make-account": lambda one: one.make_account("vdi", "eve"),
    "set-password": lambda one: one.set_password("vdi", "eve", "abcd2-efgh3-jkmn4"),
    "shutdown-in": lambda one: one.shutdown_in("vdi", minutes=1),
}


@pytest.mark.parametrize(
    "caller", [None, ROOT, OPERATOR, FLEET], ids=lambda one: "none" if one is None else one.account
)
@pytest.mark.parametrize("name", CHANGES)
def test_nobody_but_its_controller_changes_a_desktop(host: SimulatedHost, name: str, caller: Caller | None) -> None:
    before = picture(host)
    with pytest.raises(Controlled, match="a desktop of the pool office") as caught:
        CHANGES[name](calls(host, caller))
    assert "vgpuctl controller list-desktops" in str(caught.value.hint)
    assert caught.value.facts["pool"] == "office"
    assert picture(host) == before


def test_several_at_once_are_refused_too(host: SimulatedHost) -> None:
    from vgpuctl.errors import SomeTargetsFailed

    spec = host.directory / "vdi.yaml"
    spec.write_text("{name: 'vdi{:.0}', profile: A100-4C}")
    with pytest.raises(VgpuctlError) as caught:
        calls(host, ROOT).ensure_vms(1, file=str(spec), state="absent")
    assert isinstance(caught.value, (SomeTargetsFailed, InvalidInput))
    assert vm_of(host, "vdi").uuid == DESKTOP


def test_root_may_override_the_controller_and_the_mark_stays(host: SimulatedHost) -> None:
    controller(host, ADAS).mark_desktop("vdi")
    root = calls(host, ROOT, override_controller=True)
    root.stop_vm("vdi", force=True)
    root.refresh_vm("vdi", image="/new.qcow2")
    assert mark_of(host) == ADAS, "only the controller says that it is clean"
    root.delete_vm("vdi")


def test_the_host_itself_works_as_with_any_vm(host: SimulatedHost) -> None:
    with operation(host.ports):
        start_vm(host.ports, replace(CONTEXT, progress=plain_context().progress), "vdi")
    root = calls(host, ROOT)
    root.cordon("0000:3b:00.0")
    assert root.reconcile_host().data.findings == ()
    root.restore_host()
    root.show_console("vdi")
    assert mark_of(host) == CLEAN


def test_a_generation_is_nobodys_before_its_user_and_after_a_refresh(host: SimulatedHost) -> None:
    """The disk of a desktop that is assigned may have to be made again before its user is let in."""
    clean = replace(CLEAN, generation=2)
    controller(host, clean).refresh_vm("vdi", image="/new.qcow2", drain=True)
    assert controller(host, ADAS).mark_desktop("vdi").data.desktop == ADAS
    for other in (replace(ADAS, user="eve"), replace(ADAS, user=None), clean):
        with pytest.raises(Refused, match="its mark of this generation is for ada"):
            controller(host, other).mark_desktop("vdi")
    with pytest.raises(Refused, match="its mark of this generation is for ada"):
        controller(host, replace(ADAS, user="eve", dirty=False)).refresh_vm("vdi", image="/new.qcow2", drain=True)
    assert controller(host, clean).refresh_vm("vdi", image="/new.qcow2", drain=True).data.desktop == clean


def test_a_refresh_makes_a_desktop_clean_in_the_same_write_as_its_new_disk(host: SimulatedHost) -> None:
    controller(host, ADAS).mark_desktop("vdi")
    with pytest.raises(InvalidInput, match="from_image"):
        controller(host, FREE).refresh_vm("vdi", image="/new.qcow2", from_image="/old.qcow2", drain=True)
    for old in (CLEAN, replace(FREE, generation=1)):
        with pytest.raises(RecordNewer):
            controller(host, old).refresh_vm("vdi", image="/new.qcow2", drain=True)
    assert mark_of(host) == ADAS
    controller(host, FREE).refresh_vm("vdi", image="/new.qcow2", drain=True)
    assert (mark_of(host), sound_of(host)) == (FREE, "/new.qcow2")


@pytest.mark.parametrize("breaks_at", range(1, 9))
def test_a_fence_that_is_gone_stops_a_refresh_before_anything_is_lost(host: SimulatedHost, breaks_at: int) -> None:
    controller(host, ADAS).mark_desktop("vdi")
    before = picture(host)
    fence = FenceOfTest(breaks_at=breaks_at)
    try:
        controller(host, FREE, fence).refresh_vm("vdi", image="/new.qcow2", drain=True)
    except Refused:
        assert mark_of(host) == ADAS
        assert sound_of(host) == "/old.qcow2"
        assert picture(host).running == before.running, "a VM that was shut down for it runs again"
    else:
        assert fence.checks < breaks_at
        assert mark_of(host) == FREE


def sound_of(host: SimulatedHost) -> str:
    vm = vm_of(host, "vdi")
    assert not vm.record.spare_disks()
    return str(vm.record.disks[0].base)


def used(directory: Path) -> SimulatedHost:
    """Return a host with a desktop that Ada had."""
    host = prepared(directory)
    controller(host, ADAS).mark_desktop("vdi")
    return host.again()


def refresh(ports: Host) -> Outcome[Any]:
    made: Context = replace(plain_context(wait_seconds=5), fleet=fleet(FREE), fence=FenceOfTest())
    with operation(ports):
        return refresh_vm(ports, made, "vdi", "/new.qcow2", drain=True)


def test_whatever_call_of_a_refresh_fails_a_used_disk_is_never_clean(tmp_path: Path) -> None:
    trial = Trial(tmp_path, used, refresh)
    refused = 0
    for one in failed_calls(trial, trial.calls()):
        later = one.host.again()
        refused += one.error is not None
        _check_mark(later, one.where)
        run_reconcile(later.ports)
        _check_mark(later, one.where)
    assert refused >= 2


def test_whatever_call_of_a_refresh_a_process_dies_in_a_used_disk_is_never_clean(tmp_path: Path, spawn: Any) -> None:
    trial = Trial(tmp_path, used, refresh)
    bases = set()
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        _check_mark(later, where)
        run_reconcile(later.ports)
        bases.add(_check_mark(later, where))
    assert bases == {"/old.qcow2", "/new.qcow2"}


def _check_mark(host: SimulatedHost, where: str) -> str:
    """Check that the mark belongs to the disk that the VM uses; return that disk's image."""
    vm = vm_of(host, "vdi")
    (base,) = {disk.base for disk in vm.record.disks if disk.path == vm.disks[0].source}
    assert vm.record.desktop == (FREE if base == "/new.qcow2" else ADAS), where
    return str(base)


def test_a_mark_and_another_change_at_once_do_not_both_win(host: SimulatedHost) -> None:
    """A spare is stopped by one controller while another gives it to a user: the stop expects the unused record."""
    generation = vm_of(host, "vdi").record.generation
    late = calls(host, FLEET, fleet(), fence=FenceOfTest(), if_generation=generation)
    controller(host, ADAS).mark_desktop("vdi")
    before = picture(host)
    for act in (late.stop_vm, late.delete_vm, partial(late.refresh_vm, image="/new.qcow2", drain=True)):
        with pytest.raises(Stale):
            act("vdi")
    assert picture(host) == before
