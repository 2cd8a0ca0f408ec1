# SPDX-License-Identifier: Apache-2.0
"""Steps that set a GPU's scheduler, and the step that removes a device until that is done.

NVML sets it only while no vGPU exists on the GPU. So vgpuctl removes the VMs' devices first and creates them again
afterwards. Intel's xe takes it in `sriov_admin/.bulk_profile`, for the host and all VFs, also while VMs run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import (
    Failed,
    HostCannot,
    InvalidInput,
    NvmlFailed,
    VerifyFailed,
    VgpuctlError,
)
from vgpuctl.gpu_setup.sriov import count_vfs
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES, profile_error
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vgpu_scheduler import SchedulerInterface, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.observe import xe_profiles
from vgpuctl.ports.step import Step
from vgpuctl.scheduler import xe
from vgpuctl.scheduler.limits import satisfies, scheduler_text, spec_from_state
from vgpuctl.value import EMPTY_MAPPING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vgpuctl.ports.host import Host

_REASONS: dict[int, tuple[str, str]] = {
    2: ("the driver does not accept these numbers", "vgpuctl show-gpu {gpu} shows the ranges it accepts"),
    3: (
        "a vGPU exists on it, MIG is on, or its driver carries no vGPUs",
        "vgpuctl show-gpu {gpu} shows the vGPUs; --drain removes vgpuctl's temporarily and restores them",
    ),
    4: ("root is required", "run this as root"),
    16: ("the GPU has to be reset first", "reboot the host"),
}
"""NVML's error number -> cause and remedy. Source: nvml.h, nvmlReturn_t and nvmlDeviceSetVgpuSchedulerState."""
_ERROR_CLASSES: dict[int, type[VgpuctlError]] = {2: InvalidInput, 16: Failed, 4: Failed}


def set_scheduler_command(gpu: str, spec: SchedulerSpec) -> str:
    """Return the command line that sets a scheduler."""
    numbers = (
        (spec.time_slice_ms, "--time-slice"),
        (spec.frequency_hz, "--frequency"),
        (spec.averaging_factor, "--averaging-factor"),
        (spec.preempt_timeout_us, "--preempt-timeout"),
    )
    options = [f"{option} {number}" for number, option in numbers if number is not None]
    return " ".join([f"vgpuctl set-scheduler {gpu} --policy {spec.policy}", *options])


def set_scheduler_step(gpu: Gpu, desired: SchedulerSpec) -> Step:
    """Return the step that sets a scheduler: of the GPU and its plain VFs, or with MIG of each GPU instance."""
    state = gpu.scheduler.state if gpu.scheduler is not None else None
    if gpu.scheduler is not None and gpu.scheduler.interface is SchedulerInterface.SRIOV_ADMIN:
        return SetVfScheduler(gpu.address, desired, state)
    if gpu.mig is not None and gpu.mig.enabled:
        return SetInstanceSchedulers(gpu.address, desired, tuple(sorted(gpu.gi_schedulers.items())))
    return SetScheduler(gpu.address, desired, state)


def volatile_note(gpu: Gpu) -> str:
    """Return what loses a scheduler that was set now."""
    if gpu.scheduler is not None and gpu.scheduler.interface is SchedulerInterface.SRIOV_ADMIN:
        return "turning the VFs off resets it: vgpuctl sets it again with the VFs, and restore-host after a boot"
    return (
        "settings made with NVML are lost when the driver is loaded again:"
        " vgpuctl restore-host sets them again after a boot"
    )


