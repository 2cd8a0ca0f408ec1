# SPDX-License-Identifier: Apache-2.0
"""refresh-vm: a new clone replaces the old one; the rest of the VM stays, and no crash loses a disk's owner.

Size: one command, with every way in which it is refused, interrupted or killed.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial, error_of, outcome
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.meanwhile import on_call, unchanged
from tests.reserving_vms import vm_of
from tests.unit.operations.test_change_faults import whole
from vgpuctl.errors import Busy, HostCannot, InUse, InvalidInput, NeedsConfirmation, NotFound, Refused, Unmanaged
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.request import CloudInit, CloudInitFile, ExistingDisk, NewDisk
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.attach import detach
from vgpuctl.operations.images import list_images
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

SCENARIO = """version: 1
storage: {pools: [{name: default}]}
networks: [{name: default}]
images:
  - {path: /old.qcow2, size_gib: 20, firmware: both}
  - {path: /new.qcow2, size_gib: 10, firmware: both}
  - {path: /larger.qcow2, size_gib: 30, firmware: both}
  - {path: /bios.qcow2, size_gib: 10, firmware: bios}
  - {path: /hidden.qcow2, size_gib: 10, firmware: both, problem: /root is closed to libvirt-qemu}
gpus: [{model: A100, vfs: {total: 3, enabled: 3}}]
"""
SEED = CloudInit(CloudInitFile("/root/user-data", "#cloud-config\na: 1\n"))
GIB = 1 << 30


def prepared(directory: Path, act: str = "off", scenario: str = SCENARIO, **changes: object) -> SimulatedHost:
    """Return a host with one VM that has a clone, a second disk and a seed; "drain": it runs."""
    host = open_sim_host(directory, text=scenario)
    wanted = {"image": "/old.qcow2", "disks": (NewDisk(1024),), "seed": SEED, **changes}
    create(host.ports, request("A100-4C", name="vm", **wanted), start=act == "drain")
    return host.again()


def refresh(
    ports: Host, act: str = "off", image: str | None = "/new.qcow2", *, from_image: str | None = None, **how: Any
) -> Outcome:
    """refresh-vm --yes; "drain" with that option."""
    with operation(ports):
        return refresh_vm(
            ports, context(wait_seconds=5, **how), "vm", image, from_image=from_image, drain=act == "drain"
        )


def the_vm(host: SimulatedHost) -> Vm:
    return vm_of(host, "vm")


def half_refreshed(host: SimulatedHost) -> Any:
    """Let the removal of the old disk fail, and return the error."""

    def fail() -> None:
        raise error_of("storage.remove_volume")

    error = outcome(partial(refresh, on_call(host.ports, "storage.remove_volume", fail, nth=1)))
    assert error is not None
    return error


def sound(host: SimulatedHost, where: str = "") -> str:
    """Check that record, definition and files name the same existing disks; return the system disk's base."""
    vm = the_vm(host)
    files = {p: f for p, f in picture(host).files.items() if p.startswith("/var")}
    assert {d.path for d in vm.record.disks} == {d.source for d in vm.disks} == set(files), where
    assert not vm.record.spare_disks(), where
    (base,) = {base for _, base in files.values()} - {None}
    assert vm.record.disks[0].base == base, where
    whole(host, where)
    return base


@pytest.mark.parametrize("act", ["off", "drain"])
def test_only_the_system_disk_changes(tmp_path: Path, act: str) -> None:
    host = prepared(tmp_path, act)
    before, was = the_vm(host), picture(host)
    made = refresh(host.ports, act)
    now = the_vm(host)
    assert now.state is (VmState.RUNNING if act == "drain" else VmState.STOPPED)
    assert made.changed
    assert [d.base for d in made.data.disks] == ["/new.qcow2", None, None]
    assert replace(now, disks=before.disks, record=before.record) == before
    assert replace(now.record, disks=before.record.disks, generation=0) == before.record
    assert now.disks[1:] == before.disks[1:]
    assert now.disks[0].source != before.disks[0].source
    assert (picture(host).types, picture(host).claims) == (was.types, was.claims)
    assert sound(host) == "/new.qcow2"


@pytest.fixture
def host(tmp_path):
    return prepared(tmp_path)


def test_the_disk_never_shrinks_and_grows_with_a_larger_image(host: SimulatedHost) -> None:
    refresh(host.ports)
    assert the_vm(host).record.disks[0].capacity_bytes == 20 * GIB
    refresh(host.ports, image="/larger.qcow2")
    assert the_vm(host).record.disks[0].capacity_bytes == 30 * GIB


def test_it_can_be_done_again_and_again_and_passes_over_names_that_are_taken(host: SimulatedHost) -> None:
    stem = the_vm(host).record.disks[0].volume.removesuffix(".qcow2")
    host.ports.storage.create_volume("default", f"{stem}-2.qcow2", GIB)
    names = []
    for image in ("/new.qcow2", "/old.qcow2", "/new.qcow2"):
        refresh(host.ports, image=image)
        names.append(the_vm(host).record.disks[0].volume)
    assert names == [f"{stem}-3.qcow2", f"{stem}-4.qcow2", f"{stem}-5.qcow2"]
    assert f"/var/lib/libvirt/images/{stem}-2.qcow2" in picture(host).files


