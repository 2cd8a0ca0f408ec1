# SPDX-License-Identifier: Apache-2.0
"""Moves and saves by libvirt: what its answers mean, and how a job is watched and aborted.

libvirt's test driver saves and resumes domains, but moves none and has no jobs: domains that do are given here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.host.processes import HostClock
from vgpuctl.host.virt import migration
from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.domains import LibvirtHypervisor
from vgpuctl.host.virt.migration import DomainJob, migration_arguments, names_blockers, parse_blockers, parse_progress
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace

FIRST = "00000000-0000-4000-8000-000000000001"
OWN = "00000000-0000-4000-8000-00000000a001"
XML = (
    f"<domain type='test'><name>moves-away</name><uuid>{OWN}</uuid><memory>8192</memory><vcpu>1</vcpu>"
    "<os><type>hvm</type></os></domain>"
)
NOBODY = "00000000-0000-4000-8000-000000000009"
WAIT_SECONDS = 30
STATS = {
    "type": 2,
    "operation": 5,
    "time_elapsed": 4200,
    "downtime": 900,
    "memory_total": 8 << 30,
    "memory_remaining": 1 << 30,
    "memory_bps": 1 << 27,
    "memory_dirty_rate": 1000,
    "memory_page_size": 4096,
    "memory_iteration": 3,
    "disk_total": 0,
    "disk_remaining": 0,
    "vfio_data_transferred": 5 << 20,
}
"""As libvirt 10.6 has it; older ones have no vfio_data_transferred."""
BASIC = MigrationRequest(target_uri="qemu+ssh://b/system", live_xml="<live/>", config_xml="<config/>", tls=False)


def test_progress_is_in_bytes_and_what_libvirt_does_not_report_is_unknown() -> None:
    assert parse_progress(STATS) == MigrationProgress(
        elapsed_ms=4200,
        memory_total_bytes=8 << 30,
        memory_remaining_bytes=1 << 30,
        disk_total_bytes=0,
        disk_remaining_bytes=0,
        dirty_bytes_per_second=4_096_000,
        bandwidth_bytes_per_second=1 << 27,
        device_bytes=5 << 20,
        expected_downtime_ms=900,
        iteration=3,
    )
    assert parse_progress({"type": 2, "memory_dirty_rate": 9}) == MigrationProgress()


@pytest.mark.parametrize("stats", [{}, {"type": 0}, {**STATS, "type": 0}])
def test_without_a_job_nothing_is_known_and_nothing_moves(stats: dict[str, Any]) -> None:
    assert parse_progress(stats) == MigrationProgress()
    assert not migration.is_moving_away(stats)


@pytest.mark.parametrize(("operation", "moves"), [(5, True), (4, False), (2, False), (None, False)])
def test_only_an_outgoing_migration_moves_a_domain_away(operation: int | None, moves: bool) -> None:
    assert migration.is_moving_away({"type": 2, "operation": operation}) is moves


@pytest.mark.parametrize(
    ("reply", "reasons"),
    [
        ('{"return": {"blocked-reasons": ["a", "b"]}, "id": "x"}', ("a", "b")),
        ('{"return": {"status": "completed"}}', None),
        ('{"return": {"blocked-reasons": []}}', None),
        ('{"return": {"blocked-reasons": "a"}}', None),
        ('{"error": {"class": "CommandNotFound"}}', None),
        ('{"return": []}', None),
        ("[]", None),
        ("nonsense", None),
    ],
)
def test_reasons_that_block(reply: str, reasons: tuple[str, ...] | None) -> None:
    assert parse_blockers(reply) == reasons


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        ('{"return": {"qemu": {"major": 6, "minor": 0, "micro": 0}}}', True),
        ('{"return": {"qemu": {"major": 5, "minor": 2, "micro": 0}}}', False),
        ('{"return": {"qemu": 6}}', False),
        ('{"return": {}}', False),
        ("", False),
    ],
)
def test_qemu_6_names_what_blocks_so_silence_means_nothing(reply: str, names: bool) -> None:
    assert names_blockers(reply) is names


def test_the_source_stays_defined_and_the_vm_is_paused_on_the_target() -> None:
    parameters, flags = migration_arguments(BASIC)
    assert parameters == {"destination_xml": "<live/>", "persistent_xml": "<config/>"}
    wanted = ("LIVE", "PEER2PEER", "PERSIST_DEST", "PAUSED")
    assert flags == sum(getattr(libvirt, f"VIR_MIGRATE_{name}") for name in wanted)
    assert not flags & (libvirt.VIR_MIGRATE_UNDEFINE_SOURCE | libvirt.VIR_MIGRATE_POSTCOPY)


def test_what_is_asked_for_is_passed_on() -> None:
    request = MigrationRequest(
        target_uri="qemu+ssh://b/system",
        live_xml="",
        config_xml="",
        migrate_uri="tcp://10.0.0.2",
        copied_disks=("vda", "vdb"),
        bandwidth_mib_s=500,
        parallel=4,
    )
    parameters, flags = migration_arguments(request)
    assert parameters[libvirt.VIR_MIGRATE_PARAM_URI] == "tcp://10.0.0.2"
    assert parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] == ["vda", "vdb"]
    assert parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] == 500
    assert parameters[libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS] == 4
    assert set(parameters) >= {libvirt.VIR_MIGRATE_PARAM_DEST_XML, libvirt.VIR_MIGRATE_PARAM_PERSIST_XML}
    for name in ("TLS", "NON_SHARED_DISK", "PARALLEL"):
        assert flags & getattr(libvirt, f"VIR_MIGRATE_{name}")


def test_with_base_images_on_the_target_only_the_layers_above_them_are_sent() -> None:
    _, flags = migration_arguments(replace(BASIC, copied_disks=("vda",), copies_top_only=True))
    assert flags & libvirt.VIR_MIGRATE_NON_SHARED_INC
    assert not flags & libvirt.VIR_MIGRATE_NON_SHARED_DISK
    assert not migration_arguments(replace(BASIC, copies_top_only=True))[1] & libvirt.VIR_MIGRATE_NON_SHARED_INC


def vir_error(code: int, text: str = "refused") -> libvirt.libvirtError:
    error = libvirt.libvirtError(text)
    error.err = (code, 10, text, 2, "", None, None, -1, -1)
    return error


class Domain:
    """A domain with one job, which ends when the test or an abort ends it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.result: Exception | None = None
        self.stats: dict[str, Any] = dict(STATS)
        self.limits: list[int] = []
        self.takes_limit = lambda: True
        self.aborts = 0
        self.refused_aborts = 0

    def job(self) -> None:
        assert self.ended.wait(WAIT_SECONDS)
        if self.result is not None:
            raise self.result

    def end(self, result: Exception | None = None) -> None:
        self.result = result
        self.ended.set()

    def jobStats(self, flags: int) -> dict[str, Any]:
        if self.stats:
            return self.stats
        raise vir_error(55)

    def migrateSetMaxDowntime(self, limit: int, flags: int) -> None:
        if not self.takes_limit():
            raise vir_error(55, "domain is not being migrated")
        self.limits.append(limit)

    def abortJob(self) -> None:
        self.aborts += 1
        if self.aborts <= self.refused_aborts:
            raise vir_error(55, "no job is active on the domain")
        if not self.ended.is_set():
            self.end(vir_error(78, "operation aborted: migration out job: canceled by client"))


