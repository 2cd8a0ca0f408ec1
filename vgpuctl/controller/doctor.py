# SPDX-License-Identifier: Apache-2.0
"""The checks of a controller's installation. Pure: `installation` reads what they look at.

examine(read_installation(Options()), select(()))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime

from vgpuctl.controller.database.journal_rows import JOURNAL_ROLE, TRIGGERS
from vgpuctl.controller.installation import Installation, SecretFile
from vgpuctl.controller.planning.phase import SILENT_SECONDS, is_silent
from vgpuctl.controller.planning.restored import RESTORED
from vgpuctl.doctor import pick_checks
from vgpuctl.doctor.check import Finding, fail, not_applicable, ok, shorten, unknown, warn, worst_verdict
from vgpuctl.model.controller_service import SERVICE_UNIT
from vgpuctl.model.results.host import CheckResult, DoctorResult
from vgpuctl.remote.known_hosts import keys_for
from vgpuctl.remote.session import SCHEME, parse_url
from vgpuctl.remote.ssh_config import SSH_PORT
from vgpuctl.value import Value
from vgpuctl.version import __version__

LATE_SECONDS = 5.0
LOW_BYTES, LOWEST_BYTES = 1 << 30, 100 << 20
CERTIFICATE_DAYS = 30
FILES, FILES_PER_HOST = 256, 12
"""A controller with many requests, and each of its hosts, have at most so many files open."""
DAY_SECONDS = 86400.0
_RESTORE = "vgpuctl controller backup, then restore --replace"
_CONFIRM = "vgpuctl controller show-restore, then vgpuctl controller confirm-restore"
_START = f"systemctl start {SERVICE_UNIT}"
_RESTART = f"systemctl restart {SERVICE_UNIT}"
_STATUS = f"systemctl status {SERVICE_UNIT}"
_VERSION = re.compile(r"(\d+)\.(\d+)")


class FleetCheck(Value):
    """A check; as `doctor.check.Check`, of a controller instead of a host."""

    id: str
    title: str
    looks_at: str
    run: Callable[[Installation], Finding]


def select(ids: tuple[str, ...]) -> tuple[FleetCheck, ...]:
    """Return the checks with these ids; all without any.

    Raises:
        NotFound: there is no check of that id.
    """
    return pick_checks(CHECKS, ids, "vgpuctl controller doctor")


def examine(installation: Installation, checks: tuple[FleetCheck, ...]) -> DoctorResult:
    """Return what the checks say."""
    findings = [(check, check.run(installation)) for check in checks]
    results = tuple(
        CheckResult(check.id, check.title, check.looks_at, finding.verdict.value, finding.evidence, finding.fix, ())
        for check, finding in findings
    )
    return DoctorResult(worst_verdict(finding for _, finding in findings).value, results)


def _of_database(check: Callable[[Installation], Finding]) -> Callable[[Installation], Finding]:
    """Return a check that needs the database, and is `unknown` without it."""

    def run(one: Installation) -> Finding:
        return unknown("the database cannot be used") if one.database.problem is not None else check(one)

    return run


def _as_user(one: Installation) -> str:
    return "run it as root" if one.user == "root" else f"run it as {one.user} or root"


def _check_database(one: Installation) -> Finding:
    database = one.database
    if database.problem is not None:
        fix = database.fix or f"{_START}; or name it: vgpuctl controller doctor --database URL"
        return fail(f"{database.name}: {database.problem}", fix=fix)
    return ok(f"{database.name}: its tables are of version {database.version}, as this program's")


def _check_clock(one: Installation) -> Finding:
    if one.database.is_sqlite:
        return not_applicable("SQLite has this machine's clock")
    late = one.database.late_seconds
    text = f"the database's clock is {abs(late):.1f} s {'behind' if late > 0 else 'ahead of'} this machine's"
    if abs(late) <= LATE_SECONDS:
        return ok(text)
    return warn(text, fix="chronyc tracking on both machines: one of them has no time server")


def _check_journal(one: Installation) -> Finding:
    """`restore --replace` makes the tables again, and they belong to the controller's role then."""
    guard = one.database.journal
    if one.database.broken_triggers:
        text = f"triggers of the table event are not there, or changed: {', '.join(one.database.broken_triggers)}"
        return fail(text, "entries can be changed since then, and may have been", fix=_RESTORE)
    if guard is None:
        return ok("SQLite: its triggers are in force; who owns the file can change the journal all the same")
    if guard.triggers < len(TRIGGERS):
        text = f"{guard.triggers} of {len(TRIGGERS)} triggers that refuse changes of the table event are in force"
        fix = f"as an admin of PostgreSQL: ALTER TABLE event ENABLE TRIGGER ALL; or make it again: {_RESTORE}"
        return fail(text, fix=fix)
    if not guard.may_change:
        return ok(f"the table event belongs to {guard.owner}; {guard.user} adds entries, and changes none")
    text = f"{guard.user} could change the journal: the table event belongs to {guard.owner}"
    if not guard.has_role:
        return not_applicable(f"{text}; the how-to on who changed what in a fleet gives it to another role")
    fix = "as an admin of PostgreSQL: the script of the how-to on who changed what in a fleet, without CREATE ROLE"
    if guard.owner == JOURNAL_ROLE:
        fix = f'as an admin of PostgreSQL: REVOKE {JOURNAL_ROLE} FROM "{guard.user}"'
    return warn(text, fix=fix)


