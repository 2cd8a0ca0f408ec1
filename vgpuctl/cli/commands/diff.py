# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl diff`."""

from __future__ import annotations

import click

from vgpuctl.cli import host_options
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "diff",
    examples=(
        ("vgpuctl --host sim:mixed diff", "what is not as host.yaml says"),
        ("vgpuctl diff --set 'gpus[0000:17:00.0].mode=vgpu'", "what apply would do; exit status 7 when it would"),
    ),
)
@host_options.options
@click.pass_obj
def command(settings: Settings, path: str | None, sets: tuple[str, ...], drain: bool) -> int:
    """Say what is not as host.yaml says, key by key, and what apply would do about it; nothing is changed.

    The exit status is 7 when something differs, 0 when not. What stands against a change, as a running VM, is a
    warning here. Comments of a file and the way in which it names GPUs are no difference.
    """
    return host_options.compare(settings, "diff", path, sets, drain, quiet=False)