def test_list_images_shows_the_clone_below_its_image_before_and_after(host: SimulatedHost) -> None:

    def children() -> dict[str, list[tuple[str, ...]]]:
        rows = list_images(host.ports).data
        return {row.path: [c.vms for c in row.children] for row in rows if row.role == "base"}

    assert children() == {"/old.qcow2": [("vm",)]}
    refresh(host.ports)
    assert children() == {"/new.qcow2": [("vm",)]}


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    host = prepared(tmp_path, "drain")
    with unchanged(host):
        planned = refresh(host.ports, "drain", dry_run=True)
    words = [step.split()[0] for step in planned.steps]
    assert words == ["shut", "record", "create", "change", "delete", "remove", "start"]
    disk = the_vm(host).record.disks[0].path
    assert planned.notes == (f"all data on {disk} will be lost",)
    assert planned.steps[-2] == f"remove {disk} from the record of VM vm"
    again = refresh(host.ports, "drain", image="/old.qcow2", dry_run=True)
    assert again.notes == (f"all data on {disk} will be lost, and vm already is made from /old.qcow2",)


def test_without_a_yes_nothing_is_changed(tmp_path: Path) -> None:
    def no(question: str, details: tuple[str, ...]) -> None:
        assert "will be lost" in question
        assert details
        raise NeedsConfirmation("no")

    host = prepared(tmp_path, "drain")
    with unchanged(host), pytest.raises(NeedsConfirmation):
        refresh(host.ports, "drain", confirm=no)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ("/nothing.qcow2", NotFound, "file /nothing.qcow2 does not exist"),
        ("/hidden.qcow2", HostCannot, "/root is closed"),
        ("/bios.qcow2", InvalidInput, "boots only with BIOS, and vm has UEFI"),
    ],
)
def test_an_image_that_will_not_do_is_refused_before_anything_is_written(host, image, error, message) -> None:
    with unchanged(host), pytest.raises(error, match=message):
        refresh(host.ports, image=image)


class Numbered(Silent):
    """Keeps the number of each finished step, and how many steps there are."""

    def __init__(self) -> None:
        self.total = 0
        self.lines: list[tuple[int, int, str]] = []

    def on_plan(self, steps: tuple[str, ...]) -> None:
        self.total = len(steps)

    def on_step_finish(self, number: int, text: str) -> None:
        self.lines.append((number, self.total, text))


@pytest.mark.parametrize("reserve", ["always", "running"])
def test_all_steps_are_numbered_through_and_the_loss_is_told_before(tmp_path: Path, reserve: str) -> None:
    host = prepared(tmp_path, "drain", reserve=reserve)
    progress = Numbered()
    made = refresh(host.ports, "drain", progress=progress)
    assert (the_vm(host).state, len(host.ports.claims.all()), made.notes) == (VmState.RUNNING, 1, ())
    numbers = [number for number, _, _ in progress.lines]
    assert numbers == list(range(1, len(numbers) + 1))
    assert progress.lines[-1][:2] == (len(numbers), len(numbers))
    assert [text for _, _, text in progress.lines if text in made.steps] == list(made.steps)
    if reserve == "always":
        assert [(number, total) for number, total, _ in progress.lines] == [(n, 7) for n in range(1, 8)]


def test_from_leaves_a_vm_with_another_image_alone(host: SimulatedHost) -> None:
    with unchanged(host):
        left = refresh(host.ports, from_image="/larger.qcow2")
    assert (left.changed, left.steps) == (False, ())
    assert refresh(host.ports, from_image="/old.qcow2").changed
    with unchanged(host):
        again = refresh(host.ports, from_image="/old.qcow2")
    assert not again.changed
    assert again.notes == ("VMs whose first disk is not made from /old.qcow2 are left alone",)


def test_a_vm_that_got_another_disk_after_the_question_is_left_alone(host: SimulatedHost) -> None:

    def refresh_meanwhile(question: str, details: tuple[str, ...]) -> None:
        refresh(host.again().ports)

    with pytest.raises(InUse, match="vm has just been changed"):
        refresh(host.ports, image="/larger.qcow2", confirm=refresh_meanwhile)
    assert sound(host) == "/new.qcow2"


def test_a_vm_that_runs_is_refused_without_drain(tmp_path: Path) -> None:
    host = prepared(tmp_path, "drain")
    with unchanged(host), pytest.raises(InUse, match="vm is running") as caught:
        refresh(host.ports)
    assert "--drain" in str(caught.value.hint)


@pytest.mark.parametrize("disks", [(NewDisk(1024),), (ExistingDisk("/old.qcow2"),)])
def test_a_vm_without_a_clone_is_refused(tmp_path: Path, disks: tuple[object, ...]) -> None:
    host = prepared(tmp_path, seed=None, image=None, disks=disks)
    with pytest.raises(Refused, match="no disk that vgpuctl made as a clone"):
        refresh(host.ports)


