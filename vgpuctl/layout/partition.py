# SPDX-License-Identifier: Apache-2.0
"""MIG mode, GPU instances and mixed sizes of an NVIDIA GPU through NVML, as steps.

The driver takes MIG mode only while the VFs are off, GPU instances and mixed sizes only while they are on, and mixed
sizes only on a GPU without vGPUs. On Ampere a change of MIG mode may stay pending until the GPU is reset or the host
boots; later GPUs change at once. Sources: nvml.h, nvmlDeviceSetMigMode, nvmlDeviceCreateGpuInstanceWithPlacement and
nvmlDeviceSetVgpuHeterogeneousMode; NVIDIA's AI Enterprise administration guide, "MIG-backed vGPUs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, DeviceFailed, Failed, HostCannot, InUse, NvmlFailed, VerifyFailed, VgpuctlError
from vgpuctl.layout.nvidia import holders
from vgpuctl.layout.sriov import number_of, refuse_while_stuck
from vgpuctl.model.partition import GiProfile, GpuInstance, Mig, Span
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

RESET_DEADLINE_SECONDS = 120.0
_NOT_SUPPORTED, _NO_PERMISSION, _NO_RESOURCES, _IN_USE = 3, 4, 23, 19
"""NVML's numbers for what is refused. Source: nvml.h, nvmlReturn_t."""


class SetMig(Value):
    """Turn MIG on or off. `before`: how it was; `reset`: the GPU may be reset when the change stays pending."""

    gpu: str
    enable: bool
    before: bool
    reset: bool = False

    def describe(self) -> str:
        """Say which."""
        return f"turn MIG of {self.gpu} {'on' if self.enable else 'off'} (NVML)"

    def perform(self, world: World) -> None:
        """Set it, and reset the GPU where that is what the change waits for and it is allowed.

        Raises:
            Busy: the change waits for the GPU's next reset; says who has the driver open.
            InUse, HostCannot, DeviceFailed, NvmlFailed: it is refused, or the reset failed.
        """
        self._set(world, enable=self.enable)
        if self.reset and _pending(world, self.gpu, self.enable):
            self._reset(world)
        if _pending(world, self.gpu, self.enable):
            who = holders(world)
            raise Busy(
                f"MIG of {self.gpu} goes {'on' if self.enable else 'off'} with its next reset: "
                + (f"{', '.join(who)} has NVIDIA's driver open" if who else "its driver does not change it at once"),
                hint=f"{'stop that' if who else 'reboot the host'}, then run the command again",
                gpu=self.gpu,
                holders=list(who),
            )

    def _set(self, world: World, *, enable: bool) -> None:
        try:
            world.nvml.set_mig(self.gpu, enabled=enable)
        except NvmlFailed as error:
            raise _refused(world, error, self.gpu, self.describe()) from error

    def _reset(self, world: World) -> None:
        """Reset the GPU; its VFs are off, and nobody may have it open.

        Raises:
            DeviceFailed: with what nvidia-smi says.
            Stuck: it did not end.
        """
        if world.vendor is None or number_of(world, self.gpu):
            return
        try:
            result = world.vendor.reset_gpu(self.gpu, deadline_seconds=RESET_DEADLINE_SECONDS)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DeviceFailed(f"nvidia-smi could not be started: {error.strerror}", gpu=self.gpu) from error
        if result.status != 0 and not holders(world):
            lines = [line.strip() for line in result.text.splitlines() if line.strip()]
            raise DeviceFailed(
                f"{self.gpu} could not be reset: {lines[-1] if lines else f'status {result.status}'}",
                hint="reboot the host, then run the command again",
                gpu=self.gpu,
                output=lines[-20:],
            )

    def verify(self, world: World) -> None:
        """Read it back."""
        now = _mig(world, self.gpu)
        if now is None or now.enabled is not self.enable:
            raise VerifyFailed(
                f"MIG of {self.gpu} was turned {'on' if self.enable else 'off'} but reads back otherwise",
                hint="journalctl -k -n 20",
                gpu=self.gpu,
            )

    def undo(self, world: World) -> None:
        """Set what was before. What waits for a reset alone is kept: after a boot the command goes on from there.

        Raises:
            Failed: it waits for a reset.
        """
        refuse_while_stuck(world, self.gpu)
        now = _mig(world, self.gpu)
        if now is None or now.enabled is now.pending is self.before:
            return
        if now.pending is self.before or now.enabled is self.enable or holders(world):
            self._set(world, enable=self.before)
            now = _mig(world, self.gpu)
        if now is not None and now.enabled is not now.pending:
            raise Failed(
                f"MIG of {self.gpu} goes {'on' if now.pending else 'off'} when the host boots next",
                hint="reboot the host",
            )


class MakeInstance(Value):
    """Make a GPU instance, and one compute instance that is all of it."""

    gpu: str
    profile: GiProfile
    span: Span

    def describe(self) -> str:
        """Say which, and at which memory slices."""
        return f"make GPU instance {self.profile.name} on {self.gpu} at {self.span} (NVML)"

    def perform(self, world: World) -> None:
        """Make it.

        Raises:
            InUse, HostCannot, NvmlFailed: the driver refuses it.
        """
        try:
            world.nvml.make_instance(self.gpu, self.profile.profile_id, self.span.start)
        except NvmlFailed as error:
            raise _refused(world, error, self.gpu, self.describe()) from error

    def verify(self, world: World) -> None:
        """See that it is where it was to be."""
        if _instance(world, self.gpu, self.profile.profile_id, self.span) is None:
            raise VerifyFailed(
                f"GPU instance {self.profile.name} of {self.gpu} was made but is not at {self.span}",
                hint=f"nvidia-smi mig -i {self.gpu} -lgi",
                gpu=self.gpu,
            )

    def undo(self, world: World) -> None:
        """Destroy it, if it is there: the GPU is claimed as a whole meanwhile, so it is this step's."""
        made = _instance(world, self.gpu, self.profile.profile_id, self.span)
        if made is not None:
            _destroy(world, self.gpu, made, self.describe())


