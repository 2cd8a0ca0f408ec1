# SPDX-License-Identifier: Apache-2.0
"""The use of a simulated host's GPUs: steady curves, one for each VM, so that two looks at one instant are equal.

A guest's framebuffer use swings between a quarter and three quarters of its size, with a period and a phase of its own;
what a GPU uses is the sum of its guests. Of another maker's card only the card's use is known. A fault `nvml-usage`
makes a GPU lost (code 15), or NVML fail for it.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zlib import crc32

from vgpuctl.model.usage import (
    NVML_SOURCE,
    EngineUse,
    FrameUse,
    GpuUse,
    ProcessUse,
    ReaderProgram,
    UsageSample,
    UsageTarget,
    VgpuUse,
)
from vgpuctl.sim.core import Core, FaultInjected, serialize_calls
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.nvml import NVML_PRESENT
from vgpuctl.sim.objects import RunningDomain
from vgpuctl.sim.state import State

_MIB = 1 << 20
GPU_IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""
_IDLE_WATTS, _LIMIT_WATTS = 35.0, 300.0
_RESERVED_SHARE = 32
"""The driver keeps one part of so many of a vGPU's framebuffer."""


@serialize_calls
class SimUsage:
    """Reads the use of simulated GPUs. `now`: seconds since 1970."""

    def __init__(self, core: Core, now: Callable[[], float]) -> None:
        self._core = core
        self._now = now
        self._lock_path = core.directory / "nvml-lock"

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keep every process from reading the use of this host's GPUs."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # others may change other GPUs
            yield
        finally:
            os.close(descriptor)

    def _is_paused(self) -> bool:
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # nothing was ever changed
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Return the use of these GPUs now; a simulated host has no programs to ask."""
        time, state = self._now(), self._core.read_state()
        if self._is_paused():
            return UsageSample(time, 0.0, nvml_paused=True)
        nvidia = state.machine.scenario["nvidia"]
        gpus: list[GpuUse] = []
        vgpus: list[VgpuUse] = []
        failed: dict[str, str] = {}
        for target in targets:
            gpu = state.machine.gpus.get(target.address)
            if gpu is not None and target.source != NVML_SOURCE:
                gpus.append(_other_use(state, gpu, target.source, time))
                continue
            if gpu is None or nvidia["nvml"] != NVML_PRESENT:
                continue
            try:
                self._core.read_state("nvml-usage", target.address)
            except FaultInjected as exc:
                if exc.fault.code == GPU_IS_LOST:
                    gpus.append(GpuUse(target.address, NVML_SOURCE, up=False))
                else:
                    failed[NVML_SOURCE] = exc.fault.message
                continue
            running = [_vgpu_use(state, gpu, domain, carrier, time) for domain, carrier in _running_on(state, gpu)]
            gpus.append(_gpu_use(gpu, running, time))
            vgpus += running
        by_nvml = any(use.source == NVML_SOURCE for use in gpus)
        return UsageSample(time, 0.0, tuple(gpus), tuple(vgpus), nvidia["driver"] if by_nvml else None, failed)

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        """Return the guests' processes that use a GPU: one in each VM."""
        state, time = self._core.read_state(), self._now()
        sim_gpu = state.machine.gpus.get(gpu)
        if sim_gpu is None:
            return None
        return tuple(
            ProcessUse(domain.uuid, carrier, _guest_pid(domain), "python3", _engines(domain, time))
            for domain, carrier in _running_on(state, sim_gpu)
        )


def _running_on(state: State, gpu: SimGpu) -> list[tuple[RunningDomain, str]]:
    vgpus = state.vgpus_by_gpu[gpu.address]
    return [(domain, carrier) for domain in state.running.values() for carrier in domain.carriers if carrier in vgpus]


def _guest_pid(domain: RunningDomain) -> int:
    return 1000 + crc32(domain.uuid.encode()) % 9000


def _wave(key: str, time: float) -> float:
    """Return a value between 0 and 1 that swings within minutes."""
    seed = crc32(key.encode())
    return 0.5 + 0.5 * math.sin(2 * math.pi * time / (300 + seed % 600) + seed % 628 / 100)


