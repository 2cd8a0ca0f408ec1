# SPDX-License-Identifier: Apache-2.0
"""A host without libvirt: what a captured tree has. Looking works without it; every call says why it fails."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NoReturn

from vgpuctl.errors import HostCannot
from vgpuctl.model.records import (
    DomainLeftovers,
    DomainRecord,
    Glance,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    ImageRecord,
    NetworkRecord,
    PoolRecord,
    VolumeRecord,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from vgpuctl.model.seams import Removal


class _Absent:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _refuse(self) -> NoReturn:
        raise HostCannot(
            f"libvirt is not asked: {self._reason}", hint="name a connection with --connect URI", check="libvirt"
        )


class AbsentHypervisor(_Absent):
    """No domains, and no knowledge that there are none."""

    def status(self) -> HypervisorStatus:
        """Say that libvirt is not asked, and why."""
        return HypervisorStatus(available=False, uri="", reason=f"libvirt is not asked: {self._reason}")

    def capabilities(self) -> HypervisorCapabilities:
        """Raise HostCannot."""
        self._refuse()

    def domains(self) -> tuple[DomainRecord, ...]:
        """Raise HostCannot."""
        self._refuse()

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        """Raise HostCannot."""
        self._refuse()

    def define(self, xml: str) -> DomainRecord:
        """Raise HostCannot."""
        self._refuse()

    def undefine(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def set_promise(self, uuid: str, xml: str | None) -> None:
        """Raise HostCannot."""
        self._refuse()

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Raise HostCannot."""
        self._refuse()

    def start(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def shutdown(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def destroy(self, uuid: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Raise HostCannot."""
        self._refuse()

    def network(self, name: str) -> NetworkRecord | None:
        """Raise HostCannot."""
        self._refuse()

    def definition(self, uuid: str) -> str:
        """Raise HostCannot."""
        self._refuse()

    def redefine(self, uuid: str, xml: str) -> DomainRecord:
        """Raise HostCannot."""
        self._refuse()

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Raise HostCannot."""
        self._refuse()

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Raise HostCannot."""
        self._refuse()

    def removal(self, uuid: str, alias: str) -> AbstractContextManager[Removal]:
        """Raise HostCannot."""
        self._refuse()

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Raise HostCannot."""
        self._refuse()

    def graphics_passwords(self, uuid: str) -> frozenset[str] | None:
        """Raise HostCannot."""
        self._refuse()


class AbsentStorage(_Absent):
    """No pools, and no images."""

    def pool(self, name: str) -> PoolRecord | None:
        """Raise HostCannot."""
        self._refuse()

    def pools(self) -> tuple[PoolRecord, ...]:
        """Raise HostCannot."""
        self._refuse()

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeRecord, ...]:
        """Raise HostCannot."""
        self._refuse()

    def make_pool(self, name: str, path: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def start_pool(self, name: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def remove_pool(self, name: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def volume(self, pool: str, name: str) -> VolumeRecord | None:
        """Raise HostCannot."""
        self._refuse()

    def make_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeRecord:
        """Raise HostCannot."""
        self._refuse()

    def put_volume(self, pool: str, name: str, data: bytes) -> VolumeRecord:
        """Raise HostCannot."""
        self._refuse()

    def remove_volume(self, pool: str, name: str) -> None:
        """Raise HostCannot."""
        self._refuse()

    def image(self, path: str) -> ImageRecord | None:
        """Raise HostCannot."""
        self._refuse()

    def files_in(self, directory: str) -> tuple[str, ...]:
        """Raise HostCannot."""
        self._refuse()

    def file_system_bytes(self, directory: str) -> int | None:
        """Raise HostCannot."""
        self._refuse()

    def glance(self, path: str, *, near: Collection[str] | None = None) -> Glance | None:
        """Raise HostCannot."""
        self._refuse()
