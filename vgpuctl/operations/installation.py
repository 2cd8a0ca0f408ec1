# SPDX-License-Identifier: Apache-2.0
"""Install and remove the systemd unit, libvirt's hook and the completion files.

A second run changes nothing. Files that were changed by hand or belong to somebody else are kept; a warning names them.
Each file is replaced atomically, one after the other. Nothing is undone: a run that failed says what it did, and the
next one does the rest.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import FileFailed, HostCannot, Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.outcome import Context, Outcome, Progress
from vgpuctl.model.results.host import InstalledResult, UninstalledResult
from vgpuctl.operations.execute import as_vgpuctl_error
from vgpuctl.operations.guards import require_root
from vgpuctl.operations.plans import installation as texts
from vgpuctl.operations.plans.installation import InstalledFile
from vgpuctl.value import Value

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
_MOUNTED_READ_ONLY = (
    "a host whose /etc is read-only gets these files from its image; otherwise mount it writable: findmnt /etc"
)
AGAIN_HINT = "run the command again: it does the rest"


class Action(Value):
    """One change that is made: its line for people, the path, and what an error says that the path cannot be."""

    line: str
    path: str
    verb: str
    perform: Callable[[], object]


def install_host(
    host: Host, context: Context, *, python: str, completions: Mapping[str, str], restart_libvirt: bool
) -> Outcome[InstalledResult]:
    """Write each file that is missing or comes from another version.

    `python`: the interpreter that has vgpuctl installed. `completions`: the script of each shell. Where the Debian
    package has put its unit and completion files on the host, only the hook is written, and the files that another
    installation's install-host wrote are removed.

    Raises:
        HostCannot: libvirt is too old for a second hook and already has one.
        Refused: the Debian package is installed, and this is another installation.
        Failed: the first file could not be written.
        PartlyApplied: a later one could not be written; those before it stay, and the error names them.
    """
    system = _require_system(host)
    if not context.dry_run:
        require_root(host)  # a machine id is not needed: the image of a host, which is never booted, has none
    version = host.hypervisor.status().libvirt_version
    hook = texts.hook_file(python, version, system.read(texts.MAIN_HOOK_PATH))
    package_unit = system.read(texts.PACKAGE_UNIT_PATH)
    texts.refuse_beside_package(python, package_unit)
    is_package = texts.is_package(python) and package_unit is not None  # a simulated host has only what we write
    others = [] if is_package else [texts.unit_file(python), *_completion_files(system, completions)]
    files = [hook, *others]
    actions: list[Action] = []
    if not system.is_directory(texts.CONFIG_DIRECTORY):
        make = partial(system.make_directory, texts.CONFIG_DIRECTORY)
        actions.append(Action(f"create {texts.CONFIG_DIRECTORY}", texts.CONFIG_DIRECTORY, "created", make))
    writes, kept_paths = _write_files(system, files)
    actions += writes
    if is_package:
        hand_over, changed_paths = _hand_over_to_package(system)
        actions += hand_over
        kept_paths += changed_paths
    elif system.readlink(texts.UNIT_WANTS_LINK) is None and texts.UNIT_PATH not in kept_paths:
        actions.append(_link_unit(system, texts.UNIT_PATH))
    if system.has_systemd and any(a.path in (texts.UNIT_PATH, texts.UNIT_WANTS_LINK) for a in actions):
        actions.append(_systemctl(system, "daemon-reload"))
    actions += _restarts(system) if restart_libvirt else []
    notes = _notes(system, is_new=system.read(hook.path) is None, restart_libvirt=restart_libvirt)
    paths = [f.path for f in files]
    return _carry_out(context, actions, InstalledResult, paths, kept_paths, notes)


def _notes(system: System, *, is_new: bool, restart_libvirt: bool) -> tuple[str, ...]:
    """Return what install-host adds for people; `is_new`: the host had no hook."""
    notes = [f"{RESTART_NOTE} {_active_daemon(system)}"] if is_new and not restart_libvirt else []
    if restart_libvirt and not system.has_systemd:
        notes.append("this host has no systemd, so libvirt was not restarted")
    if is_new:
        notes.append(AUTOSTART_NOTE)
    return tuple(notes)


def uninstall_host(host: Host, context: Context, *, restart_libvirt: bool) -> Outcome[UninstalledResult]:
    """Remove the files of install-host; /etc/vgpuctl is removed only if it is empty. What the Debian package has stays.

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
            actions.append(_remove(system, path))
            removed_paths.append(path)
        elif path != texts.MAIN_HOOK_PATH and not (is_package and path in _completion_paths()):
            kept_paths.append(path)
    if target == texts.UNIT_PATH and texts.UNIT_PATH not in kept_paths:
        actions.insert(0, _remove(system, texts.UNIT_WANTS_LINK, f"remove the link {texts.UNIT_WANTS_LINK}"))
    if actions and system.has_systemd:
        actions.append(_systemctl(system, "daemon-reload"))
    if system.is_directory(texts.CONFIG_DIRECTORY) and system.is_empty(texts.CONFIG_DIRECTORY):
        line = f"remove {texts.CONFIG_DIRECTORY}, which is empty"
        remove = partial(system.remove_directory, texts.CONFIG_DIRECTORY)
        actions.append(Action(line, texts.CONFIG_DIRECTORY, "removed", remove))
    actions += _restarts(system) if restart_libvirt else []
    notes = (PACKAGE_NOTE,) if is_package and context.dry_run else ()
    return _carry_out(context, actions, UninstalledResult, removed_paths, kept_paths, notes)


