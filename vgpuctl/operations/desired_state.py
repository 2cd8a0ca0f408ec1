# SPDX-License-Identifier: Apache-2.0
"""What host.yaml should say: the host's own or another file with changes, the host as it is, and GPUs cordoned.

A cordoned GPU gets no new vGPUs. Existing vGPUs stay, and their VMs stop and start as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.host_assignments import (
    AgentAssignment,
    EntryChange,
    apply_changes,
    parse_agent_assignment,
    parse_assignment,
    resolve_assignments,
)
from vgpuctl.config.host_editor import edit_agent, edit_gpu, render_host_file
from vgpuctl.config.host_spec import (
    FORMAT_VERSION,
    GPU_SPEC_KEYS,
    GpuSpec,
    HostSpec,
    entry_matches,
    merge_gpu_entries,
    parse_host_spec,
    plan_entry_changes,
)
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import address_sort_key, is_pci_address
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.results.gpus import ChangedGpuResult
from vgpuctl.model.results.host import HostTextResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.host_file import HOST_FILE_PATH, read_host_spec, read_host_yaml
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_writable, select_one_gpu
from vgpuctl.operations.plans.host_diff import current_gpu_spec, gpu_settings
from vgpuctl.operations.plans.results import gpu_result
from vgpuctl.operations.steps.host_file import ReplaceHostFile, SetGpuKeys
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import EMPTY_MAPPING, Value, extend, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return the desired state. `file` None: the host's own; `sets`: like `gpus[GPU].KEY=VALUE`, `agent.KEY=VALUE`.

    Raises:
        InvalidInput: a file or a text cannot be parsed; each problem with its place.
    """
    agent_assignments = [one for text in sets if (one := parse_agent_assignment(text)) is not None]
    assignments = tuple(parse_assignment(text) for text in sets if parse_agent_assignment(text) is None)
    base = (
        parse_host_spec(file.text, file.name) if file is not None else read_host_spec(host) or HostSpec(FORMAT_VERSION)
    )
    changes = resolve_assignments(base, assignments)
    spec = apply_changes(base, changes)
    old_text = read_host_yaml(host)
    if file is None and agent_assignments:
        new_text = _edited(old_text, changes, agent_assignments, HOST_FILE_PATH)
        steps = (ReplaceHostFile(new_text, old_text, "what --set makes of it"),) if new_text != (old_text or "") else ()
        desired = parse_host_spec(new_text, HOST_FILE_PATH) if new_text else spec
        return DesiredState(desired, base, steps, "--set", HostFileText(old_text or "", HOST_FILE_PATH))
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
    text = _edited(text, changes, agent_assignments, file.name)
    file_steps = () if text == old_text else (ReplaceHostFile(text, old_text, file.name),)
    spec = parse_host_spec(text, file.name) if agent_assignments else spec
    return DesiredState(spec, current, file_steps, file.name, HostFileText(text, file.name), True, current_error)


def _edited(
    text: str | None, changes: Sequence[EntryChange], agent_assignments: Sequence[AgentAssignment], name: str
) -> str:
    """Return the text of a host.yaml, None for no file, with all changes."""
    for change in changes:
        text = edit_gpu(text, change.gpu, change.changes, name)
    return edit_agent(text, agent_assignments, name) if agent_assignments else text or ""


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


ALL_FUNCTIONS_SCOPE = ReadScope(every_function=True)


def cordon(host: Host, context: Context, gpu_name: str, *, cordoned: bool) -> Outcome[ChangedGpuResult]:
    """Write to host.yaml that nothing new is placed on a GPU, or remove that again.

    Raises:
        NotFound, InvalidInput: there is no such GPU, or host.yaml cannot be parsed.
        HostCannot: host.yaml cannot be written here.
    """
    require_writable(host, context)
    snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    gpu = select_one_gpu(snapshot, gpu_name)
    file_steps = host_file_steps(host, gpu, {"cordoned": cordoned or None})
    steps = tuple(step.describe() for step in file_steps)
    spec = current_gpu_spec(gpu)
    before, after = gpu_settings(spec), gpu_settings(replace(spec, cordoned=cordoned or None))
    changed = bool(file_steps)
    if changed and not context.dry_run:
        execute_plan(host, Plan(steps=file_steps), context.progress)
        snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
        gpu = select_one_gpu(snapshot, gpu.address)
    data = extend(ChangedGpuResult, gpu_result(snapshot, gpu), before=before, after=after)
    return Outcome(changed, data, steps, snapshot.warnings, dry_run=context.dry_run)


def host_file_steps(host: Host, gpu: Gpu, keys: Mapping[str, object]) -> tuple[Step, ...]:
    """Return the step that writes these keys of a GPU to host.yaml; none if any entry sets them already.

    Raises:
        InvalidInput: host.yaml cannot be read or parsed.
    """
    spec = read_host_spec(host)
    changes, before = plan_entry_changes(spec.gpus if spec is not None else EMPTY_MAPPING, gpu, keys)
    return (SetGpuKeys(gpu.address, changes, before),) if changes else ()


def export_host(host: Host) -> QueryResult[HostTextResult]:
    """Return the text of a host.yaml for which `diff` finds no difference.

    It contains devices other than GPUs if the current file has entries for them. Settings that cannot be read now, as
    those of a GPU whose driver is down or that is gone, stay as in the current file, with a warning.

    Raises:
        InvalidInput: the current file cannot be parsed.
    """
    current = read_host_spec(host) or HostSpec(FORMAT_VERSION)
    snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    shown = [
        gpu
        for gpu in sorted(snapshot.gpus, key=lambda g: address_sort_key(g.address))
        if is_pci_address(gpu.address) and (gpu.is_display_class or merge_gpu_entries(current.gpus, gpu) != GpuSpec())
    ]
    unreadable = {gpu.address: _unreadable_reason(gpu, snapshot) for gpu in shown}
    entries = {gpu.address: _with_unreadable_keys(gpu, unreadable[gpu.address], current) for gpu in shown}
    gpus = {address: entry for address, entry in entries.items() if entry != GpuSpec()}
    absent = {key: current.gpus[key] for key in current.gpus if not any(entry_matches(key, gpu) for gpu in shown)}
    text = render_host_file(
        replace(current, gpus={**absent, **gpus} or EMPTY_MAPPING), {gpu.address: gpu.model for gpu in shown}
    )
    warnings = [
        f"{address}: {reason}; these values are from host.yaml" for address, reason in unreadable.items() if reason
    ]
    warnings += [f"no GPU here is {key}; its entry is copied from host.yaml" for key in absent]
    return QueryResult(HostTextResult(text), (*snapshot.warnings, *warnings))


def _unreadable_reason(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why a GPU's settings cannot be read, empty if they can."""
    if gpu.is_display_class and gpu.driver is None:
        return "no driver is bound to it, so its setup cannot be read"
    if uses_nvml(gpu) and not snapshot.nvml.available:
        return "NVML does not answer, so its scheduler, MIG and mixed sizes cannot be read"
    return ""


def _with_unreadable_keys(gpu: Gpu, reason: str, current: HostSpec) -> GpuSpec:
    readable, configured = current_gpu_spec(gpu), merge_gpu_entries(current.gpus, gpu)
    if not reason:
        return readable
    return replace(
        readable,
        **{key: value for key in GPU_SPEC_KEYS if (value := getattr(configured, key)) and not getattr(readable, key)},
    )
