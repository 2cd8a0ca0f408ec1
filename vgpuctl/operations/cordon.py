# SPDX-License-Identifier: Apache-2.0
"""Keep new vGPUs off a GPU, or allow them again. Existing vGPUs stay, and their VMs stop and start as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.host_spec import plan_entry_changes
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.gpus import ChangedGpuResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_writable, select_one_gpu
from vgpuctl.operations.plans.gpu_results import gpu_result
from vgpuctl.operations.plans.host_diff import current_gpu_spec, gpu_settings
from vgpuctl.operations.steps.host_file import SetGpuKeys
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import EMPTY_MAPPING, extend, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vgpuctl.ports.host import Host

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
