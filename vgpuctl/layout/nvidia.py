# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's VFs, through sriov-manage of the vGPU host driver: it is all of them or none.

The command takes the GPU from the driver and gives it back, which the driver allows (unbindLock) only while nobody
uses the GPU: "Cannot obtain unbindLock" means that some process does. A monitor that polls NVML does for a moment, so
that answer alone is tried again. The VFs come and go after the command has ended.
Source: NVIDIA's vGPU documentation; nv-procfs.c in NVIDIA's open kernel modules; the retries are those of CubeCOS, and
stackhpc/ansible-collection-linux#37 reports the same race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends.base import refuse_if_held
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, VerifyFailed
from vgpuctl.layout.sriov import PCI, number_of, refuse_while_stuck, vfs_of
from vgpuctl.model.step import Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.records import CommandResult
    from vgpuctl.model.seams import VendorCommands
    from vgpuctl.model.world import World

COMMAND = "/usr/lib/nvidia/sriov-manage"
DEADLINE_SECONDS = 180.0
SETTLE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
UNBIND_RETRIES = 5
UNBIND_PAUSE_SECONDS = 1.0


class ManageVfs(Value):
    """Turn all VFs of an NVIDIA GPU on, or off.

    `again`: what the GPU loses with its VFs (GPU instances, mixed sizes, its scheduler), as steps for the way back.
    """

    gpu: str
    enable: bool
    total: int
    again: tuple[Step, ...] = ()

    def describe(self) -> str:
        """Say what is run."""
        return f"turn the {self.total} VFs of {self.gpu} {'on' if self.enable else 'off'} (sriov-manage)"

    def perform(self, world: World) -> None:
        """Run the command; holders of VFs are looked for first, for the kernel would wait for them.

        Raises:
            InUse: a VM uses the GPU, or a process does and goes on doing so.
            HostCannot: the command is not there.
            DeviceFailed: it failed.
            Stuck: it did not end, or was not waited for any longer; it goes on and is recorded.
        """
        self._run(world, enable=self.enable)

    def _run(self, world: World, *, enable: bool) -> None:
        if world.vendor is None:
            raise HostCannot(f"{COMMAND} is out of reach on {world.name}", check="sriov-manage")
        for vf in vfs_of(world, self.gpu):
            refuse_if_held(world, vf, f"{PCI}/{vf}")
        flag = "-e" if enable else "-d"
        facts: dict[str, object] = {"gpu": self.gpu, "command": f"{COMMAND} {flag} {self.gpu}"}
        result = self._asked(world.vendor, flag, facts)
        for _ in range(UNBIND_RETRIES):
            if not _is_held(result):
                break
            world.clock.pause(UNBIND_PAUSE_SECONDS)
            result = self._asked(world.vendor, flag, facts)
        if result.status != 0:
            raise self._refusal(world, result, facts)

    def _asked(self, vendor: VendorCommands, flag: str, facts: dict[str, object]) -> CommandResult:
        try:
            return vendor.sriov_manage(flag, self.gpu, deadline_seconds=DEADLINE_SECONDS)
        except FileNotFoundError as error:
            hint = "install NVIDIA's vGPU host driver (for KVM); the driver for computing alone does not bring it"
            raise HostCannot(f"{COMMAND} is not installed", hint=hint, check="sriov-manage", **facts) from error
        except OSError as error:
            raise DeviceFailed(f"{COMMAND} could not be started: {error.strerror}", hint=COMMAND, **facts) from error

    def _refusal(self, world: World, result: CommandResult, facts: dict[str, object]) -> Exception:
        lines = [line.strip() for line in result.text.splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with status {result.status}"
        if _is_held(result):
            who = holders(world)
            return InUse(
                f"{self.gpu} is in use by {', '.join(who) or 'a process that cannot be seen'}: its driver refused to "
                f"release it {UNBIND_RETRIES + 1} times in {UNBIND_RETRIES * UNBIND_PAUSE_SECONDS:g} s "
                "(Cannot obtain unbindLock)",
                hint="stop what polls or uses the GPU, then run the command again: systemctl stop "
                "nvidia-persistenced nvidia-dcgm dcgm-exporter; also other monitoring and CUDA programs",
                holders=list(who),
                tries=UNBIND_RETRIES + 1,
                **facts,
            )
        return DeviceFailed(
            f"sriov-manage failed on {self.gpu}: {said}",
            hint="journalctl -k -n 20; are SR-IOV and the IOMMU on in the firmware?",
            output=lines[-20:],
            **facts,
        )

    def verify(self, world: World) -> None:
        """Wait until the VFs are gone, or there and taken by the driver: that goes on after the command ended."""
        until = world.clock.monotonic() + SETTLE_SECONDS
        while not self._settled(world):
            if world.clock.monotonic() >= until:
                raise VerifyFailed(
                    f"{self.gpu} has {number_of(world, self.gpu)} VFs, and not all as the driver makes them, "
                    f"{SETTLE_SECONDS:g} s after they were turned {'on' if self.enable else 'off'}",
                    hint="journalctl -k -n 20; systemctl status nvidia-vgpu-mgr",
                    gpu=self.gpu,
                )
            world.clock.pause(PAUSE_SECONDS)

    def _settled(self, world: World) -> bool:
        if not self.enable:
            return number_of(world, self.gpu) == 0
        if number_of(world, self.gpu) == 0:
            return False
        try:
            listings = [world.sysfs.listdir(f"{PCI}/{vf}") for vf in vfs_of(world, self.gpu)]
        except OSError:
            return False
        return bool(listings) and all("driver" in names for names in listings)

    def undo(self, world: World) -> None:
        """Turn them the other way, when they are as this step left them, and set again what the GPU lost with them.

        Raises:
            Stuck: the command still runs: a second one beside it would meet a GPU that is half-way.
            VgpuctlError: the VFs are as they were, and something that was lost with them could not be set again.
        """
        refuse_while_stuck(world, self.gpu)
        if (number_of(world, self.gpu) > 0) is self.enable:
            self._run(world, enable=not self.enable)
        if self.again:
            replace(self, enable=not self.enable, again=()).verify(world)
        for step in self.again:
            step.perform(world)
            step.verify(world)


def _is_held(result: CommandResult) -> bool:
    """Say whether the driver did not give the GPU away because somebody uses it."""
    return result.status != 0 and "unbindLock" in result.text


def holders(world: World) -> tuple[str, ...]:
    """Return who has a node of NVIDIA's driver open, as far as that can be seen."""
    try:
        return tuple(f"{h.command} (pid {h.pid})" for h in world.processes.holders(driver_nodes(world)))
    except OSError:
        return ()


def driver_nodes(world: World) -> tuple[str, ...]:
    """Return the nodes of NVIDIA's driver.

    Raises:
        OSError: /dev cannot be listed.
    """
    return tuple(f"/dev/{name}" for name in world.sysfs.listdir("/dev") if name.startswith("nvidia"))