def _check_controller(one: Installation) -> Finding:
    if one.process.problem is not None:
        return fail(f"no controller answers: {one.process.problem}", fix=f"{_STATUS}; {_START}")
    return ok(f"process {one.process.pid} answers at {one.process.socket}")


def _check_alone(one: Installation) -> Finding:
    """On SQLite one controller at a time; several take the hosts from each other."""
    now = one.database.now
    holders = sorted({lease.holder for lease in one.leases.values() if lease.expires_at > now})
    if not one.database.is_sqlite:
        return ok(f"PostgreSQL serves several; hosts belong to: {', '.join(shorten(holders)) or 'none'}")
    if len(holders) > 1:
        return fail(f"hosts belong to {', '.join(shorten(holders))}", fix="stop all but one; several need PostgreSQL")
    if one.lock_pid is None:
        return warn(f"no process has {one.database.path}.lock: no controller runs with this database", fix=_STATUS)
    if one.process.pid is not None and one.process.pid != one.lock_pid:
        text = f"process {one.lock_pid} has the database, and process {one.process.pid} answers at {one.process.socket}"
        return fail(text, fix=f"give doctor the --database, --state and --socket of one controller; {_STATUS}")
    return ok(f"process {one.lock_pid} alone has {one.database.path}")


def _check_secrets(one: Installation) -> Finding:
    bad = [file for file in one.secrets if file.mode is not None and file.mode & _forbidden(file)]
    if bad:
        lines = [f"{file.path} ({file.what}) has mode {file.mode:04o}: others can read it" for file in bad]
        modes = {file.path: "700" if file.path == one.state else "600" for file in bad}
        fix = "; ".join(f"chmod {mode} {shlex.quote(path)}" for path, mode in modes.items())
        return fail(*shorten(lines), fix=fix)
    problems = [file.problem for file in one.secrets if file.problem is not None]
    if problems:
        return unknown(*shorten(problems), fix=_as_user(one))
    return ok(*shorten([f"{file.path} ({file.what}) has mode {file.mode:04o}" for file in one.secrets]))


def _forbidden(file: SecretFile) -> int:
    return 0o037 if file.group_may_read else 0o077


def _check_tokens(one: Installation) -> Finding:
    endless = one.database.endless_tokens
    if not endless:
        return ok("each API token expires")
    lines = [f"{name}: it never expires" for name in endless]
    fix = f"vgpuctl controller add-token NEW --days 365 ...; then delete-token {shlex.quote(endless[0])}"
    return warn(*shorten(lines), fix=fix)


