# SPDX-License-Identifier: Apache-2.0
"""The options --count and --parallel of create-vm and ensure-vm: several VMs with one command."""

from __future__ import annotations

from collections.abc import Callable

import click

from vgpuctl.config.arguments import DEFAULT_PARALLEL, MAX_PARALLEL, MAX_VMS


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Add both options to a command."""
    parallel = click.option(
        "--parallel",
        metavar="P",
        type=click.IntRange(1, MAX_PARALLEL),
        help=f"With --count: how many VMs are worked on at the same time. [{DEFAULT_PARALLEL}]",
    )
    count = click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, MAX_VMS),
        help="N VMs, numbered from 1; the name is a pattern such as 'vdi-{:03}'.",
    )
    return count(parallel(function))


def check_options(
    count: int | None,
    parallel: int | None,
    *,
    print_xml: bool = False,
    wait_for: str | None = None,
) -> int:
    """Return how many VMs are worked on at the same time.

    Raises:
        click.UsageError: the options contradict each other.
    """
    if count is None and parallel is not None:
        raise click.UsageError("--parallel requires --count")
    if count is not None and print_xml:
        raise click.UsageError("--print-xml shows one VM: omit --count and specify one name")
    if count is not None and wait_for is not None:
        raise click.UsageError(f"--wait-for waits for one VM: omit it, then: vgpuctl wait NAMES --for {wait_for}")
    return parallel or DEFAULT_PARALLEL
