# SPDX-License-Identifier: Apache-2.0
"""Refuses to create a vGPU on a GPU that lacks settings of host.yaml, where its place is already decided."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.backends import backend_for
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.placement.constraints import unapplied_error, unapplied_settings


def refuse_unapplied_settings(snapshot: Snapshot, vgpus: Iterable[AssignedVgpu]) -> None:
    """Refuse to create the first vGPU after a boot of a GPU that lacks settings which restore-host would set now.

    Raises:
        HostCannot: naming the GPU, what runs and what host.yaml says.
    """
    for address in dict.fromkeys(v.gpu for v in vgpus if backend_for(v.backend).creates_devices):
        gpu = snapshot.gpu(address)
        differences = [] if gpu is None else unapplied_settings(snapshot, gpu)
        if gpu is not None and differences:
            raise unapplied_error(gpu, differences)
