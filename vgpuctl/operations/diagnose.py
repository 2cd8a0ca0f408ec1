# SPDX-License-Identifier: Apache-2.0
"""Examine a host: run the chosen checks on what `check_context` gathers for them, and fix what is safe to fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.config.host_spec import FORMAT_VERSION, BootSpec, HostSpec
from vgpuctl.doctor.catalogue import find_explaining_checks, select_checks, worst_verdict
from vgpuctl.doctor.check import Check, CheckContext, Finding, Verdict, unknown
from vgpuctl.errors import FileFailed, VerifyFailed
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.host import CheckResult, DoctorFindingResult, DoctorResult, RestoreResult
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.check_context import gather_check_context
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.reconcile import reconcile
from vgpuctl.operations.restore import restore_host
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

CheckResults = tuple[tuple[Check, Finding], ...]
LEFTOVERS_CHECK, RUN_DIRECTORY_CHECK = "leftovers", "run-directory"
RESTORABLE_CHECKS = ("partition", "kept-vgpus", "lost-vgpus")
"""The checks whose problems `restore-host` fixes where it safely can: it stops no VM."""
BAD_VERDICTS = (Verdict.FAIL, Verdict.WARN)
NOTHING_TO_FIX = "--fix cannot fix any of this; each check shows what to do"


def diagnose(host: Host, ids: tuple[str, ...] = ()) -> DoctorResult:
    """Return the verdict on a host with every finding. Changes nothing.

    Raises:
        NotFound: no check has that id.
    """
    return _report_data(_examine_host(host, ids))


def fix_problems(host: Host, context: Context, ids: tuple[str, ...]) -> Outcome[DoctorResult]:
    """Examine, ask, fix, examine again: the problems that reconcile and restore-host fix, and the run directory's mode.

    Raises:
        NotFound: no check has that id.
        NeedsConfirmation: the answer is no, or there is no terminal.
        VgpuctlError: as reconcile and restore-host.
    """
    require_writable(host, context)
    results = _examine_host(host, ids)
    data = _report_data(results)
    verdicts = {check.id: finding.verdict for check, finding in results}
    directory_steps = _run_directory_steps(host) if verdicts.get(RUN_DIRECTORY_CHECK) is Verdict.FAIL else ()
    planned = [
        (fix, fix(host, replace(context, dry_run=True)))
        for fix, checks in ((reconcile, (LEFTOVERS_CHECK,)), (_restore_now, RESTORABLE_CHECKS))
        if any(verdicts.get(name) is Verdict.WARN for name in checks)
    ]
    steps = (*(step.describe() for step in directory_steps), *(step for _, plan in planned for step in plan.steps))
    warnings = tuple(warning for _, plan in planned for warning in plan.warnings)
    if context.dry_run or not steps:
        return Outcome(bool(steps), data, steps, warnings, () if steps else (NOTHING_TO_FIX,), dry_run=context.dry_run)
    context.confirm("Fix this?", steps)
    done = [step.describe() for step in directory_steps]
    if directory_steps:
        execute_plan(host, Plan(directory_steps), context.progress)
    for fix, plan in planned:
        if plan.steps:
            done += fix(host, context).steps
    return Outcome(bool(done), diagnose(host, ids), tuple(done), warnings)


def _restore_now(host: Host, context: Context) -> Outcome[RestoreResult]:
    """Create again what a boot or a restart of the VFs removed, as restore-host does; unlike at boot, wait for no GPU.

    Raises:
        InvalidInput: host.yaml cannot be parsed.
        VgpuctlError: as `restore_host`.
    """
    spec = read_host_spec(host) or HostSpec(FORMAT_VERSION)
    without_wait = replace(spec, boot=BootSpec(deadline_seconds=0))
    return restore_host(host, context, without_wait)


def _run_directory_steps(host: Host) -> tuple[RestrictRunDirectory, ...]:
    """Return the step that makes the run directory private; none if another user owns it: an admin must check that."""
    permissions = host.sysfs.permissions(RUN_PATH)
    return () if permissions.owner else (RestrictRunDirectory(permissions.mode),)


def _examine_host(host: Host, ids: tuple[str, ...]) -> CheckResults:
    checks = select_checks(ids)
    return tuple(zip(checks, run_checks(gather_check_context(host, checks), checks), strict=True))


def _report_data(results: CheckResults) -> DoctorResult:
    verdict = worst_verdict(tuple(finding for _, finding in results))
    return DoctorResult(verdict, tuple(_check_result(check, finding) for check, finding in results))


def explain_failure(host: Host, code: str, check_fact: str | None) -> list[DoctorFindingResult]:
    """Return the problems reported by the checks that may explain an error: id, verdict, evidence, fix.

    libvirt's VMs are listed only for an error that came after listing them: listing waits for a busy domain.
    """
    checks = tuple(c for c in find_explaining_checks(code, check_fact) if code == "no-capacity" or not c.needs_vms)
    findings = zip(checks, run_checks(gather_check_context(host, checks), checks), strict=True)
    return [DoctorFindingResult(c.id, f.verdict, f.evidence, f.fix) for c, f in findings if f.verdict in BAD_VERDICTS]


def run_checks(context: CheckContext, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Run each check; one that raises is unknown and stops no other."""
    return tuple(_run_check(context, check) for check in checks)


def _run_check(context: CheckContext, check: Check) -> Finding:
    try:
        return check.run(context)
    except Exception as error:  # noqa: BLE001 - a host may show anything, and the other checks must still be reported
        return unknown(f"the check failed: {type(error).__name__}: {error}", fix="this is a bug in vgpuctl")


def _check_result(check: Check, finding: Finding) -> CheckResult:
    return CheckResult(
        id=check.id,
        title=check.title,
        looks_at=check.looks_at.replace("`", ""),
        verdict=finding.verdict,
        evidence=finding.evidence,
        fix=finding.fix,
        explains=check.explains,
    )


RUN_PATH = "/run/vgpuctl"
PRIVATE_MODE = 0o700


class RestrictRunDirectory(Step):
    """Remove all permissions on /run/vgpuctl but root's. `previous_mode`: its mode before."""

    previous_mode: int

    def describe(self) -> str:
        """Say the old and the new mode."""
        return f"change the mode of {RUN_PATH} from {self.previous_mode:04o} to {PRIVATE_MODE:04o}"

    def perform(self, host: Host) -> None:
        """Change it."""
        self._set(host, PRIVATE_MODE)

    def verify(self, host: Host) -> None:
        """Read it back."""
        mode = host.sysfs.permissions(RUN_PATH).mode
        if mode != PRIVATE_MODE:
            raise VerifyFailed(
                f"{RUN_PATH} has mode {mode:04o}, not {PRIVATE_MODE:04o}",
                hint=f"findmnt -T {RUN_PATH}",
                path=RUN_PATH,
                mode=f"{mode:04o}",
            )

    def undo(self, host: Host) -> None:
        """Restore the mode unless somebody else changed it meanwhile."""
        if host.sysfs.permissions(RUN_PATH).mode == PRIVATE_MODE:
            self._set(host, self.previous_mode)

    def _set(self, host: Host, mode: int) -> None:
        try:
            host.claims.set_permissions(mode)
        except OSError as error:
            raise FileFailed(
                f"the mode of {RUN_PATH} cannot be changed: {error.strerror or error}",
                hint="run it as root",
                path=RUN_PATH,
                errno=error.errno,
            ) from error
