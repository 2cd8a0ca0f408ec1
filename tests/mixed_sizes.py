# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts with a mixed-size (heterogeneous) GPU, and the placements of its vGPUs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.model.gpu import PlacementSpan, Vgpu
from vgpuctl.observe import ReadScope, observe

PRO = "rtx-pro-6000"
Q2, Q4, Q24, Q48 = (f"DC-{size}Q" for size in (2, 4, 24, 48))


MDEV = """version: 1
kernel: "5.14.0-427.el9_4.x86_64"
nvidia: {driver: "595.45.04"}
gpus:
  - {model: RTX PRO 6000, backend: mdev-vf}
"""
FORMS = ("vendor-vf", "mdev-vf")


def opened(directory: Path, form: str = "vendor-vf", **more: object) -> SimulatedHost:
    """Return a host with one RTX PRO 6000 whose vGPUs are vendor VFs or mdevs on VFs."""
    return open_sim_host(directory, text=MDEV, **more) if form == "mdev-vf" else open_sim_host(directory, PRO, **more)


def mixed(directory: Path, form: str = "vendor-vf", **more: object) -> SimulatedHost:
    """Return a host whose GPU is in mixed-size mode."""
    host = opened(directory, form, **more)
    switch(host)
    return host


def switch(host: SimulatedHost, *, enabled: bool = True) -> str:
    address = observe(host.ports, ReadScope()).gpus[0].address
    host.ports.nvml.set_mixed_size(address, enabled=enabled)
    return address


def seen(host: SimulatedHost) -> tuple[Vgpu, ...]:
    return observe(host.ports, ReadScope(types=True, models=False)).vgpus


def placed(host: SimulatedHost) -> dict[str, int | None]:
    """Return the placement ID of each VM's vGPU, as the driver reports it."""
    gpu = observe(host.ports, ReadScope()).gpus[0]
    placements = {f.address: f.placement_id for f in gpu.functions if f.current_type is not None}
    placements |= {m.uuid: m.placement_id for f in gpu.functions for m in f.mdevs}
    return {str(v.vm): placements[v.carrier] for v in seen(host)}


def overlapping(host: SimulatedHost) -> list[tuple[Vgpu, Vgpu]]:
    snapshot = observe(host.ports, ReadScope(types=True))
    sizes = {t.profile: t.placement_size for t in snapshot.gpus[0].types}
    spans = [(v, PlacementSpan(v.placement_id, sizes[v.profile])) for v in snapshot.vgpus]
    return [(a, b) for (a, one), (b, other) in combinations(spans, 2) if one.overlaps(other)]
