# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library; implements `ports.Nvml`. `library` calls NVML; other modules read types, MIG and so on.

NVML is shut down after each query: while any client has it open, sriov-manage cannot take the GPU
("Cannot obtain unbindLock"). A query never raises; a value that NVML does not report is unknown. A change raises an
error with NVML's number and message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from vgpuctl.errors import NvmlFailed, missing_library_error
from vgpuctl.host.nvml import device, mig, migration, vgpu_scheduler
from vgpuctl.host.nvml.library import NvmlLibrary, find_missing_function, load_pynvml, open_for_change, open_nvml
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.names import is_pci_address, split_pci
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import EccState, NvmlGpu, NvmlGuest, NvmlStatus
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlPairing
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.value import EMPTY_MAPPING

AnyResult = TypeVar("AnyResult")
ABSENT = "absent"
TOO_OLD = "too-old"
MIN_DRIVER_BRANCH = 450
"""The first branch of vGPU 11, the oldest with SR-IOV GPUs; older branches behave differently or lack the calls."""


class HostNvml:
    """NVML of this host. `load` returns the pynvml module, or an object with the same functions."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load_library = load
        self._function_cache: dict[str, bool] = {}

    def status(self) -> NvmlStatus:
        """Return whether NVML answers; if not: absent, too-old, or the name of a missing function."""
        try:
            nvml = self._load()
        except ImportError as exc:
            library_error = missing_library_error(exc)
            return NvmlStatus(
                available=False, reason=f"{library_error}; {library_error.hint}" if library_error else ABSENT
            )
        try:
            with open_nvml(nvml):
                driver = str(nvml.nvmlSystemGetDriverVersion())
                reason = TOO_OLD if _driver_branch(driver) < MIN_DRIVER_BRANCH else find_missing_function(nvml)
                return NvmlStatus(available=reason is None, reason=reason, driver_version=driver)
        except nvml.NVMLError as error:
            return NvmlStatus(available=False, reason=_unavailable_reason(nvml, error))

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML reports about a GPU; None when that is not available."""
        return self._query(address, device.read_gpu)

    def ecc(self, address: str) -> EccState | None:
        """Return the state of a GPU's error correction; None where it has none."""
        return self._query(address, device.read_ecc)

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs that VMs use on a GPU."""
        return self._query(address, device.read_guests)

    def migration(self, address: str) -> NvmlMigration | None:
        """Return what a move of a GPU's vGPUs would take."""
        return self._query(address, migration.read_migration)

    def pairing(self, address: str, metadata: str) -> NvmlPairing | None:
        """Return whether a GPU takes a vGPU of another host."""
        return self._query(address, lambda library, handle: migration.read_pairing(library, handle, metadata))

    def nvlink_peers(self, address: str) -> tuple[str, ...] | None:
        """Return the GPUs at the other ends of a GPU's NVLinks."""
        return self._query(address, device.read_nvlink_peers)

    def placements(self, address: str) -> Mapping[int, tuple[PlacementSpan, ...]]:
        """Return each type's possible placements in heterogeneous mode."""
        return self._query(address, device.read_placements) or EMPTY_MAPPING

    def _query(self, address: str, read: Callable[[NvmlLibrary, Any], AnyResult]) -> AnyResult | None:
        """Return what `read` returns for a GPU, None when NVML does not report it."""
        if not is_pci_address(address):
            return None
        try:
            nvml = self._load()
        except ImportError:
            return None
        try:
            with open_nvml(nvml):
                if find_missing_function(nvml) is not None:
                    return None
                library = NvmlLibrary(nvml, self._function_cache, f"report on {address}")
                return read(library, _get_handle(library, address))
        except (nvml.NVMLError, NvmlFailed):
            return None

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set the vGPU scheduler of a GPU, or of one GPU instance."""
        target = address if gi_id is None else f"GPU instance {gi_id} of {address}"
        with self._open_for_change(f"set {spec.policy} on {target}") as library:
            handle = _get_handle(library, address)
            if gi_id is None:
                vgpu_scheduler.write_scheduler(library, handle, spec)
            else:
                vgpu_scheduler.write_instance_scheduler(library, mig.get_instance_handle(library, handle, gi_id), spec)

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off; it stays pending where that needs a reset."""
        with self._open_for_change(f"turn MIG {'on' if enabled else 'off'} on {address}") as library:
            mig.set_mode(library, _get_handle(library, address), enabled=enabled)

    def create_gpu_instance(self, address: str, profile_id: int, start: int) -> int:
        """Create a GPU instance with one compute instance that fills it."""
        with self._open_for_change(f"create a GPU instance of profile {profile_id} at {start} on {address}") as library:
            return mig.create_instance(library, _get_handle(library, address), profile_id, start)

    def destroy_gpu_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance."""
        with self._open_for_change(f"destroy GPU instance {gi_id} of {address}") as library:
            mig.destroy_instance(library, _get_handle(library, address), gi_id)

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Turn heterogeneous mode (mixed size) on or off."""
        with self._open_for_change(f"turn mixed size {'on' if enabled else 'off'} on {address}") as library:
            device.set_heterogeneous_mode(library, _get_handle(library, address), enabled=enabled)

    def _load(self) -> Any:
        if self._load_library is not None:
            return self._load_library()
        return load_pynvml()

    def _open_for_change(self, operation: str) -> AbstractContextManager[NvmlLibrary]:
        return open_for_change(self._load, self._function_cache, operation)


def nvml_bus_id(address: str) -> str:
    """Return NVML's spelling of a PCI address: eight-digit domain, upper case."""
    domain, bus, slot, function = split_pci(address)
    return f"{domain:08X}:{bus:02X}:{slot:02X}.{function:X}"


def _get_handle(library: NvmlLibrary, address: str) -> Any:
    return library.call("nvmlDeviceGetHandleByPciBusId", nvml_bus_id(address))


def _driver_branch(driver: str) -> int:
    """Return the first number of a driver version, 0 when it has none."""
    first = driver.partition(".")[0]
    return parse_integer(first) or 0


def _unavailable_reason(nvml: Any, error: Any) -> str:
    """Return why NVML did not start."""
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return ABSENT
    if error.value in (nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return TOO_OLD
    return f"nvmlInit: {error}"
