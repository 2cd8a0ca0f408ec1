# SPDX-License-Identifier: Apache-2.0
"""Setting a GPU's vGPU scheduler through NVML, as a step, and lending devices meanwhile.

NVML sets it only while no vGPU exists on the GPU, so the devices of VMs go before and come back after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Failed, HostCannot, InvalidInput, NvmlFailed, VerifyFailed, VgpuctlError
from vgpuctl.model.scheduler import Policy, SchedulerSpec, SchedulerState
from vgpuctl.model.step import Step
from vgpuctl.scheduler.limits import as_spec, satisfies
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

_REASONS: dict[int, tuple[str, str]] = {
    2: ("the driver does not take these numbers", "vgpuctl show-gpu {gpu} shows the ranges it takes"),
    3: (
        "a vGPU exists on it, MIG is on, or its driver carries no vGPUs",
        "vgpuctl show-gpu {gpu} shows the vGPUs; --drain removes those of vgpuctl and makes them again",
    ),
    4: ("only root may do that", "run this as root"),
    16: ("the GPU has to be reset first", "reboot the host"),
}
"""NVML's error number -> why, and what to do. Source: nvml.h, nvmlReturn_t and nvmlDeviceSetVgpuSchedulerState."""
_KINDS: dict[int, type[VgpuctlError]] = {2: InvalidInput, 16: Failed, 4: Failed}


def words(spec: SchedulerSpec) -> str:
    """Return a scheduler in words: `fixed_share, time slice 2 ms`."""
    numbers = (
        (spec.time_slice_ms, "time slice {} ms"),
        (spec.frequency_hz, "{} Hz"),
        (spec.averaging_factor, "averaging factor {}"),
    )
    return ", ".join([str(spec.policy), *(text.format(n) for n, text in numbers if n is not None)])


def command(gpu: str, spec: SchedulerSpec) -> str:
    """Return the command that asks for a scheduler, as it is typed."""
    numbers = (
        (spec.time_slice_ms, "--time-slice"),
        (spec.frequency_hz, "--frequency"),
        (spec.averaging_factor, "--averaging-factor"),
    )
    options = [f"{option} {number}" for number, option in numbers if number is not None]
    return " ".join([f"vgpuctl set-scheduler {gpu} --policy {spec.policy}", *options])


class SetScheduler(Value):
    """Have a GPU's vGPUs scheduled so. `before`: what ran, None when that is not known."""

    gpu: str
    wanted: SchedulerSpec
    before: SchedulerState | None = None

    def describe(self) -> str:
        """Say what is set."""
        return f"set the scheduler of {self.gpu} to {words(self.wanted)} (NVML)"

    def perform(self, world: World) -> None:
        """Set it.

        Raises:
            HostCannot, InvalidInput, Failed: NVML refused it, and why.
        """
        try:
            world.nvml.set_scheduler(self.gpu, self.wanted)
        except NvmlFailed as error:
            raise self._refusal(error) from error

    def _refusal(self, error: NvmlFailed) -> VgpuctlError:
        code = error.facts.get("nvml_code")
        if not isinstance(code, int) or code not in _REASONS:
            return error
        why, hint = _REASONS[code]
        facts: dict[str, object] = {"gpu": self.gpu, "nvml_code": code}
        kind = _KINDS.get(code, HostCannot)
        if kind is HostCannot:
            facts["check"] = "scheduler"
        return kind(f"NVML refuses {words(self.wanted)} on {self.gpu}: {why}", hint=hint.format(gpu=self.gpu), **facts)

    def verify(self, world: World) -> None:
        """Read it back."""
        found = running(world, self.gpu)
        if found is not None and not satisfies(found, self.wanted):
            raise VerifyFailed(
                f"the scheduler of {self.gpu} was set to {words(self.wanted)} but reads back as "
                f"{found.policy or 'one that is not known here'}",
                hint="journalctl -k -g 'software scheduler'; nvidia-smi vgpu -ss",
                gpu=self.gpu,
                time_slice_ns=found.time_slice_ns,
            )

    def undo(self, world: World) -> None:
        """Set what ran before, if what was set still runs."""
        back = as_spec(self.before) if self.before is not None else None
        if satisfies(running(world, self.gpu), self.wanted) and self.wanted != back:
            if back is None:
                raise Failed(
                    f"what ran on {self.gpu} before is not known",
                    hint=command(self.gpu, SchedulerSpec(Policy.BEST_EFFORT)),
                )
            SetScheduler(self.gpu, back).perform(world)


def running(world: World, gpu: str) -> SchedulerState | None:
    """Return what NVML says that runs, None when it does not tell."""
    seen = world.nvml.gpu(gpu)
    return seen.scheduler.state if seen is not None and seen.scheduler is not None else None


class LendDevice(Value):
    """Remove a device that a later step makes again. `again` makes it, when that must be done earlier."""

    remove: Step
    again: Step

    def describe(self) -> str:
        """Say what goes, and that it comes back."""
        return f"{self.remove.describe()} for now"

    def perform(self, world: World) -> None:
        """Remove it; raises as the removal does."""
        self.remove.perform(world)

    def verify(self, world: World) -> None:
        """See that it is gone."""
        self.remove.verify(world)

    def undo(self, world: World) -> None:
        """Make it again, unless it is there."""
        try:
            self.again.verify(world)
        except VgpuctlError:
            self.again.perform(world)
            self.again.verify(world)
