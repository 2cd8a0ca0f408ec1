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
from vgpuctl.value import NOTHING, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

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
            raise _refusal(error, self.gpu, self.wanted) from error

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


class SetInstanceSchedulers(Value):
    """Have the vGPUs of each GPU instance scheduled so (GB20x). `before`: what ran in those that exist, by id."""

    gpu: str
    wanted: SchedulerSpec
    before: tuple[tuple[int, SchedulerState], ...] = ()

    def describe(self) -> str:
        """Say what is set."""
        return f"set the scheduler of each GPU instance of {self.gpu} to {words(self.wanted)} (NVML)"

    def perform(self, world: World) -> None:
        """Set it where another one runs; an instance with vGPUs takes none.

        Raises:
            HostCannot, InvalidInput, Failed: NVML refused it, and why.
        """
        for gi_id, state in sorted(in_instances(world, self.gpu).items()):
            if not satisfies(state, self.wanted):
                _set_in(world, self.gpu, gi_id, self.wanted)

    def verify(self, world: World) -> None:
        """Read it back."""
        found = in_instances(world, self.gpu)
        wrong = [str(gi_id) for gi_id, state in sorted(found.items()) if not satisfies(state, self.wanted)]
        if wrong or not found:
            raise VerifyFailed(
                f"the scheduler of GPU instances of {self.gpu} was set to {words(self.wanted)} but reads back otherwise"
                + (f" in instance {', '.join(wrong)}" if wrong else ": none tells it"),
                hint="journalctl -k -g 'software scheduler'",
                gpu=self.gpu,
            )

    def undo(self, world: World) -> None:
        """Set what ran before in the instances that are still there, if what was set still runs."""
        found = in_instances(world, self.gpu)
        for gi_id, state in self.before:
            back = as_spec(state)
            if back is not None and back != self.wanted and satisfies(found.get(gi_id), self.wanted):
                _set_in(world, self.gpu, gi_id, back)


def in_instances(world: World, gpu: str) -> Mapping[int, SchedulerState]:
    """Return what NVML says that runs in each GPU instance, nothing where those have no schedulers."""
    seen = world.nvml.gpu(gpu)
    return seen.gi_schedulers if seen is not None else NOTHING


def _set_in(world: World, gpu: str, gi_id: int, spec: SchedulerSpec) -> None:
    try:
        world.nvml.set_scheduler(gpu, spec, gi_id)
    except NvmlFailed as error:
        raise _refusal(error, f"GPU instance {gi_id} of {gpu}", spec, gpu) from error


def _refusal(error: NvmlFailed, where: str, wanted: SchedulerSpec, gpu: str | None = None) -> VgpuctlError:
    """Return what an answer of NVML's means. `gpu`: the GPU, where `where` is a part of it."""
    code = error.facts.get("nvml_code")
    if not isinstance(code, int) or code not in _REASONS:
        said = f"NVML refuses {words(wanted)} on {where}: {error.message}"
        return NvmlFailed(said, hint=error.hint, **{**error.facts, "gpu": gpu or where})
    why, hint = _REASONS[code]
    facts: dict[str, object] = {"gpu": gpu or where, "nvml_code": code}
    kind = _KINDS.get(code, HostCannot)
    if kind is HostCannot:
        facts["check"] = "scheduler"
    return kind(f"NVML refuses {words(wanted)} on {where}: {why}", hint=hint.format(gpu=gpu or where), **facts)


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
