# SPDX-License-Identifier: Apache-2.0
"""What a simulated host's NVML says of moving vGPUs between hosts.

A vGPU has a quarter of its framebuffer to send. Its description is JSON, where NVIDIA's is opaque. A GPU takes a vGPU
of the same model, and of a driver with the same first number.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlMovableVgpu, NvmlPairing
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.state import State

READ_MB_PER_SECOND, WRITE_MB_PER_SECOND = 6000, 4000
STATE_SHARE = 4
_MIB = 1 << 20


def read_migration(state: State, gpu: SimGpu) -> NvmlMigration:
    """Return the speeds, and the vGPUs of a GPU that VMs use."""
    return NvmlMigration(
        read_mb_per_second=READ_MB_PER_SECOND if gpu.types else None,
        write_mb_per_second=WRITE_MB_PER_SECOND if gpu.types else None,
        streams=bool(gpu.types),
        vgpus=tuple(
            _movable_vgpu(state, gpu, running.uuid, carrier)
            for running in state.running.values()
            for carrier in running.carriers
            if carrier in state.vgpus_by_gpu[gpu.address]
        ),
    )


def read_pairing(state: State, gpu: SimGpu, metadata: str) -> NvmlPairing | None:
    """Return whether the GPU takes what another host describes; None for no description."""
    try:
        vgpu = parse_json(b64decode(metadata).decode())
    except ValueError:
        return None
    if not isinstance(vgpu, dict) or not gpu.types:
        return None
    limits = []
    if _branch(str(vgpu.get("driver"))) != _branch(_driver(state)):
        limits.append("host-driver")
    if vgpu.get("model") != gpu.model:
        limits.append("gpu")
    return NvmlPairing(live=not limits, saved=not limits, limits=tuple(limits))


def _movable_vgpu(state: State, gpu: SimGpu, vm_uuid: str, carrier: str) -> NvmlMovableVgpu:
    kind = gpu.types[state.vgpus_by_gpu[gpu.address][carrier]]
    metadata = json.dumps({"driver": _driver(state), "model": gpu.model, "type": kind.number})
    return NvmlMovableVgpu(
        vm_uuid=vm_uuid,
        mdev_uuid=carrier if carrier in state.mdevs else None,
        type_id=kind.number,
        state_bytes=kind.framebuffer_mib // STATE_SHARE * _MIB,
        metadata=b64encode(metadata.encode()).decode(),
    )


def _driver(state: State) -> str:
    return str(state.machine.scenario["nvidia"]["driver"])


def _branch(driver: str) -> str:
    return driver.partition(".")[0]
