# SPDX-License-Identifier: Apache-2.0
"""Helpers for host vGPUs (without a VM): create, delete, their host.yaml entries, and reconcile's findings."""

from __future__ import annotations

from tests.hosts import SimulatedHost, context, operation, request, run_reconcile, yes
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.model.outcome import Outcome
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.vgpus import create_vgpu, delete_vgpu
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


def make(ports: Host, profile: str = "A100-4C", name: str | None = "spare", **more: object) -> Outcome:
    """Run create-vgpu."""
    dry_run = bool(more.pop("dry_run", False))
    wanted = replace(request(profile, **more), name=name)
    with operation(ports):
        return create_vgpu(ports, context(dry_run=dry_run), wanted)


def drop(ports: Host, name: str = "spare", *, dry_run: bool = False, confirm: object = yes) -> Outcome:
    """Run delete-vgpu."""
    with operation(ports):
        return delete_vgpu(ports, context(dry_run=dry_run, confirm=confirm), name)


def spec_of(host: SimulatedHost) -> HostSpec:
    """Return the parsed host.yaml."""
    return read_host_spec(host.ports) or HostSpec(1)


def finding_kinds(host: SimulatedHost) -> list[str]:
    """Return the kinds of reconcile's findings."""
    return [f.kind for f in run_reconcile(host.ports, dry_run=True).data.findings]
