# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs and vGPUs by NVML. NVML is open for one sample only, see `host.nvml`.

Some values are read with each sample, others every minute or once, because each is a call of the driver. Traps:

- pynvml passes a `c_uint` where nvml.h's nvmlVgpuInstanceGetFbUsage and nvmlVgpuTypeGetFbReservation have an `unsigned
  long long *`: above 4 GiB the value is wrong. So the library's functions are called themselves.
- nvmlVgpuInstanceGetGpuPciId is the address in the guest, and says nothing about the VF. NVML names no VF: who joins a
  vGPU with its VF does it by the VM and the type.
- NOT_FOUND from a utilisation call says that there was no sample since, not that the use is 0.
- A time stamp that the library gave is given back to it in the next call; it is the driver's clock, never the host's.
- A value above 100 % is NVML's "not available" (NVML_VALUE_NOT_AVAILABLE, all ones).
- GPU_IS_LOST may come from any call.

Source: nvml.h of vGPU 18 to 20, and pynvml 13.595 to 13.615.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import nvml_bus_id
from vgpuctl.host.nvml.gpu_usage import (
    GPU_IS_LOST,
    GpuLostError,
    ask,
    big_number,
    decode,
    parse_version,
    printable,
    ratio,
    read_current,
    read_slow,
    read_static,
)
from vgpuctl.host.nvml.library import NvmlLibrary, open_nvml
from vgpuctl.model.usage import LICENSED, NVML_SOURCE, EngineUse, FrameUse, GpuUse, ProcessUse, VgpuUse
from vgpuctl.value import EMPTY_MAPPING, Value, replace

SLOW_SECONDS = 60.0
"""So old may be what seldom changes: licences, encoders, guest drivers, errors of memory."""
MAX_PROCESS_NAME = 64
_VM_ID_IS_UUID = 1
_LICENSES = {
    1: "uninitialized",
    2: "unlicensed-unrestricted",
    3: "unlicensed-restricted",
    4: "unlicensed",
    5: LICENSED,
}
_EXPIRY_IS_VALID = 2


class _Instance(Value):
    """What is read of a vGPU once, or every minute. `read_at`: when, by the monotonic clock."""

    vm_uuid: str | None
    carriers: tuple[str, ...]
    vgpu_uuid: str | None
    type_id: str | None
    gi_id: int | None
    size: int | None
    reserved: int | None
    read_at: float
    slow: Mapping[str, Any]


class NvmlUsage:
    """Reads the use of GPUs. It keeps what changes seldom, so one object reads a host for long."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._functions: dict[str, bool] = {}
        self._static: dict[str, GpuUse] = {}
        self._slow: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._instances: dict[tuple[str, int], _Instance] = {}
        self._seen: dict[str, int] = {}

    def read(self, nvml: Any, addresses: tuple[str, ...]) -> tuple[str | None, list[GpuUse], list[VgpuUse]]:
        """Return the driver's version, and the use of these GPUs and of the vGPUs that VMs use on them.

        Raises:
            nvml.NVMLError: NVML cannot be opened.
        """
        gpus: list[GpuUse] = []
        vgpus: list[VgpuUse] = []
        with open_nvml(nvml):
            driver = parse_version(ask(NvmlLibrary(nvml, self._functions, ""), "nvmlSystemGetDriverVersion"))
            for address in addresses:
                library = NvmlLibrary(nvml, self._functions, f"report the use of {address}")
                try:
                    handle = library.call("nvmlDeviceGetHandleByPciBusId", nvml_bus_id(address))
                    running = list(self._read_vgpus(library, address, handle))
                    gpus.append(self._read_gpu(library, address, handle))
                    vgpus += running
                except GpuLostError:
                    gpus.append(GpuUse(address, NVML_SOURCE, up=False))
                except NvmlFailed as error:
                    if error.facts["nvml_code"] == GPU_IS_LOST:
                        gpus.append(GpuUse(address, NVML_SOURCE, up=False))
        return driver, gpus, vgpus

    def read_processes(self, nvml: Any, address: str) -> list[ProcessUse]:
        """Return the guests' processes that use a GPU, with what they used since the last call.

        Raises:
            nvml.NVMLError: NVML cannot be opened.
            NvmlFailed, GpuLostError: the GPU is not NVML's, or lost.
        """
        with open_nvml(nvml):
            library = NvmlLibrary(nvml, self._functions, f"report the use of {address}")
            handle = library.call("nvmlDeviceGetHandleByPciBusId", nvml_bus_id(address))
            samples = _ask_twice(library, "nvmlDeviceGetVgpuProcessesUtilizationInfo", handle, 0)
            names: tuple[str, ...] = ("sm", "mem", "enc", "dec", "jpg", "ofa")
            if samples is None:
                samples = _ask_twice(library, "nvmlDeviceGetVgpuProcessUtilization", handle, 0) or []
                names = names[:4]
            rows = []
            for sample in samples:
                instance = self._find_instance(library, address, int(sample.vgpuInstance))
                rows.append(
                    ProcessUse(
                        vm_uuid=None if instance is None else instance.vm_uuid,
                        carrier=None if instance is None else next(iter(instance.carriers), None),
                        pid=int(sample.pid),
                        name=printable(sample.processName, MAX_PROCESS_NAME),
                        engines=EngineUse(*(ratio(getattr(sample, f"{name}Util")) for name in names)),
                    )
                )
            return rows

    # ------------------------------------------------------------------ a GPU

    def _read_gpu(self, library: NvmlLibrary, address: str, handle: Any) -> GpuUse:
        now = self._monotonic()
        if address not in self._static:
            self._static[address] = read_static(library, address, handle)
        read_at, slow = self._slow.get(address, (now - SLOW_SECONDS, EMPTY_MAPPING))
        if now - read_at >= SLOW_SECONDS:
            slow = read_slow(library, handle)
            self._slow[address] = now, slow
        return replace(self._static[address], **read_current(library, handle), **slow)

    # ----------------------------------------------------------------- vGPUs

    def _read_vgpus(self, library: NvmlLibrary, address: str, handle: Any) -> Iterator[VgpuUse]:
        """Yield the use of the vGPUs that VMs use on a GPU."""
        ids = _ask_twice(library, "nvmlDeviceGetActiveVgpus", handle) or []
        engines = self._read_engines(library, address, handle) if ids else {}
        for number in map(int, ids):
            instance = self._find_instance(library, address, number)
            if instance is None:  # it has just ended
                continue
            yield VgpuUse(
                gpu=address,
                carriers=instance.carriers,
                vm_uuid=instance.vm_uuid,
                vgpu_uuid=instance.vgpu_uuid,
                type_id=instance.type_id,
                gi_id=instance.gi_id,
                memory_size_bytes=instance.size,
                memory_used_bytes=big_number(library, "nvmlVgpuInstanceGetFbUsage", number),
                memory_reserved_bytes=instance.reserved,
                engines=engines.get(number, EngineUse()),
                **instance.slow,
            )
        kept = {(address, int(number)) for number in ids}
        for key in [key for key in self._instances if key[0] == address and key not in kept]:
            del self._instances[key]

    def _find_instance(self, library: NvmlLibrary, address: str, number: int) -> _Instance | None:
        """Return what seldom changes of a vGPU. Its number may be another VM's since: then all of it is read again."""
        now, known = self._monotonic(), self._instances.get((address, number))
        vm_id = ask(library, "nvmlVgpuInstanceGetVmID", number)
        if vm_id is None:
            return None
        vm_uuid = decode(vm_id[0]).lower() if vm_id[1] == _VM_ID_IS_UUID else None
        if known is None or known.vm_uuid != vm_uuid:
            known = _read_instance(library, number, vm_uuid, now)
        elif now - known.read_at >= SLOW_SECONDS:
            known = replace(known, read_at=now, slow=_read_slow_instance(library, number))
        elif not _is_ready(known):
            known = replace(known, slow={**known.slow, **_read_software(library, number)})
        self._instances[address, number] = known
        return known

    def _read_engines(self, library: NvmlLibrary, address: str, handle: Any) -> Mapping[int, EngineUse]:
        """Return how busy the engines are by each vGPU; one without a sample since the last call is left out."""
        last = self._seen.get(address, 0)
        names: tuple[str, ...] = ("sm", "mem", "enc", "dec", "jpg", "ofa")
        samples = _ask_twice(library, "nvmlDeviceGetVgpuInstancesUtilizationInfo", handle, last)
        if samples is None:
            samples, names = _ask_twice(library, "nvmlDeviceGetVgpuUtilization", handle, last) or [], names[:4]
        newest: dict[int, Any] = {}
        for sample in samples:
            known = newest.get(sample.vgpuInstance)
            if known is None or sample.timeStamp >= known.timeStamp:
                newest[int(sample.vgpuInstance)] = sample
        if not newest:
            self._seen.pop(address, None)  # the driver's clock may have stepped back
        else:
            self._seen[address] = max(int(sample.timeStamp) for sample in newest.values())
        return {
            number: EngineUse(*(ratio(getattr(sample, f"{name}Util").uiVal) for name in names))
            for number, sample in newest.items()
        }


def _read_instance(library: NvmlLibrary, number: int, vm_uuid: str | None, now: float) -> _Instance:
    mdev = printable(ask(library, "nvmlVgpuInstanceGetMdevUUID", number), 36)
    kind = ask(library, "nvmlVgpuInstanceGetType", number)
    size, reserved = (
        None if kind is None else big_number(library, f"nvmlVgpuTypeGet{name}", kind)
        for name in ("FramebufferSize", "FbReservation")
    )
    gi_id = ask(library, "nvmlVgpuInstanceGetGpuInstanceId", number)
    return _Instance(
        vm_uuid=vm_uuid,
        carriers=() if mdev is None else (mdev.lower(),),
        type_id=None if kind is None else str(kind),
        vgpu_uuid=printable(ask(library, "nvmlVgpuInstanceGetUUID", number), 80),
        gi_id=None if gi_id is None or gi_id >= 0xFFFFFFFF else int(gi_id),
        size=size,
        reserved=reserved,
        read_at=now,
        slow=_read_slow_instance(library, number),
    )


def _is_ready(known: _Instance) -> bool:
    """Return whether the guest's driver runs and has its license, so that neither changes soon."""
    return known.slow["guest_driver"] is not None and known.slow["license_state"] in (None, LICENSED)


def _read_slow_instance(library: NvmlLibrary, number: int) -> Mapping[str, Any]:
    capture = ask(library, "nvmlVgpuInstanceGetFBCStats", number)
    encoder = ask(library, "nvmlVgpuInstanceGetEncoderStats", number)
    return {
        **_read_software(library, number),
        "encoder": None if encoder is None else _frames(*encoder),
        "capture": None
        if capture is None
        else _frames(capture.sessionsCount, capture.averageFPS, capture.averageLatency),
        "frame_rate_limit_fps": ask(library, "nvmlVgpuInstanceGetFrameRateLimit", number),
    }


def _read_software(library: NvmlLibrary, number: int) -> Mapping[str, Any]:
    license_info = ask(library, "nvmlVgpuInstanceGetLicenseInfo_v2", number)
    return {
        "license_state": None if license_info is None else _LICENSES.get(int(license_info.currentState)),
        "license_expiry": None if license_info is None else _expiry(license_info.licenseExpiry),
        "guest_driver": parse_version(ask(library, "nvmlVgpuInstanceGetVmDriverVersion", number)),
    }


def _frames(sessions: Any, fps: Any, latency_us: Any) -> FrameUse:
    """Return the sessions; without any there is no frame rate."""
    return FrameUse(int(sessions), float(fps), latency_us / 1e6) if sessions else FrameUse(0)


def _expiry(when: Any) -> float | None:
    if when.status != _EXPIRY_IS_VALID:
        return None
    try:
        return float(calendar.timegm((when.year, when.month, when.day, when.hour, when.min, when.sec)))
    except (ValueError, OverflowError):
        return None


def _ask_twice(library: NvmlLibrary, name: str, *args: Any) -> Any:
    """Return the result of a call that asks for a number first; a vGPU may begin between, so it is tried again."""
    result = ask(library, name, *args)
    return ask(library, name, *args) if result is None else result
