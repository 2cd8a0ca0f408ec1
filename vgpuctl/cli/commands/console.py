# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl console`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "console",
    examples=(("vgpuctl console vdi-001", "where its screen and its serial console are"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def command(settings: Settings, name: str) -> int:
    """Say how to reach a VM, by name or uuid: its VNC or SPICE screen and its serial console.

    Address and ports are the running VM's own. Whether a password is set is said, the password never is; null in JSON
    means that this user may not see it. Nothing is opened or changed.
    """
    return run.call(settings, "console", lambda host: host.console(name))
