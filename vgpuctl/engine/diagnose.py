# SPDX-License-Identifier: Apache-2.0
"""Examine a host: gather what the chosen checks look at, let them judge, and mend what is safe to mend.

Everything is read through the seams and nothing raises because it could not be read: a check that cannot see is
`unknown`, with the reason. Each file is read once, however many checks look at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.doctor.catalogue import chosen, explaining, worst
from vgpuctl.doctor.check import Check, Finding, Folder, Leftover, Look, Needs, Text, Verdict, unknown
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.engine.reconcile import find, reconcile
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.records import FilePermissions, HypervisorCapabilities
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.steps.run_directory import RUN, MakePrivate

if TYPE_CHECKING:
    from vgpuctl.model.world import World

Row = dict[str, object]
Examined = tuple[tuple[Check, Finding], ...]
LEFTOVERS, RUN_DIRECTORY = "leftovers", "run-directory"
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
    """Examine, ask, mend, and examine again: reconcile's work, and the mode of vgpuctl's own directory.

    Raises:
        NotFound: there is no check of that id.
        NeedsConfirmation: the answer is no, or nobody can be asked.
        VgpuctlError: as reconcile.
    """
    if not dry_run:
        require_writable(world)
    found = _examined(world, ids)
    data = _data(found)
    verdicts = {check.id: finding.verdict for check, finding in found}
    own = _own_steps(world) if verdicts.get(RUN_DIRECTORY) is Verdict.FAIL else ()
    steps: tuple[str, ...] = tuple(step.describe() for step in own)
    warnings: tuple[str, ...] = ()
    if verdicts.get(LEFTOVERS) is Verdict.WARN:
        planned = reconcile(world, dry_run=True, wait_seconds=wait_seconds, progress=progress)
        steps, warnings = (*steps, *planned.steps), planned.warnings
    if dry_run or not steps:
        return Outcome(bool(steps), data, steps, warnings, () if steps else (NOTHING_TO_FIX,), dry_run=dry_run)
    confirm("Mend this?", steps)
    if own:
        carry_out(world, Plan(own), progress)
    if len(steps) > len(own):
        reconcile(world, dry_run=False, wait_seconds=wait_seconds, progress=progress)
    return Outcome(True, diagnose(world, ids), steps, warnings)


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


def look_at(world: World, checks: tuple[Check, ...]) -> Look:
    """Gather what these checks look at."""
    snapshot, problem = _snapshot(world, checks)
    needs = [c.needs for c in checks]
    if snapshot is not None:
        needs += [c.needs_of(snapshot) for c in checks if c.needs_of is not None]
    leftovers, leftovers_problem = _find(world, snapshot, problem, checks)
    capabilities, capabilities_problem = _capabilities(world, snapshot, problem, checks)
    configs = {path: _folder(world, path) for path in dict.fromkeys(p for n in needs for p in n.configs)}
    conf = [f"{at}/{name}" for at, found in configs.items() for name in found.names or () if name.endswith(".conf")]
    return Look(
        snapshot=snapshot,
        problem=problem,
        files={path: _text(world, path) for path in dict.fromkeys([*(p for n in needs for p in n.files), *conf])},
        folders={**{path: _folder(world, path) for n in needs for path in n.folders}, **configs},
        permissions=_permissions(world, needs),
        leftovers=leftovers,
        leftovers_problem=leftovers_problem,
        capabilities=capabilities,
        capabilities_problem=capabilities_problem,
        closed=_closed(world),
    )


def _snapshot(world: World, checks: tuple[Check, ...]) -> tuple[Snapshot | None, str]:
    want = Want(types=any(c.types for c in checks), every_function=False)
    try:
        if any(c.vms for c in checks):
            return observe(world, want), ""
        return observe_devices(world, want, vms=(), status=world.hypervisor.status()), ""
    except (VgpuctlError, OSError) as error:
        return None, f"the host cannot be looked at: {error}"


def _find(
    world: World, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[tuple[Leftover, ...] | None, str]:
    """Ask reconcile what it would do; without this host's own VMs everything would look left behind."""
    if snapshot is None or not any(c.leftovers for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        require_system(snapshot)
        return tuple(Leftover(f.kind, f.what, f.action) for f in find(world, snapshot)), ""
    except (VgpuctlError, OSError) as error:
        return None, str(error)


def _capabilities(
    world: World, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[HypervisorCapabilities | None, str]:
    if snapshot is None or not any(c.capabilities for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        return world.hypervisor.capabilities(), ""
    except VgpuctlError as error:
        return None, str(error)


def _closed(world: World) -> str | None:
    """Return why the claims cannot be read, as without root."""
    try:
        world.claims.read(frozenset())
        world.claims.stuck()
    except OSError as error:
        return f"{error.filename or '/run/vgpuctl'}: {error.strerror or error}"
    return None


def _text(world: World, path: str) -> Text:
    try:
        return Text(world.sysfs.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return Text()
    except OSError as error:
        return Text(problem=f"{path}: {error.strerror or error}")


def _folder(world: World, path: str) -> Folder:
    try:
        return Folder(world.sysfs.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return Folder()
    except OSError as error:
        return Folder(problem=f"{path}: {error.strerror or error}")


def _permissions(world: World, needs: list[Needs]) -> dict[str, FilePermissions]:
    found: dict[str, FilePermissions] = {}
    for path in dict.fromkeys(p for n in needs for p in n.permissions):
        try:
            found[path] = world.sysfs.permissions(path)
        except OSError:
            continue
    return found


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
