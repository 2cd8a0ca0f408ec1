# SPDX-License-Identifier: Apache-2.0
"""Live completion of profiles, GPU addresses, VM names and hosts, read from the host that --host names.

Errors are silent: the user only pressed Tab. Nothing is imported until a value is completed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vgpuctl.ports.host import Host

Rows = list[dict[str, Any]]


def profiles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete profiles that this host has."""
    return _complete_from_query(
        ctx, incomplete, "list_profiles", lambda row: (row["profile"], f"{_number_or_unknown(row['free'])} free")
    )


def gpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete GPU addresses."""
    return _complete_from_query(ctx, incomplete, "list_gpus", lambda row: (row["address"], str(row["model"])))


def instances(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the GPU instance profiles of the given GPU, read from NVML only."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        from vgpuctl.model.address import normalize_pci

        gpu = str(ctx.params["gpu"])
        gpu_info = _open_host(ctx).nvml.gpu(normalize_pci(gpu) or gpu)
        instance_profiles = gpu_info.mig.profiles if gpu_info is not None and gpu_info.mig is not None else ()
        return [
            CompletionItem(p.name, help=f"at most {p.max_instances}")
            for p in instance_profiles
            if p.name.startswith(incomplete)
        ]
    return []


def vms(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of VMs, read from libvirt only: no GPU is queried."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        domains = _open_host(ctx).hypervisor.domains()
        return [
            CompletionItem(domain.name, help=str(domain.state))
            for domain in domains
            if domain.name.startswith(incomplete)
        ]
    return []


def vgpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of vGPUs without a VM, read from host.yaml only."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        from vgpuctl.cli import requests

        host_vgpus = requests.host_spec(_open_host(ctx)).vgpus
        return [
            CompletionItem(name, help=f"{vgpu.profile} on {vgpu.gpu}")
            for name, vgpu in host_vgpus.items()
            if name.startswith(incomplete)
        ]
    return []


def pools(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of storage pools."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        pool_infos = _open_host(ctx).storage.pools()
        return [
            CompletionItem(pool.name, help=pool.path or pool.kind)
            for pool in pool_infos
            if pool.name.startswith(incomplete)
        ]
    return []


def hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `local` and the built-in simulated hosts; after `sim:` with a slash, files."""
    from click.shell_completion import CompletionItem

    choices = [("local", "this host")]
    with suppress(Exception):
        from vgpuctl.cli import simulated_host

        choices += [(f"sim:{name}", text) for name, text in simulated_host.list_scenarios()]
    return [CompletionItem(value, help=text) for value, text in choices if value.startswith(incomplete)]


def checks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the doctor's checks."""
    from click.shell_completion import CompletionItem

    from vgpuctl.doctor.catalogue import CHECKS

    return [CompletionItem(check.id, help=check.title) for check in CHECKS if check.id.startswith(incomplete)]


def _complete_from_query(
    ctx: click.Context, incomplete: str, query: str, item: Callable[[dict[str, Any]], tuple[str, str]]
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    rows: Rows = []
    with suppress(Exception):
        rows = _query_rows(ctx, query)
    pairs = [item(row) for row in rows]
    return [CompletionItem(value, help=text) for value, text in pairs if value.startswith(incomplete)]


def _query_rows(ctx: click.Context, query: str) -> Rows:
    from vgpuctl.engine import queries

    return [dict(row) for row in getattr(queries, query)(_open_host(ctx)).data]


def _open_host(ctx: click.Context) -> Host:
    from vgpuctl.cli import hosts
    from vgpuctl.cli.settings import Settings

    settings = ctx.find_object(Settings)
    if settings is None:
        raise LookupError("no host is named")
    return hosts.open_host(settings)


def _number_or_unknown(value: object) -> str:
    return "?" if value is None else str(value)