def is_boot_unit_enabled(system: System) -> bool:
    """Say whether a boot starts the unit that restores the vGPUs: it exists, and multi-user.target wants it."""
    exists = any(system.read(path) is not None for path in (texts.UNIT_PATH, texts.PACKAGE_UNIT_PATH))
    return exists and system.readlink(texts.UNIT_WANTS_LINK) is not None


def _hand_over_to_package(system: System) -> tuple[list[Action], list[str]]:
    """Return the removals of what another installation's install-host wrote, and the paths that are kept.

    systemd would read a unit in /etc instead of the package's. A unit that was disabled stays disabled.
    """
    actions: list[Action] = []
    kept_paths: list[str] = []
    for path in (texts.UNIT_PATH, *_completion_paths()):
        text = system.read(path)
        if text is not None and texts.has_valid_checksum(text):
            actions.append(_remove(system, path))
        elif text is not None and path == texts.UNIT_PATH:
            kept_paths.append(path)
    if system.readlink(texts.UNIT_WANTS_LINK) == texts.UNIT_PATH and not kept_paths:
        actions.append(_link_unit(system, texts.PACKAGE_UNIT_PATH, replace=True))
    return actions, kept_paths


def _remove(system: System, path: str, line: str | None = None) -> Action:
    return Action(line or f"remove {path}", path, "removed", partial(system.remove, path))


def _link_unit(system: System, target: str, *, replace: bool = False) -> Action:
    """Return what `systemctl enable` does. The same link from a concurrent install-host is no error."""
    path = texts.UNIT_WANTS_LINK

    def perform() -> None:
        try:
            system.link(path, target, replace=replace)
        except FileExistsError:
            if system.readlink(path) != target:
                raise

    return Action(f"link {path} to {target}", path, "created", perform)


def _systemctl(system: System, *words: str) -> Action:
    command = f"systemctl {' '.join(words)}"
    return Action(f"run {command}", command, "run", partial(system.systemctl, *words))


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


