# SPDX-License-Identifier: Apache-2.0
"""Make a vGPU without a VM match a request: the one code path of ensure-vgpu, which Ansible uses too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import Context, Outcome, with_data
from vgpuctl.model.results.vgpus import AbsentVgpuResult, EnsuredVgpuResult, NamedVgpuResult, VgpuResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans import vgpus as plans
from vgpuctl.operations.vgpus import create_vgpu, delete_vgpu, host_vgpu_result
from vgpuctl.value import extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def ensure_vgpu(
    host: Host, context: Context, request: VmRequest, *, state: str
) -> Outcome[EnsuredVgpuResult | AbsentVgpuResult]:
    """Bring a vGPU without a VM to `state` ("present", "absent") and report before and after.

    A request with only a name is enough for a vGPU that exists, and for one that must be absent.

    Raises:
        InvalidInput: it does not exist, and the request has no profile.
        Exists: host.yaml keeps it and its device is missing.
        SpecDiffers: it exists with another profile, on another GPU, or with other parameters; or its device
            differs from host.yaml.
    """
    name = request.name or ""
    snapshot = observe(
        host,
        ReadScope(types=bool(request.profiles), models=bool(request.gpu or request.not_gpu)),
    )
    plans.refuse_unreadable_entries(snapshot)
    if all(entry.name != name for entry in snapshot.host_vgpus):
        if state == "absent":
            return Outcome(False, AbsentVgpuResult(name), warnings=snapshot.warnings, dry_run=context.dry_run)
        if not request.profiles:
            raise InvalidInput(
                f"vGPU {name} does not exist, and cannot be created without a profile",
                hint="use --profile PROFILE; vgpuctl list-profiles shows the profiles of this host",
                vgpu=name,
            )
        created = create_vgpu(host, context, request)
        return _with_sides(created, None, replace(created.data, present=True))
    entry, device = plans.find_named_vgpu(snapshot, name)
    current = host_vgpu_result(entry, device)
    if state == "absent":
        deleted = delete_vgpu(host, context, name)
        return _with_sides(deleted, current, None)
    plans.refuse_different_request(snapshot, entry, request)
    plans.refuse_changed_device(snapshot, entry, device)
    if not device.present:
        plans.refuse_existing_name(snapshot, name)
    return _with_sides(Outcome(False, current, warnings=snapshot.warnings, dry_run=context.dry_run), current, current)


def _with_sides(
    outcome: Outcome[VgpuResult], before: NamedVgpuResult | None, after: NamedVgpuResult | None
) -> Outcome[EnsuredVgpuResult]:
    return with_data(outcome, extend(EnsuredVgpuResult, outcome.data, before=before, after=after))
