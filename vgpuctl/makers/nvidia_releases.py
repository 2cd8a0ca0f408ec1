# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's releases of vGPU software: their drivers, their ends, and the cards that a later one drops.

The drivers of host and guest of one release have different numbers (19.5: 580.159.01 and 580.159.03), so numbers are
never compared with each other. What identifies a release is the branch, the first part of a number; those of drivers
for Windows are above the branch's, 581 and 582 for 580. NVIDIA's archive is named
`NVIDIA-GRID-Linux-KVM-MANAGER-LINUX-WINDOWS` by the three drivers of a minor release.

A guest may have the host's release, the one before, or, where the host's has long-term support (LTS), that of the LTS
release before. With a newer one its vGPU does not start. Source: release notes of NVIDIA vGPU software 19.0,
"Compatible NVIDIA vGPU Manager and Guest VM Driver Releases".

The table is as of `TABLE_DATE`. What is not in it is unknown, not wrong: branch R620 exists, the number of its vGPU
release had not been seen then.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import Value

TABLE_DATE = date(2026, 11, 26)
ENDS_SOON = timedelta(days=180)
"""From so long before its end on a release is about to end."""
FIRST_UNKNOWN_BRANCH = 600
"""From this branch on the release is unknown."""


class Architecture(StrEnum):
    """An architecture of NVIDIA's GPUs that a release of vGPU software dropped."""

    MAXWELL = "Maxwell"
    PASCAL = "Pascal"
    VOLTA = "Volta"


class Support(StrEnum):
    """Whether a release still gets fixes at a date."""

    SUPPORTED = "supported"
    ENDS_SOON = "ends-soon"
    OVER = "over"


class GuestFit(StrEnum):
    """Whether a guest's driver works with the host's. `old`: older than NVIDIA supports."""

    SUPPORTED = "supported"
    OLD = "old"
    TOO_NEW = "too-new"
    UNKNOWN = "unknown"


class MinorRelease(Value):
    """The drivers of one minor release. `sure`: NVIDIA's own page or bulletin has them."""

    name: str
    manager: str
    linux: str
    windows: str
    source: str
    sure: bool = True


class Release(Value):
    """A major release. `first_branch`: the first number of its drivers. `minors`: those that were seen, oldest first.

    `end`: the last day on which it may have support; `end_text`: what its source says about that.
    """

    number: int
    first_branch: int
    long_term: bool
    end: date
    end_text: str
    source: str
    minors: tuple[MinorRelease, ...] = ()


def _minor(name: str, drivers: str, source: str, *, sure: bool = True) -> MinorRelease:
    manager, linux, windows = drivers.split()
    return MinorRelease(name, manager, linux, windows, source, sure)


_NOTES = "release notes of NVIDIA vGPU software 19.0"
_JANUARY = "NVIDIA/product-security 2026/5747 (January 2026)"
_MAY = "NVIDIA/product-security 2026/5821 (May 2026)"
_INFRA = "NVIDIA AI Enterprise Infra 8.2, matrix of 2026-08-17, quoted by others"
_BRANCHES = "https://docs.nvidia.com/datacenter/tesla/drivers (releases and lifecycle)"
_BEFORE_2026 = (date(2026, 1, 31), "before 2026", f"no drivers in {_JANUARY}")

RELEASES = (
    Release(11, 450, True, *_BEFORE_2026),
    Release(12, 460, False, *_BEFORE_2026),
    Release(13, 470, True, *_BEFORE_2026),
    Release(14, 510, False, *_BEFORE_2026),
    Release(15, 525, False, *_BEFORE_2026),
    Release(
        16,
        535,
        True,
        date(2026, 7, 31),
        "in June or July 2026",
        _BRANCHES,
        (_minor("16.14", "535.309.01 535.309.01 539.72", _MAY),),
    ),
    Release(17, 550, False, *_BEFORE_2026),
    Release(
        18,
        570,
        False,
        date(2026, 5, 31),
        "before May 2026",
        f"no drivers in {_MAY}",
        (_minor("18.6", "570.211.01 570.211.01 573.96", _JANUARY),),
    ),
    Release(
        19,
        580,
        True,
        date(2028, 7, 31),
        "in June or July 2028",
        _BRANCHES,
        (
            _minor("19.0", "580.65.05 580.65.06 580.88", _NOTES),
            _minor("19.4", "580.126.08 580.126.09 582.16", _MAY),
            _minor("19.5", "580.159.01 580.159.03 582.53", _MAY),
            _minor("19.6", "580.178.05 580.178.04 582.78", "a text that is not NVIDIA's", sure=False),
        ),
    ),
    Release(
        20,
        595,
        False,
        date(2027, 3, 31),
        "in March 2027",
        _BRANCHES,
        (
            _minor("20.0", "595.58.02 595.58.03 595.97", _MAY),
            _minor("20.1", "595.71.03 595.71.05 596.36", _MAY),
            _minor("20.2", "595.91.04 595.91.07 596.86", _INFRA, sure=False),
        ),
    ),
)
"""By number, oldest first."""
_MINORS: Mapping[str, str] = {
    driver: minor.name
    for release in RELEASES
    for minor in release.minors
    for driver in (minor.manager, minor.linux, minor.windows)
} | {"580.129.08": "19.4"}
"""By driver. NVIDIA's bulletin of January 2026 prints 580.129.08 for the manager of 19.4."""