class Connect:
    alive = 1

    def isAlive(self) -> int:
        return self.alive


class Cancelled(Exception):
    pass


@pytest.fixture
def domain() -> Domain:
    return Domain()


def watched(domain: Domain, connect: Connect | None = None) -> DomainJob:
    job = DomainJob(LibvirtConnection("test:///default", lambda: False), connect or Connect(), domain)  # type: ignore[arg-type]
    job.poll_seconds = 0.01
    return job


def after(count: int, do: Callable[[], object], reports: list[MigrationProgress] | None = None):
    """Return a reporter that does something at its `count`-th call."""
    reports = reports if reports is not None else []

    def report(progress: MigrationProgress) -> None:
        reports.append(progress)
        if len(reports) == count:
            do()

    return report


def cancel() -> None:
    raise Cancelled


def test_progress_is_reported_until_the_call_returns(domain: Domain) -> None:
    reports: list[MigrationProgress] = []
    watched(domain).run(domain.job, after(3, domain.end, reports))
    assert len(reports) >= 3
    assert set(reports) == {parse_progress(STATS)}


def test_what_libvirt_does_not_answer_is_reported_as_unknown(domain: Domain) -> None:
    reports: list[MigrationProgress] = []
    domain.stats = {}
    watched(domain).run(domain.job, after(2, domain.end, reports))
    assert set(reports) == {MigrationProgress()}


def test_the_error_of_the_call_is_raised(domain: Domain) -> None:
    with pytest.raises(libvirt.libvirtError) as caught:
        watched(domain).run(domain.job, after(1, lambda: domain.end(vir_error(9))))
    assert caught.value.get_error_code() == 9


def test_a_limit_is_set_before_the_job_again_while_it_runs_and_when_the_reporter_wants_another(domain: Domain) -> None:
    job = watched(domain)
    job.limit_downtime(5000)
    answers = [None, 8000, None, None]

    def report(progress: MigrationProgress) -> int | None:
        if len(answers) == 1:
            domain.end()
        return answers.pop(0) if answers else None

    job.run(domain.job, report)
    assert domain.limits[:4] == [5000, 5000, 8000, 8000]
    assert set(domain.limits[4:]) <= {8000}


