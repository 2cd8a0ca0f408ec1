# SPDX-License-Identifier: Apache-2.0
"""The NVML seam of a simulated host: what NVIDIA's library says of the scenario's GPUs."""

from __future__ import annotations

from vgpuctl.errors import NvmlFailed
from vgpuctl.model.address import normal_pci
from vgpuctl.model.records import NvmlGpu, NvmlStatus, NvmlVgpuType
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.sim import scheduler
from vgpuctl.sim.core import Core, Met
from vgpuctl.sim.machine import SimGpu, SimType
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
        try:
            state = self._core.look("nvml", address)
        except Met:
            return None
        gpu = state.machine.gpus.get(normal_pci(address) or address)
        if gpu is None or state.machine.scenario["nvidia"]["nvml"] != PRESENT or not self._answers(gpu):
            return None
        types = {kind.number: _type(kind) for kind in gpu.types.values()}
        known = scheduler.seen(state, gpu) if types else None
        return NvmlGpu(model=gpu.model, framebuffer_mib=gpu.framebuffer_mib, types=types, scheduler=known)

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set a GPU's vGPU scheduler, or refuse as NVML does; GPU instances have none of their own here."""
        try:
            with self._core.change("nvml-set-scheduler", address) as change:
                state = self._core.state
                gpu = state.machine.gpus.get(normal_pci(address) or address)
                if gpu is None or state.machine.scenario["nvidia"]["nvml"] != PRESENT or not self._answers(gpu):
                    raise scheduler.RefusedByNvml(scheduler.NOT_SUPPORTED)
                if gi_id is not None:
                    raise scheduler.RefusedByNvml(scheduler.NOT_SUPPORTED)
                change.records += scheduler.set_state(state, gpu, spec)
        except scheduler.RefusedByNvml as exc:
            raise _failed(str(exc), exc.code) from exc
        except Met as exc:
            raise _failed(exc.fault.message, exc.fault.code) from exc

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Refuse."""
        raise NvmlFailed("not set", nvml_code=None, call="nvmlDeviceSetMigMode")

    def make_instance(self, address: str, profile_id: int, start: int) -> int:
        """Refuse."""
        raise NvmlFailed("not made", nvml_code=None, call="nvmlDeviceCreateGpuInstanceWithPlacement")

    def destroy_instance(self, address: str, gi_id: int) -> None:
        """Refuse."""
        raise NvmlFailed("not destroyed", nvml_code=None, call="nvmlGpuInstanceDestroy")

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Refuse."""
        raise NvmlFailed("not set", nvml_code=None, call="nvmlDeviceSetVgpuHeterogeneousMode")

    def _answers(self, gpu: SimGpu) -> bool:
        """NVML sees a GPU only while NVIDIA's driver is bound to it."""
        return gpu.nvml and self._core.state.driver(gpu.own) == "nvidia"


def _failed(message: str, code: int) -> NvmlFailed:
    return NvmlFailed(message, nvml_code=code, call="nvmlDeviceSetVgpuSchedulerState")


def _type(kind: SimType) -> NvmlVgpuType:
    return NvmlVgpuType(
        type_id=kind.number,
        name=kind.name,
        framebuffer_mib=kind.framebuffer_mib,
        max_per_gpu=kind.maximum,
        max_per_vm=kind.per_vm,
    )
