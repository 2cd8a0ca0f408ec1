# SPDX-License-Identifier: Apache-2.0
"""Moving running domains to another host, and saving them: what libvirt does for minutes in one call.

libvirt's daemon on this host connects to the other one by itself (VIR_MIGRATE_PEER2PEER), and goes on when vgpuctl
dies. Its call runs in a thread of its own, on a connection of its own; meanwhile this thread asks how far the job is,
and ends it when the caller wants that (virDomainAbortJob). The connection has a keepalive, so a daemon that is killed
or hangs ends both.

The limit of the downtime is a parameter of the running QEMU (`downtime-limit`), which also a job that failed leaves as
it is. libvirt takes it before a job since 3.7 or so, older ones while a job runs: it is set before and again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import constants
from vgpuctl.model.migration import MigrationProgress, MigrationRequest

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virConnect, virDomain

POLL_SECONDS = 1.0
ABORT_SECONDS = 0.2
QUERY_MIGRATE = '{"execute":"query-migrate"}'
QUERY_VERSION = '{"execute":"query-version"}'
BLOCKERS_SINCE = 6
"""QEMU's major version from which on `query-migrate` has `blocked-reasons`, if there are any."""

_NOT_ASKED = constants.PERMISSION_ERRORS | {
    constants.VIR_ERR_NO_SUPPORT,
    constants.VIR_ERR_INTERNAL_ERROR,  # QEMU does not know the command
    constants.VIR_ERR_CONFIG_UNSUPPORTED,
    constants.VIR_ERR_OPERATION_TIMEOUT,  # another job has the monitor
}
_NOT_MOVED_AWAY = frozenset(
    {
        constants.VIR_ERR_OPERATION_INVALID,  # it is off
        constants.VIR_ERR_OPERATION_UNSUPPORTED,  # it is coming from another host, where alone its progress is known
    }
)

Report = Callable[[MigrationProgress], int | None]


def parse_progress(stats: Mapping[str, Any]) -> MigrationProgress:
    """Read what virDomainGetJobStats returns. A job that has not begun, or has ended, has nothing to report.

    libvirt counts dirty memory in pages. During a migration, `downtime` is the expected one.
    """
    if stats.get("type", constants.VIR_DOMAIN_JOB_NONE) == constants.VIR_DOMAIN_JOB_NONE:
        return MigrationProgress()

    def number(key: str) -> int | None:
        value = stats.get(key)
        return value if isinstance(value, int) else None

    dirty_pages, page_bytes = number("memory_dirty_rate"), number("memory_page_size")
    return MigrationProgress(
        elapsed_ms=number("time_elapsed"),
        memory_total_bytes=number("memory_total"),
        memory_remaining_bytes=number("memory_remaining"),
        disk_total_bytes=number("disk_total"),
        disk_remaining_bytes=number("disk_remaining"),
        dirty_bytes_per_second=None if dirty_pages is None or page_bytes is None else dirty_pages * page_bytes,
        bandwidth_bytes_per_second=number("memory_bps"),
        device_bytes=number("vfio_data_transferred"),
        expected_downtime_ms=number("downtime"),
        iteration=number("memory_iteration"),
    )


def is_moving_away(stats: Mapping[str, Any]) -> bool:
    """Return whether the job that virDomainGetJobStats describes moves the domain to another host."""
    is_running = stats.get("type", constants.VIR_DOMAIN_JOB_NONE) != constants.VIR_DOMAIN_JOB_NONE
    return is_running and stats.get("operation") == constants.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT


def parse_blockers(reply: str) -> tuple[str, ...] | None:
    """Read the `blocked-reasons` of QEMU's answer to `query-migrate`; None: it has none, or is no such answer."""
    result = _read_reply(reply)
    reasons = result.get("blocked-reasons")
    if not isinstance(reasons, list) or not reasons:
        return None
    return tuple(str(reason) for reason in reasons)


def names_blockers(reply: str) -> bool:
    """Return whether a QEMU that gives this answer to `query-version` would name what blocks a migration."""
    version = _read_reply(reply).get("qemu")
    major = version.get("major") if isinstance(version, dict) else None
    return isinstance(major, int) and major >= BLOCKERS_SINCE


def _read_reply(reply: str) -> dict[str, Any]:
    try:
        document = json.loads(reply)
    except ValueError:
        return {}
    result = document.get("return") if isinstance(document, dict) else None
    return result if isinstance(result, dict) else {}


