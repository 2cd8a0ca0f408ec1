# SPDX-License-Identifier: Apache-2.0
"""The checks of a controller's installation: what each says of an installation in order, and of what is wrong."""

from __future__ import annotations

import pytest

from vgpuctl.controller.database.journal_rows import JournalGuard
from vgpuctl.controller.doctor import CHECKS, examine, select
from vgpuctl.controller.installation import CertificateFacts, DatabaseFacts, Installation, ProcessFacts, SecretFile
from vgpuctl.controller.model import FleetHost, HostLease
from vgpuctl.controller.planning.restored import RESTORED
from vgpuctl.errors import NotFound
from vgpuctl.value import replace
from vgpuctl.version import __version__

NOW = 1_000_000.0
KEY = "ssh-ed25519 SHA256:abc"
HOST = FleetHost(
    "h1", "gpu01", "ssh://fleet@gpu01.example.org", host_key=KEY, seen_at=NOW - 10, agent_version=__version__
)
SQLITE = DatabaseFacts("sqlite:////s/fleet.db", path="/s/fleet.db", version="0001", now=NOW)
POSTGRESQL = DatabaseFacts("postgresql://db/fleet", is_sqlite=False, version="0001", now=NOW)
LEASE = HostLease("h1", "one", 3, NOW + 20)
GOOD = Installation(
    machine_now=NOW,
    database=SQLITE,
    process=ProcessFacts("/run/c.sock", 42, 65536),
    state="/s",
    user="vgpuctl-controller",
    free_bytes=5 << 30,
    secrets=(SecretFile("/s", "the state directory", 0o700),),
    known_hosts=(),
    lock_pid=42,
    hosts=(HOST,),
    leases={"h1": LEASE},
    certificate=CertificateFacts("/c.pem", NOW + 90 * 86400),
)


def test_an_installation_in_order() -> None:
    data = examine(GOOD, CHECKS)
    verdicts = {check.id: check.verdict for check in data.checks}
    assert data.verdict == "ok"
    assert {verdicts.pop(name) for name in ("database-clock", "sign-in")} == {"not-applicable"}
    assert set(verdicts.values()) == {"ok"}
    assert all(check.evidence for check in data.checks)


def with_host(**more: object) -> Installation:
    return replace(GOOD, hosts=(replace(HOST, **more),))


def with_journal(**more: object) -> Installation:
    guard = replace(JournalGuard("fleet", "vgpuctl_journal", False, True, 2), **more)
    return replace(GOOD, database=replace(POSTGRESQL, journal=guard))


