# SPDX-License-Identifier: Apache-2.0
"""Moves between two simulated hosts, and saved memory: what comes, what stays, and what libvirt refuses."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.unit.sim.hosts import (
    MakeHost,
    domain_xml,
    libvirt_refused,
    mdev_device,
    pci_device,
    remove,
    run_vm,
    set_type,
    uuid,
)
from tests.unit.sim.hosts import create as create_mdev
from vgpuctl.errors import HostCannot
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.port_values import DomainEvent
from vgpuctl.model.vm import VmState
from vgpuctl.sim import SimHost, open_host
from vgpuctl.sim.migration import BASE_DOWNTIME_MS, MAX_ROUNDS
from vgpuctl.value import replace

VM = uuid(1)
VF = "0000:3b:00.4"
OTHER_VF = "0000:3b:00.5"
DISK = "<disk type='file' device='disk'><source file='{}'/><target dev='vda' bus='virtio'/></disk>"
CURRENT_TYPE = "/sys/bus/pci/devices/{}/nvidia/current_vgpu_type"
RECORD = "<v:vm xmlns:v='urn:vgpuctl:1' role='{}'/>"
WAIT_SECONDS = 30
VGPU_TYPE, OTHER_TYPE = 468, 469
"""Two of the A100's types."""


class Cancelled(Exception):
    pass


def ignore(progress: MigrationProgress) -> None:
    pass


def request(target: SimHost, source: SimHost, **more: object) -> MigrationRequest:
    """Ask for the VM with its definitions as they are."""
    live = source.hypervisor.migration_xml(VM)
    config = source.hypervisor.definition(VM)
    return replace(MigrationRequest(target_uri=target.migration_uri, live_xml=live, config_xml=config), **more)


def state(host: SimHost) -> tuple[VmState, str | None] | None:
    info = host.hypervisor.find_domain(VM)
    return None if info is None else (info.state, info.stop_reason)


@pytest.fixture
def hosts(make: MakeHost) -> tuple[SimHost, SimHost]:
    """Two hosts with an A100 each; a VM runs on the first, with a vGPU, and the second has one ready."""
    source, target = make("a100-40", "a"), make("a100-40", "b")
    set_type(source, 0, VGPU_TYPE)
    set_type(target, 1, VGPU_TYPE)
    run_vm(source, "vm", 1, pci_device(VF, managed=False))
    return source, target


def moved(source: SimHost, target: SimHost, **more: object) -> MigrationRequest:
    """The VM with the target's vGPU."""
    made = request(target, source, **more)
    elsewhere = partial(str.replace, made.live_xml)("function='0x4'", "function='0x5'")
    return replace(made, live_xml=elsewhere, config_xml=made.config_xml.replace("function='0x4'", "function='0x5'"))


