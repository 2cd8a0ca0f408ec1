# SPDX-License-Identifier: Apache-2.0
"""Steps for MIG mode, GPU instances and mixed sizes of an NVIDIA GPU, through NVML.

The driver changes MIG mode only while the VFs are off. It accepts GPU instances and mixed sizes (heterogeneous mode)
only while the VFs are on, and mixed sizes only on a GPU without vGPUs. On Ampere a change of MIG mode may stay pending
until the GPU is reset or the host boots; later GPUs change at once. Sources: nvml.h, nvmlDeviceSetMigMode,
nvmlDeviceCreateGpuInstanceWithPlacement and nvmlDeviceSetVgpuHeterogeneousMode; NVIDIA's AI Enterprise administration
guide, "MIG-backed vGPUs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, DeviceFailed, Failed, HostCannot, InUse, NvmlFailed, VerifyFailed, VgpuctlError
from vgpuctl.gpu_setup.sriov import count_vfs, list_driver_users, refuse_while_stuck
from vgpuctl.model.gpu import GiProfile, GpuInstance, MigState, PlacementSpan
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

RESET_DEADLINE_SECONDS = 120.0
_NOT_SUPPORTED, _NO_PERMISSION, _NO_RESOURCES, _IN_USE = 3, 4, 23, 19
"""NVML's error numbers for refused calls. Source: nvml.h, nvmlReturn_t."""


class SetMig(Step):
    """Turn MIG on or off. `was_enabled`: its mode before; `may_reset`: reset the GPU if the change stays pending."""

    gpu: str
    enable: bool
    was_enabled: bool
    may_reset: bool = False

    def describe(self) -> str:
        return f"turn MIG of {self.gpu} {'on' if self.enable else 'off'} (NVML)"

    def perform(self, host: Host) -> None:
        """Set it. If the change stays pending and `may_reset` is set, reset the GPU.

        Raises:
            Busy: the change waits for the GPU's next reset; reports who has the driver open.
            InUse, HostCannot, DeviceFailed, NvmlFailed: it is refused, or the reset failed.
        """
        self._set(host, enable=self.enable)
        if self.may_reset and _is_pending(host, self.gpu, self.enable):
            self._reset(host)
        if _is_pending(host, self.gpu, self.enable):
            users = list_driver_users(host)
            raise Busy(
                f"MIG of {self.gpu} turns {'on' if self.enable else 'off'} at its next reset: "
                + (
                    f"{', '.join(users)} has NVIDIA's driver open"
                    if users
                    else "its driver does not change it immediately"
                ),
                hint=f"{'stop these programs' if users else 'reboot the host'}, then run the command again",
                gpu=self.gpu,
                holders=list(users),
            )

    def _set(self, host: Host, *, enable: bool) -> None:
        try:
            host.nvml.set_mig(self.gpu, enabled=enable)
        except NvmlFailed as error:
            raise _nvml_error(host, error, self.gpu, self.describe()) from error

    def _reset(self, host: Host) -> None:
        """Reset the GPU; its VFs must be off, and nobody may have it open.

        Raises:
            DeviceFailed: the reset failed; with the output of nvidia-smi.
            Stuck: it did not end.
        """
        if host.vendor_commands is None or count_vfs(host, self.gpu):
            return
        try:
            result = host.vendor_commands.reset_gpu(self.gpu, deadline_seconds=RESET_DEADLINE_SECONDS)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DeviceFailed(f"nvidia-smi could not be started: {error.strerror}", gpu=self.gpu) from error
        if result.status != 0 and not list_driver_users(host):
            lines = [line.strip() for line in result.text.splitlines() if line.strip()]
            raise DeviceFailed(
                f"{self.gpu} could not be reset: {lines[-1] if lines else f'status {result.status}'}",
                hint="reboot the host, then run the command again",
                gpu=self.gpu,
                output=lines[-20:],
            )

    def verify(self, host: Host) -> None:
        current = _read_mig(host, self.gpu)
        if current is None or current.enabled is not self.enable:
            raise VerifyFailed(
                f"MIG of {self.gpu} was turned {'on' if self.enable else 'off'} but reads back differently",
                hint="journalctl -k -n 20",
                gpu=self.gpu,
            )

    def undo(self, host: Host) -> None:
        """Restore the previous mode. A change that only waits for a reset stays: after a boot the command continues.

        Raises:
            Failed: it waits for a reset.
        """
        refuse_while_stuck(host, self.gpu)
        current = _read_mig(host, self.gpu)
        if current is None or current.enabled is current.pending_enabled is self.was_enabled:
            return
        if current.pending_enabled is self.was_enabled or current.enabled is self.enable or list_driver_users(host):
            self._set(host, enable=self.was_enabled)
            current = _read_mig(host, self.gpu)
        if current is not None and current.enabled is not current.pending_enabled:
            raise Failed(
                f"MIG of {self.gpu} turns {'on' if current.pending_enabled else 'off'} at the host's next boot",
                hint="reboot the host",
            )


class CreateGpuInstance(Step):
    """Create a GPU instance, and one compute instance that covers it."""

    gpu: str
    profile: GiProfile
    span: PlacementSpan

    def describe(self) -> str:
        return f"create GPU instance {self.profile.name} on {self.gpu} at {self.span} (NVML)"

    def perform(self, host: Host) -> None:
        """Create it.

        Raises:
            InUse, HostCannot, NvmlFailed: the driver refuses it.
        """
        try:
            host.nvml.create_gpu_instance(self.gpu, self.profile.profile_id, self.span.start)
        except NvmlFailed as error:
            raise _nvml_error(host, error, self.gpu, self.describe()) from error

    def verify(self, host: Host) -> None:
        """Check that it is at the requested placement."""
        if _find_instance(host, self.gpu, self.profile.profile_id, self.span) is None:
            raise VerifyFailed(
                f"GPU instance {self.profile.name} of {self.gpu} was created but is not at {self.span}",
                hint=f"nvidia-smi mig -i {self.gpu} -lgi",
                gpu=self.gpu,
            )

    def undo(self, host: Host) -> None:
        """Destroy it if it exists. This command has claimed the whole GPU, so the instance is this step's."""
        instance = _find_instance(host, self.gpu, self.profile.profile_id, self.span)
        if instance is not None:
            _destroy(host, self.gpu, instance, self.describe())


