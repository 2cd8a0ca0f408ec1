# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library, read through pynvml: the one module that imports it.

NVML is shut down after each question: while any client has it open, sriov-manage cannot take the GPU
("Cannot obtain unbindLock"). Nothing here is an error for the caller; what NVML does not tell is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host import nvml_scheduler
from vgpuctl.model.address import is_pci, pci_parts
from vgpuctl.model.records import NvmlGpu, NvmlStatus, NvmlVgpuType
from vgpuctl.model.scheduler import SchedulerSpec

ABSENT = "absent"
TOO_OLD = "too-old"
OLDEST_DRIVER = 450
"""The first branch of vGPU 11, the oldest with SR-IOV GPUs; older ones answer differently or not at all."""

NEEDED = (
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHostVgpuMode",
    "nvmlDeviceGetSupportedVgpus",
    "nvmlVgpuTypeGetName",
    "nvmlVgpuTypeGetFramebufferSize",
    "nvmlVgpuTypeGetMaxInstances",
)
"""What libnvidia-ml must offer, in its own names."""

_LIBRARY = "libnvidia-ml.so.1"
_MIB = 1 << 20
_MOST_PER_VM = 16


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

    def set_scheduler(self, address: str, spec: SchedulerSpec) -> None:
        """Refuse: there is nobody to ask."""
        raise NvmlFailed(f"NVML is not asked here: {self._reason}", nvml_code=None, call="nvmlInit")

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


class HostNvml:
    """NVML of this host. `load` returns the pynvml module, or something with the same functions."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or _pynvml
        self._known: dict[str, bool] = {}

    def status(self) -> NvmlStatus:
        """Say whether NVML answers: absent, too-old, or the name of a function it lacks."""
        try:
            nvml = self._load()
        except ImportError:
            return NvmlStatus(available=False, reason=ABSENT)
        try:
            with _session(nvml):
                driver = str(nvml.nvmlSystemGetDriverVersion())
                reason = TOO_OLD if _branch(driver) < OLDEST_DRIVER else _lacking(nvml)
                return NvmlStatus(available=reason is None, reason=reason, driver_version=driver)
        except nvml.NVMLError as error:
            return NvmlStatus(available=False, reason=_reason(nvml, error))

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML knows of a GPU; None when it is not to be had."""
        if not is_pci(address):
            return None
        try:
            nvml = self._load()
        except ImportError:
            return None
        try:
            with _session(nvml):
                return None if _lacking(nvml) is not None else _read(nvml, address, self._has(nvml))
        except nvml.NVMLError:
            return None

    def set_scheduler(self, address: str, spec: SchedulerSpec) -> None:
        """Set it, or raise NvmlFailed with NVML's own number and words."""
        try:
            nvml = self._load()
        except ImportError as error:
            raise NvmlFailed(f"NVML cannot be asked: {error}", nvml_code=None, call="nvmlInit") from error
        try:
            with _session(nvml):
                handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id(address))
                nvml_scheduler.write(nvml, handle, self._has(nvml), spec)
        except nvml.NVMLError as error:
            raise NvmlFailed(
                f"NVML does not set {spec.policy} on {address}: {error}",
                nvml_code=int(error.value),
                call="nvmlDeviceSetVgpuSchedulerState",
            ) from error

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

    def _has(self, nvml: Any) -> nvml_scheduler.Has:
        """Return what says whether the loaded library has a function; each is looked up once."""

        def has(name: str) -> bool:
            if name not in self._known:
                self._known[name] = _has_function(nvml, name)
            return self._known[name]

        return has


def bus_id(address: str) -> str:
    """Return NVML's spelling of a PCI address: eight-digit domain, upper case."""
    domain, bus, slot, function = pci_parts(address)
    return f"{domain:08X}:{bus:02X}:{slot:02X}.{function:X}"


def _pynvml() -> Any:
    """Return pynvml, or raise ImportError; its thousands of lines are read only where the driver's library is."""
    from ctypes import CDLL

    try:
        CDLL(_LIBRARY)
    except OSError as exc:
        raise ImportError(str(exc)) from exc
    import pynvml

    return pynvml


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    """Have NVML open for one question."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):  # nothing is left to do then: the process's end closes it
            nvml.nvmlShutdown()


def _lacking(nvml: Any) -> str | None:
    """Return the first needed function that the loaded library does not have."""
    return next((name for name in NEEDED if not _has_function(nvml, name)), None)


def _has_function(nvml: Any, name: str) -> bool:
    try:
        nvml._nvmlGetFunctionPointer(name)
    except nvml.NVMLError:
        return False
    return True


def _read(nvml: Any, address: str, has: nvml_scheduler.Has) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id(address))
    try:
        ids = nvml.nvmlDeviceGetSupportedVgpus(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:  # what the plain data-centre driver says
            raise
        ids = []
    types = {int(type_id): _type(nvml, handle, int(type_id)) for type_id in ids}
    return NvmlGpu(
        model=str(nvml.nvmlDeviceGetName(handle)),
        framebuffer_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB,
        types=types,
        scheduler=nvml_scheduler.read(nvml, handle, has) if types else None,
    )


def _type(nvml: Any, handle: Any, type_id: int) -> NvmlVgpuType:
    try:
        per_vm = int(nvml.nvmlVgpuTypeGetMaxInstancesPerVm(type_id))
    except nvml.NVMLError:  # added later than the rest
        per_vm = _MOST_PER_VM
    return NvmlVgpuType(
        type_id=type_id,
        name=str(nvml.nvmlVgpuTypeGetName(type_id)),
        framebuffer_mib=int(nvml.nvmlVgpuTypeGetFramebufferSize(type_id)) // _MIB,
        max_per_gpu=int(nvml.nvmlVgpuTypeGetMaxInstances(handle, type_id)),
        max_per_vm=per_vm,
    )


def _branch(driver: str) -> int:
    """Return the first number of a driver version, 0 when it has none."""
    first = driver.partition(".")[0]
    return int(first) if first.isdecimal() else 0


def _reason(nvml: Any, error: Any) -> str:
    """Say why NVML did not start."""
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return ABSENT
    if error.value in (nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return TOO_OLD
    return f"nvmlInit: {error}"
