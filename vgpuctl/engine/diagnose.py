# SPDX-License-Identifier: Apache-2.0
"""Examine a host: let the chosen checks judge what `look` gathers for them, and mend what is safe to mend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.doctor.catalogue import chosen, explaining, worst
from vgpuctl.doctor.check import Check, Finding, Look, Verdict, unknown
from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.look import look_at
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.engine.reconcile import reconcile
from vgpuctl.engine.restore import restore_host
from vgpuctl.engine.run import carry_out
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.step import Plan
from vgpuctl.spec.host import VERSION, BootSpec, HostSpec
from vgpuctl.steps.run_directory import RUN, MakePrivate
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

Row = dict[str, object]
Examined = tuple[tuple[Check, Finding], ...]
LEFTOVERS, RUN_DIRECTORY = "leftovers", "run-directory"
RESTORED = ("partition", "kept-vgpus")
"""The checks of which `restore-host` mends what it safely can: it stops no VM."""
BAD = (Verdict.FAIL, Verdict.WARN)
NOTHING_TO_FIX = "there is nothing that --fix can mend; each check says what to do"


def diagnose(world: World, ids: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the verdict on a host with every finding, as JSON data. Changes nothing.

    Raises:
        NotFound: there is no check of that id.
    """
    return _data(_examined(world, ids))


def mend(
    world: World, ids: tuple[str, ...], *, dry_run: bool, confirm: Confirm, wait_seconds: float, progress: Progress
) -> Outcome:
    """Examine, ask, mend, and examine again: what reconcile and restore-host mend, and the mode of vgpuctl's directory.

    Raises:
        NotFound: there is no check of that id.
        NeedsConfirmation: the answer is no, or nobody can be asked.
        VgpuctlError: as reconcile and restore-host.
    """
    if not dry_run:
        require_writable(world)
    found = _examined(world, ids)
    data = _data(found)
    verdicts = {check.id: finding.verdict for check, finding in found}
    own = _own_steps(world) if verdicts.get(RUN_DIRECTORY) is Verdict.FAIL else ()
    planned = [
        (work, work(world, dry_run=True, wait_seconds=wait_seconds, progress=progress))
        for work, checks in ((reconcile, (LEFTOVERS,)), (_restore, RESTORED))
        if any(verdicts.get(name) is Verdict.WARN for name in checks)
    ]
    steps = (*(step.describe() for step in own), *(step for _, plan in planned for step in plan.steps))
    warnings = tuple(warning for _, plan in planned for warning in plan.warnings)
    if dry_run or not steps:
        return Outcome(bool(steps), data, steps, warnings, () if steps else (NOTHING_TO_FIX,), dry_run=dry_run)
    confirm("Mend this?", steps)
    if own:
        carry_out(world, Plan(own), progress)
    for work, plan in planned:
        if plan.steps:
            work(world, dry_run=False, wait_seconds=wait_seconds, progress=progress)
    return Outcome(True, diagnose(world, ids), steps, warnings)


def _restore(world: World, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Make again what a boot or a turn of the VFs took away, as restore-host does; no GPU is waited for as at a boot.

    Raises:
        InvalidInput: host.yaml cannot be understood.
        VgpuctlError: as `restore_host`.
    """
    spec = read_host_spec(world) or HostSpec(VERSION)
    soon = replace(spec, boot=BootSpec(deadline_seconds=0))
    return restore_host(world, soon, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)


def _own_steps(world: World) -> tuple[MakePrivate, ...]:
    """Return what makes the run directory private; one that is somebody else's is for a person to look at."""
    seen = world.sysfs.permissions(RUN)
    return () if seen.owner else (MakePrivate(seen.mode),)


def _examined(world: World, ids: tuple[str, ...]) -> Examined:
    checks = chosen(ids)
    return tuple(zip(checks, judged(look_at(world, checks), checks), strict=True))


def _data(found: Examined) -> dict[str, object]:
    return {
        "verdict": worst(tuple(finding for _, finding in found)).value,
        "checks": [_row(check, finding) for check, finding in found],
    }


def explain_failure(world: World, code: str, lacking: str | None) -> list[Row]:
    """Return what the checks that may explain an error found wrong: id, verdict, evidence, fix.

    libvirt's VMs are only listed for an error that came after listing them: a domain that is busy would be waited for.
    """
    checks = tuple(c for c in explaining(code, lacking) if code == "no-capacity" or not c.vms)
    findings = zip(checks, judged(look_at(world, checks), checks), strict=True)
    return [
        {"id": c.id, "verdict": f.verdict.value, "evidence": list(f.evidence), "fix": f.fix}
        for c, f in findings
        if f.verdict in BAD
    ]


def judged(look: Look, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Let each check judge; one that stumbles over what it sees is unknown and stops no other."""
    return tuple(_judge(look, check) for check in checks)


def _judge(look: Look, check: Check) -> Finding:
    try:
        return check.judge(look)
    except Exception as error:  # noqa: BLE001 - a host may show anything, and the other checks must still be told
        return unknown(f"the check stumbled: {type(error).__name__}: {error}", fix="this is a bug in vgpuctl")


def _row(check: Check, finding: Finding) -> Row:
    return {
        "id": check.id,
        "title": check.title,
        "looks_at": check.looks_at.replace("`", ""),
        "verdict": finding.verdict.value,
        "evidence": list(finding.evidence),
        "fix": finding.fix,
        "explains": list(check.explains),
    }
