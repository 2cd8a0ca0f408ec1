# SPDX-License-Identifier: Apache-2.0
"""The options of plan-moves and move-vms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vgpuctl.cli import complete

Command = Callable[..., Any]


def move_options(command: Command) -> Command:
    """Add the options that say what the moves are for."""
    command = click.option(
        "--most", type=click.IntRange(min=0), metavar="N", help="No more than N moves. [any number]"
    )(command)
    command = click.option("--defragment", is_flag=True, help="Make room for more of the largest profiles instead.")(
        command
    )
    return click.option(
        "--profile",
        "profiles",
        metavar="PROFILE[:N]",
        multiple=True,
        shell_complete=complete.profiles,
        help="Make room for a vGPU of this profile, with :N for so many of it; repeat it for several profiles.",
    )(command)
