# SPDX-License-Identifier: Apache-2.0
"""The NVML seam of a simulated host: what NVIDIA's library says of the scenario's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vgpuctl.errors import NvmlFailed
from vgpuctl.model.address import normal_pci
from vgpuctl.model.partition import Span
from vgpuctl.model.records import Ecc, NvmlGpu, NvmlGuest, NvmlStatus, NvmlVgpuType
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.sim import mig, mixed, scheduler
from vgpuctl.sim.core import Change, Core, Met
from vgpuctl.sim.machine import SimGpu, SimType
from vgpuctl.sim.nvml_codes import NOT_SUPPORTED, RefusedByNvml, refuse
from vgpuctl.sim.state import State
from vgpuctl.sim.turns import in_turn

PRESENT = "present"


@in_turn
class SimNvml:
    """NVML as the scenario has it: present, or missing for the reason it names."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def status(self) -> NvmlStatus:
        """Say whether NVML answers, and if not why."""
        try:
            state = self._core.look("nvml", "status")
        except Met as exc:
            return NvmlStatus(available=False, reason=exc.fault.message)
        nvidia = state.machine.scenario["nvidia"]
        if nvidia["nvml"] != PRESENT:
            return NvmlStatus(available=False, reason=nvidia["nvml"])
        if not any(self._answers(gpu) for gpu in state.machine.gpus.values()):
            return NvmlStatus(available=False, reason="absent")
        return NvmlStatus(available=True, driver_version=nvidia["driver"])

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML knows of a GPU."""
        gpu, state = self._seen(address), self._core.state
        if gpu is None:
            return None
        return NvmlGpu(
            model=gpu.model,
            framebuffer_mib=gpu.framebuffer_mib,
            types={kind.number: _type(state, gpu, kind) for kind in gpu.types.values()},
            scheduler=scheduler.seen(state, gpu) if gpu.types else None,
            mig=mig.seen(state, gpu),
            mixed_size=mixed.told(state, gpu),
            gi_schedulers=scheduler.in_instances(state, gpu),
        )

    def ecc(self, address: str) -> Ecc | None:
        """Return the error correction of a GPU: on, and nobody asked for another."""
        return None if self._seen(address) is None else Ecc(enabled=True, pending=True)

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs of a GPU that VMs have, each with the driver that the scenario puts into guests."""
        gpu, state = self._seen(address), self._core.state
        if gpu is None:
            return None
        driver = state.machine.scenario["nvidia"]["guest_driver"]
        made = state.on_gpu[gpu.address]
        return tuple(
            NvmlGuest(running.uuid, driver)
            for running in state.running.values()
            for carrier in running.carriers
            if carrier in made
        )

    def placements(self, address: str) -> Mapping[int, tuple[Span, ...]]:
        """Return where each type may be on a GPU of mixed sizes, also before it is one; with MIG that is not told."""
        gpu, state = self._seen(address), self._core.state
        if gpu is None or mixed.told(state, gpu) is None:
            return {}
        return {kind.number: mixed.spans(state, gpu, kind) for kind in gpu.types.values() if not kind.mig}

    def _seen(self, address: str) -> SimGpu | None:
        """Return a GPU that NVML tells of now."""
        try:
            state = self._core.look("nvml", address)
        except Met:
            return None
        gpu = state.machine.gpus.get(normal_pci(address) or address)
        present = state.machine.scenario["nvidia"]["nvml"] == PRESENT
        return gpu if gpu is not None and present and self._answers(gpu) else None

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set the vGPU scheduler of a GPU or of a GPU instance, or refuse as NVML does."""
        owner = "Device" if gi_id is None else "GpuInstance"
        with self._changing("nvml-set-scheduler", f"nvml{owner}SetVgpuSchedulerState", address) as (change, gpu):
            change.records += scheduler.set_state(self._core.state, gpu, spec, gi_id)

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off, or refuse as NVML does."""
        with self._changing("nvml-set-mig", "nvmlDeviceSetMigMode", address) as (change, gpu):
            change.records += mig.set_mode(self._core.state, gpu, enabled=enabled, at_reset=change.pends)

    def make_instance(self, address: str, profile_id: int, start: int) -> int:
        """Make a GPU instance and return its number, or refuse as NVML does."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        with self._changing("nvml-make-instance", call, address) as (change, gpu):
            number, records = mig.make(self._core.state, gpu, profile_id, start)
            change.records += records
        return number

    def destroy_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance, or refuse as NVML does."""
        with self._changing("nvml-destroy-instance", "nvmlGpuInstanceDestroy", address) as (change, gpu):
            change.records += mig.destroy(self._core.state, gpu, gi_id)

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Let vGPUs have several sizes or not, or refuse as NVML does."""
        with self._changing("nvml-set-mixed-size", "nvmlDeviceSetVgpuHeterogeneousMode", address) as (change, gpu):
            change.records += mixed.set_mode(self._core.state, gpu, enabled=enabled)

    @contextmanager
    def _changing(self, name: str, call: str, address: str) -> Iterator[tuple[Change, SimGpu]]:
        """Hold the host for a call that changes a GPU which NVML knows."""
        try:
            with self._core.change(name, address) as change:
                state = self._core.state
                gpu = state.machine.gpus.get(normal_pci(address) or address)
                if gpu is None or state.machine.scenario["nvidia"]["nvml"] != PRESENT or not self._answers(gpu):
                    refuse(NOT_SUPPORTED)
                yield change, gpu
        except RefusedByNvml as exc:
            raise NvmlFailed(str(exc), nvml_code=exc.code, call=call) from exc
        except Met as exc:
            raise NvmlFailed(exc.fault.message, nvml_code=exc.fault.code, call=call) from exc

    def _answers(self, gpu: SimGpu) -> bool:
        """NVML sees a GPU only while NVIDIA's driver is bound to it."""
        return gpu.nvml and self._core.state.driver(gpu.own) == "nvidia"


def _type(state: State, gpu: SimGpu, kind: SimType) -> NvmlVgpuType:
    spans = mixed.spans(state, gpu, kind) if gpu.address in state.partitions.mixed else ()
    return NvmlVgpuType(
        type_id=kind.number,
        name=kind.name,
        framebuffer_mib=kind.framebuffer_mib,
        max_per_gpu=kind.maximum,
        max_per_vm=kind.per_vm,
        gi_profile_id=kind.gi_profile,
        max_per_gi=kind.max_per_gi if kind.mig else None,
        placement_ids=tuple(span.start for span in spans) or None,
        placement_size=spans[0].size if spans else None,
    )
