# SPDX-License-Identifier: Apache-2.0
"""Live completion: profiles, GPU addresses, VM names and hosts, asked from the host that --host names.

Whatever fails is silent: the user only pressed Tab. Nothing is imported until a value is completed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vgpuctl.model.world import World

Rows = list[dict[str, Any]]


def profiles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete profiles that this host has."""
    return _live(ctx, incomplete, "list_profiles", lambda row: (row["profile"], f"{_number(row['free'])} free"))


def gpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete GPU addresses."""
    return _live(ctx, incomplete, "list_gpus", lambda row: (row["address"], str(row["model"])))


def instances(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the GPU instance profiles of the GPU that was typed, asked from NVML alone."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        from vgpuctl.model.address import normal_pci

        gpu = str(ctx.params["gpu"])
        seen = _world(ctx).nvml.gpu(normal_pci(gpu) or gpu)
        found = seen.mig.profiles if seen is not None and seen.mig is not None else ()
        return [CompletionItem(p.name, help=f"at most {p.maximum}") for p in found if p.name.startswith(incomplete)]
    return []


def vms(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of VMs, asked from libvirt alone: no GPU is looked at."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        records = _world(ctx).hypervisor.domains()
        return [CompletionItem(r.name, help=str(r.state)) for r in records if r.name.startswith(incomplete)]
    return []


def vgpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of vGPUs without a VM, read from host.yaml alone."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        from vgpuctl.cli import wishes

        kept = wishes.host_spec(_world(ctx)).vgpus
        return [CompletionItem(n, help=f"{v.profile} on {v.gpu}") for n, v in kept.items() if n.startswith(incomplete)]
    return []


def pools(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of storage pools."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        records = _world(ctx).storage.pools()
        return [CompletionItem(r.name, help=r.path or r.kind) for r in records if r.name.startswith(incomplete)]
    return []


def hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `local` and the built-in simulated hosts; after `sim:` with a slash, files."""
    from click.shell_completion import CompletionItem

    found = [("local", "this host")]
    with suppress(Exception):
        from vgpuctl.cli import simulated

        found += [(f"sim:{name}", text) for name, text in simulated.scenarios()]
    return [CompletionItem(value, help=text) for value, text in found if value.startswith(incomplete)]


def checks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the doctor's checks."""
    from click.shell_completion import CompletionItem

    from vgpuctl.doctor.catalogue import CHECKS

    return [CompletionItem(check.id, help=check.title) for check in CHECKS if check.id.startswith(incomplete)]


def _live(
    ctx: click.Context, incomplete: str, query: str, item: Callable[[dict[str, Any]], tuple[str, str]]
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    rows: Rows = []
    with suppress(Exception):
        rows = _ask(ctx, query)
    pairs = [item(row) for row in rows]
    return [CompletionItem(value, help=text) for value, text in pairs if value.startswith(incomplete)]


def _ask(ctx: click.Context, query: str) -> Rows:
    from vgpuctl.engine import queries

    return [dict(row) for row in getattr(queries, query)(_world(ctx)).data]


def _world(ctx: click.Context) -> World:
    from vgpuctl.cli import worlds
    from vgpuctl.cli.settings import Settings

    settings = ctx.find_object(Settings)
    if settings is None:
        raise LookupError("no host is named")
    return worlds.open_world(settings)


def _number(value: object) -> str:
    return "?" if value is None else str(value)