class DestroyInstance(Value):
    """Destroy a GPU instance. `profile` is what makes it again."""

    gpu: str
    profile: GiProfile
    span: Span

    def describe(self) -> str:
        """Say which, and where it is."""
        return f"destroy GPU instance {self.profile.name} on {self.gpu} at {self.span} (NVML)"

    def perform(self, world: World) -> None:
        """Destroy it; one that is gone is no error.

        Raises:
            InUse: a vGPU is in it.
            NvmlFailed: the driver refuses it.
        """
        there = _instance(world, self.gpu, self.profile.profile_id, self.span)
        if there is not None:
            _destroy(world, self.gpu, there, self.describe())

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if _instance(world, self.gpu, self.profile.profile_id, self.span) is not None:
            raise VerifyFailed(
                f"GPU instance {self.profile.name} of {self.gpu} at {self.span} was destroyed but is there",
                hint=f"nvidia-smi mig -i {self.gpu} -lgi",
                gpu=self.gpu,
            )

    def undo(self, world: World) -> None:
        """Make it again, unless it is there."""
        if _instance(world, self.gpu, self.profile.profile_id, self.span) is None:
            again = MakeInstance(self.gpu, self.profile, self.span)
            again.perform(world)
            again.verify(world)


class SetMixedSize(Value):
    """Let vGPUs of several sizes be on a GPU at once, or not."""

    gpu: str
    enable: bool

    def describe(self) -> str:
        """Say which."""
        return f"turn mixed sizes of {self.gpu} {'on' if self.enable else 'off'} (NVML)"

    def perform(self, world: World) -> None:
        """Set it.

        Raises:
            InUse, HostCannot, NvmlFailed: the driver refuses it.
        """
        self._set(world, enable=self.enable)

    def _set(self, world: World, *, enable: bool) -> None:
        try:
            world.nvml.set_mixed_size(self.gpu, enabled=enable)
        except NvmlFailed as error:
            raise _refused(world, error, self.gpu, self.describe()) from error

    def verify(self, world: World) -> None:
        """Read it back."""
        if _mixed(world, self.gpu) is not self.enable:
            raise VerifyFailed(
                f"mixed sizes of {self.gpu} were turned {'on' if self.enable else 'off'} but read back otherwise",
                hint="journalctl -k -n 20; another program may have set its VFs up anew",
                gpu=self.gpu,
            )

    def undo(self, world: World) -> None:
        """Set the other again, if what was set still is."""
        if _mixed(world, self.gpu) is self.enable:
            self._set(world, enable=not self.enable)


def _mig(world: World, gpu: str) -> Mig | None:
    seen = world.nvml.gpu(gpu)
    return seen.mig if seen is not None else None


def _mixed(world: World, gpu: str) -> bool | None:
    seen = world.nvml.gpu(gpu)
    return seen.mixed_size if seen is not None else None


def _pending(world: World, gpu: str, wanted: bool) -> bool:
    now = _mig(world, gpu)
    return now is not None and now.enabled is not wanted and now.pending is wanted


def _instance(world: World, gpu: str, profile_id: int, span: Span) -> GpuInstance | None:
    now = _mig(world, gpu)
    instances = now.instances if now is not None else ()
    return next((i for i in instances if (i.profile_id, i.span) == (profile_id, span)), None)


def _destroy(world: World, gpu: str, instance: GpuInstance, what: str) -> None:
    try:
        world.nvml.destroy_instance(gpu, instance.gi_id)
    except NvmlFailed as error:
        raise _refused(world, error, gpu, what) from error


def _refused(world: World, error: NvmlFailed, gpu: str, what: str) -> VgpuctlError:
    """Return what an answer of NVML's means."""
    code = error.facts.get("nvml_code")
    facts: dict[str, object] = {"gpu": gpu, "nvml_code": code}
    if code == _IN_USE:
        who = holders(world)
        return InUse(
            f"the driver does not {what}: it is in use" + (f", {', '.join(who)} has it open" if who else ""),
            hint=f"stop what uses it; vgpuctl show-gpu {gpu} shows its vGPUs",
            holders=list(who),
            **facts,
        )
    if code == _NOT_SUPPORTED:
        return HostCannot(
            f"the driver does not {what}: it says that this GPU cannot have it now",
            hint=f"vgpuctl doctor; vgpuctl show-gpu {gpu}",
            check="partition",
            **facts,
        )
    if code == _NO_PERMISSION:
        return Failed(f"the driver does not {what}: only root may do that", hint="run this as root", **facts)
    if code == _NO_RESOURCES:
        return HostCannot(
            f"the driver does not {what}: it has no room left for it",
            hint=f"nvidia-smi mig -i {gpu} -lgi shows what is there",
            check="partition",
            **facts,
        )
    return NvmlFailed(f"the driver does not {what}: {error.message}", hint=error.hint, **{**error.facts, "gpu": gpu})
