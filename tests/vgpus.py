# SPDX-License-Identifier: Apache-2.0
"""vGPUs without a VM on a simulated host: made, removed, and what host.yaml and reconcile say of them."""

from __future__ import annotations

from tests.worlds import WAIT_SECONDS, Host, Silent, mend, wish, yes
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.engine.vgpus import create_vgpu, delete_vgpu
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.world import World
from vgpuctl.spec.host import HostSpec
from vgpuctl.value import replace


def make(world: World, profile: str = "A100-4C", name: str | None = "spare", **more: object) -> Outcome:
    """create-vgpu."""
    dry_run = bool(more.pop("dry_run", False))
    wanted = replace(wish(profile, **more), name=name)
    return create_vgpu(world, wanted, dry_run=dry_run, wait_seconds=WAIT_SECONDS, progress=Silent())


def drop(world: World, name: str = "spare", *, dry_run: bool = False, confirm: object = yes) -> Outcome:
    """delete-vgpu."""
    return delete_vgpu(world, name, dry_run=dry_run, confirm=confirm, wait_seconds=WAIT_SECONDS, progress=Silent())


def spec_of(host: Host) -> HostSpec:
    """Return what host.yaml says."""
    return read_host_spec(host.world) or HostSpec(1)


def found(host: Host) -> list[str]:
    """Return what reconcile finds."""
    return [f["kind"] for f in mend(host.world, dry_run=True).data["findings"]]