def _engines(domain: RunningDomain, time: float) -> EngineUse:
    busy = 0.12 * _wave(f"sm {domain.uuid}", time)
    return EngineUse(sm=busy, memory=busy / 2, encoder=busy / 4, decoder=0.0, jpeg=0.0, ofa=0.0)


def _vgpu_use(state: State, gpu: SimGpu, domain: RunningDomain, carrier: str, time: float) -> VgpuUse:
    kind = gpu.types[state.vgpus_by_gpu[gpu.address][carrier]]
    size = kind.framebuffer_mib * _MIB
    guest_driver = state.machine.scenario["nvidia"]["guest_driver"]
    runs = guest_driver is not None
    reserved = size // _RESERVED_SHARE
    used = int((size - reserved) * (0.25 + 0.5 * _wave(f"memory {domain.uuid}", time))) if runs else 0
    return VgpuUse(
        gpu=gpu.address,
        carriers=(carrier,),
        vm_uuid=domain.uuid,
        vgpu_uuid=f"{crc32(carrier.encode()):08x}-0000-4000-8000-{crc32(domain.uuid.encode()):012x}",
        memory_size_bytes=size,
        memory_used_bytes=used,
        memory_reserved_bytes=reserved,
        engines=_engines(domain, time) if runs else EngineUse(),
        license_state="licensed" if runs else None,
        guest_driver=guest_driver,
        encoder=FrameUse(1, 30.0, 0.004) if runs else None,
        capture=FrameUse(0) if runs else None,
        frame_rate_limit_fps=60 if runs else None,
    )


def _other_use(state: State, gpu: SimGpu, source: str, time: float) -> GpuUse:
    """Return what the program of another maker tells: about the whole card, and nothing about a vGPU."""
    running = [domain for domain, _ in _running_on(state, gpu)]
    busy = min(1.0, sum(_engines(domain, time).sm or 0.0 for domain in running))
    share = 0.5 * _wave(f"memory {gpu.address}", time) if running else 0.0
    return GpuUse(
        address=gpu.address,
        source=source,
        up=True,
        memory_size_bytes=gpu.framebuffer_mib * _MIB or None,
        memory_used_bytes=int(gpu.framebuffer_mib * share) * _MIB if gpu.framebuffer_mib else None,
        engines=EngineUse(sm=busy),
        power_watts=_IDLE_WATTS + (_LIMIT_WATTS - _IDLE_WATTS) * busy,
        temperatures={"gpu": 40.0 + 40.0 * busy},
    )


def _gpu_use(gpu: SimGpu, vgpus: list[VgpuUse], time: float) -> GpuUse:
    busy = min(1.0, sum(v.engines.sm or 0.0 for v in vgpus))
    power = _IDLE_WATTS + (_LIMIT_WATTS - _IDLE_WATTS) * busy
    return GpuUse(
        address=gpu.address,
        source=NVML_SOURCE,
        up=True,
        uuid=f"GPU-{crc32(gpu.address.encode()):08x}-0000-4000-8000-000000000000",
        serial=f"{crc32(gpu.address.encode()):010d}",
        vbios="94.02.5c.00.01",
        memory_size_bytes=gpu.framebuffer_mib * _MIB,
        memory_used_bytes=sum(v.memory_used_bytes or 0 for v in vgpus),
        memory_reserved_bytes=512 * _MIB,
        engines=EngineUse(sm=busy, memory=busy / 2, encoder=busy / 4, decoder=0.0),
        power_watts=power,
        power_limit_watts=_LIMIT_WATTS,
        energy_joules=_IDLE_WATTS * time,
        temperatures={"gpu": 40.0 + 40.0 * busy},
        clocks={"graphics": 1.41e9, "sm": 1.41e9, "memory": 1.215e9},
        clock_event_reasons=(),
        ecc_errors={"corrected": 0, "uncorrected": 0},
        row_remap_pending=False,
        row_remap_failed=False,
        recovery_action="none",
        pcie_replays=0,
        pcie_link_width_lanes=16,
    )