def _check_known_hosts(one: Installation) -> Finding:
    """A host's key is in the database since it was added; one without it must be in known_hosts."""
    by_ssh = [host for host in one.hosts if host.address.startswith(SCHEME)]
    if not by_ssh:
        return not_applicable("no host is reached by SSH")
    lines, missing = [], []
    for host in by_ssh:
        target = parse_url(host.address)
        if host.host_key is not None:
            lines.append(f"{host.name}: {host.host_key}, in the database")
        elif keys := keys_for(one.known_hosts, target.host, target.port or SSH_PORT):
            lines.append(f"{host.name}: {keys[0].location}")
        else:
            missing.append((host.name, f"ssh {host.address}"))
    if missing:
        text = [f"{name}: its key is neither in the database nor in known_hosts" for name, _ in missing]
        fix = f"as {one.user}: {'; '.join(shorten([command for _, command in missing]))}"
        return fail(*shorten(text), fix=fix)
    return ok(*shorten(lines))


def _check_hosts(one: Installation) -> Finding:
    if not one.hosts:
        return not_applicable("the fleet has no hosts: vgpuctl controller add-host NAME ADDRESS")
    lines, reachable = [], []
    for host in one.hosts:
        if not is_silent(host, one.database.now):
            continue
        since = "never" if host.seen_at is None else f"not for {int(one.database.now - host.seen_at)} s"
        problem = one.tried.get(host.name)
        lines.append(f"{host.name}: it answered the controller {since}; from here: {problem or 'it answers'}")
        reachable += [] if problem else [host.name]
    if not lines:
        return ok(f"all {len(one.hosts)} answered in the last {SILENT_SECONDS} s")
    fix = (
        _START
        if len(reachable) == len(lines)
        else "vgpuctl controller list-hosts; on each: systemctl status vgpuctl-agent"
    )
    return fail(*shorten(lines), fix=fix)


def _check_leases(one: Installation) -> Finding:
    if not one.hosts:
        return not_applicable("the fleet has no hosts")
    now, lines, without = one.database.now, [], []
    for host in one.hosts:
        lease = one.leases.get(host.id)
        if lease is None or lease.expires_at <= now:
            without.append(f"{host.name}: no controller has it")
        else:
            lines.append(f"{host.name}: {lease.holder}, for {int(lease.expires_at - now)} s (epoch {lease.epoch})")
    if without:
        return warn(*shorten(without), fix=_STATUS)
    return ok(*shorten(lines))


def _check_held(one: Installation) -> Finding:
    held = [host for host in one.hosts if host.held is not None]
    if not held:
        return ok(f"none of {len(one.hosts)}")
    lines = [f"{host.name}: {host.held}" for host in held]
    commands = [f"vgpuctl controller accept-host {shlex.quote(host.name)}" for host in held if host.held != RESTORED]
    fixes = [_CONFIRM] if len(commands) < len(held) else []
    fixes += [f"find out why, then {'; '.join(shorten(commands))}"] if commands else []
    return fail(*shorten(lines), fix="; ".join(fixes))


def _check_versions(one: Installation) -> Finding:
    """A controller and an agent understand each other where they are one minor version apart at most."""
    if not one.hosts:
        return not_applicable("the fleet has no hosts")
    own = _VERSION.match(__version__)
    far, unknown_ones = [], []
    for host in one.hosts:
        version = _VERSION.match(host.agent_version or "")
        if version is None or own is None:
            unknown_ones.append(f"{host.name}: its agent's version is not known")
        elif version[1] != own[1] or abs(int(version[2]) - int(own[2])) > 1:
            far.append(f"{host.name}: its agent has version {host.agent_version}, the controller {__version__}")
    if far:
        return fail(*shorten(far), fix="update the older side: they may be one minor version apart")
    if unknown_ones:
        return unknown(*shorten(unknown_ones))
    versions = sorted({str(host.agent_version) for host in one.hosts})
    return ok(f"this program has version {__version__}, the agents {', '.join(shorten(versions))}")


