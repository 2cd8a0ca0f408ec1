# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl sim reboot|reset|list-scenarios`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings, global_options
from vgpuctl.cli.table import COMMANDS, SIM_COMMANDS

if TYPE_CHECKING:
    from vgpuctl.cli.result import Result
    from vgpuctl.cli.signals import Guard


@make_command(
    "reboot",
    short_help=SIM_COMMANDS["reboot"],
    examples=(("vgpuctl --host sim:a100-40 sim reboot", "then start-vm makes the vGPUs again"),),
)
@click.pass_obj
def reboot(settings: Settings) -> int:
    """Boot the simulated host again, as power loss would: its devices and /run are empty, its VMs are off."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import simulated
        from vgpuctl.cli.result import Result

        simulated.reboot(settings)
        return Result({"host": settings.host}, changed=True)

    return run.perform(settings, "sim-reboot", work)


@make_command(
    "reset",
    short_help=SIM_COMMANDS["reset"],
    examples=(("vgpuctl --host sim:a100-40 sim reset --yes", "the host is as new"),),
)
@click.pass_obj
def reset(settings: Settings) -> int:
    """Forget everything that happened on the simulated host: VMs, vGPUs and disks. Asks before."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import confirm, simulated
        from vgpuctl.cli.result import Result

        simulated.scenario(settings)
        confirm.Question(settings)(f"Forget everything on {settings.host}?", ())
        simulated.reset(settings)
        return Result({"host": settings.host}, changed=True)

    return run.perform(settings, "sim-reset", work)


@make_command(
    "list-scenarios",
    short_help=SIM_COMMANDS["list-scenarios"],
    examples=(("vgpuctl sim list-scenarios", "the hosts that --host sim:NAME takes"),),
)
@click.pass_obj
def list_scenarios(settings: Settings) -> int:
    """List the built-in simulated hosts. --host sim:FILE takes one of your own: docs/scenarios.md."""

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import simulated
        from vgpuctl.cli.result import Result

        return Result([{"host": f"sim:{name}", "description": text} for name, text in simulated.scenarios()])

    return run.perform(settings, "sim-list-scenarios", work)


_COMMANDS: dict[str, click.Command] = {
    "reboot": reboot,
    "reset": reset,
    "list-scenarios": list_scenarios,
}

command = LazyGroup(
    "sim",
    table=SIM_COMMANDS,
    load=_COMMANDS.__getitem__,
    help="Reboot or reset the simulated host that --host names, or list the built-in ones.",
    short_help=COMMANDS["sim"][1],
    examples=(("vgpuctl --host sim:a100-40 sim reboot", "what a reboot takes away is gone"),),
    params=global_options(in_front=False),
    context_settings=CONTEXT_SETTINGS,
    subcommand_metavar="COMMAND",
)
