# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts whose GPU takes vGPUs of several sizes, and where those are."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from tests.worlds import Host, open_host
from vgpuctl.engine.observe import Want, observe
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.partition import Span

PRO = "rtx-pro-6000"
Q2, Q4, Q24, Q48 = (f"DC-{size}Q" for size in (2, 4, 24, 48))


MDEV = """version: 1
kernel: "5.14.0-427.el9_4.x86_64"
nvidia: {driver: "595.45.04"}
gpus:
  - {model: RTX PRO 6000, backend: mdev-vf}
"""
FORMS = ("vendor-vf", "mdev-vf")


def opened(directory: Path, form: str = "vendor-vf", **more: object) -> Host:
    """Return a host with one RTX PRO 6000, whose VFs carry vGPUs themselves or as mdevs."""
    return open_host(directory, text=MDEV, **more) if form == "mdev-vf" else open_host(directory, PRO, **more)


def mixed(directory: Path, form: str = "vendor-vf", **more: object) -> Host:
    """Return a host whose GPU takes several sizes."""
    host = opened(directory, form, **more)
    switch(host)
    return host


def switch(host: Host, *, enabled: bool = True) -> str:
    address = observe(host.world, Want()).gpus[0].address
    host.world.nvml.set_mixed_size(address, enabled=enabled)
    return address


def seen(host: Host) -> tuple[Vgpu, ...]:
    return observe(host.world, Want(types=True, models=False)).vgpus


def placed(host: Host) -> dict[str, int | None]:
    """Return where the driver says that each VM's vGPU is."""
    gpu = observe(host.world, Want()).gpus[0]
    there = {f.address: f.placement_id for f in gpu.functions if f.current_type is not None}
    there |= {m.uuid: m.placement_id for f in gpu.functions for m in f.mdevs}
    return {str(v.vm): there[v.carrier] for v in seen(host)}


def overlapping(host: Host) -> list[tuple[Vgpu, Vgpu]]:
    look = observe(host.world, Want(types=True))
    sizes = {t.profile: t.placement_size for t in look.gpus[0].types}
    spans = [(v, Span(v.placement_id, sizes[v.profile])) for v in look.vgpus]
    return [(a, b) for (a, one), (b, other) in combinations(spans, 2) if one.overlaps(other)]