class DestroyGpuInstance(Step):
    """Destroy a GPU instance. Undo creates it again from `profile`."""

    gpu: str
    profile: GiProfile
    span: PlacementSpan

    def describe(self) -> str:
        return f"destroy GPU instance {self.profile.name} on {self.gpu} at {self.span} (NVML)"

    def perform(self, host: Host) -> None:
        """Destroy it. A missing instance is no error.

        Raises:
            InUse: a vGPU is in it.
            NvmlFailed: the driver refuses it.
        """
        instance = _find_instance(host, self.gpu, self.profile.profile_id, self.span)
        if instance is not None:
            _destroy(host, self.gpu, instance, self.describe())

    def verify(self, host: Host) -> None:
        if _find_instance(host, self.gpu, self.profile.profile_id, self.span) is not None:
            raise VerifyFailed(
                f"GPU instance {self.profile.name} of {self.gpu} at {self.span} was destroyed but still exists",
                hint=f"nvidia-smi mig -i {self.gpu} -lgi",
                gpu=self.gpu,
            )

    def undo(self, host: Host) -> None:
        """Create it again unless it exists."""
        if _find_instance(host, self.gpu, self.profile.profile_id, self.span) is None:
            create = CreateGpuInstance(self.gpu, self.profile, self.span)
            create.perform(host)
            create.verify(host)


class SetMixedSize(Step):
    """Allow vGPUs of several sizes on a GPU at once (heterogeneous mode), or forbid them."""

    gpu: str
    enable: bool

    def describe(self) -> str:
        return f"turn mixed sizes of {self.gpu} {'on' if self.enable else 'off'} (NVML)"

    def perform(self, host: Host) -> None:
        """Set it.

        Raises:
            InUse, HostCannot, NvmlFailed: the driver refuses it.
        """
        self._set(host, enable=self.enable)

    def _set(self, host: Host, *, enable: bool) -> None:
        try:
            host.nvml.set_mixed_size(self.gpu, enabled=enable)
        except NvmlFailed as error:
            raise _nvml_error(host, error, self.gpu, self.describe()) from error

    def verify(self, host: Host) -> None:
        if _read_mixed_size(host, self.gpu) is not self.enable:
            raise VerifyFailed(
                f"mixed sizes of {self.gpu} were turned {'on' if self.enable else 'off'} but read back differently",
                hint="journalctl -k -n 20; another program may have set up its VFs again",
                gpu=self.gpu,
            )

    def undo(self, host: Host) -> None:
        """Restore the other mode if the GPU still has the one that this step set."""
        if _read_mixed_size(host, self.gpu) is self.enable:
            self._set(host, enable=not self.enable)


def _read_mig(host: Host, gpu: str) -> MigState | None:
    nvml_gpu = host.nvml.gpu(gpu)
    return nvml_gpu.mig if nvml_gpu is not None else None


def _read_mixed_size(host: Host, gpu: str) -> bool | None:
    nvml_gpu = host.nvml.gpu(gpu)
    return nvml_gpu.mixed_size if nvml_gpu is not None else None


def _is_pending(host: Host, gpu: str, enable: bool) -> bool:
    current = _read_mig(host, gpu)
    return current is not None and current.enabled is not enable and current.pending_enabled is enable


def _find_instance(host: Host, gpu: str, profile_id: int, span: PlacementSpan) -> GpuInstance | None:
    current = _read_mig(host, gpu)
    instances = current.instances if current is not None else ()
    return next((i for i in instances if (i.profile_id, i.placement) == (profile_id, span)), None)


def _destroy(host: Host, gpu: str, instance: GpuInstance, action: str) -> None:
    try:
        host.nvml.destroy_gpu_instance(gpu, instance.gi_id)
    except NvmlFailed as error:
        raise _nvml_error(host, error, gpu, action) from error


def _nvml_error(host: Host, error: NvmlFailed, gpu: str, action: str) -> VgpuctlError:
    """Translate an NVML error."""
    code = error.facts.get("nvml_code")
    facts: dict[str, object] = {"gpu": gpu, "nvml_code": code}
    if code == _IN_USE:
        users = list_driver_users(host)
        return InUse(
            f"the driver cannot {action}: it is in use" + (f", {', '.join(users)} has it open" if users else ""),
            hint=f"stop what uses it; vgpuctl show-gpu {gpu} shows its vGPUs",
            holders=list(users),
            **facts,
        )
    if code == _NOT_SUPPORTED:
        return HostCannot(
            f"the driver cannot {action}: not possible on this GPU in its current state",
            hint=f"vgpuctl doctor; vgpuctl show-gpu {gpu}",
            check="partition",
            **facts,
        )
    if code == _NO_PERMISSION:
        return Failed(f"the driver cannot {action}: root is required", hint="run this as root", **facts)
    if code == _NO_RESOURCES:
        return HostCannot(
            f"the driver cannot {action}: there is no room for it",
            hint=f"nvidia-smi mig -i {gpu} -lgi shows the instances",
            check="partition",
            **facts,
        )
    return NvmlFailed(f"the driver cannot {action}: {error.message}", hint=error.hint, **{**error.facts, "gpu": gpu})
