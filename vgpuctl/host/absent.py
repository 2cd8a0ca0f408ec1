# SPDX-License-Identifier: Apache-2.0
"""A host without libvirt or NVML, as in a captured tree. Reading works without them; every change raises the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from vgpuctl.errors import HostCannot, NvmlFailed
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.port_values import (
    DomainInfo,
    DomainLeftovers,
    EccState,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    ImageFile,
    ImageInfo,
    NetworkInfo,
    NvmlGpu,
    NvmlGuest,
    NvmlStatus,
    PoolInfo,
    ResolvedPath,
    VolumeInfo,
)
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlPairing
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.value import EMPTY_MAPPING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from socket import socket

    from vgpuctl.ports.libvirt import DeviceRemoval, GuestReboot


class _Absent:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _raise_absent(self) -> NoReturn:
        raise HostCannot(
            f"libvirt is not used: {self._reason}", hint="specify a connection with --connect URI", check="libvirt"
        )


class AbsentHypervisor(_Absent):
    """A hypervisor that is not available; whether there are domains is unknown."""

    def status(self) -> HypervisorStatus:
        """Return that libvirt is not available, and why."""
        return HypervisorStatus(available=False, uri="", reason=f"libvirt is not used: {self._reason}")

    def capabilities(self) -> HypervisorCapabilities:
        """Raise HostCannot."""
        self._raise_absent()

    def domains(self) -> tuple[DomainInfo, ...]:
        """Raise HostCannot."""
        self._raise_absent()

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Raise HostCannot."""
        self._raise_absent()

    def define(self, xml: str) -> DomainInfo:
        """Raise HostCannot."""
        self._raise_absent()

    def undefine(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def set_record(self, uuid: str, xml: str | None) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Raise HostCannot."""
        self._raise_absent()

    def start(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def shutdown(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def destroy(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Raise HostCannot."""
        self._raise_absent()

    def reboot(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def reset(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def watch_reboot(self, uuid: str) -> AbstractContextManager[GuestReboot]:
        """Raise HostCannot."""
        self._raise_absent()

    def network(self, name: str) -> NetworkInfo | None:
        """Raise HostCannot."""
        self._raise_absent()

    def networks(self) -> tuple[NetworkInfo, ...]:
        """Raise HostCannot."""
        self._raise_absent()

    def definition(self, uuid: str) -> str:
        """Raise HostCannot."""
        self._raise_absent()

    def redefine(self, uuid: str, xml: str) -> DomainInfo:
        """Raise HostCannot."""
        self._raise_absent()

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def watch_device_removal(self, uuid: str, alias: str) -> AbstractContextManager[DeviceRemoval]:
        """Raise HostCannot."""
        self._raise_absent()

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Raise HostCannot."""
        self._raise_absent()

    def open_graphics(self, uuid: str, index: int) -> socket:
        """Raise HostCannot."""
        self._raise_absent()

    def resize_disk(self, uuid: str, path: str, capacity_bytes: int) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def migration_blockers(self, uuid: str) -> tuple[str, ...] | None:
        """Raise HostCannot."""
        self._raise_absent()

    def migration_xml(self, uuid: str) -> str:
        """Raise HostCannot."""
        self._raise_absent()

    def definition_on(self, target_uri: str, uuid: str) -> str | None:
        """Raise HostCannot."""
        self._raise_absent()

    def migrate(self, uuid: str, request: MigrationRequest, report: Callable[[MigrationProgress], int | None]) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def is_migrating(self, uuid: str) -> bool:
        """Raise HostCannot."""
        self._raise_absent()

    def resume(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def save(self, uuid: str, report: Callable[[MigrationProgress], int | None]) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def password_protected_graphics(self, uuid: str) -> frozenset[str] | None:
        """Raise HostCannot."""
        self._raise_absent()


class AbsentStorage(_Absent):
    """Storage that is not available."""

    def pool(self, name: str) -> PoolInfo | None:
        """Raise HostCannot."""
        self._raise_absent()

    def pools(self) -> tuple[PoolInfo, ...]:
        """Raise HostCannot."""
        self._raise_absent()

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeInfo, ...]:
        """Raise HostCannot."""
        self._raise_absent()

    def create_pool(self, name: str, path: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def start_pool(self, name: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def remove_pool(self, name: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def volume(self, pool: str, name: str) -> VolumeInfo | None:
        """Raise HostCannot."""
        self._raise_absent()

    def create_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeInfo:
        """Raise HostCannot."""
        self._raise_absent()

    def copy_image(
        self, source: str, source_format: str, target: VolumeInfo, target_format: str, report: Callable[[float], None]
    ) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def resize_volume(self, pool: str, name: str, capacity_bytes: int) -> VolumeInfo:
        """Raise HostCannot."""
        self._raise_absent()

    def create_private_volume(self, pool: str, name: str, data: bytes) -> VolumeInfo:
        """Raise HostCannot."""
        self._raise_absent()

    def send_volume(self, pool: str, name: str, target_uri: str, report: Callable[[float], None]) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def read_private_volume(self, pool: str, name: str) -> bytes:
        """Raise HostCannot."""
        self._raise_absent()

    def rewrite_private_volume(self, pool: str, name: str, data: bytes) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def remove_volume(self, pool: str, name: str) -> None:
        """Raise HostCannot."""
        self._raise_absent()

    def resolve(self, path: str) -> ResolvedPath | None:
        """Raise HostCannot."""
        self._raise_absent()

    def image(self, path: str) -> ImageInfo | None:
        """Raise HostCannot."""
        self._raise_absent()

    def list_files(self, directory: str) -> tuple[str, ...]:
        """Raise HostCannot."""
        self._raise_absent()

    def file_system_bytes(self, directory: str) -> int | None:
        """Raise HostCannot."""
        self._raise_absent()

    def image_files(self, paths: Collection[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
        """Raise HostCannot."""
        self._raise_absent()


class AbsentNvml:
    """NVML where vgpuctl does not use it; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def status(self) -> NvmlStatus:
        """Return that NVML is not available."""
        return NvmlStatus(available=False, reason=self._reason)

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return None."""
        return None

    def ecc(self, address: str) -> EccState | None:
        """Return None."""
        return None

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return None."""
        return None

    def migration(self, address: str) -> NvmlMigration | None:
        """Return None."""
        return None

    def pairing(self, address: str, metadata: str) -> NvmlPairing | None:
        """Return None."""
        return None

    def nvlink_peers(self, address: str) -> tuple[str, ...] | None:
        """Return None."""
        return None

    def placements(self, address: str) -> Mapping[int, tuple[PlacementSpan, ...]]:
        """Return an empty mapping."""
        return EMPTY_MAPPING

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Raise NvmlFailed."""
        raise self._absent_error()

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Raise NvmlFailed."""
        raise self._absent_error()

    def create_gpu_instance(self, address: str, profile_id: int, start: int) -> int:
        """Raise NvmlFailed."""
        raise self._absent_error()

    def destroy_gpu_instance(self, address: str, gi_id: int) -> None:
        """Raise NvmlFailed."""
        raise self._absent_error()

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Raise NvmlFailed."""
        raise self._absent_error()

    def _absent_error(self) -> NvmlFailed:
        return NvmlFailed(f"NVML is not used here: {self._reason}", nvml_code=None, call="nvmlInit")
