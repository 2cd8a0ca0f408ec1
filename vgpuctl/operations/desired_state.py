# SPDX-License-Identifier: Apache-2.0
"""The desired host.yaml: the host's own or another file, with the changes given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.host_assignments import apply_changes, parse_assignment, resolve_assignments
from vgpuctl.config.host_editor import edit_gpu
from vgpuctl.config.host_spec import FORMAT_VERSION, HostSpec, parse_host_spec
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.observe.host_file import HOST_FILE_PATH, read_host_spec, read_host_yaml
from vgpuctl.operations.steps.host_file import ReplaceHostFile, SetGpuKeys
from vgpuctl.ports.step import Step
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class DesiredState(Value):
    """The desired state, what host.yaml says now, the steps that write the desired state to it, and its source.

    `file`: the text that was read for it, before changes from the command line. `replaces_file`: whether another file
    becomes host.yaml; then `current_error` says why the present one cannot be parsed, None if it can.
    """

    spec: HostSpec
    current: HostSpec
    file_steps: tuple[Step, ...]
    source: str
    file: HostFileText
    replaces_file: bool = False
    current_error: str | None = None


class HostFileText(Value):
    """A text that may become host.yaml, and its name for messages."""

    text: str
    name: str


def read_desired_state(host: Host, file: HostFileText | None, sets: Sequence[str]) -> DesiredState:
    """Return the desired state. `file` None: the host's own; `sets`: texts like `gpus[ADDRESS].KEY=VALUE`.

    Raises:
        InvalidInput: a file or a text cannot be parsed; each problem with its place.
    """
    assignments = tuple(parse_assignment(text) for text in sets)
    base = (
        parse_host_spec(file.text, file.name) if file is not None else read_host_spec(host) or HostSpec(FORMAT_VERSION)
    )
    changes = resolve_assignments(base, assignments)
    spec = apply_changes(base, changes)
    old_text = read_host_yaml(host)
    if file is None:
        file_steps: tuple[Step, ...] = tuple(
            SetGpuKeys(change.gpu, change.changes, change.before) for change in changes
        )
        return DesiredState(
            spec, base, file_steps, "--set" if changes else HOST_FILE_PATH, HostFileText(old_text or "", HOST_FILE_PATH)
        )
    text, current, current_error = file.text, HostSpec(FORMAT_VERSION), None
    try:
        current = read_host_spec(host) or current
    except InvalidInput as error:
        current_error = error.message
    for change in changes:
        text = edit_gpu(text, change.gpu, change.changes, file.name)
    file_steps = () if text == old_text else (ReplaceHostFile(text, old_text, file.name),)
    return DesiredState(spec, current, file_steps, file.name, HostFileText(text, file.name), True, current_error)


def read_previous_version(host: Host, number: int) -> HostFileText:
    """Return a previous version of host.yaml, 1 being the newest.

    Raises:
        NotFound: that version is not kept.
        InvalidInput: it cannot be read or parsed.
    """
    path = f"{HOST_FILE_PATH}.{number}"
    if host.host_file is None:
        raise HostCannot(f"{HOST_FILE_PATH} of {host.name} is not accessible", check="host-file", path=HOST_FILE_PATH)
    try:
        text = host.host_file.previous_version(number)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}", hint=f"ls -l {path}") from error
    if text is None:
        raise NotFound(
            f"{path} does not exist: this version of host.yaml is not saved",
            hint="ls -l /etc/vgpuctl shows the saved versions; 1 is the newest",
            path=path,
        )
    try:
        parse_host_spec(text, path)
    except InvalidInput as error:
        error.hint = f"vgpuctl apply --undo {number + 1} goes back further; or correct the file"
        raise
    return HostFileText(text, path)
