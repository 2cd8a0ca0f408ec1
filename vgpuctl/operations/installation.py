# SPDX-License-Identifier: Apache-2.0
"""Install and remove the boot unit, libvirt's hook, the completion files and, where asked for, agent and controller.

A second run changes nothing. Files that were changed by hand or belong to somebody else are kept; a warning names them.
Each file is replaced atomically, one after the other. Nothing is undone: a run that failed says what it did, and the
next one does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.host import InstalledResult, UninstalledResult
from vgpuctl.operations import service_installation
from vgpuctl.operations.guards import require_root
from vgpuctl.operations.installation_actions import Action, carry_out, link_unit, remove, systemctl, write_files
from vgpuctl.operations.plans import installation as texts
from vgpuctl.operations.plans.installation import InstalledFile
from vgpuctl.operations.service_installation import InstalledService
from vgpuctl.value import EMPTY_MAPPING

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import System

RESTART_NOTE = (
    "libvirt loads a new hook only after a restart, which keeps VMs running: use --restart-libvirt, or "
    "systemctl restart"
)
PACKAGE_NOTE = "the boot unit and the completion files belong to the Debian package, which removes them itself"
AUTOSTART_NOTE = "virsh autostart NAME has libvirt start a VM at each boot, once its vGPUs exist"
_UNIT_PATHS = frozenset({texts.UNIT_PATH, texts.UNIT_WANTS_LINK, *service_installation.UNIT_PATHS})
"""systemd reads its units again after a change of one of these."""


def install_host(
    host: Host,
    context: Context,
    *,
    python: str,
    completions: Mapping[str, str],
    restart_libvirt: bool,
    services: Sequence[InstalledService] = (),
    missing_libraries: Mapping[str, Sequence[str]] = EMPTY_MAPPING,
) -> Outcome[InstalledResult]:
    """Write each file that is missing or comes from another version.

    `python`: the interpreter that has vgpuctl installed. `completions`: the script of each shell. Where the Debian
    package has put its unit and completion files on the host, only the hook is written, and the files that another
    installation's install-host wrote are removed. `services`: also install, enable and start these;
    `missing_libraries`: those of each extra that the interpreter lacks.

    Raises:
        HostCannot: libvirt is too old for a second hook and already has one; or a service's libraries are missing.
        Refused: the Debian package is installed, and this is another installation.
        Failed: the first file could not be written.
        PartlyApplied: a later one could not be written; those before it stay, and the error names them.
    """
    system = _require_system(host)
    if not context.dry_run:
        require_root(host)  # a machine id is not needed: the image of a host, which is never booted, has none
    for service in services:
        missing = missing_libraries.get(service.extra, ())
        service_installation.refuse_without_libraries(service, python, missing)
    version = host.hypervisor.status().libvirt_version
    hook = texts.hook_file(python, version, system.read(texts.MAIN_HOOK_PATH))
    package_unit = system.read(texts.PACKAGE_UNIT_PATH)
    texts.refuse_beside_package(python, package_unit)
    is_package = texts.is_package(python) and package_unit is not None  # a simulated host has only what we write
    others = [] if is_package else [texts.unit_file(python), *_completion_files(system, completions)]
    writes, kept_paths = write_files(system, [hook, *others])
    unit_changes, changed_paths = _hand_over_to_package(system) if is_package else _enable_boot_unit(system, kept_paths)
    changes = service_installation.plan_installations(system, services, python, is_package=is_package)
    actions = [*_create_config_directory(system), *writes, *unit_changes, *changes.actions]
    if system.has_systemd and any(action.path in _UNIT_PATHS for action in actions):
        actions.append(systemctl(system, "daemon-reload"))
    actions += [*changes.services, *(_restarts(system) if restart_libvirt else [])]
    notes = _notes(system, is_new=system.read(hook.path) is None, restart_libvirt=restart_libvirt)
    paths = [*(file.path for file in (hook, *others)), *changes.files]
    kept_paths += [*changed_paths, *changes.kept_paths]
    return carry_out(context, actions, InstalledResult, paths, kept_paths, notes)


def _create_config_directory(system: System) -> list[Action]:
    path = texts.CONFIG_DIRECTORY
    make = partial(system.make_directory, path)
    return [] if system.is_directory(path) else [Action(f"create {path}", path, "created", make)]


def _notes(system: System, *, is_new: bool, restart_libvirt: bool) -> tuple[str, ...]:
    """Return what install-host adds for people; `is_new`: the host had no hook."""
    notes = [f"{RESTART_NOTE} {_active_daemon(system)}"] if is_new and not restart_libvirt else []
    if restart_libvirt and not system.has_systemd:
        notes.append("this host has no systemd, so libvirt was not restarted")
    if is_new:
        notes.append(AUTOSTART_NOTE)
    return tuple(notes)


def uninstall_host(host: Host, context: Context, *, restart_libvirt: bool) -> Outcome[UninstalledResult]:
    """Remove the files of install-host, and stop its services; /etc/vgpuctl is removed only if it is empty.

    What the Debian package has stays; the services are disabled.

    Raises:
        Failed, PartlyApplied: a file could not be removed; the error names those that were removed before.
    """
    system = _require_system(host)
    if not context.dry_run:
        require_root(host)
    actions: list[Action] = []
    removed_paths: list[str] = []
    kept_paths: list[str] = []
    is_package = system.read(texts.PACKAGE_UNIT_PATH) is not None
    target = system.readlink(texts.UNIT_WANTS_LINK)
    for path in (texts.HOOK_PATH, texts.MAIN_HOOK_PATH, texts.UNIT_PATH, *_completion_paths()):
        text = system.read(path)
        if text is None:
            continue
        if texts.has_valid_checksum(text):
            actions.append(remove(system, path))
            removed_paths.append(path)
        elif path != texts.MAIN_HOOK_PATH and not (is_package and path in _completion_paths()):
            kept_paths.append(path)
    if target == texts.UNIT_PATH and texts.UNIT_PATH not in kept_paths:
        actions.insert(0, remove(system, texts.UNIT_WANTS_LINK, f"remove the link {texts.UNIT_WANTS_LINK}"))
    changes = service_installation.plan_removals(system)
    actions = [*changes.actions, *actions]
    removed_paths += changes.files
    kept_paths += changes.kept_paths
    if actions and system.has_systemd:
        actions.append(systemctl(system, "daemon-reload"))
    if system.is_directory(texts.CONFIG_DIRECTORY) and system.is_empty(texts.CONFIG_DIRECTORY):
        line = f"remove {texts.CONFIG_DIRECTORY}, which is empty"
        remove_directory = partial(system.remove_directory, texts.CONFIG_DIRECTORY)
        actions.append(Action(line, texts.CONFIG_DIRECTORY, "removed", remove_directory))
    actions += _restarts(system) if restart_libvirt else []
    notes = (PACKAGE_NOTE,) if is_package and context.dry_run else ()
    return carry_out(context, actions, UninstalledResult, removed_paths, kept_paths, notes)


def is_boot_unit_enabled(system: System) -> bool:
    """Say whether a boot starts the unit that restores the vGPUs: it exists, and multi-user.target wants it."""
    exists = any(system.read(path) is not None for path in (texts.UNIT_PATH, texts.PACKAGE_UNIT_PATH))
    return exists and system.readlink(texts.UNIT_WANTS_LINK) is not None


def _enable_boot_unit(system: System, kept_paths: Sequence[str]) -> tuple[list[Action], list[str]]:
    """Return the link that enables the boot unit unless it is there, and no further path that is kept."""
    is_enabled = system.readlink(texts.UNIT_WANTS_LINK) is not None
    if is_enabled or texts.UNIT_PATH in kept_paths:
        return [], []
    return [link_unit(system, texts.UNIT_WANTS_LINK, texts.UNIT_PATH)], []


def _hand_over_to_package(system: System) -> tuple[list[Action], list[str]]:
    """Return the removals of what another installation's install-host wrote, and the paths that are kept.

    systemd would read a unit in /etc instead of the package's. A unit that was disabled stays disabled.
    """
    actions: list[Action] = []
    kept_paths: list[str] = []
    for path in (texts.UNIT_PATH, *_completion_paths()):
        text = system.read(path)
        if text is not None and texts.has_valid_checksum(text):
            actions.append(remove(system, path))
        elif text is not None and path == texts.UNIT_PATH:
            kept_paths.append(path)
    if system.readlink(texts.UNIT_WANTS_LINK) == texts.UNIT_PATH and not kept_paths:
        actions.append(link_unit(system, texts.UNIT_WANTS_LINK, texts.PACKAGE_UNIT_PATH, replace=True))
    return actions, kept_paths


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


def _active_daemon(system: System) -> str:
    return next((unit for unit in texts.DAEMONS if system.is_active(unit)), texts.DAEMONS[0])


def _restarts(system: System) -> list[Action]:
    if not system.has_systemd:
        return []
    return [systemctl(system, "restart", unit) for unit in texts.DAEMONS if system.is_active(unit)]


def _require_system(host: Host) -> System:
    """Return the host's configuration files.

    Raises:
        HostCannot: this host is read-only for vgpuctl (--root).
    """
    if host.system is None:
        raise HostCannot(f"nothing can be installed on {host.name}", hint="omit --root", check="system")
    return host.system
