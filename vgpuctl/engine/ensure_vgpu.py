# SPDX-License-Identifier: Apache-2.0
"""Make a vGPU without a VM equal to a wish: the one path for ensure-vgpu, and for Ansible behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.vgpus import as_listed, create_vgpu, delete_vgpu
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.wish import VmWish
from vgpuctl.plan import vgpus as plans
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def ensure_vgpu(
    world: World,
    wish: VmWish,
    *,
    state: str,
    dry_run: bool,
    confirm: Confirm,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Bring a vGPU without a VM to `state` ("present", "absent") and report before and after.

    A wish that is only a name is enough for one that exists, and for one that is to be absent.

    Raises:
        InvalidInput: it is not there, and the wish has no profile.
        Exists: host.yaml keeps it and its device is missing.
        SpecDiffers: it is there and is another profile's, on another GPU, or has other parameters; or its device
            is not as host.yaml says.
    """
    name = wish.name or ""
    snapshot = observe(world, Want(types=bool(wish.profiles), models=bool(wish.where.gpus or wish.where.not_gpus)))
    plans.refuse_unread(snapshot)
    if all(entry.name != name for entry in snapshot.named):
        if state == "absent":
            data = {"name": name, "present": False, "before": None, "after": None}
            return Outcome(False, data, warnings=snapshot.warnings, dry_run=dry_run)
        if not wish.profiles:
            raise InvalidInput(
                f"there is no vGPU {name}, and without a profile it cannot be made",
                hint="--profile PROFILE; vgpuctl list-profiles shows what this host can make",
                vgpu=name,
            )
        made = create_vgpu(world, wish, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
        return replace(made, data={**made.data, "before": None, "after": {**made.data, "present": True}})
    entry, seen = plans.find_named(snapshot, name)
    now = as_listed(entry, seen)
    if state == "absent":
        gone = delete_vgpu(world, name, dry_run=dry_run, confirm=confirm, wait_seconds=wait_seconds, progress=progress)
        return replace(gone, data={**gone.data, "before": now, "after": None})
    plans.refuse_different(snapshot, entry, wish)
    plans.refuse_changed(snapshot, entry, seen)
    if not seen.present:
        plans.refuse_existing(snapshot, name)
    return Outcome(False, {**now, "before": now, "after": now}, warnings=snapshot.warnings, dry_run=dry_run)