@pytest.mark.parametrize(
    ("check", "one", "verdict", "evidence", "fix"),
    [
        ("database", replace(GOOD, database=replace(SQLITE, problem="old", fix="upgrade")), "fail", "old", "upg"),
        ("database-clock", replace(GOOD, database=POSTGRESQL), "ok", "0.0 s", ""),
        (
            "database-clock", replace(GOOD, database=replace(POSTGRESQL, late_seconds=-7.0)), "warn", "7.0 s ahead",
            "chronyc tracking",
        ),
        (
            "journal", replace(GOOD, database=replace(SQLITE, broken_triggers=("event_no_update",))), "fail",
            "event_no_update", "restore --replace",
        ),
        ("tokens", replace(GOOD, database=replace(SQLITE, endless_tokens=("ci",))), "warn", "ci", "delete-token ci"),
        ("journal", with_journal(), "ok", "belongs to vgpuctl_journal; fleet adds entries", ""),
        ("journal", with_journal(triggers=1), "fail", "1 of 2 triggers", "ENABLE TRIGGER ALL"),
        ("journal", with_journal(may_change=True, owner="fleet"), "warn", "belongs to fleet", "who changed what"),
        ("journal", with_journal(may_change=True), "warn", "fleet could", 'REVOKE vgpuctl_journal FROM "fleet"'),
        (
            "journal", with_journal(may_change=True, owner="fleet", has_role=False), "not-applicable", "another role",
            "",
        ),
        ("controller", replace(GOOD, process=ProcessFacts("/c", problem="/c: refused")), "fail", "refused", "start"),
        ("one-controller", replace(GOOD, lock_pid=None), "warn", "/s/fleet.db.lock", "systemctl status"),
        ("one-controller", replace(GOOD, lock_pid=43), "fail", "process 43 has the database", "--state"),
        (
            "one-controller", replace(GOOD, leases={"h1": LEASE, "h2": replace(LEASE, holder="two")}), "fail",
            "one, two", "PostgreSQL",
        ),
        ("one-controller", replace(GOOD, database=POSTGRESQL), "ok", "one", ""),
        (
            "secrets", replace(GOOD, secrets=(SecretFile("/u r l", "the database's URL", 0o644, None, True),)), "fail",
            "0644", "chmod 600 '/u r l'",
        ),
        ("secrets", replace(GOOD, secrets=(SecretFile("/u", "a URL", 0o640, None, True),)), "ok", "0640", ""),
        ("secrets", replace(GOOD, secrets=(SecretFile("/k", "an SSH key", 0o640),)), "fail", "0640", "chmod 600 /k"),
        ("secrets", replace(GOOD, secrets=(SecretFile("/s", "the state", 0o750),)), "fail", "0750", "chmod 700 /s"),
        (
            "secrets", replace(GOOD, secrets=(SecretFile("/k", "x", None, "/k: Permission denied"),)), "unknown",
            "denied", "run it as vgpuctl-controller or root",
        ),
        ("known-hosts", with_host(host_key=None), "fail", "gpu01", "ssh ssh://fleet@gpu01.example.org"),
        (
            "known-hosts",
            replace(with_host(host_key=None), known_hosts=(("/k", "gpu01.example.org ssh-ed25519 AAAA\n"),)), "ok",
            "/k:1", "",
        ),
        ("known-hosts", with_host(address="local", host_key=None), "not-applicable", "SSH", ""),
        ("hosts", replace(with_host(seen_at=NOW - 60), tried={"gpu01": None}), "fail", "for 60 s", "systemctl start"),
        ("hosts", replace(with_host(seen_at=None), tried={"gpu01": "no route"}), "fail", "never", "vgpuctl-agent"),
        ("hosts", replace(GOOD, hosts=()), "not-applicable", "no hosts", ""),
        ("leases", replace(GOOD, leases={}), "warn", "gpu01: no controller has it", "systemctl status"),
        ("leases", replace(GOOD, leases={"h1": replace(LEASE, expires_at=NOW)}), "warn", "gpu01", "systemctl status"),
        (
            "held-hosts", with_host(held="its GPU driver is 1, not 2"), "fail", "gpu01: its GPU driver",
            "vgpuctl controller accept-host gpu01",
        ),
        ("held-hosts", with_host(held=RESTORED), "fail", "gpu01: the database was restored", "confirm-restore"),
        ("versions", with_host(agent_version="99.1.0"), "fail", "99.1.0", "update"),
        ("versions", with_host(agent_version=None), "unknown", "gpu01", ""),
        ("open-files", replace(GOOD, process=ProcessFacts("/c", 42, 256)), "warn", "256", "LimitNOFILE=65536"),
        ("open-files", replace(GOOD, process=ProcessFacts("/c", 42)), "unknown", "/proc/42/limits", "root"),
        ("disk", replace(GOOD, free_bytes=500 << 20), "warn", "500 MiB", "df -h /s"),
        ("disk", replace(GOOD, free_bytes=50 << 20), "fail", "50 MiB", "df -h /s"),
        ("certificate", replace(GOOD, certificate=CertificateFacts("/c", NOW + 86400)), "warn", "in 1 days", "new one"),
        ("certificate", replace(GOOD, certificate=CertificateFacts("/c", NOW - 1)), "fail", "ended", "new one"),
        ("certificate", replace(GOOD, certificate=CertificateFacts("/c", None, "/c: it is no")), "fail", "no", "ls -l"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_what_fixes_it(
    check: str, one: Installation, verdict: str, evidence: str, fix: str
) -> None:
    (result,) = examine(one, select((check,))).checks
    assert result.verdict == verdict
    assert evidence in "\n".join(result.evidence)
    assert fix in (result.fix or "")
    assert bool(result.fix) is bool(fix)


@pytest.mark.parametrize(("apart", "verdict"), [(-2, "fail"), (-1, "ok"), (0, "ok"), (1, "ok"), (2, "fail")])
def test_agents_may_be_a_minor_version_apart(apart: int, verdict: str) -> None:
    major, minor, *_ = __version__.split(".")
    (result,) = examine(
        with_host(agent_version=f"{major}.{max(0, int(minor) + apart)}.7" if int(minor) + apart >= 0 else "99.0.0"),
        select(("versions",)),
    ).checks
    assert result.verdict == verdict


def test_without_a_database_other_checks_are_unknown() -> None:
    data = examine(replace(GOOD, database=replace(SQLITE, problem="gone"), hosts=(), leases={}), CHECKS)
    verdicts = {check.id: check.verdict for check in data.checks}
    assert (data.verdict, verdicts["database"], verdicts["leases"], verdicts["disk"]) == (
        "fail",
        "fail",
        "unknown",
        "ok",
    )


def test_a_check_that_does_not_exist() -> None:
    with pytest.raises(NotFound, match="there is no check 'leeses'") as error:
        select(("leeses",))
    assert error.value.hint == "did you mean leases?"


def test_accepting_a_host_does_not_confirm_a_restore() -> None:
    (result,) = examine(with_host(held=RESTORED), select(("held-hosts",))).checks
    assert "accept-host" not in (result.fix or "")
