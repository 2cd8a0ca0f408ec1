# SPDX-License-Identifier: Apache-2.0
"""Whether the guests of a host's desktops work with the host's GPU driver, before desktops run there again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vgpuctl.config.arguments import NONE
from vgpuctl.config.guest_drivers import parse_driver_name
from vgpuctl.controller.model import Desktop, Image, Pool
from vgpuctl.makers.nvidia_releases import GuestFit, rate_guest
from vgpuctl.value import Value


class DriverCheck(Value):
    """What does not fit, for people. `unknown`: names of images of which no driver is known, or its release is not."""

    too_new: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def check_drivers(
    host_driver: str, desktops: Iterable[Desktop], pools: Mapping[str, Pool], images: Mapping[str, Image]
) -> DriverCheck:
    """Compare a host's driver with those that the guests of each image have.

    A guest's driver is what it said while it ran, and the one that its pool brings into it. `desktops`: of the whole
    fleet; those of one image have the same.
    """
    drivers: dict[str, set[str]] = {pool.image_id: _brought(pool) for pool in pools.values()}
    for desktop in desktops:
        known = drivers.setdefault(desktop.image_id, set())
        if desktop.report is not None and desktop.report.driver is not None:
            known.add(desktop.report.driver)
    too_new, unknown = [], []
    for image_id, versions in drivers.items():
        name = images[image_id].name if image_id in images else image_id
        fits = {version: rate_guest(host_driver, version) for version in sorted(versions)}
        too_new += [f"{name} has {version}" for version, fit in fits.items() if fit is GuestFit.TOO_NEW]
        if not fits or GuestFit.UNKNOWN in fits.values():
            unknown.append(name)
    return DriverCheck(tuple(sorted(too_new)), tuple(sorted(unknown)))


def _brought(pool: Pool) -> set[str]:
    """Return the driver that a pool's desktops are given."""
    path = str(pool.spec.vm.get("guest_driver", NONE))
    try:
        return set() if path == NONE else {parse_driver_name(path).version}
    except ValueError:
        return set()
