# SPDX-License-Identifier: Apache-2.0
"""Why a VM cannot leave its host: each reason by itself, running or off, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.values import A4C, MACHINE, a100, assigned, vm
from vgpuctl.domain.move_facts import MoveFacts, MovingDisk
from vgpuctl.model.gpu import Backend
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.vm import HostdevRef, ManagedDisk, RecordState, Vm, VmState
from vgpuctl.observe.vgpu_migration import VgpuMigrationFacts
from vgpuctl.operations.plans.migration_reasons import SourceFacts, find_source_reasons, find_source_warnings
from vgpuctl.value import replace

VGPU = assigned(a100(), A4C)
VM = vm(1, VGPU)
DOMAIN = MoveFacts("x86_64", "pc-q35-8.2")
CAN = {VGPU.carrier: VgpuMigrationFacts(can_migrate=True)}
FACTS = SourceFacts("alpha", VM, DOMAIN, blockers=(), vgpus=CAN)
Change = Callable[[SourceFacts], SourceFacts]


def with_vm(**changes: Any) -> Change:
    return lambda facts: replace(facts, vm=replace(facts.vm, **changes))


def with_record(**changes: Any) -> Change:
    return lambda facts: replace(facts, vm=replace(facts.vm, record=replace(facts.vm.record, **changes)))


def with_domain(**changes: Any) -> Change:
    return lambda facts: replace(facts, domain=replace(facts.domain, **changes))


def with_device(carrier: str, kind: str = "pci", **domain: Any) -> Change:
    def change(facts: SourceFacts) -> SourceFacts:
        hostdevs = (*facts.vm.hostdevs, HostdevRef(kind, carrier, True))
        return with_domain(**domain)(with_vm(hostdevs=hostdevs)(facts))

    return change


def with_whole(backend: Backend) -> Change:
    whole = replace(VGPU, backend=backend, profile=None)
    return lambda facts: with_record(vgpus=(whole,))(replace(facts, vgpus={}))


def leaving(**leftovers: Any) -> Change:
    return lambda facts: replace(facts, leftovers=DomainLeftovers(**leftovers))


MARK = MigrationMark("i", MigrationRole.LEAVING, "beta", MACHINE)
BOTH: dict[str, tuple[Change, str]] = {
    "nobody's": (with_vm(record=None), "vdi-001 was not created by vgpuctl, which does not move it"),
    "a copy": (with_vm(record=None, copied_record=VM.record), "vdi-001 is a copy"),
    "unreadable": (with_vm(record=None, has_unreadable_record=True), "a record that this vgpuctl cannot read"),
    "attached": (with_record(created_vm=False), "which only attached vGPUs"),
    "adopted": (with_record(created_vm=False, vgpus=(replace(VGPU, adopted=True),)), "which only adopted it"),
    "half created": (with_record(state=RecordState.CREATING), "is unfinished: its record says making"),
    "half deleted": (with_record(state=RecordState.REMOVING), "is half deleted: its record says removing"),
    "moving": (
        with_record(state=RecordState.MOVING, migration=MARK),
        "vdi-001 moves from this host to beta, or that move was interrupted",
    ),
    "transient": (with_vm(persistent=False), "vdi-001 is transient: it was undefined while running"),
    "managed save": (leaving(managed_save=True), "vdi-001 is saved (save-vm): only this host can restore it"),
    "snapshots": (leaving(snapshots=("a", "b")), "has 2 snapshots (a, b)"),
    "work": (lambda facts: replace(facts, work=(("process 7 works on it", "wait"),)), "process 7 works on it"),
}
LIVE: dict[str, tuple[Change, str]] = {
    "off": (with_vm(state=VmState.STOPPED), "vdi-001 is off"),
    "paused": (with_vm(state=VmState.PAUSED), "vdi-001 is paused"),
    "crashed": (with_vm(state=VmState.CRASHED), "vdi-001 is crashed"),
    "blocker": (lambda facts: replace(facts, blockers=("0000:3b:00.4: no",)), "QEMU says: 0000:3b:00.4: no"),
    "driver": (
        lambda facts: replace(facts, vgpus={VGPU.carrier: VgpuMigrationFacts(False, "the kernel is too old")}),
        "A100-4C on 0000:3b:00.4 cannot move while the VM runs: the kernel is too old",
    ),
    "whole gpu": (with_whole(Backend.PASSTHROUGH), "the GPU on 0000:3b:00.4 cannot move while the VM runs"),
    "plain vf": (with_whole(Backend.SRIOV_VF), "the VF on 0000:3b:00.4 cannot move while the VM runs"),
    "network card": (
        with_device("0000:41:00.2", nic_carriers=frozenset({"0000:41:00.2"})),
        "the VM's network card is the device 0000:41:00.2",
    ),
    "device": (
        with_device("0000:41:00.0"),
        "the VM has the device 0000:41:00.0 of this host, which vgpuctl does not manage",
    ),
    "text": (
        with_device("0000:41:00.0", "text"),
        "the VM's definition names the device 0000:41:00.0 of this host, as in <qemu:commandline>",
    ),
    "usb": (with_domain(other_devices=("usb 0x0951:0x1666",)), "the VM has a device of this host, usb 0x0951:0x1666"),
    "opengl": (with_domain(has_gl=True), "QEMU draws the VM's screen with OpenGL"),
    "render node": (with_vm(render_node="/dev/dri/renderD128"), "with OpenGL on /dev/dri/renderD128"),
    "invtsc": (with_domain(has_unscaled_tsc=True), "invtsc"),
    "dimm": (with_domain(unaddressed_dimms=2), "a hot-plugged memory module of the VM has no slot or no address"),
    "shmem": (with_domain(peer_shmem=("ivshmem",)), "the VM's shared memory ivshmem"),
    "directory": (with_domain(file_systems=("home",)), "the VM mounts a directory of this host as home"),
    "transient disk": (
        with_domain(disks=(MovingDisk("disk", "vda", "file", "/a", is_transient=True),)),
        "is transient",
    ),
    "block job": (with_domain(disks=(MovingDisk("disk", "vda", "file", "/a", has_job=True),)), "a block job copies"),
}


def reasons(change: Change, *, offline: bool) -> list[str]:
    result = find_source_reasons(change(FACTS), offline=offline)
    assert {reason.host for reason in result} <= {"alpha"}
    assert all(reason.hint for reason in result)
    return [reason.what for reason in result]


@pytest.mark.parametrize("offline", [True, False])
def test_a_vm_without_obstacles_can_leave(offline: bool) -> None:
    assert reasons(lambda facts: facts, offline=offline) == []
    assert find_source_warnings(FACTS, offline=offline) == ()


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("name", BOTH)
def test_what_prevents_any_move_is_named_once(name: str, offline: bool) -> None:
    change, text = BOTH[name]
    (named,) = reasons(change, offline=offline)
    assert text in named


@pytest.mark.parametrize("state", [VmState.STOPPED, VmState.PAUSED])
@pytest.mark.parametrize("record", [RecordState.CREATING, RecordState.REMOVING, RecordState.MOVING])
def test_one_that_nobody_may_start_is_not_called_off(record: RecordState, state: VmState) -> None:
    mark = MARK if record is RecordState.MOVING else None
    facts = with_record(state=record, migration=mark)(with_vm(state=state)(FACTS))
    (reason,) = find_source_reasons(facts, offline=False)
    assert "start-vm" not in str(reason.hint)


def test_whoever_completes_a_deletion_is_told_that_the_disks_go() -> None:
    disk = ManagedDisk("default", "a.qcow2", "/a.qcow2", 0)
    cases = [with_record(state=RecordState.REMOVING, disks=disks)(FACTS) for disks in ((disk,), ())]
    hints = [find_source_reasons(facts, offline=False)[0].hint for facts in cases]
    rest = ", if no vgpuctl process works on it any more"
    assert hints[0] == f"vgpuctl reconcile-host finishes the deletion, disks too{rest}"
    assert hints[1] == f"vgpuctl reconcile-host finishes the deletion{rest}"


@pytest.mark.parametrize("name", LIVE)
def test_what_prevents_a_live_move_alone_is_named_once(name: str) -> None:
    change, text = LIVE[name]
    (what,) = reasons(change, offline=False)
    assert text in what
    assert reasons(change, offline=True) == []


def test_all_reasons_are_named_at_once() -> None:
    changes = [LIVE[name][0] for name in ("paused", "blocker", "invtsc", "dimm", "device")]
    changes += [BOTH[name][0] for name in ("snapshots", "work")]

    def change(facts: SourceFacts) -> SourceFacts:
        for one in changes:
            facts = one(facts)
        return facts

    assert len(reasons(change, offline=False)) == len(changes)


def test_a_vf_whose_driver_can_send_its_state_may_move() -> None:
    facts = replace(with_whole(Backend.SRIOV_VF)(FACTS), vgpus=CAN)
    assert find_source_reasons(facts, offline=False) == ()


def test_a_whole_gpu_is_named_once_with_its_other_functions() -> None:
    whole = tuple(
        replace(VGPU, index=n, backend=Backend.PASSTHROUGH, profile=None, gpu="0000:d8:00.0", carrier=f"0000:d8:00.{n}")
        for n in range(3)
    )
    alone = with_vm(hostdevs=())(replace(FACTS, vgpus={}))
    (what,) = reasons(lambda _: with_record(vgpus=whole)(alone), offline=False)
    assert what.startswith("the GPU on 0000:d8:00.0 with 0000:d8:00.1, 0000:d8:00.2 cannot move while the VM runs: ")


def test_what_makes_a_device_movable_is_named_beside_offline() -> None:
    facts = replace(FACTS, vgpus={VGPU.carrier: VgpuMigrationFacts(False, "no", fix="modprobe x")})
    (reason,) = find_source_reasons(facts, offline=False)
    assert reason.hint == "add --offline; or modprobe x"


def test_the_state_of_a_tpm_does_not_move_without_qemu() -> None:
    (what,) = reasons(leaving(tpm=True), offline=True)
    assert "BitLocker" in what
    assert reasons(leaving(tpm=True), offline=False) == []


def test_what_qemu_says_of_a_device_that_is_named_already_is_left_out() -> None:
    carrier = VGPU.carrier
    blocked = replace(FACTS, blockers=(f"{carrier}: VFIO migration is not supported in kernel", "disk vda: no"))
    assert len(find_source_reasons(blocked, offline=False)) == 2
    for facts in (replace(blocked, has_old_programs=True), with_whole(Backend.PASSTHROUGH)(blocked)):
        named = [reason.what for reason in find_source_reasons(facts, offline=False)]
        assert [what for what in named if what.startswith("QEMU says")] == ["QEMU says: disk vda: no"]


def test_a_saved_vm_is_not_told_to_move_offline() -> None:
    (reason,) = find_source_reasons(with_vm(state=VmState.STOPPED)(leaving(managed_save=True)(FACTS)), offline=False)
    assert (reason.what, reason.hint) == (
        "vdi-001 is saved (save-vm): only this host can restore it",
        "vgpuctl start-vm vdi-001",
    )


@pytest.mark.parametrize(
    ("state", "hint"), [(VmState.RUNNING, "move it without"), (VmState.STOPPED, "start it, and move it without")]
)
def test_a_tpm_moves_with_its_vm_while_it_runs(state: VmState, hint: str) -> None:
    (reason,) = find_source_reasons(with_vm(state=state)(leaving(tpm=True)(FACTS)), offline=True)
    assert str(reason.hint).startswith(hint)


WARNINGS: dict[str, tuple[Change, bool, str]] = {
    "checkpoints": (leaving(checkpoints=("c1",)), False, "the VM's checkpoints (c1) stay behind"),
    "qemu is silent": (lambda facts: replace(facts, blockers=None), False, "QEMU does not say what blocks it"),
    "driver is silent": (lambda facts: replace(facts, vgpus={}), False, "can send the vGPU's state is not known"),
    "nvram": (leaving(nvram="/nvram/vm.fd"), True, "the settings of the VM's firmware (/nvram/vm.fd) stay behind"),
    "device": (LIVE["device"][0], True, "the VM has the device 0000:41:00.0 of this host"),
    "directory": (LIVE["directory"][0], True, "the directory of this host that the VM mounts as home"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_only_may_surprise_is_a_warning(name: str) -> None:
    change, offline, text = WARNINGS[name]
    (warning,) = find_source_warnings(change(FACTS), offline=offline)
    assert text in warning.what


def test_names_are_quoted_in_hints() -> None:
    odd: Vm = replace(VM, name="my vm")
    (reason,) = find_source_reasons(
        replace(FACTS, vm=odd, leftovers=DomainLeftovers(snapshots=("first one",))), offline=False
    )
    assert reason.hint == "if nobody needs them: virsh snapshot-delete 'my vm' 'first one'"
