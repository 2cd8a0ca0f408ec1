# SPDX-License-Identifier: Apache-2.0
"""Put the unit, libvirt's hook and the completion files in place, and take them away again.

A second run changes nothing. What was changed by hand, or is somebody else's, is kept and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.run import carry_out
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.step import Plan, Step
from vgpuctl.plan import installation as texts
from vgpuctl.plan.installation import InstalledFile
from vgpuctl.steps.system import (
    DropDirectory,
    DropFile,
    DropLink,
    PutDirectory,
    PutFile,
    PutLink,
    Systemctl,
    system_of,
)

if TYPE_CHECKING:
    from vgpuctl.model.system import System
    from vgpuctl.model.world import World

RESTART = "libvirt sees a new hook only after a restart; running VMs stay: --restart-libvirt, or systemctl restart"


def install_host(
    world: World,
    *,
    python: str,
    completions: Mapping[str, str],
    restart_libvirt: bool,
    dry_run: bool,
    progress: Progress,
) -> Outcome:
    """Put everything in place that is missing or of another version.

    `python` is the interpreter that has vgpuctl; `completions` each shell's script.

    Raises:
        HostCannot: libvirt is too old for a second hook and has one.
        Failed: a file could not be written; those written before are taken back.
    """
    if not dry_run:
        require_writable(world)
    system = system_of(world)
    version = world.hypervisor.status().libvirt_version
    hook = texts.hook_file(python, version, system.read(texts.MAIN_HOOK))
    files = [texts.unit_file(python), hook, *_completions(system, completions)]
    steps: list[Step] = []
    if not system.is_directory(texts.CONFIG):
        steps.append(PutDirectory(texts.CONFIG))
    puts, kept = _puts(system, files)
    steps += puts
    if system.readlink(texts.WANTED) is None and texts.UNIT not in kept:
        steps.append(PutLink(texts.WANTED, texts.UNIT))
    if system.has_services and any(
        s.path in (texts.UNIT, texts.WANTED) for s in steps if isinstance(s, PutFile | PutLink)
    ):
        steps.append(Systemctl(("daemon-reload",)))
    steps += _restart(system) if restart_libvirt else []
    notes = []
    if not restart_libvirt and any(s.path == hook.path and s.was is None for s in puts):
        notes.append(f"{RESTART} {_daemon(system)}")
    if restart_libvirt and not system.has_services:
        notes.append("there is no systemd here, so libvirt was not restarted")
    return _carry_out(world, steps, kept, [f.path for f in files], tuple(notes), progress, dry_run=dry_run)


def uninstall_host(world: World, *, restart_libvirt: bool, dry_run: bool, progress: Progress) -> Outcome:
    """Take away what install-host put there; /etc/vgpuctl goes only when it is empty.

    Raises:
        Failed: a file could not be removed; those removed before are put back.
    """
    if not dry_run:
        require_writable(world)
    system = system_of(world)
    places = [f"{d}/{n}" for entries in texts.COMPLETION_DIRECTORIES.values() for d, n in entries]
    steps: list[Step] = []
    kept: list[str] = []
    target = system.readlink(texts.WANTED)
    hooks = (texts.HOOK, texts.MAIN_HOOK)
    for path in (*hooks, texts.UNIT, *places):
        text = system.read(path)
        if text is None:
            continue
        if texts.is_ours(text):
            steps.append(DropFile(path, text, 0o755 if path in hooks else 0o644))
        elif path != texts.MAIN_HOOK:
            kept.append(path)
    if target is not None and texts.UNIT not in kept:
        steps.insert(0, DropLink(texts.WANTED, target))
    if steps and system.has_services:
        steps.append(Systemctl(("daemon-reload",)))
    if system.is_directory(texts.CONFIG) and system.is_empty(texts.CONFIG):
        steps.append(DropDirectory(texts.CONFIG))
    steps += _restart(system) if restart_libvirt else []
    files = [s.path for s in steps if isinstance(s, DropFile)]
    return _carry_out(world, steps, kept, files, (), progress, dry_run=dry_run)


def _completions(system: System, scripts: Mapping[str, str]) -> list[InstalledFile]:
    """Return the completion file of each shell whose directory the distribution has made."""
    found = []
    for shell, script in scripts.items():
        places = texts.COMPLETION_DIRECTORIES[shell]
        place = next(((d, n) for d, n in places if system.is_directory(d)), None)
        if place is not None:
            found.append(texts.completion_file(shell, *place, script))
    return found


def _puts(system: System, files: Sequence[InstalledFile]) -> tuple[list[PutFile], list[str]]:
    """Return what must be written, and the paths that are kept because somebody else wrote them."""
    steps: list[PutFile] = []
    kept: list[str] = []
    for file in files:
        was = system.read(file.path)
        if was == file.text:
            continue
        if was is not None and not texts.is_ours(was):
            kept.append(file.path)
        else:
            steps.append(PutFile(file.path, file.text, file.mode, was))
    return steps, kept


def _daemon(system: System) -> str:
    return next((unit for unit in texts.DAEMONS if system.active(unit)), texts.DAEMONS[0])


def _restart(system: System) -> list[Step]:
    if not system.has_services:
        return []
    return [Systemctl(("restart", unit)) for unit in texts.DAEMONS if system.active(unit)]


def _carry_out(
    world: World,
    steps: Sequence[Step],
    kept: Sequence[str],
    files: Sequence[str],
    notes: tuple[str, ...],
    progress: Progress,
    *,
    dry_run: bool,
) -> Outcome:
    warnings = tuple(f"{path} was changed by hand or is not vgpuctl's: it is kept" for path in kept)
    lines = tuple(step.describe() for step in steps)
    data: dict[str, object] = {"files": sorted(set(files) - set(kept)), "kept": sorted(kept)}
    if steps and not dry_run:
        carry_out(world, Plan(steps=tuple(steps)), progress)
    return Outcome(bool(steps), data, lines, warnings, notes, dry_run=dry_run)