def _check_open_files(one: Installation) -> Finding:
    limit, need = one.process.open_files, FILES + FILES_PER_HOST * len(one.hosts)
    if one.process.pid is None:
        return unknown("no controller answers")
    if limit is None:
        return unknown(f"/proc/{one.process.pid}/limits has no limit of open files", fix=_as_user(one))
    text = f"process {one.process.pid} may have {limit} files open; {len(one.hosts)} hosts need up to {need}"
    if limit >= need:
        return ok(text)
    return warn(text, fix=f"LimitNOFILE=65536 in {SERVICE_UNIT}; systemctl daemon-reload; {_RESTART}")


def _check_disk(one: Installation) -> Finding:
    if one.free_bytes is None:
        return unknown(f"{one.state} cannot be looked at", fix="vgpuctl controller doctor --state DIR")
    text = f"{one.state} has {one.free_bytes >> 20} MiB free"
    fix = f"df -h {shlex.quote(one.state)}"
    if one.free_bytes < LOWEST_BYTES:
        return fail(text, fix=fix)
    return ok(text) if one.free_bytes >= LOW_BYTES else warn(text, fix=fix)


def _check_certificate(one: Installation) -> Finding:
    certificate = one.certificate
    if certificate is None:
        return not_applicable("--tls-certificate FILE names the one of controller run --listen")
    if certificate.ends is None:
        return fail(certificate.problem or certificate.path, fix=f"ls -l {shlex.quote(certificate.path)}")
    days = (certificate.ends - one.machine_now) / DAY_SECONDS
    end = datetime.fromtimestamp(certificate.ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
    fix = f"put a new one there, then {_RESTART}"
    if days <= 0:
        return fail(f"{certificate.path} ended on {end}", fix=fix)
    text = f"{certificate.path} ends on {end}, in {int(days)} days"
    return ok(text) if days >= CERTIFICATE_DAYS else warn(text, fix=fix)


def _check_sign_in(one: Installation) -> Finding:
    if one.sign_in is None:
        return not_applicable("--sign-in FILE names the one of controller run")
    if one.sign_in.problems:
        fix = next((fix for _, fix in one.sign_in.problems if fix), f"correct {one.sign_in.path}")
        return fail(*(text for text, _ in one.sign_in.problems), fix=fix)
    return ok(f"{' and '.join(one.sign_in.asked)} let people sign in")


CHECKS: tuple[FleetCheck, ...] = (
    FleetCheck("database", "the database and its tables", "the database", _check_database),
    FleetCheck("database-clock", "the clocks of database and machine", "the time of both", _of_database(_check_clock)),
    FleetCheck("journal", "who could change the journal", "the table's role, triggers", _of_database(_check_journal)),
    FleetCheck("controller", "whether a controller runs here", "the controller's socket", _check_controller),
    FleetCheck("one-controller", "that one controller has SQLite", "leases, the lock", _of_database(_check_alone)),
    FleetCheck("secrets", "who can read secrets", "the modes of state directory, URL, keys, token", _check_secrets),
    FleetCheck("tokens", "API tokens that never expire", "the tokens", _of_database(_check_tokens)),
    FleetCheck("known-hosts", "the SSH keys of hosts", "the database, known_hosts", _of_database(_check_known_hosts)),
    FleetCheck("hosts", "whether the hosts' agents answer", "when they did; silent ones", _of_database(_check_hosts)),
    FleetCheck("leases", "which controller has each host", "the leases", _of_database(_check_leases)),
    FleetCheck("held-hosts", "hosts on which nothing is changed", "why they are held", _of_database(_check_held)),
    FleetCheck("versions", "versions of controller and agents", "the agents' answers", _of_database(_check_versions)),
    FleetCheck("open-files", "how many files the controller may open", "/proc/PID/limits", _check_open_files),
    FleetCheck("disk", "the room for the state directory", "its file system", _check_disk),
    FleetCheck("sign-in", "the servers where people sign in", "sign-in.yaml, the servers", _check_sign_in),
    FleetCheck("certificate", "the end of TLS' certificate", "the file of --tls-certificate", _check_certificate),
)  # fmt: skip
"""All checks in the order in which people read them."""
