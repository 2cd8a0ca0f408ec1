# SPDX-License-Identifier: Apache-2.0
"""Examine a host: run the chosen checks on what `check_context` gathers for them, and fix what is safe to fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.config.host_spec import FORMAT_VERSION, BootSpec, HostSpec
from vgpuctl.doctor.catalogue import find_explaining_checks, select_checks, worst_verdict
from vgpuctl.doctor.check import Check, CheckContext, Finding, Verdict, unknown
from vgpuctl.engine.check_context import gather_check_context
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.reconcile import reconcile
from vgpuctl.engine.restore import restore_host
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.ports.step import Plan
from vgpuctl.steps.run_directory import RUN_PATH, RestrictRunDirectory
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

JsonObject = dict[str, object]
CheckResults = tuple[tuple[Check, Finding], ...]
LEFTOVERS_CHECK, RUN_DIRECTORY_CHECK = "leftovers", "run-directory"
RESTORABLE_CHECKS = ("partition", "kept-vgpus")
"""The checks whose problems `restore-host` fixes where it safely can: it stops no VM."""
BAD_VERDICTS = (Verdict.FAIL, Verdict.WARN)
NOTHING_TO_FIX = "there is nothing that --fix can mend; each check says what to do"


def diagnose(host: Host, ids: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the verdict on a host with every finding, as JSON data. Changes nothing.

    Raises:
        NotFound: no check has that id.
    """
    return _report_data(_examine_host(host, ids))


def fix_problems(
    host: Host, ids: tuple[str, ...], *, dry_run: bool, confirm: Confirm, wait_seconds: float, progress: Progress
) -> Outcome:
    """Examine, ask, fix, examine again: the problems that reconcile and restore-host fix, and the run directory's mode.

    Raises:
        NotFound: no check has that id.
        NeedsConfirmation: the answer is no, or there is no terminal.
        VgpuctlError: as reconcile and restore-host.
    """
    if not dry_run:
        require_writable(host)
    results = _examine_host(host, ids)
    data = _report_data(results)
    verdicts = {check.id: finding.verdict for check, finding in results}
    directory_steps = _run_directory_steps(host) if verdicts.get(RUN_DIRECTORY_CHECK) is Verdict.FAIL else ()
    planned = [
        (fix, fix(host, dry_run=True, wait_seconds=wait_seconds, progress=progress))
        for fix, checks in ((reconcile, (LEFTOVERS_CHECK,)), (_restore_now, RESTORABLE_CHECKS))
        if any(verdicts.get(name) is Verdict.WARN for name in checks)
    ]
    steps = (*(step.describe() for step in directory_steps), *(step for _, plan in planned for step in plan.steps))
    warnings = tuple(warning for _, plan in planned for warning in plan.warnings)
    if dry_run or not steps:
        return Outcome(bool(steps), data, steps, warnings, () if steps else (NOTHING_TO_FIX,), dry_run=dry_run)
    confirm("Mend this?", steps)
    if directory_steps:
        execute_plan(host, Plan(directory_steps), progress)
    for fix, plan in planned:
        if plan.steps:
            fix(host, dry_run=False, wait_seconds=wait_seconds, progress=progress)
    return Outcome(True, diagnose(host, ids), steps, warnings)


def _restore_now(host: Host, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Create again what a boot or a restart of the VFs removed, as restore-host does; unlike at boot, wait for no GPU.

    Raises:
        InvalidInput: host.yaml cannot be parsed.
        VgpuctlError: as `restore_host`.
    """
    spec = read_host_spec(host) or HostSpec(FORMAT_VERSION)
    without_wait = replace(spec, boot=BootSpec(deadline_seconds=0))
    return restore_host(host, without_wait, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)


def _run_directory_steps(host: Host) -> tuple[RestrictRunDirectory, ...]:
    """Return the step that makes the run directory private; none if another user owns it: an admin must check that."""
    permissions = host.sysfs.permissions(RUN_PATH)
    return () if permissions.owner else (RestrictRunDirectory(permissions.mode),)


def _examine_host(host: Host, ids: tuple[str, ...]) -> CheckResults:
    checks = select_checks(ids)
    return tuple(zip(checks, run_checks(gather_check_context(host, checks), checks), strict=True))


def _report_data(results: CheckResults) -> dict[str, object]:
    return {
        "verdict": worst_verdict(tuple(finding for _, finding in results)).value,
        "checks": [_check_value(check, finding) for check, finding in results],
    }


def explain_failure(host: Host, code: str, check_fact: str | None) -> list[JsonObject]:
    """Return the problems reported by the checks that may explain an error: id, verdict, evidence, fix.

    libvirt's VMs are listed only for an error that came after listing them: listing waits for a busy domain.
    """
    checks = tuple(c for c in find_explaining_checks(code, check_fact) if code == "no-capacity" or not c.needs_vms)
    findings = zip(checks, run_checks(gather_check_context(host, checks), checks), strict=True)
    return [
        {"id": c.id, "verdict": f.verdict.value, "evidence": list(f.evidence), "fix": f.fix}
        for c, f in findings
        if f.verdict in BAD_VERDICTS
    ]


def run_checks(context: CheckContext, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Run each check; one that raises is unknown and stops no other."""
    return tuple(_run_check(context, check) for check in checks)


def _run_check(context: CheckContext, check: Check) -> Finding:
    try:
        return check.run(context)
    except Exception as error:  # noqa: BLE001 - a host may show anything, and the other checks must still be reported
        return unknown(f"the check stumbled: {type(error).__name__}: {error}", fix="this is a bug in vgpuctl")


def _check_value(check: Check, finding: Finding) -> JsonObject:
    return {
        "id": check.id,
        "title": check.title,
        "looks_at": check.looks_at.replace("`", ""),
        "verdict": finding.verdict.value,
        "evidence": list(finding.evidence),
        "fix": finding.fix,
        "explains": list(check.explains),
    }
