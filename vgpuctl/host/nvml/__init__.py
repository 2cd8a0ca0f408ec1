# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library, as `seams.Nvml`: `call` reaches it, and a module each reads types, MIG and so on.

NVML is shut down after each question: while any client has it open, sriov-manage cannot take the GPU
("Cannot obtain unbindLock"). No answer is an error for who asks; what NVML does not tell is unknown. Who changes
something gets NVML's number and words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from vgpuctl.errors import NvmlFailed, missing_library
from vgpuctl.model.address import is_pci, pci_parts
from vgpuctl.model.digits import whole
from vgpuctl.model.partition import Span
from vgpuctl.model.records import Ecc, NvmlGpu, NvmlGuest, NvmlStatus
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.value import NOTHING

if TYPE_CHECKING:
    from vgpuctl.host.nvml.call import Library

Told = TypeVar("Told")
ABSENT = "absent"
TOO_OLD = "too-old"
OLDEST_DRIVER = 450
"""The first branch of vGPU 11, the oldest with SR-IOV GPUs; older ones answer differently or not at all."""


class NoNvml:
    """NVML that is not asked, and why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def status(self) -> NvmlStatus:
        """Say that NVML is not asked."""
        return NvmlStatus(available=False, reason=self._reason)

    def gpu(self, address: str) -> NvmlGpu | None:
        """Know nothing."""
        return None

    def ecc(self, address: str) -> Ecc | None:
        """Know nothing."""
        return None

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Know nothing."""
        return None

    def placements(self, address: str) -> Mapping[int, tuple[Span, ...]]:
        """Know nothing."""
        return NOTHING

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Refuse: there is nobody to ask."""
        raise self._refusal()

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Refuse."""
        raise self._refusal()

    def make_instance(self, address: str, profile_id: int, start: int) -> int:
        """Refuse."""
        raise self._refusal()

    def destroy_instance(self, address: str, gi_id: int) -> None:
        """Refuse."""
        raise self._refusal()

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Refuse."""
        raise self._refusal()

    def _refusal(self) -> NvmlFailed:
        return NvmlFailed(f"NVML is not asked here: {self._reason}", nvml_code=None, call="nvmlInit")


class HostNvml:
    """NVML of this host. `load` returns the pynvml module, or something with the same functions."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._given = load
        self._known: dict[str, bool] = {}

    def status(self) -> NvmlStatus:
        """Say whether NVML answers: absent, too-old, or the name of a function it lacks."""
        try:
            nvml = self._load()
        except ImportError as exc:
            lacks = missing_library(exc)
            return NvmlStatus(available=False, reason=f"{lacks}; {lacks.hint}" if lacks else ABSENT)
        from vgpuctl.host.nvml.call import lacking, session

        try:
            with session(nvml):
                driver = str(nvml.nvmlSystemGetDriverVersion())
                reason = TOO_OLD if _branch(driver) < OLDEST_DRIVER else lacking(nvml)
                return NvmlStatus(available=reason is None, reason=reason, driver_version=driver)
        except nvml.NVMLError as error:
            return NvmlStatus(available=False, reason=_reason(nvml, error))

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML knows of a GPU; None when it is not to be had."""
        return self._told(address, _gpu)

    def ecc(self, address: str) -> Ecc | None:
        """Return a GPU's error correction; None where it has none."""
        return self._told(address, _ecc)

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs of a GPU that VMs have."""
        return self._told(address, _guests)

    def placements(self, address: str) -> Mapping[int, tuple[Span, ...]]:
        """Return where each type may be with mixed sizes."""
        return self._told(address, _placements) or NOTHING

    def _told(self, address: str, read: Callable[[Library, Any], Told]) -> Told | None:
        """Return what is read of a GPU, None when that is not to be had."""
        if not is_pci(address):
            return None
        try:
            nvml = self._load()
        except ImportError:
            return None
        from vgpuctl.host.nvml.call import Library, lacking, session

        try:
            with session(nvml):
                if lacking(nvml) is not None:
                    return None
                library = Library(nvml, self._known, f"tell of {address}")
                return read(library, _handle(library, address))
        except (nvml.NVMLError, NvmlFailed):
            return None

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set that of a GPU, or of one GPU instance."""
        where = address if gi_id is None else f"GPU instance {gi_id} of {address}"
        with self._changing(f"set {spec.policy} on {where}") as library:
            from vgpuctl.host.nvml import mig, scheduler

            handle = _handle(library, address)
            if gi_id is None:
                scheduler.write(library, handle, spec)
            else:
                scheduler.write_instance(library, mig.instance(library, handle, gi_id), spec)

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off; where that needs a reset it is pending."""
        with self._changing(f"turn MIG {'on' if enabled else 'off'} on {address}") as library:
            from vgpuctl.host.nvml import mig

            mig.set_mode(library, _handle(library, address), enabled=enabled)

    def make_instance(self, address: str, profile_id: int, start: int) -> int:
        """Make a GPU instance with one compute instance of its size."""
        with self._changing(f"make a GPU instance of profile {profile_id} at {start} on {address}") as library:
            from vgpuctl.host.nvml import mig

            return mig.make(library, _handle(library, address), profile_id, start)

    def destroy_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance."""
        with self._changing(f"destroy GPU instance {gi_id} of {address}") as library:
            from vgpuctl.host.nvml import mig

            mig.destroy(library, _handle(library, address), gi_id)

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Turn mixed size on or off."""
        with self._changing(f"turn mixed size {'on' if enabled else 'off'} on {address}") as library:
            from vgpuctl.host.nvml import placement

            placement.set_mode(library, _handle(library, address), enabled=enabled)

    def _load(self) -> Any:
        if self._given is not None:
            return self._given()
        from vgpuctl.host.nvml.call import load_pynvml

        return load_pynvml()

    def _changing(self, doing: str) -> AbstractContextManager[Library]:
        from vgpuctl.host.nvml.call import changing

        return changing(self._load, self._known, doing)


def _gpu(library: Library, handle: Any) -> NvmlGpu:
    from vgpuctl.host.nvml import device  # only where there is a library to ask

    return device.read(library, handle)


def _ecc(library: Library, handle: Any) -> Ecc | None:
    from vgpuctl.host.nvml import device

    return device.ecc(library, handle)


def _guests(library: Library, handle: Any) -> tuple[NvmlGuest, ...] | None:
    from vgpuctl.host.nvml import guests

    return guests.read(library, handle)


def _placements(library: Library, handle: Any) -> Mapping[int, tuple[Span, ...]]:
    from vgpuctl.host.nvml import device

    return device.placements(library, handle)


def bus_id(address: str) -> str:
    """Return NVML's spelling of a PCI address: eight-digit domain, upper case."""
    domain, bus, slot, function = pci_parts(address)
    return f"{domain:08X}:{bus:02X}:{slot:02X}.{function:X}"


def _handle(library: Library, address: str) -> Any:
    return library.run("nvmlDeviceGetHandleByPciBusId", bus_id(address))


def _branch(driver: str) -> int:
    """Return the first number of a driver version, 0 when it has none."""
    first = driver.partition(".")[0]
    return whole(first) or 0


def _reason(nvml: Any, error: Any) -> str:
    """Say why NVML did not start."""
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return ABSENT
    if error.value in (nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return TOO_OLD
    return f"nvmlInit: {error}"