def migration_arguments(request: MigrationRequest) -> tuple[dict[str, Any], int]:
    """Return the parameters and flags of virDomainMigrateToURI3.

    VIR_MIGRATE_UNDEFINE_SOURCE is not among them: the source's definition stays until the target has the VM. Neither
    is VIR_MIGRATE_POSTCOPY, which QEMU refuses with VFIO devices, and which loses the VM if the network breaks.
    """
    parameters: dict[str, Any] = {"destination_xml": request.live_xml, "persistent_xml": request.config_xml}
    flags = (
        constants.VIR_MIGRATE_LIVE
        | constants.VIR_MIGRATE_PEER2PEER
        | constants.VIR_MIGRATE_PERSIST_DEST
        | constants.VIR_MIGRATE_PAUSED
    )
    if request.migrate_uri is not None:
        parameters["migrate_uri"] = request.migrate_uri
    if request.bandwidth_mib_s is not None:
        parameters["bandwidth"] = request.bandwidth_mib_s
    if request.tls:
        flags |= constants.VIR_MIGRATE_TLS
    if request.copied_disks:
        tops, whole = constants.VIR_MIGRATE_NON_SHARED_INC, constants.VIR_MIGRATE_NON_SHARED_DISK
        flags |= tops if request.copies_top_only else whole
        parameters["migrate_disks"] = list(request.copied_disks)
    if request.parallel is not None:
        flags |= constants.VIR_MIGRATE_PARALLEL
        parameters["parallel.connections"] = request.parallel
    return parameters, flags


class BlockingCall:
    """A call that blocks for minutes, in a thread of its own. The thread does not keep the process alive."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._finished = Event()
        self.error: Exception | None = None
        Thread(target=self._run, name="libvirt-job", daemon=True).start()

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error
        finally:
            self._finished.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the call; False when the time is over first."""
        return self._finished.wait(seconds)


class DomainJob:
    """One blocking job of one domain, watched by the thread that wants it."""

    def __init__(self, connection: LibvirtConnection, connect: virConnect, domain: virDomain) -> None:
        self._connection = connection
        self._connect = connect
        self._domain = domain
        self._max_downtime_ms: int | None = None
        self.poll_seconds = POLL_SECONDS

    def limit_downtime(self, max_downtime_ms: int | None) -> None:
        """Ask for a limit of the downtime, which is set now, or when libvirt takes it."""
        if max_downtime_ms is not None:
            self._max_downtime_ms = max_downtime_ms
            self._set_max_downtime()

    def _set_max_downtime(self) -> bool:
        limit = self._max_downtime_ms
        return limit is not None and self._attempt(lambda: self._domain.migrateSetMaxDowntime(limit, 0))

    def _attempt(self, do: Callable[[], object]) -> bool:
        """Make a call of which only the end of the job itself tells why it failed."""
        return self._connection.attempt(None, do) is None

    def read_progress(self) -> MigrationProgress:
        """Return how far the job is; nothing is known before it begins and after its end."""
        results: list[dict[str, Any]] = []
        self._attempt(lambda: results.append(self._domain.jobStats(0)))
        return parse_progress(results[0]) if results else MigrationProgress()

    def run(self, call: Callable[[], object], report: Report) -> None:
        """Make the blocking call and report until it ends; when `report` raises, abort the job and raise that.

        A job that had ended well before it could be aborted is no error.

        Raises:
            libvirtError: the call's own; the caller translates it.
        """
        blocking = BlockingCall(lambda: self._connection.attempt(frozenset(), call))
        try:
            while not blocking.wait(self.poll_seconds):
                progress = self.read_progress()
                if progress.elapsed_ms is not None and self._set_max_downtime():
                    self._max_downtime_ms = None
                self.limit_downtime(report(progress))
        except BaseException as error:
            while not blocking.wait(ABORT_SECONDS):
                self._attempt(lambda: self._domain.abortJob())  # refused until libvirt has begun the job
            if blocking.error is None:
                return
            if self._connect.isAlive() != 1:
                raise blocking.error from error
            raise
        if blocking.error is not None:
            raise blocking.error


