# SPDX-License-Identifier: Apache-2.0
"""The host.yaml of a host as it is: every GPU by its address, the rest as the current file says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.cordon import WANT
from vgpuctl.engine.observe import observe
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.model.address import address_key, is_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Answer
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.host_diff import as_it_is
from vgpuctl.spec.gpus import KEYS, meant_by, said_of_gpu
from vgpuctl.spec.host import VERSION, GpuSpec, HostSpec
from vgpuctl.spec.write import host_text
from vgpuctl.value import NOTHING, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def export_host(world: World) -> Answer:
    """Return the text of a host.yaml with which `diff` finds nothing.

    Other devices than GPUs are in it where the current file says something of them. What cannot be seen now, as of a
    GPU whose driver is down or that is gone, stays as the current file says it, with a warning.

    Raises:
        InvalidInput: the current file cannot be understood.
    """
    now = read_host_spec(world) or HostSpec(VERSION)
    snapshot = observe(world, WANT)
    shown = [
        gpu
        for gpu in sorted(snapshot.gpus, key=lambda g: address_key(g.address))
        if is_pci(gpu.address) and (gpu.display_class or said_of_gpu(now.gpus, gpu) != GpuSpec())
    ]
    unseen = {gpu.address: _unseen(gpu, snapshot) for gpu in shown}
    said = {gpu.address: _with_unseen(gpu, unseen[gpu.address], now) for gpu in shown}
    gpus = {address: entry for address, entry in said.items() if entry != GpuSpec()}
    absent = {key: now.gpus[key] for key in now.gpus if not any(meant_by(key, gpu) for gpu in shown)}
    text = host_text(replace(now, gpus={**absent, **gpus} or NOTHING), {gpu.address: gpu.model for gpu in shown})
    warnings = [f"{address}: {why}; what is said of that is host.yaml's" for address, why in unseen.items() if why]
    warnings += [f"no GPU here is {key}; its entry is host.yaml's" for key in absent]
    return Answer({"text": text}, (*snapshot.warnings, *warnings))


def _unseen(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why a GPU does not show how it is set up, nothing where it does."""
    if gpu.display_class and gpu.driver is None:
        return "no driver has it, so how it is set up cannot be seen"
    if gpu.nvidia_driver and not snapshot.nvml.available:
        return "NVML does not answer, so its scheduler, MIG and mixed sizes cannot be seen"
    return ""


def _with_unseen(gpu: Gpu, why: str, now: HostSpec) -> GpuSpec:
    seen, said = as_it_is(gpu), said_of_gpu(now.gpus, gpu)
    if not why:
        return seen
    return replace(seen, **{key: value for key in KEYS if (value := getattr(said, key)) and not getattr(seen, key)})
