# SPDX-License-Identifier: Apache-2.0
"""The NVML port of a simulated host: what NVIDIA's library reports about the scenario's GPUs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vgpuctl.errors import NvmlFailed
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.port_values import EccState, NvmlGpu, NvmlGuest, NvmlStatus, NvmlVgpuType
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlPairing
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.sim import mig, mixed_size, vgpu_moves, vgpu_scheduler
from vgpuctl.sim.core import Core, FaultInjected, StateChange, serialize_calls
from vgpuctl.sim.machine import SimGpu, SimType
from vgpuctl.sim.refusals import NOT_SUPPORTED, NvmlError, raise_nvml_error
from vgpuctl.sim.state import State

NVML_PRESENT = "present"


@serialize_calls
class SimNvml:
    """NVML as the scenario configures it: present, or unavailable for the reason that the scenario names."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def status(self) -> NvmlStatus:
        """Say whether NVML answers, and if not, why."""
        try:
            state = self._core.read_state("nvml", "status")
        except FaultInjected as exc:
            return NvmlStatus(available=False, reason=exc.fault.message)
        nvidia = state.machine.scenario["nvidia"]
        if nvidia["nvml"] != NVML_PRESENT:
            return NvmlStatus(available=False, reason=nvidia["nvml"])
        if not any(self._is_visible(gpu) for gpu in state.machine.gpus.values()):
            return NvmlStatus(available=False, reason="absent")
        return NvmlStatus(available=True, driver_version=nvidia["driver"])

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML reports about a GPU."""
        gpu, state = self._find_gpu(address), self._core.state
        if gpu is None:
            return None
        return NvmlGpu(
            model=gpu.model,
            framebuffer_mib=gpu.framebuffer_mib,
            types={kind.number: _type_info(state, gpu, kind) for kind in gpu.types.values()},
            scheduler=vgpu_scheduler.read_scheduler(state, gpu) if gpu.types else None,
            mig=mig.read_mig(state, gpu),
            mixed_size=mixed_size.read_mode(state, gpu),
            gi_schedulers=vgpu_scheduler.instance_states(state, gpu),
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, address)}",
        )

    def ecc(self, address: str) -> EccState | None:
        """Return a GPU's ECC state: enabled, with no change pending."""
        return None if self._find_gpu(address) is None else EccState(enabled=True, pending_enabled=True)

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs of a GPU that VMs use, each with the guest driver that the scenario configures."""
        gpu, state = self._find_gpu(address), self._core.state
        if gpu is None:
            return None
        driver = state.machine.scenario["nvidia"]["guest_driver"]
        vgpus = state.vgpus_by_gpu[gpu.address]
        return tuple(
            NvmlGuest(running.uuid, driver)
            for running in state.running.values()
            for carrier in running.carriers
            if carrier in vgpus
        )

    def migration(self, address: str) -> NvmlMigration | None:
        """Return what a move of a GPU's vGPUs would take."""
        gpu = self._find_gpu(address)
        return None if gpu is None else vgpu_moves.read_migration(self._core.state, gpu)

    def pairing(self, address: str, metadata: str) -> NvmlPairing | None:
        """Return whether a GPU takes a vGPU of another host."""
        gpu = self._find_gpu(address)
        return None if gpu is None else vgpu_moves.read_pairing(self._core.state, gpu, metadata)

    def nvlink_peers(self, address: str) -> tuple[str, ...] | None:
        """Return the GPUs at the other ends of a GPU's NVLinks, as the scenario has them."""
        gpu = self._find_gpu(address)
        return None if gpu is None else gpu.nvlink

    def placements(self, address: str) -> Mapping[int, tuple[PlacementSpan, ...]]:
        """Return each type's placements with mixed sizes, even while that mode is off. With MIG on there are none."""
        gpu, state = self._find_gpu(address), self._core.state
        if gpu is None or mixed_size.read_mode(state, gpu) is None:
            return {}
        return {
            kind.number: mixed_size.placement_spans(state, gpu, kind)
            for kind in gpu.types.values()
            if not kind.is_mig_backed
        }

    def _find_gpu(self, address: str) -> SimGpu | None:
        """Return a GPU that NVML reports now."""
        try:
            state = self._core.read_state("nvml", address)
        except FaultInjected:
            return None
        gpu = state.machine.gpus.get(normalize_pci(address) or address)
        is_present = state.machine.scenario["nvidia"]["nvml"] == NVML_PRESENT
        return gpu if gpu is not None and is_present and self._is_visible(gpu) else None

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set the vGPU scheduler of a GPU or of a GPU instance, or refuse as NVML does."""
        owner = "Device" if gi_id is None else "GpuInstance"
        with self._write_call("nvml-set-scheduler", f"nvml{owner}SetVgpuSchedulerState", address) as (change, gpu):
            change.records += vgpu_scheduler.set_state(self._core.state, gpu, spec, gi_id)

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off, or refuse as NVML does."""
        with self._write_call("nvml-set-mig", "nvmlDeviceSetMigMode", address) as (change, gpu):
            change.records += mig.set_mode(self._core.state, gpu, enabled=enabled, at_reset=change.is_pending)

    def create_gpu_instance(self, address: str, profile_id: int, start: int) -> int:
        """Create a GPU instance and return its number, or refuse as NVML does."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        with self._write_call("nvml-make-instance", call, address) as (change, gpu):
            number, records = mig.create_instance(self._core.state, gpu, profile_id, start)
            change.records += records
        return number

    def destroy_gpu_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance, or refuse as NVML does."""
        with self._write_call("nvml-destroy-instance", "nvmlGpuInstanceDestroy", address) as (change, gpu):
            change.records += mig.destroy_instance(self._core.state, gpu, gi_id)

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Turn mixed sizes on or off, or refuse as NVML does."""
        with self._write_call("nvml-set-mixed-size", "nvmlDeviceSetVgpuHeterogeneousMode", address) as (change, gpu):
            change.records += mixed_size.set_mode(self._core.state, gpu, enabled=enabled)

    @contextmanager
    def _write_call(self, name: str, call: str, address: str) -> Iterator[tuple[StateChange, SimGpu]]:
        """Lock the host for a call that changes a GPU that NVML reports."""
        try:
            with self._core.operation(name, address) as change:
                state = self._core.state
                gpu = state.machine.gpus.get(normalize_pci(address) or address)
                if gpu is None or state.machine.scenario["nvidia"]["nvml"] != NVML_PRESENT or not self._is_visible(gpu):
                    raise_nvml_error(NOT_SUPPORTED)
                yield change, gpu
        except NvmlError as exc:
            raise NvmlFailed(str(exc), nvml_code=exc.code, call=call) from exc
        except FaultInjected as exc:
            raise NvmlFailed(exc.fault.message, nvml_code=exc.fault.code, call=call) from exc

    def _is_visible(self, gpu: SimGpu) -> bool:
        """Say whether NVML sees the GPU: only while NVIDIA's driver is bound to it."""
        return gpu.nvml and self._core.state.driver(gpu.own_function) == "nvidia"


def _type_info(state: State, gpu: SimGpu, kind: SimType) -> NvmlVgpuType:
    spans = mixed_size.placement_spans(state, gpu, kind) if gpu.address in state.partitions.mixed_size_gpus else ()
    return NvmlVgpuType(
        type_id=kind.number,
        name=kind.name,
        framebuffer_mib=kind.framebuffer_mib,
        max_per_gpu=kind.maximum,
        max_per_vm=kind.per_vm,
        gi_profile_id=kind.gi_profile,
        max_per_gi=kind.max_per_gi if kind.is_mig_backed else None,
        placement_ids=tuple(span.start for span in spans) or None,
        placement_size=spans[0].size if spans else None,
    )