def test_a_vm_of_somebody_else_is_refused(host: SimulatedHost) -> None:
    host.ports.hypervisor.set_record(the_vm(host).uuid, None)
    host.ports.claims.remove(*next(iter(picture(host).claims.items())))
    with pytest.raises(Unmanaged, match="was not created by vgpuctl"):
        refresh(host.ports)


def test_a_vm_that_refers_to_another_disk_now_is_refused(host: SimulatedHost) -> None:
    vm = the_vm(host)
    xml = host.ports.hypervisor.definition(vm.uuid)
    host.ports.hypervisor.redefine(
        vm.uuid, re.sub(f"(<source file=.){re.escape(str(vm.disks[0].source))}", r"\1/old.qcow2", xml)
    )
    now = the_vm(host)
    assert (now.disks[0].source, now.record) == ("/old.qcow2", vm.record)
    with pytest.raises(Refused, match="no longer refers to"):
        refresh(host.ports)


def test_a_vm_without_a_vgpu_is_refused(host: SimulatedHost) -> None:
    detach(host.ports, context(wait_seconds=5), "vm")
    with pytest.raises(Refused, match="has no vGPU"):
        refresh(host.ports)


def test_a_disk_that_another_vm_clones_stays(host: SimulatedHost) -> None:
    disk = the_vm(host).record.disks[0].path
    host.ports.hypervisor.define(
        host.ports.hypervisor.definition(the_vm(host).uuid)
        .replace(the_vm(host).uuid, "11111111-2222-4333-8444-555555555555")
        .replace("<name>vm</name>", "<name>other</name>")
    )
    with unchanged(host), pytest.raises(InUse, match=f"{disk} cannot be deleted: VM other") as caught:
        refresh(host.ports)
    assert "--keep-disks" not in str(caught.value.hint)


def test_a_guest_that_does_not_shut_down_keeps_running_with_its_disk(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=f"{SCENARIO}faults: [{{on: shutdown, match: vm, kind: lost}}]\n")
    create(host.ports, request("A100-4C", name="vm", image="/old.qcow2"))
    with unchanged(host), pytest.raises(Busy, match="did not shut down"):
        refresh(host.ports, "drain")


def test_an_interrupted_refresh_is_finished_by_reconcile_before_another_one(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    error = half_refreshed(host)
    assert error.code == "partly-applied"
    assert [line.split()[0] for line in error.left] == ["delete", "remove"]
    later = host.again()
    with pytest.raises(Busy, match="was interrupted"):
        refresh(later.ports)
    (finding,) = run_reconcile(later.ports).data.findings
    assert finding.kind == "half-refreshed"
    assert sound(later) == "/new.qcow2"


def test_a_vm_that_is_half_refreshed_is_deleted_with_both_disks(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    half_refreshed(host)
    delete(host.again().ports, "vm")
    assert not [path for path in picture(host).files if path.startswith("/var")]


def test_whatever_call_fails_the_vm_is_as_it_was_or_refreshed(tmp_path: Path) -> None:
    trial = Trial(tmp_path, partial(prepared, act="drain"), partial(refresh, act="drain"))
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 4
    refused = 0
    for one in failed_calls(trial, calls):
        if one.error is None:
            continue
        refused += 1
        same = replace(one.before, running={}) == replace(one.now, running={})
        if one.now.running != one.before.running:
            assert one.error.left, one.where
        later = one.host.again()
        if not same and not one.now.domains[the_vm(later).uuid][1].count("/new.qcow2"):
            assert one.error.left or (one.for_good and one.call.startswith("claims.")), one.where
        run_reconcile(later.ports)
        assert sound(later, one.where) in ("/old.qcow2", "/new.qcow2"), one.where
    assert refused >= 2


@pytest.mark.parametrize("reserve", ["always", "running"])
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole_and_starts_it(
    tmp_path: Path, spawn, reserve: str
) -> None:
    trial = Trial(tmp_path, partial(prepared, act="drain", reserve=reserve), partial(refresh, act="drain"))
    calls, before = trial.calls(), picture(trial.made).running
    switched = calls.index("hypervisor.redefine") + 1
    result = 0
    for number, done, where, later in trial.killed(calls, spawn):
        result += bool(run_reconcile(later.ports, dry_run=True).data.findings)
        run_reconcile(later.ports)
        assert not run_reconcile(later.ports, dry_run=True).data.findings, where
        assert picture(later).running == before, where
        new = number > switched or (number == switched and done)
        assert sound(later, where) == ("/new.qcow2" if new else "/old.qcow2"), where
    assert result >= 4


def test_the_old_disk_stays_when_the_new_one_is_missing(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    half_refreshed(host)
    host.ports.storage.remove_volume("default", the_vm(host).record.disks[0].volume)
    before = set(picture(host).files)
    with pytest.raises(Refused, match="may hold its last state"):
        run_reconcile(host.again().ports)
    assert set(picture(host).files) == before


def test_after_a_reboot_a_refreshed_vm_starts_with_its_vgpu(tmp_path: Path) -> None:
    host = prepared(tmp_path, "drain")
    host.sim.reboot()
    refresh(host.again().ports)
    start(host.ports, "vm")
    assert sound(host) == "/new.qcow2"
    stop(host.ports, "vm")
