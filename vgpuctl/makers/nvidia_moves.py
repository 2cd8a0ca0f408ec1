# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's rules for the migration of VMs with vGPUs between KVM hosts, beside what its library itself compares.

The table is as of `TABLE_DATE`. A distribution that is not in it is one that NVIDIA does not name: it may work.
Sources: KubeVirt's VEP 109 (2026), which quotes the release notes for RHEL KVM and Ubuntu; NVIDIA AI Enterprise 7 and
8, "Live migration". "Fails on GPUs with a GSP" stands in one of them, and Hopper, which has one, in the others.
"""

from __future__ import annotations

from datetime import date

from vgpuctl.model.numbers import parse_version
from vgpuctl.model.results.migration import MigrationHostResult
from vgpuctl.value import Value

TABLE_DATE = date(2026, 11, 26)


class SupportedSystem(Value):
    """A distribution on whose hosts NVIDIA supports the migration.

    `version`: how its versions begin. `drivers_may_differ`: both hosts need not have the same vGPU host driver.
    """

    distribution: str
    version: tuple[int, ...]
    drivers_may_differ: bool


HOST_SYSTEMS = (
    SupportedSystem("rhel", (9, 4), drivers_may_differ=False),
    SupportedSystem("rhel", (9, 6), drivers_may_differ=True),
    SupportedSystem("rhel", (10, 0), drivers_may_differ=True),
    SupportedSystem("ubuntu", (24, 4), drivers_may_differ=False),
)
APART = (((9, 4), (10, 0)),)
"""Versions of RHEL between which NVIDIA does not support it, in either direction (AI Enterprise 7 and 8)."""
SOURCE_NAME = "NVIDIA AI Enterprise 8 and KubeVirt's VEP 109"


def find_problems(source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
    """Return why NVIDIA's driver does not take a vGPU of the other host, a sentence each without its end."""
    systems = [find_system(host.distribution) for host in (source, target)]
    problems = []
    may_differ = all(system is not None and system.drivers_may_differ for system in systems)
    if source.driver and target.driver and source.driver != target.driver and not may_differ:
        problems.append(
            f"the vGPU host driver is {source.driver} on {source.name} and {target.driver} on {target.name}, and "
            "NVIDIA supports different ones only between hosts with RHEL 9.6 or newer"
        )
    versions = sorted(s.version for s in systems if s is not None and s.distribution == "rhel")
    if tuple(versions) in APART:
        problems.append("NVIDIA does not support live migration between RHEL 9.4 and RHEL 10.0")
    return tuple(problems)


def find_doubts(source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
    """Return what NVIDIA does not support and may work nevertheless, or what is not known, a sentence each."""
    names: dict[str | None, list[str]] = {}
    for host in (source, target):
        if find_system(host.distribution) is None:
            names.setdefault(host.distribution, []).append(host.name)
    doubts = []
    if names:
        systems = "; ".join(
            f"the distribution of {' and '.join(hosts)} is {known or 'not known'}" for known, hosts in names.items()
        )
        doubts.append(f"NVIDIA lists live migration only for {systems_text()} ({TABLE_DATE:%Y-%m}); {systems}")
    if not source.driver or not target.driver:
        unknown = " and ".join(host.name for host in (source, target) if not host.driver)
        doubts.append(f"the version of NVIDIA's driver on {unknown} is not known, and both hosts need the same one")
    return tuple(doubts)


def find_system(distribution: str | None) -> SupportedSystem | None:
    """Return the entry for a distribution, such as `rhel 9.6`: the newest that is not newer; None without one."""
    name, _, text = (distribution or "").partition(" ")
    version = parse_version(text)
    if version is None:
        return None
    exact = [s for s in HOST_SYSTEMS if s.distribution == name and s.version == version[: len(s.version)]]
    newer = [s for s in HOST_SYSTEMS if s.distribution == name and s.drivers_may_differ and s.version <= version]
    return exact[-1] if exact else newer[-1] if newer else None


def systems_text() -> str:
    """Return the systems on which NVIDIA supports it, for people."""
    return ", ".join(_name(system) for system in HOST_SYSTEMS)


def _name(system: SupportedSystem) -> str:
    name = {"rhel": "RHEL", "ubuntu": "Ubuntu"}[system.distribution]
    major, minor = system.version
    return f"{name} {major}.{minor:02}" if name == "Ubuntu" else f"{name} {major}.{minor}"