class SetScheduler(Step):
    """Set the scheduler of a GPU's vGPUs. `previous`: the one that was active before, None if unknown."""

    gpu: str
    desired: SchedulerSpec
    previous: SchedulerState | None = None

    def describe(self) -> str:
        return f"set the scheduler of {self.gpu} to {scheduler_text(self.desired)} (NVML)"

    def perform(self, host: Host) -> None:
        """Set it.

        Raises:
            HostCannot, InvalidInput, Failed: NVML refused it; the error says why.
        """
        try:
            host.nvml.set_scheduler(self.gpu, self.desired)
        except NvmlFailed as error:
            raise _nvml_error(error, self.gpu, self.desired) from error

    def verify(self, host: Host) -> None:
        """Read it back; some drivers report no scheduler, and that is accepted."""
        running = read_running_scheduler(host, self.gpu)
        if running is not None and not satisfies(running, self.desired):
            raise VerifyFailed(
                f"the scheduler of {self.gpu} was set to {scheduler_text(self.desired)} but reads back as "
                f"{running.policy or 'an unknown policy'}",
                hint="journalctl -k -g 'software scheduler'; nvidia-smi vgpu -ss",
                gpu=self.gpu,
                time_slice_ns=running.time_slice_ns,
            )

    def undo(self, host: Host) -> None:
        """Restore the previous scheduler if the one that this step set still runs."""
        previous_spec = spec_from_state(self.previous) if self.previous is not None else None
        if satisfies(read_running_scheduler(host, self.gpu), self.desired) and self.desired != previous_spec:
            if previous_spec is None:
                raise Failed(
                    f"the previous scheduler of {self.gpu} is not known",
                    hint=set_scheduler_command(self.gpu, SchedulerSpec(SchedulerPolicy.BEST_EFFORT)),
                )
            SetScheduler(self.gpu, previous_spec).perform(host)


class SetInstanceSchedulers(Step):
    """Set the scheduler of each GPU instance (GB20x). `previous`: what ran before in the existing instances, by id."""

    gpu: str
    desired: SchedulerSpec
    previous: tuple[tuple[int, SchedulerState], ...] = ()

    def describe(self) -> str:
        return f"set the scheduler of each GPU instance of {self.gpu} to {scheduler_text(self.desired)} (NVML)"

    def perform(self, host: Host) -> None:
        """Set it on each instance whose scheduler differs. NVML refuses to change an instance that has vGPUs.

        Raises:
            HostCannot, InvalidInput, Failed: NVML refused it; the error says why.
        """
        for gi_id, state in sorted(read_instance_schedulers(host, self.gpu).items()):
            if not satisfies(state, self.desired):
                _set_instance_scheduler(host, self.gpu, gi_id, self.desired)

    def verify(self, host: Host) -> None:
        running = read_instance_schedulers(host, self.gpu)
        wrong = [str(gi_id) for gi_id, state in sorted(running.items()) if not satisfies(state, self.desired)]
        if wrong or not running:
            raise VerifyFailed(
                f"the scheduler of GPU instances of {self.gpu} was set to {scheduler_text(self.desired)} but "
                "reads back otherwise" + (f" in instance {', '.join(wrong)}" if wrong else ": none reports it"),
                hint="journalctl -k -g 'software scheduler'",
                gpu=self.gpu,
            )

    def undo(self, host: Host) -> None:
        """Restore the previous scheduler of each remaining instance that still has the one that this step set."""
        running = read_instance_schedulers(host, self.gpu)
        for gi_id, state in self.previous:
            previous_spec = spec_from_state(state)
            if (
                previous_spec is not None
                and previous_spec != self.desired
                and satisfies(running.get(gi_id), self.desired)
            ):
                _set_instance_scheduler(host, self.gpu, gi_id, previous_spec)


