# SPDX-License-Identifier: Apache-2.0
"""The host.yaml of a host as it is: every GPU by its address, the rest as the current file says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.cordon import WANT
from vgpuctl.engine.observe import observe
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.model.address import address_key, is_pci
from vgpuctl.model.outcome import Answer
from vgpuctl.plan.host_diff import as_it_is
from vgpuctl.spec.gpus import said_of_gpu
from vgpuctl.spec.host import VERSION, GpuSpec, HostSpec
from vgpuctl.spec.write import host_text
from vgpuctl.value import NOTHING, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def export_host(world: World) -> Answer:
    """Return the text of a host.yaml with which `diff` finds nothing.

    Other devices than GPUs are in it where the current file says something of them.

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
    said = {gpu.address: as_it_is(gpu) for gpu in shown}
    gpus = {address: entry for address, entry in said.items() if entry != GpuSpec()}
    text = host_text(replace(now, gpus=gpus or NOTHING), {gpu.address: gpu.model for gpu in shown})
    return Answer({"text": text}, snapshot.warnings)
