# SPDX-License-Identifier: Apache-2.0
"""The options --count and --parallel of create-vm and ensure-vm: several VMs with one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vgpuctl.cli.result import ChangeContext
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.request import VmRequest
    from vgpuctl.ports.host import Host

MAX_VMS, MAX_PARALLEL, DEFAULT_PARALLEL = 1000, 64, 4


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Add both options to a command."""
    parallel = click.option(
        "--parallel",
        metavar="P",
        type=click.IntRange(1, MAX_PARALLEL),
        help=f"With --count: how many VMs are made at the same time. [{DEFAULT_PARALLEL}]",
    )
    count = click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, MAX_VMS),
        help="See to it that N such VMs are there; the name is a pattern such as 'vdi-{:03}'.",
    )
    return count(parallel(function))


def check_options(
    count: int | None,
    parallel: int | None,
    *,
    print_xml: bool = False,
    wait_for: str | None = None,
    state: str = "present",
) -> int:
    """Return how many VMs are created at the same time.

    Raises:
        click.UsageError: the options contradict each other.
    """
    if count is None and parallel is not None:
        raise click.UsageError("--parallel is for several VMs: say how many with --count")
    if count is not None and print_xml:
        raise click.UsageError("--print-xml shows one VM: leave --count out and give one name")
    if count is not None and wait_for is not None:
        raise click.UsageError("--wait-for waits for one VM: leave --count out, or wait with: vgpuctl address NAME")
    if count is not None and state != "present":
        raise click.UsageError(f"--count makes what is not there yet; --state {state} is for one VM")
    return parallel or DEFAULT_PARALLEL


def run_ensure_vms(
    settings: Settings,
    kind: str,
    build_request: Callable[[Host], tuple[VmRequest, tuple[str, ...]]],
    *,
    start: bool,
    parallel: int,
    dry_run: bool,
) -> int:
    """Ensure that the VMs with these names exist, and print the result."""
    from vgpuctl.cli import run

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import ensure_vms

        request, names = build_request(context.host)
        return ensure_vms.ensure_vms(
            context.host,
            request,
            names,
            start=start,
            parallel=parallel,
            dry_run=dry_run,
            wait_seconds=context.wait_seconds,
            progress=context.progress,
        )

    return run.change(settings, kind, act)