class DomainMigration:
    """The part of `ports.Hypervisor` that moves and saves running domains; `LibvirtHypervisor` inherits it."""

    _connection: LibvirtConnection

    def _open_domain(self, uuid: str, call: str, verb: str) -> AbstractContextManager[virDomain]:
        raise NotImplementedError

    def migration_blockers(self, uuid: str) -> tuple[str, ...] | None:
        """Return why QEMU cannot move or save a running domain now; None: it does not say."""
        try:
            import libvirt_qemu
        except ImportError:
            return None
        with self._open_domain(uuid, "virDomainQemuMonitorCommand", "ask what blocks the migration of") as domain:

            def ask(command: str) -> str | None:
                replies: list[str] = []
                code = self._connection.attempt(
                    _NOT_ASKED, lambda: replies.append(libvirt_qemu.qemuMonitorCommand(domain, command, 0))
                )
                return replies[0] if code is None else None

            reply = ask(QUERY_MIGRATE)
            reasons = parse_blockers(reply) if reply is not None else None
            if reply is None or reasons is not None:
                return reasons
            version = ask(QUERY_VERSION)
            return () if version is not None and names_blockers(version) else None

    def migration_xml(self, uuid: str) -> str:
        """Return a running domain's definition as another host takes it, with secrets."""
        with self._open_domain(uuid, "virDomainGetXMLDesc", "read the definition of") as domain:
            if not domain.isActive():
                raise LibvirtFailed(
                    f"cannot read the definition of VM {domain.name()}: it is not running",
                    call="virDomainGetXMLDesc",
                    libvirt_code=constants.VIR_ERR_OPERATION_INVALID,
                    vm_uuid=uuid,
                )
            return domain.XMLDesc(constants.VIR_DOMAIN_XML_SECURE | constants.VIR_DOMAIN_XML_MIGRATABLE)

    def definition_on(self, target_uri: str, uuid: str) -> str | None:
        """Return the stored definition of a domain of another host's libvirt; None: it has no such domain."""
        call, failure = "virDomainLookupByUUIDString", f"cannot ask {target_uri} for a VM"
        with (
            self._connection.call(call, failure, target_uri=target_uri, vm_uuid=uuid),
            self._connection.open_other(target_uri) as other,
        ):
            domain = self._connection.look_up(constants.VIR_ERR_NO_DOMAIN, lambda: other.lookupByUUIDString(uuid))
            return None if domain is None else domain.XMLDesc(constants.VIR_DOMAIN_XML_INACTIVE)

    def migrate(self, uuid: str, request: MigrationRequest, report: Report) -> None:
        """Move a running domain to another host, where it stays paused, and report about once a second."""
        parameters, flags = migration_arguments(request)

        def call(domain: virDomain) -> None:
            domain.migrateToURI3(request.target_uri, parameters, flags)

        self._run_job(uuid, "virDomainMigrateToURI3", "move", call, report, request.max_downtime_ms)

    def save(self, uuid: str, report: Report) -> None:
        """Write a running domain's memory and devices to libvirt's own file, and report about once a second."""

        def call(domain: virDomain) -> None:
            domain.managedSave(0)

        self._run_job(uuid, "virDomainManagedSave", "save", call, lambda progress: _ignore(report(progress)), None)

    def _run_job(
        self,
        uuid: str,
        function: str,
        verb: str,
        call: Callable[[virDomain], None],
        report: Report,
        max_downtime_ms: int | None,
    ) -> None:
        with self._open_domain(uuid, function, verb) as domain:
            name = domain.name()
        with self._connection.listen(function, f"cannot {verb} VM {name}", vm=name, vm_uuid=uuid) as connect:
            self._connection.keep_alive(connect)
            domain = connect.lookupByUUIDString(uuid)
            job = DomainJob(self._connection, connect, domain)
            job.limit_downtime(max_downtime_ms)
            job.run(lambda: call(domain), report)

    def is_migrating(self, uuid: str) -> bool:
        """Return whether a domain is being moved away now."""
        with self._open_domain(uuid, "virDomainGetJobStats", "read the job of") as domain:
            results: list[dict[str, Any]] = []
            self._connection.attempt(_NOT_MOVED_AWAY, lambda: results.append(domain.jobStats(0)))
            return bool(results) and is_moving_away(results[0])

    def resume(self, uuid: str) -> None:
        """Have a paused domain run. One that runs is no error."""
        with self._open_domain(uuid, "virDomainResume", "resume") as domain:
            code = self._connection.attempt(None, domain.resume)
            if code is not None and domain.state(0)[0] not in (
                constants.VIR_DOMAIN_RUNNING,
                constants.VIR_DOMAIN_BLOCKED,
            ):
                domain.resume()


def _ignore(_: object) -> None:
    """Drop what a reporter returns: saving a domain has no limit."""
