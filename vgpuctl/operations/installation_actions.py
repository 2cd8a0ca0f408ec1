# SPDX-License-Identifier: Apache-2.0
"""The changes that install-host and uninstall-host make, one after the other: files, links, systemctl.

A file is replaced or removed only if its checksum is right (`plans.installation`). Nothing is undone: an error says
what was done and what is left.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import FileFailed, Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.outcome import Context, Outcome, Progress
from vgpuctl.model.results.host import UninstalledResult
from vgpuctl.operations.execute import as_vgpuctl_error
from vgpuctl.operations.plans.installation import InstalledFile, has_valid_checksum
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.system import System

AnyFiles = TypeVar("AnyFiles", bound=UninstalledResult)

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


def remove(system: System, path: str, line: str | None = None) -> Action:
    """Return the removal of a file or link."""
    return Action(line or f"remove {path}", path, "removed", partial(system.remove, path))


def link_unit(system: System, path: str, target: str, *, replace: bool = False) -> Action:
    """Return what `systemctl enable` does. The same link from a concurrent install-host is no error."""

    def perform() -> None:
        try:
            system.link(path, target, replace=replace)
        except FileExistsError:
            if system.readlink(path) != target:
                raise

    return Action(f"link {path} to {target}", path, "created", perform)


def systemctl(system: System, *words: str, deadline_seconds: float = 90.0) -> Action:
    """Return a call of systemctl, and how long it may take."""
    command = f"systemctl {' '.join(words)}"
    return Action(
        f"run {command}", command, "run", partial(system.systemctl, *words, deadline_seconds=deadline_seconds)
    )


def write_files(system: System, files: Sequence[InstalledFile]) -> tuple[list[Action], list[str]]:
    """Return what writes the files, and the paths that are kept because somebody else wrote them."""
    actions: list[Action] = []
    kept_paths: list[str] = []
    for file in files:
        previous_text = system.read(file.path)
        if previous_text == file.text:
            continue
        if previous_text is not None and not has_valid_checksum(previous_text):
            kept_paths.append(file.path)
        else:
            line = f"{'write' if previous_text is None else 'replace'} {file.path}"
            write = partial(system.put, file.path, file.text, file.mode)
            actions.append(Action(line, file.path, "written", write))
    return actions, kept_paths


def carry_out(
    context: Context,
    actions: Sequence[Action],
    kind: type[AnyFiles],
    files: Sequence[str],
    kept_paths: Sequence[str],
    notes: tuple[str, ...],
) -> Outcome[AnyFiles]:
    """Make the changes, unless it is a dry run, and report them; `files` without `kept_paths` are the result's.

    Raises:
        VgpuctlError, PartlyApplied, Interrupted: as `_perform`.
    """
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
