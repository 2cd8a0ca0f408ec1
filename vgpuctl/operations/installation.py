# SPDX-License-Identifier: Apache-2.0
"""Install and remove the systemd unit, libvirt's hook and the completion files.

A second run changes nothing. Files that were changed by hand or belong to somebody else are kept; a warning names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.results.host import InstalledResult, UninstalledResult
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_root
from vgpuctl.operations.plans import installation as texts
from vgpuctl.operations.plans.installation import InstalledFile
from vgpuctl.operations.steps.system_files import (
    CreateDirectory,
    CreateLink,
    RemoveDirectory,
    RemoveFile,
    RemoveLink,
    RunSystemctl,
    WriteFile,
    require_system,
)
from vgpuctl.ports.step import Plan, Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import System

AnyFiles = TypeVar("AnyFiles", bound=UninstalledResult)

RESTART_NOTE = (
    "libvirt loads a new hook only after a restart, which keeps VMs running: use --restart-libvirt, or "
    "systemctl restart"
)
PACKAGE_NOTE = "the boot unit and the completion files belong to the Debian package, which removes them itself"
AUTOSTART_NOTE = "virsh autostart NAME has libvirt start a VM at each boot, once its vGPUs exist"


def install_host(
    host: Host,
    *,
    python: str,
    completions: Mapping[str, str],
    restart_libvirt: bool,
    dry_run: bool,
    progress: Progress,
) -> Outcome[InstalledResult]:
    """Write each file that is missing or comes from another version.

    `python`: the interpreter that has vgpuctl installed. `completions`: the script of each shell. Where the Debian
    package has put its unit and completion files on the host, only the hook is written, and the files that another
    installation's install-host wrote are removed.

    Raises:
        HostCannot: libvirt is too old for a second hook and already has one.
        Refused: the Debian package is installed, and this is another installation.
        Failed: a file could not be written; files written before are removed or restored.
    """
    system = require_system(host)
    if not dry_run:
        require_root(host)  # a machine id is not needed: the image of a host, which is never booted, has none
    version = host.hypervisor.status().libvirt_version
    hook = texts.hook_file(python, version, system.read(texts.MAIN_HOOK_PATH))
    package_unit = system.read(texts.PACKAGE_UNIT_PATH)
    texts.refuse_beside_package(python, package_unit)
    is_package = texts.is_package(python) and package_unit is not None  # a simulated host has only what we write
    others = [] if is_package else [texts.unit_file(python), *_completion_files(system, completions)]
    files = [hook, *others]
    steps: list[Step] = []
    if not system.is_directory(texts.CONFIG_DIRECTORY):
        steps.append(CreateDirectory(texts.CONFIG_DIRECTORY))
    writes, kept_paths = _write_steps(system, files)
    steps += writes
    if is_package:
        removals, changed_paths = _hand_over_to_package(system)
        steps += removals
        kept_paths += changed_paths
    elif system.readlink(texts.UNIT_WANTS_LINK) is None and texts.UNIT_PATH not in kept_paths:
        steps.append(CreateLink(texts.UNIT_WANTS_LINK, texts.UNIT_PATH))
    if system.has_systemd and _changes_unit(steps):
        steps.append(RunSystemctl(("daemon-reload",)))
    steps += _restart_steps(system) if restart_libvirt else []
    is_new = any(s.path == hook.path and s.previous_text is None for s in writes)
    notes = _notes(system, is_new=is_new, restart_libvirt=restart_libvirt)
    paths = [f.path for f in files]
    return _execute_steps(host, steps, InstalledResult, paths, kept_paths, notes, progress, dry_run=dry_run)


def _notes(system: System, *, is_new: bool, restart_libvirt: bool) -> tuple[str, ...]:
    """Return what install-host adds for people; `is_new`: the host had no hook."""
    notes = [f"{RESTART_NOTE} {_active_daemon(system)}"] if is_new and not restart_libvirt else []
    if restart_libvirt and not system.has_systemd:
        notes.append("this host has no systemd, so libvirt was not restarted")
    if is_new:
        notes.append(AUTOSTART_NOTE)
    return tuple(notes)


def uninstall_host(
    host: Host, *, restart_libvirt: bool, dry_run: bool, progress: Progress
) -> Outcome[UninstalledResult]:
    """Remove the files of install-host; /etc/vgpuctl is removed only if it is empty. What the Debian package has stays.

    Raises:
        Failed: a file could not be removed; files removed before are restored.
    """
    system = require_system(host)
    if not dry_run:
        require_root(host)
    steps: list[Step] = []
    kept_paths: list[str] = []
    is_package = system.read(texts.PACKAGE_UNIT_PATH) is not None
    target = system.readlink(texts.UNIT_WANTS_LINK)
    hook_paths = (texts.HOOK_PATH, texts.MAIN_HOOK_PATH)
    for path in (*hook_paths, texts.UNIT_PATH, *_completion_paths()):
        text = system.read(path)
        if text is None:
            continue
        if texts.has_valid_checksum(text):
            steps.append(RemoveFile(path, text, 0o755 if path in hook_paths else 0o644))
        elif path != texts.MAIN_HOOK_PATH and not (is_package and path in _completion_paths()):
            kept_paths.append(path)
    if target == texts.UNIT_PATH and texts.UNIT_PATH not in kept_paths:
        steps.insert(0, RemoveLink(texts.UNIT_WANTS_LINK, target))
    if steps and system.has_systemd:
        steps.append(RunSystemctl(("daemon-reload",)))
    if system.is_directory(texts.CONFIG_DIRECTORY) and system.is_empty(texts.CONFIG_DIRECTORY):
        steps.append(RemoveDirectory(texts.CONFIG_DIRECTORY))
    steps += _restart_steps(system) if restart_libvirt else []
    files = [s.path for s in steps if isinstance(s, RemoveFile)]
    notes = (PACKAGE_NOTE,) if is_package and dry_run else ()
    return _execute_steps(host, steps, UninstalledResult, files, kept_paths, notes, progress, dry_run=dry_run)


def is_boot_unit_enabled(system: System) -> bool:
    """Say whether a boot starts the unit that restores the vGPUs: it exists, and multi-user.target wants it."""
    exists = any(system.read(path) is not None for path in (texts.UNIT_PATH, texts.PACKAGE_UNIT_PATH))
    return exists and system.readlink(texts.UNIT_WANTS_LINK) is not None


def _hand_over_to_package(system: System) -> tuple[list[Step], list[str]]:
    """Return the steps that remove what another installation's install-host wrote, and the paths that are kept.

    systemd would read a unit in /etc instead of the package's. A unit that was disabled stays disabled.
    """
    steps: list[Step] = []
    kept_paths: list[str] = []
    for path in (texts.UNIT_PATH, *_completion_paths()):
        text = system.read(path)
        if text is not None and texts.has_valid_checksum(text):
            steps.append(RemoveFile(path, text, 0o644))
        elif text is not None and path == texts.UNIT_PATH:
            kept_paths.append(path)
    if system.readlink(texts.UNIT_WANTS_LINK) == texts.UNIT_PATH and not kept_paths:
        steps.append(RemoveLink(texts.UNIT_WANTS_LINK, texts.UNIT_PATH))
        steps.append(CreateLink(texts.UNIT_WANTS_LINK, texts.PACKAGE_UNIT_PATH))
    return steps, kept_paths


def _changes_unit(steps: Sequence[Step]) -> bool:
    changes = (s for s in steps if isinstance(s, WriteFile | CreateLink | RemoveFile))
    return any(s.path in (texts.UNIT_PATH, texts.UNIT_WANTS_LINK) for s in changes)


def _completion_paths() -> list[str]:
    return [f"{d}/{n}" for entries in texts.COMPLETION_DIRECTORIES.values() for d, n in entries]


def _completion_files(system: System, scripts: Mapping[str, str]) -> list[InstalledFile]:
    """Return the completion file of each shell whose directory exists, as created by the distribution."""
    files = []
    for shell, script in scripts.items():
        places = texts.COMPLETION_DIRECTORIES[shell]
        place = next(((d, n) for d, n in places if system.is_directory(d)), None)
        if place is not None:
            files.append(texts.completion_file(shell, *place, script))
    return files


def _write_steps(system: System, files: Sequence[InstalledFile]) -> tuple[list[WriteFile], list[str]]:
    """Return the files to write, and the paths that are kept because somebody else wrote them."""
    steps: list[WriteFile] = []
    kept_paths: list[str] = []
    for file in files:
        previous_text = system.read(file.path)
        if previous_text == file.text:
            continue
        if previous_text is not None and not texts.has_valid_checksum(previous_text):
            kept_paths.append(file.path)
        else:
            steps.append(WriteFile(file.path, file.text, file.mode, previous_text))
    return steps, kept_paths


def _active_daemon(system: System) -> str:
    return next((unit for unit in texts.DAEMONS if system.is_active(unit)), texts.DAEMONS[0])


def _restart_steps(system: System) -> list[Step]:
    if not system.has_systemd:
        return []
    return [RunSystemctl(("restart", unit)) for unit in texts.DAEMONS if system.is_active(unit)]


def _execute_steps(
    host: Host,
    steps: Sequence[Step],
    kind: type[AnyFiles],
    files: Sequence[str],
    kept_paths: Sequence[str],
    notes: tuple[str, ...],
    progress: Progress,
    *,
    dry_run: bool,
) -> Outcome[AnyFiles]:
    warnings = tuple(f"{path} was changed by hand or does not belong to vgpuctl: it is kept" for path in kept_paths)
    lines = tuple(step.describe() for step in steps)
    if steps and not dry_run:
        execute_plan(host, Plan(steps=tuple(steps)), progress)
    data = kind(tuple(sorted(set(files) - set(kept_paths))), tuple(sorted(kept_paths)))
    return Outcome(bool(steps), data, lines, warnings, notes, dry_run=dry_run)