def _write_files(system: System, files: Sequence[InstalledFile]) -> tuple[list[Action], list[str]]:
    """Return what writes the files, and the paths that are kept because somebody else wrote them."""
    actions: list[Action] = []
    kept_paths: list[str] = []
    for file in files:
        previous_text = system.read(file.path)
        if previous_text == file.text:
            continue
        if previous_text is not None and not texts.has_valid_checksum(previous_text):
            kept_paths.append(file.path)
        else:
            line = f"{'write' if previous_text is None else 'replace'} {file.path}"
            write = partial(system.put, file.path, file.text, file.mode)
            actions.append(Action(line, file.path, "written", write))
    return actions, kept_paths


def _active_daemon(system: System) -> str:
    return next((unit for unit in texts.DAEMONS if system.is_active(unit)), texts.DAEMONS[0])


def _restarts(system: System) -> list[Action]:
    if not system.has_systemd:
        return []
    return [_systemctl(system, "restart", unit) for unit in texts.DAEMONS if system.is_active(unit)]


def _carry_out(
    context: Context,
    actions: Sequence[Action],
    kind: type[AnyFiles],
    files: Sequence[str],
    kept_paths: Sequence[str],
    notes: tuple[str, ...],
) -> Outcome[AnyFiles]:
    warnings = tuple(f"{path} was changed by hand or does not belong to vgpuctl: it is kept" for path in kept_paths)
    lines = tuple(action.line for action in actions)
    if actions and not context.dry_run:
        _perform(actions, context.progress)
    data = kind(tuple(sorted(set(files) - set(kept_paths))), tuple(sorted(kept_paths)))
    return Outcome(bool(actions), data, lines, warnings, notes, dry_run=context.dry_run)


def _perform(actions: Sequence[Action], progress: Progress) -> None:
    """Make each change, one after the other.

    Raises:
        VgpuctlError: the first one failed; PartlyApplied, Interrupted: some were made before.
    """
    lines = tuple(action.line for action in actions)
    started = finished = 0
    try:
        progress.on_plan(lines)
        for started, action in enumerate(actions, start=1):
            progress.on_step_start(started, action.line)
            try:
                action.perform()
            except OSError as error:
                raise _file_error(action.path, action.verb, error) from error
            finished = started
            progress.on_step_finish(started, action.line)
    except BaseException as error:
        failure = as_vgpuctl_error(error)
        if finished or (started and isinstance(failure, Interrupted)):
            failure = _partly_done(failure, lines[:finished], lines[finished:])
        if failure is error:
            raise
        raise failure from error


def _partly_done(failure: VgpuctlError, done: Sequence[str], left: Sequence[str]) -> VgpuctlError:
    """Return the error that names what was done and what is left; an interruption stays one."""
    if not isinstance(failure, Interrupted):
        failure = PartlyApplied(failure.message, hint=failure.hint, **{**failure.facts, "cause": failure.code})
    failure.hint = "; then ".join(filter(None, (failure.hint, AGAIN_HINT)))
    failure.facts["lines"] = [f"done: {line}" for line in done]
    failure.left = list(left)
    return failure


def _require_system(host: Host) -> System:
    """Return the host's configuration files.

    Raises:
        HostCannot: this host is read-only for vgpuctl (--root).
    """
    if host.system is None:
        raise HostCannot(f"nothing can be installed on {host.name}", hint="omit --root", check="system")
    return host.system


def _error_hint(path: str, number: int | None) -> str:
    """Return a remedy: more room, root permissions, or `ls` of the path, for example if the directory is not one."""
    directory = path.rpartition("/")[0]
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"df {directory}; free space there"
    if number == errno.EROFS:
        return _MOUNTED_READ_ONLY
    list_command = f"ls -ld {directory} {path}"
    return f"run this as root; {list_command}" if number in (errno.EACCES, errno.EPERM) else list_command


def _file_error(path: str, what: str, error: OSError) -> FileFailed:
    """Return the error of a file that cannot be `what`: written, created or removed."""
    return FileFailed(
        f"{path} cannot be {what}: {error.strerror or error}",
        hint=_error_hint(path, error.errno),
        path=path,
        errno=error.errno,
    )