def test_an_old_libvirt_takes_the_limit_only_while_the_job_runs(domain: Domain) -> None:
    is_running: list[bool] = []
    domain.takes_limit = lambda: bool(is_running)
    job = watched(domain)
    job.limit_downtime(5000)
    domain.stats = {**STATS, "type": 0}

    def begin() -> None:
        is_running.append(True)
        domain.stats = dict(STATS)

    reports: list[MigrationProgress] = []
    first, last = after(1, begin, reports), after(3, domain.end)

    def report(progress: MigrationProgress) -> None:
        first(progress)
        last(progress)

    job.run(domain.job, report)
    assert domain.limits == [5000]


def test_a_reporter_that_raises_aborts_the_job_as_often_as_libvirt_needs_it(domain: Domain) -> None:
    domain.refused_aborts = 2
    with pytest.raises(Cancelled):
        watched(domain).run(domain.job, after(1, cancel))
    assert domain.aborts == 3


def test_a_job_that_was_done_before_it_could_be_aborted_is_no_error(domain: Domain) -> None:
    domain.refused_aborts = 99

    def cancel_too_late() -> None:
        threading.Timer(0.05, domain.end).start()
        raise Cancelled

    watched(domain).run(domain.job, after(1, cancel_too_late))


def test_an_abort_during_which_libvirt_dies_is_what_is_raised(domain: Domain) -> None:
    connect = Connect()
    domain.refused_aborts = 99

    def die() -> None:
        connect.alive = 0
        domain.end(vir_error(39, "client socket is closed"))
        raise Cancelled

    with pytest.raises(libvirt.libvirtError) as caught:
        watched(domain, connect).run(domain.job, after(1, die))
    assert caught.value.get_error_code() == 39
    assert isinstance(caught.value.__cause__, Cancelled)


@pytest.fixture
def shared() -> Iterator[LibvirtHypervisor]:
    """The driver that all connections of this process share, with a domain of this test that runs."""
    host = LibvirtHypervisor(LibvirtConnection("test:///default", lambda: False), HostClock())
    host.define(XML)
    host.start(OWN)
    yield host
    host.destroy(OWN)
    host.undefine(OWN)


def test_a_domain_is_saved_started_from_that_and_resumed(shared: LibvirtHypervisor) -> None:
    def state() -> tuple[VmState, str | None]:
        info = shared.find_domain(OWN)
        assert info is not None
        return info.state, info.stop_reason

    shared.save(OWN, lambda progress: None)
    assert state() == (VmState.STOPPED, "saved")
    assert shared.leftovers(OWN).managed_save is True
    shared.start(OWN)
    assert shared.leftovers(OWN).managed_save is False
    shared.resume(OWN)
    with shared.connection.call("virDomainSuspend", "cannot pause it") as connect:
        connect.lookupByUUIDString(OWN).suspend()  # type: ignore[attr-defined]
    assert state()[0] is VmState.PAUSED
    shared.resume(OWN)
    assert state()[0] is VmState.RUNNING


def test_the_test_driver_names_no_blockers_and_moves_nothing(hypervisor) -> None:
    assert hypervisor.migration_blockers(FIRST) is None
    with pytest.raises(LibvirtFailed, match="cannot move VM first: ") as caught:
        hypervisor.migrate(FIRST, BASIC, lambda progress: None)
    assert caught.value.facts["libvirt_code"] == 74
    assert hypervisor.find_domain(FIRST).state is VmState.RUNNING


def test_the_definition_for_the_target_is_that_of_a_running_domain(hypervisor) -> None:
    assert "<name>first</name>" in hypervisor.migration_xml(FIRST)
    hypervisor.destroy(FIRST)
    for call in (hypervisor.migration_xml, hypervisor.resume):
        with pytest.raises(LibvirtFailed) as caught:
            call(FIRST)
        assert caught.value.facts["libvirt_code"] in (1, 55)


def test_a_domain_that_is_gone_and_the_host_lock(hypervisor, lock) -> None:
    calls = [
        lambda uuid: hypervisor.migrate(uuid, BASIC, lambda progress: None),
        lambda uuid: hypervisor.save(uuid, lambda progress: None),
        hypervisor.resume,
        hypervisor.is_migrating,
        hypervisor.migration_xml,
        hypervisor.migration_blockers,
    ]
    for call in calls:
        with pytest.raises((LibvirtFailed, HostCannot)) as caught:
            call(NOBODY)
        assert caught.value.facts["libvirt_code"] == 42
    lock.on = True
    for call in calls:
        with pytest.raises(AssertionError, match="host lock"):
            call(FIRST)
