# SPDX-License-Identifier: Apache-2.0
"""What the driver of a vGPU needs before its VM is saved; which makers need something is in `makers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends.base import write_error
from vgpuctl.backends.mdev import MDEV_DEVICES
from vgpuctl.errors import HostCannot, Temporary
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_PAUSE_SECONDS = 0.1


def find_save_switch(host: Host, gpu: Gpu) -> str | None:
    """Return why a setting of the GPU's driver lets no VM be saved now; None if none does, or it cannot be read."""
    for path, reason in maker_of(gpu).save_switches:
        try:
            text = host.sysfs.read(path)
        except OSError:
            continue
        if text.strip() in ("Y", "1"):
            return reason
    return None


class PrepareSave(Step):
    """Tell the driver of a vGPU that its VM is saved next, and wait until the driver in the guest is ready.

    A guest that was made ready and is not saved then goes on: the driver's documents name nothing to take it back.
    """

    vm: str
    carrier: str
    file: str
    word: str
    answer: str
    seconds: float

    def describe(self) -> str:
        return f"have the driver of vGPU {self.carrier} prepare {self.vm} to be saved"

    def perform(self, host: Host) -> None:
        """Write the word, and wait for the answer.

        Raises:
            DeviceFailed: the driver does not take the word.
            Temporary: it does not answer in time.
        """
        try:
            host.sysfs.write(self._path, f"{self.word}\n")
        except OSError as error:
            raise write_error(error, f"preparing {self.vm} to be saved", self._path) from error
        deadline = host.clock.monotonic() + self.seconds
        while not self._is_ready(host):
            if host.clock.monotonic() >= deadline:
                raise Temporary(
                    f"the driver in the guest of {self.vm} was not ready to be saved within {self.seconds:g} s",
                    hint="the guest needs its vGPU driver, and Windows; then run the command again",
                    vm=self.vm,
                    path=self._path,
                )
            host.clock.sleep(_PAUSE_SECONDS)

    def verify(self, host: Host) -> None:
        """Nothing more: the answer was read."""

    def undo(self, host: Host) -> None:
        """Nothing: see above."""

    @property
    def _path(self) -> str:
        return f"{MDEV_DEVICES}/{self.carrier}/{self.file}"

    def _is_ready(self, host: Host) -> bool:
        try:
            return self.answer in host.sysfs.read(self._path)
        except OSError as error:
            raise HostCannot(
                f"cannot read whether {self.vm} is ready to be saved: {error.strerror or error} reading {self._path}",
                hint="journalctl -k -n 20 shows the kernel log",
                path=self._path,
            ) from error


def save_steps(vm: str, gpu: Gpu, carrier: str) -> tuple[Step, ...]:
    """Return the steps that prepare a vGPU of a running VM to be saved; mostly none."""
    handshake = maker_of(gpu).save_handshake
    if handshake is None:
        return ()
    return (PrepareSave(vm, carrier, handshake.file, handshake.word, handshake.answer, handshake.seconds),)