def test_the_vm_is_paused_on_the_target_and_off_but_defined_on_the_source(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    reports: list[MigrationProgress] = []
    made = moved(source, target, max_downtime_ms=60_000)
    made = replace(
        made, config_xml=made.config_xml.replace("<os>", f"<metadata>{RECORD.format('arrived')}</metadata><os>")
    )
    made = replace(
        made, live_xml=made.live_xml.replace("<os>", f"<metadata>{RECORD.format('incoming')}</metadata><os>")
    )
    source.hypervisor.migrate(VM, made, reports.append)
    assert len(reports) == 2
    assert reports[0].memory_total_bytes == 1 << 30
    assert (reports[0].elapsed_ms or 0) < (reports[1].elapsed_ms or 0)
    assert (reports[0].memory_remaining_bytes or 0) > (reports[1].memory_remaining_bytes or 0)
    assert (reports[1].expected_downtime_ms or 0) > BASE_DOWNTIME_MS
    assert state(source) == (VmState.STOPPED, "migrated")
    assert state(target) == (VmState.PAUSED, None)
    info = target.hypervisor.find_domain(VM)
    assert info is not None
    assert info.persistent
    assert "role='arrived'" in info.xml
    assert "role='incoming'" in (info.live_xml or "")
    assert "function='0x5'" in (info.live_xml or "")
    remove(source, CURRENT_TYPE.format(VF), "0\n")
    with pytest.raises(OSError, match=r"."):
        target.sysfs.write(f"/sys/bus/pci/devices/{OTHER_VF}/nvidia/vgpu_params", "x=1")
    target.hypervisor.resume(VM)
    target.hypervisor.resume(VM)
    assert state(target) == (VmState.RUNNING, None)
    source.hypervisor.undefine(VM)


def test_other_processes_see_it_and_a_compacted_journal_keeps_it(
    hosts: tuple[SimHost, SimHost], make: MakeHost
) -> None:
    source, target = hosts
    source.hypervisor.migrate(VM, moved(source, target), ignore)
    for host in (source, target):
        with host._core.journal.locked():
            header = {"vgpuctl-sim": 2, "digest": host._core.digest, "machine_id": host.machine_id}
            header["scenario"] = host._core.machine.scenario
            host._core.journal.replace(header, host._core.state.records())
    assert state(make("a100-40", "a")) == (VmState.STOPPED, "migrated")
    assert state(make("a100-40", "b")) == (VmState.PAUSED, None)


def test_the_definition_that_waits_on_the_target_is_replaced(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    target.hypervisor.define(domain_xml("vm", 1, extra="<title>waits</title>"))
    seen: list[str] = []

    def watch(progress: MigrationProgress) -> None:
        info = target.hypervisor.find_domain(VM)
        assert info is not None
        seen.append(info.xml)

    source.hypervisor.migrate(VM, moved(source, target), watch)
    assert all("waits" in xml for xml in seen)
    arrived = target.hypervisor.find_domain(VM)
    assert arrived is not None
    assert "waits" not in arrived.xml


def test_while_it_moves_it_runs_here_and_is_half_there(hosts: tuple[SimHost, SimHost], make: MakeHost) -> None:
    source, target = hosts
    views: list[tuple[object, ...]] = []
    made = moved(source, target)

    def watch(progress: MigrationProgress) -> None:
        half = target.hypervisor.find_domain(VM)
        assert half is not None
        other = make("a100-40", "a").hypervisor
        views.append((half.state, half.persistent, state(source), other.is_migrating(VM)))
        libvirt_refused(55, lambda: source.hypervisor.migrate(VM, made, ignore))
        libvirt_refused(55, lambda: target.hypervisor.start(VM))

    assert not source.hypervisor.is_migrating(VM)
    source.hypervisor.migrate(VM, made, watch)
    assert set(views) == {(VmState.PAUSED, False, (VmState.RUNNING, None), True)}
    assert not source.hypervisor.is_migrating(VM)


@pytest.mark.parametrize("waits", [True, False])
def test_a_reporter_that_raises_ends_the_move(hosts: tuple[SimHost, SimHost], waits: bool) -> None:
    source, target = hosts
    if waits:
        target.hypervisor.define(domain_xml("vm", 1))

    def cancel(progress: MigrationProgress) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        source.hypervisor.migrate(VM, moved(source, target), cancel)
    assert state(source) == (VmState.RUNNING, None)
    assert state(target) == ((VmState.STOPPED, "failed") if waits else None)
    assert not source.hypervisor.is_migrating(VM)
    source.hypervisor.migrate(VM, moved(source, target), ignore)
    assert state(target) == (VmState.PAUSED, None)


def test_it_ends_when_the_downtime_fits_the_limit(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    reports: list[MigrationProgress] = []

    def raise_limit(progress: MigrationProgress) -> int | None:
        reports.append(progress)
        return 60_000 if len(reports) == 5 else None

    source.hypervisor.migrate(VM, moved(source, target, max_downtime_ms=1), raise_limit)
    assert len(reports) == 5


def test_a_guest_that_never_fits_rests_at_last(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    reports: list[MigrationProgress] = []
    source.hypervisor.migrate(VM, moved(source, target, max_downtime_ms=1), reports.append)
    assert len(reports) == MAX_ROUNDS
    assert state(target) == (VmState.PAUSED, None)


def test_a_vm_that_is_stopped_meanwhile_does_not_arrive(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    made = moved(source, target)
    libvirt_refused(55, lambda: source.hypervisor.migrate(VM, made, lambda progress: source.hypervisor.destroy(VM)))
    assert (state(source), state(target)) == ((VmState.STOPPED, "destroyed"), None)


def test_a_vm_that_is_ended_on_the_target_meanwhile_stays(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts

    def end(progress: MigrationProgress) -> None:
        if target.hypervisor.find_domain(VM) is not None:
            target.hypervisor.destroy(VM)

    libvirt_refused(9, lambda: source.hypervisor.migrate(VM, moved(source, target), end))
    assert (state(source), state(target)) == ((VmState.RUNNING, None), None)


def test_a_dead_process_moves_nothing(hosts: tuple[SimHost, SimHost]) -> None:
    source, _ = hosts
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)
    with source._core.operation("test", "vm") as change:
        change.add("moving", VM, pid)
    assert not source.hypervisor.is_migrating(VM)
    with source._core.operation("test", "vm") as change:
        change.add("moving", VM, 1)
    assert source.hypervisor.is_migrating(VM)


Prepare = Callable[[SimHost, SimHost], object]
NO_TARGET = "sim:no-such-scenario"
REFUSALS: dict[str, tuple[int, str, Prepare, dict[str, object]]] = {
    "off": (55, "not running", lambda source, target: source.hypervisor.destroy(VM), {}),
    "no host": (38, "unable to connect", lambda source, target: None, {"target_uri": NO_TARGET}),
    "not simulated": (38, "unable to connect", lambda source, target: None, {"target_uri": "qemu+ssh://b/system"}),
    "runs there": (55, "already active", lambda source, target: run_vm(target, "vm", 1), {}),
    "other name": (9, "already defined", lambda source, target: target.hypervisor.define(domain_xml("x", 1)), {}),
    "other uuid": (9, "already exists", lambda source, target: target.hypervisor.define(domain_xml("vm", 2)), {}),
    "no disk": (8, "vdb", lambda source, target: None, {"copied_disks": ("vdb",)}),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_leave_the_vm_where_it_is(hosts: tuple[SimHost, SimHost], case: str) -> None:
    source, target = hosts
    code, words, prepare, more = REFUSALS[case]
    made = moved(source, target, **more)
    prepare(source, target)
    before = (state(source), state(target))
    assert words in libvirt_refused(code, lambda: source.hypervisor.migrate(VM, made, ignore))
    assert (state(source), state(target)) == before
    assert not source.hypervisor.is_migrating(VM)


def test_a_vm_does_not_move_to_its_own_host(hosts: tuple[SimHost, SimHost]) -> None:
    source, _ = hosts
    assert "same host" in libvirt_refused(1, lambda: source.hypervisor.migrate(VM, moved(source, source), ignore))


def test_a_target_without_libvirt(hosts: tuple[SimHost, SimHost], make: MakeHost) -> None:
    source, _ = hosts
    target = make("libvirt: {running: false}\n", "bare")
    libvirt_refused(38, lambda: source.hypervisor.migrate(VM, moved(source, target), ignore))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<name>vm<", "<name>x<"),
        (uuid(1), uuid(2)),
        ("1048576", "2097152"),
        ("</vcpu>", "0</vcpu>"),
        ("q35-8.2", "q35-9.0"),
        ("<hostdev", "<hostdev mode='subsystem' type='pci'><source><address bus='0x9'/></source></hostdev><hostdev"),
    ],
)
def test_the_guest_must_not_see_a_difference(hosts: tuple[SimHost, SimHost], old: str, new: str) -> None:
    source, target = hosts
    made = moved(source, target)
    assert old in made.live_xml
    changed = replace(made, live_xml=made.live_xml.replace(old, new))
    assert "does not match source" in libvirt_refused(67, lambda: source.hypervisor.migrate(VM, changed, ignore))


def test_the_definition_that_stays_must_be_the_vms(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    made = replace(moved(source, target), config_xml=domain_xml("other", 2))
    libvirt_refused(67, lambda: source.hypervisor.migrate(VM, made, ignore))


def test_the_targets_devices_are_checked_as_at_a_start(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    same_vf = request(target, source)
    libvirt_refused(1, lambda: source.hypervisor.migrate(VM, same_vf, ignore))  # the VF has no vGPU there
    other = run_vm(target, "taken", 2, pci_device(OTHER_VF, managed=False))
    assert "in use" in libvirt_refused(55, lambda: source.hypervisor.migrate(VM, moved(source, target), ignore))
    target.hypervisor.destroy(other)
    remove(target, CURRENT_TYPE.format(OTHER_VF), "0\n")
    set_type(target, 0, OTHER_TYPE)
    assert "loading state" in libvirt_refused(9, lambda: source.hypervisor.migrate(VM, same_vf, ignore))
    assert state(source) == (VmState.RUNNING, None)
    assert state(target) is None


def test_what_is_bound_to_vfio_pci_blocks(make: MakeHost) -> None:
    source, target = make("gpus: [{model: RTX 4090}]\n", "a"), make("empty", "b")
    run_vm(source, "vm", 1, pci_device("0000:3b:00.0", managed=True))
    reasons = source.hypervisor.migration_blockers(VM)
    assert reasons == ("0000:3b:00.0: VFIO migration is not supported in kernel",)
    words = libvirt_refused(55, lambda: source.hypervisor.migrate(VM, request(target, source), ignore))
    assert f"cannot migrate domain: {reasons[0]}" in words
    assert reasons[0] in libvirt_refused(55, lambda: source.hypervisor.save(VM, ignore))


@pytest.mark.parametrize(
    ("versions", "reasons", "words"),
    [
        ('{version: "10.0.0", qemu: "8.2.2"}', 0, ""),
        ('{version: "8.5.0", qemu: "8.2.2"}', 0, "hostdev"),
        ('{version: "10.0.0", qemu: "8.0.0"}', 1, "doesn't support migration"),
        ('{version: "10.0.0", qemu: "5.2.0"}', None, "doesn't support migration"),
    ],
)
def test_versions(make: MakeHost, versions: str, reasons: int | None, words: str) -> None:
    source, target = make(f"libvirt: {versions}\ngpus: [{{model: A16, backend: mdev-pf}}]\n", "a"), make("empty", "b")
    create_mdev(
        source,
        "0000:3b:00.0",
        sorted(source.sysfs.listdir("/sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types"))[0],
        7,
    )
    run_vm(source, "vm", 1, mdev_device(uuid(7)))
    blockers = source.hypervisor.migration_blockers(VM)
    assert (None if blockers is None else len(blockers)) == reasons
    code = 99 if not words else 55
    assert words in libvirt_refused(code, lambda: source.hypervisor.migrate(VM, request(target, source), ignore))


def test_without_devices_nothing_blocks_and_qemus_limit_is_enough(make: MakeHost) -> None:
    source, target = make("empty", "a"), make("empty", "b")
    run_vm(source, "vm", 1)
    assert source.hypervisor.migration_blockers(VM) == ()
    source.hypervisor.migrate(VM, request(target, source), ignore)
    assert (state(source), state(target)) == ((VmState.STOPPED, "migrated"), (VmState.PAUSED, None))
    libvirt_refused(55, lambda: source.hypervisor.migration_blockers(VM))
    libvirt_refused(55, lambda: source.hypervisor.migration_xml(VM))
    libvirt_refused(55, lambda: source.hypervisor.resume(VM))


def test_a_builtin_host_is_the_one_of_the_command_line(
    make: MakeHost, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    source = make("empty", "a")
    run_vm(source, "vm", 1)
    made = replace(request(source, source), target_uri="sim:t4")
    source.hypervisor.migrate(VM, made, ignore)
    assert state(open_host("t4")) == (VmState.PAUSED, None)


# ---------------------------------------------------------------------- disks


def with_disk(make: MakeHost) -> tuple[SimHost, SimHost]:
    source = make("images: [{path: /srv/base.qcow2, firmware: uefi}]\n", "a")
    target = make("images: [{path: /srv/base.qcow2, firmware: uefi}]\n", "b")
    for host in (source, target):
        host.storage.create_pool("default", "/images")
    volume = source.storage.create_volume("default", "a.qcow2", 1 << 30, "/srv/base.qcow2", "qcow2")
    run_vm(source, "vm", 1, DISK.format(volume.path))
    return source, target


def test_a_disk_must_be_there_or_be_copied(make: MakeHost) -> None:
    source, target = with_disk(make)
    libvirt_refused(38, lambda: source.hypervisor.migrate(VM, request(target, source), ignore))
    reports: list[MigrationProgress] = []
    source.hypervisor.migrate(VM, request(target, source, copied_disks=("vda",)), reports.append)
    assert reports[0].disk_total_bytes == 1 << 30
    assert target.storage.image("/images/a.qcow2") is not None
    target.hypervisor.resume(VM)


def test_a_disk_is_copied_into_the_file_that_is_there(make: MakeHost) -> None:
    source, target = with_disk(make)
    target.storage.create_volume("default", "a.qcow2", 1 << 29)
    made = request(target, source, copied_disks=("vda",))
    assert "different sizes" in libvirt_refused(9, lambda: source.hypervisor.migrate(VM, made, ignore))
    target.storage.resize_volume("default", "a.qcow2", 1 << 30)
    source.hypervisor.migrate(VM, made, ignore)
    assert state(target) == (VmState.PAUSED, None)


def test_only_the_layer_above_a_base_is_copied_into_a_file_that_must_be_there(make: MakeHost) -> None:
    source, target = with_disk(make)
    made = request(target, source, copied_disks=("vda",), copies_top_only=True)
    libvirt_refused(84, lambda: source.hypervisor.migrate(VM, made, ignore))
    target.storage.create_volume("default", "a.qcow2", 1 << 30, "/srv/base.qcow2", "qcow2")
    source.hypervisor.migrate(VM, made, ignore)
    volume = target.storage.volume("default", "a.qcow2")
    assert volume is not None
    assert volume.backing_path == "/srv/base.qcow2"


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("call", ["migrate", "migrate-in", "migration-blockers", "is-migrating", "resume", "save"])
def test_faults_fail_a_call(make: MakeHost, call: str) -> None:
    text = f"faults: [{{on: {call}, match: vm, code: 78, message: injected}}]\n"
    source, target = make(text, "a"), make(text, "b")
    run_vm(source, "vm", 1)
    calls: dict[str, Callable[[], object]] = {
        "migration-blockers": lambda: source.hypervisor.migration_blockers(VM),
        "is-migrating": lambda: source.hypervisor.is_migrating(VM),
        "resume": lambda: source.hypervisor.resume(VM),
        "save": lambda: source.hypervisor.save(VM, ignore),
    }
    move = partial(source.hypervisor.migrate, VM, request(target, source), ignore)
    assert libvirt_refused(78, calls.get(call, move)).endswith(" VM vm: injected")
    assert (state(source), state(target)) == ((VmState.RUNNING, None), None)


@pytest.mark.parametrize("call", ["migrate", "save"])
def test_a_lost_call_does_nothing(make: MakeHost, call: str) -> None:
    source, target = make(f"faults: [{{on: {call}, kind: lost}}]\n", "a"), make("empty", "b")
    run_vm(source, "vm", 1)
    if call == "save":
        source.hypervisor.save(VM, ignore)
    else:
        source.hypervisor.migrate(VM, request(target, source), ignore)
    assert (state(source), state(target)) == ((VmState.RUNNING, None), None)


def test_a_libvirt_that_dies_at_the_end_leaves_it_paused_on_both(make: MakeHost) -> None:
    source, target = make("faults: [{on: migrate, kind: unknown, times: 1}]\n", "a"), make("empty", "b")
    run_vm(source, "vm", 1)
    with pytest.raises(HostCannot) as caught:
        source.hypervisor.migrate(VM, request(target, source), ignore)
    assert caught.value.facts["check"] == "libvirt"
    assert (state(source), state(target)) == ((VmState.PAUSED, None), (VmState.PAUSED, None))
    assert not source.hypervisor.is_migrating(VM)
    target.hypervisor.destroy(VM)
    target.hypervisor.undefine(VM)
    source.hypervisor.resume(VM)
    source.hypervisor.migrate(VM, request(target, source), ignore)
    assert (state(source), state(target)) == ((VmState.STOPPED, "migrated"), (VmState.PAUSED, None))


# ---------------------------------------------------------------------- events


class Receiver:
    """The events of a host's VM, as kind and reason."""

    def __init__(self, host: SimHost) -> None:
        self._reports: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.watch = host.domain_events.watch(
            on_event=self._reports.put, on_lost=self._reports.put, on_back=self._reports.put
        )
        self._reports.get(timeout=WAIT_SECONDS)

    def next(self, count: int) -> list[str]:
        events = [self._reports.get(timeout=WAIT_SECONDS) for _ in range(count)]
        return [f"{event.kind} {event.reason}" for event in events if isinstance(event, DomainEvent)]


@pytest.fixture
def receivers(make: MakeHost) -> Iterator[tuple[Receiver, Receiver]]:
    source, target = make("empty", "a"), make("empty", "b")
    run_vm(source, "vm", 1)
    both = Receiver(source), Receiver(target)
    yield both
    for one in both:
        one.watch.close()


def test_events_of_a_move(make: MakeHost, receivers: tuple[Receiver, Receiver]) -> None:
    source, target = make("empty", "a"), make("empty", "b")
    source.hypervisor.migrate(VM, request(target, source), ignore)
    target.hypervisor.resume(VM)
    assert receivers[0].next(1) == ["stopped migrated"]
    assert receivers[1].next(5) == [
        "started migrated",
        "suspended migrated",
        "defined added",
        "suspended paused",
        "resumed unpaused",
    ]


def test_events_of_saved_memory_and_of_a_move_that_is_ended(
    make: MakeHost, receivers: tuple[Receiver, Receiver]
) -> None:
    source, target = make("empty", "a"), make("empty", "b")

    def cancel(progress: MigrationProgress) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        source.hypervisor.migrate(VM, request(target, source), cancel)
    source.hypervisor.pause(VM)
    source.hypervisor.save(VM, ignore)
    source.hypervisor.start(VM)
    assert receivers[1].next(3) == ["started migrated", "suspended migrated", "stopped failed"]
    assert receivers[0].next(4) == ["suspended paused", "stopped saved", "started restored", "suspended restored"]


# ---------------------------------------------------------------------- saved memory


def test_memory_is_saved_and_used_up_by_the_next_start(hosts: tuple[SimHost, SimHost], make: MakeHost) -> None:
    source, _ = hosts
    reports: list[MigrationProgress] = []
    source.hypervisor.save(VM, reports.append)
    assert len(reports) == 2
    assert state(source) == (VmState.STOPPED, "saved")
    assert source.hypervisor.leftovers(VM).managed_save
    source.reboot()
    again = make("a100-40", "a")
    assert again.hypervisor.leftovers(VM).managed_save
    libvirt_refused(1, lambda: again.hypervisor.start(VM))  # a vGPU does not survive a boot
    assert again.hypervisor.leftovers(VM).managed_save
    set_type(again, 0, VGPU_TYPE)
    again.hypervisor.start(VM)
    assert state(again) == (VmState.RUNNING, None)
    assert not again.hypervisor.leftovers(VM).managed_save


def test_it_goes_on_with_the_definition_that_it_had(make: MakeHost) -> None:
    host = make("empty")
    run_vm(host, "vm", 1)
    host.hypervisor.pause(VM)
    host.hypervisor.save(VM, ignore)
    host.hypervisor.redefine(VM, domain_xml("vm", 1, extra="<title>later</title>"))
    assert host.hypervisor.leftovers(VM).managed_save
    host.hypervisor.start(VM)
    info = host.hypervisor.find_domain(VM)
    assert info is not None
    assert (info.state, "later" in info.xml, "later" in (info.live_xml or "")) == (VmState.PAUSED, True, False)
    host.hypervisor.destroy(VM)
    host.hypervisor.start(VM)
    info = host.hypervisor.find_domain(VM)
    assert info is not None
    assert "later" in (info.live_xml or "")


def test_a_save_that_is_ended_leaves_it_running_and_a_transient_vm_is_not_saved(make: MakeHost) -> None:
    host = make("empty")
    run_vm(host, "vm", 1)

    def cancel(progress: MigrationProgress) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        host.hypervisor.save(VM, cancel)
    assert state(host) == (VmState.RUNNING, None)
    assert not host.hypervisor.leftovers(VM).managed_save
    libvirt_refused(55, lambda: host.hypervisor.save(VM, lambda progress: host.hypervisor.destroy(VM)))
    host.hypervisor.start(VM)
    host.hypervisor.make_transient(VM)
    assert "transient" in libvirt_refused(55, lambda: host.hypervisor.save(VM, ignore))


def test_memory_that_is_saved_goes_with_the_definition(make: MakeHost) -> None:
    host = make("empty")
    run_vm(host, "vm", 1)
    host.hypervisor.save(VM, ignore)
    host.hypervisor.undefine(VM)
    host.hypervisor.define(domain_xml("vm", 1))
    assert not host.hypervisor.leftovers(VM).managed_save