class SetVfScheduler(Step):
    """Set the scheduler of a card and all its VFs in xe's `sriov_admin`. `previous`: what ran, None without VFs."""

    gpu: str
    desired: SchedulerSpec
    previous: SchedulerState | None = None

    def describe(self) -> str:
        return f"set the scheduler of {self.gpu} and its VFs to {scheduler_text(self.desired)} (sriov_admin)"

    def perform(self, host: Host) -> None:
        """Write it for the host and all VFs.

        Raises:
            HostCannot, InvalidInput, DeviceFailed: the driver refused it; the error says why.
        """
        for name, text in xe.bulk_values(self.desired, count_vfs(host, self.gpu)).items():
            path = f"{PCI_DEVICES}/{self.gpu}/{xe.BULK_DIRECTORY}/{name}"
            try:
                host.sysfs.write(path, f"{text}\n")
            except OSError as error:
                raise profile_error(error, self.gpu, f"{name} {text}", path) from error

    def verify(self, host: Host) -> None:
        """Read it back from the host's and each VF's files."""
        running = self._read(host)
        if not satisfies(running, self.desired):
            raise VerifyFailed(
                f"the scheduler of {self.gpu} was set to {scheduler_text(self.desired)} but reads back as "
                f"{running.policy or running.problem}",
                hint=f"vgpuctl show-gpu {self.gpu}; journalctl -k -n 20",
                gpu=self.gpu,
                time_slice_ns=running.time_slice_ns,
            )

    def undo(self, host: Host) -> None:
        """Restore the previous scheduler; VFs that are turned off again lose it anyway.

        Raises:
            HostCannot: it is not known; the new one stays.
        """
        if self.previous is None or not count_vfs(host, self.gpu):
            return
        spec = spec_from_state(self.previous)
        if spec is None:
            raise HostCannot(
                f"the scheduler that {self.gpu} had before is not known",
                hint=f"vgpuctl set-scheduler {self.gpu} --policy POLICY",
                check="scheduler",
                gpu=self.gpu,
            )
        if not satisfies(self._read(host), spec):
            SetVfScheduler(self.gpu, spec).perform(host)

    def _read(self, host: Host) -> SchedulerState:
        return xe_profiles.read_state(host.sysfs, f"{PCI_DEVICES}/{self.gpu}", count_vfs(host, self.gpu))


SCHEDULER_STEPS = (SetScheduler, SetInstanceSchedulers, SetVfScheduler)


def read_instance_schedulers(host: Host, gpu: str) -> Mapping[int, SchedulerState]:
    """Return the scheduler that NVML reports for each GPU instance; empty if it reports none."""
    nvml_gpu = host.nvml.gpu(gpu)
    return nvml_gpu.gi_schedulers if nvml_gpu is not None else EMPTY_MAPPING


def _set_instance_scheduler(host: Host, gpu: str, gi_id: int, spec: SchedulerSpec) -> None:
    try:
        host.nvml.set_scheduler(gpu, spec, gi_id)
    except NvmlFailed as error:
        raise _nvml_error(error, f"GPU instance {gi_id} of {gpu}", spec, gpu) from error


def _nvml_error(error: NvmlFailed, where: str, desired: SchedulerSpec, gpu: str | None = None) -> VgpuctlError:
    """Translate an NVML error. `where`: the GPU's address, or a text that names an instance of `gpu`."""
    code = error.facts.get("nvml_code")
    if not isinstance(code, int) or code not in _REASONS:
        message = f"NVML refuses {scheduler_text(desired)} on {where}: {error.message}"
        return NvmlFailed(message, hint=error.hint, **{**error.facts, "gpu": gpu or where})
    why, hint = _REASONS[code]
    facts: dict[str, object] = {"gpu": gpu or where, "nvml_code": code}
    error_class = _ERROR_CLASSES.get(code, HostCannot)
    if error_class is HostCannot:
        facts["check"] = "scheduler"
    return error_class(
        f"NVML refuses {scheduler_text(desired)} on {where}: {why}", hint=hint.format(gpu=gpu or where), **facts
    )


def read_running_scheduler(host: Host, gpu: str) -> SchedulerState | None:
    """Return the GPU's active scheduler, or None if NVML reports none."""
    nvml_gpu = host.nvml.gpu(gpu)
    return nvml_gpu.scheduler.state if nvml_gpu is not None and nvml_gpu.scheduler is not None else None


class RemoveTemporarily(Step):
    """Remove a device that a later step of the plan creates again. `restore` creates it too, for the undo."""

    remove: Step
    restore: Step

    def describe(self) -> str:
        return f"{self.remove.describe()} temporarily"

    def perform(self, host: Host) -> None:
        """Remove it; raises what the removal raises."""
        self.remove.perform(host)

    def verify(self, host: Host) -> None:
        self.remove.verify(host)

    def undo(self, host: Host) -> None:
        """Create it again unless it exists."""
        try:
            self.restore.verify(host)
        except VgpuctlError:
            self.restore.perform(host)
            self.restore.verify(host)
