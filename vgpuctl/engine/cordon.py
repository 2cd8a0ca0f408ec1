# SPDX-License-Identifier: Apache-2.0
"""Keep new vGPUs from a GPU, or let them on it again. What is on it stays, and its VMs stop and start as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.where import select_gpus
from vgpuctl.engine.guards import require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import is_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.plan.host_diff import as_it_is, sides
from vgpuctl.plan.report import gpu_value
from vgpuctl.steps.host_file import SetGpuKeys
from vgpuctl.value import NOTHING, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vgpuctl.model.world import World

WANT = Want(every_function=True)


def cordon(world: World, wanted: str, *, cordoned: bool, dry_run: bool, progress: Progress) -> Outcome:
    """Write to host.yaml that nothing new is placed on a GPU, or take it out again.

    Raises:
        NotFound, InvalidInput: there is no such GPU, or host.yaml cannot be understood.
        HostCannot: host.yaml cannot be written here.
    """
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, WANT)
    gpu = one_gpu(snapshot, wanted)
    record = recorded(world, gpu, {"cordoned": cordoned or None})
    steps = tuple(step.describe() for step in record)
    changed = sides(gpu, replace(as_it_is(gpu), cordoned=cordoned or None))
    if dry_run or not record:
        return Outcome(bool(record), {**gpu_value(snapshot, gpu), **changed}, steps, snapshot.warnings, dry_run=dry_run)
    carry_out(world, Plan(steps=record), progress)
    now = observe(world, WANT)
    return Outcome(True, {**gpu_value(now, one_gpu(now, gpu.address)), **changed}, steps, now.warnings)


def recorded(world: World, gpu: Gpu, wanted: Mapping[str, object]) -> tuple[Step, ...]:
    """Return the step that has host.yaml say this of a GPU, none when it does, by whichever entry.

    Raises:
        InvalidInput: host.yaml cannot be read or understood.
    """
    from vgpuctl.spec.gpus import entry_changes

    spec = read_host_spec(world)
    changes, before = entry_changes(spec.gpus if spec is not None else NOTHING, gpu, wanted)
    return (SetGpuKeys(gpu.address, changes, before),) if changes else ()


def one_gpu(snapshot: Snapshot, wanted: str) -> Gpu:
    """Return the one GPU that an address or a model name means, which host.yaml can name.

    Raises:
        NotFound: there is none.
        InvalidInput: there are several, or it has no PCI address.
    """
    gpus = select_gpus(snapshot, wanted)
    if len(gpus) > 1:
        raise InvalidInput(
            f"'{wanted}' means {len(gpus)} GPUs here",
            hint=f"say which: {', '.join(g.address for g in gpus)}",
            gpus=[g.address for g in gpus],
        )
    if not is_pci(gpus[0].address):
        raise InvalidInput(
            f"{gpus[0].address} has no PCI address, by which host.yaml names GPUs",
            hint="vgpuctl list-gpus shows those that have one",
            gpu=gpus[0].address,
        )
    return gpus[0]