LAST_RELEASES: Mapping[Architecture, tuple[int, str]] = {
    Architecture.MAXWELL: (16, "a text that is not NVIDIA's; the last driver of all is R580 (NixOS wiki)"),
    Architecture.PASCAL: (16, "a text that is not NVIDIA's; the last driver of all is R580 (NixOS wiki)"),
    Architecture.VOLTA: (19, "Azure/AgentBaker#8810; NVIDIA AI Enterprise 8.1, which no longer lists its types"),
}
"""The last release for an architecture, and who says so."""
_NVML_ARCHITECTURES = {3: Architecture.MAXWELL, 4: Architecture.PASCAL, 5: Architecture.VOLTA}
"""nvml.h: NVML_DEVICE_ARCH_MAXWELL, _PASCAL, _VOLTA."""
_DEVICES = {
    **dict.fromkeys(("13bd", "13f2", "13f3"), Architecture.MAXWELL),
    **dict.fromkeys(("15f7", "15f8", "15f9", "1b38", "1bb3", "1bb4"), Architecture.PASCAL),
    **dict.fromkeys(("1db1", "1db3", "1db4", "1db5", "1db6", "1df6"), Architecture.VOLTA),
}
"""Tesla M10, M60, M6; P100, P40, P4, P6; V100: vgpuConfig.xml of NVIDIA's vGPU 17 host driver, by PCI device."""


def find_release(driver: str) -> Release | None:
    """Return the release that a driver of a host or a guest belongs to; None for an unknown one."""
    branch = parse_integer(driver.partition(".")[0]) or 0
    if not RELEASES[0].first_branch <= branch < FIRST_UNKNOWN_BRANCH:
        return None
    return RELEASES[bisect([release.first_branch for release in RELEASES], branch) - 1]


def release_name(driver: str) -> str | None:
    """Return the minor release of a driver, such as 19.5, else the major one, such as 19; None for an unknown one."""
    release = find_release(driver)
    return None if release is None else _MINORS.get(driver, str(release.number))


def support_of(release: Release, today: date) -> Support:
    """Return whether a release still gets fixes."""
    if release.end < today:
        return Support.OVER
    return Support.ENDS_SOON if release.end - today <= ENDS_SOON else Support.SUPPORTED


def support_end(driver: str) -> int | None:
    """Return when the last day of a driver's release is over, in seconds since 1970; None for an unknown release."""
    release = find_release(driver)
    return None if release is None else int(datetime.combine(release.end + timedelta(1), time(), UTC).timestamp())


def rate_guest(host_driver: str, guest_driver: str) -> GuestFit:
    """Return whether a guest with this driver works on a host with that one. Same branch: also in unknown releases."""
    if host_driver.partition(".")[0] == guest_driver.partition(".")[0]:
        return GuestFit.SUPPORTED
    host, guest = find_release(host_driver), find_release(guest_driver)
    if host is None or guest is None:
        return GuestFit.UNKNOWN
    if guest.number > host.number:
        return GuestFit.TOO_NEW
    long_term = [r.number for r in RELEASES if r.long_term and r.number < host.number] if host.long_term else []
    supported = (host.number, host.number - 1, *long_term[-1:])
    return GuestFit.SUPPORTED if guest.number in supported else GuestFit.OLD


def find_architecture(gpu: Gpu) -> Architecture | None:
    """Return the architecture of an NVIDIA GPU if a release dropped it: from NVML, else by its PCI device."""
    number = gpu.scheduler.architecture if gpu.scheduler is not None else None
    if number is not None:
        return _NVML_ARCHITECTURES.get(number)
    return _DEVICES.get(gpu.device_id or "")
