# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller export-fleet|apply-fleet`: a whole fleet in one YAML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, at_controller, changes_at_controller, connect
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Page

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import AppliedFleetResult


def _applied_page(data: Any) -> Page:
    result: AppliedFleetResult = data.data
    changes = [one for one in result.parts if one.change != "unchanged"]
    would = "would be " if data.dry_run else ""
    lines = [
        f"{one.kind} {one.name}: {would}{one.change}{': ' if one.fields else ''}{', '.join(one.fields)}"
        for one in changes
    ]
    return Page(lines or [f"nothing to change: {len(result.parts)} entries are so already"])


@make_command(
    "export-fleet", table=CONTROLLER_COMMANDS,
    examples=(("vgpuctl controller export-fleet > fleet.yaml", "to keep in git, or for another controller"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def export_fleet(settings: Settings, where: Where) -> int:
    """Print hosts, images, pools, people, quotas and rights as YAML, as apply-fleet reads it.

    Passwords and tokens are not in it, nor who has which desktop: a backup of the database has that.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.cli import document
        from vgpuctl.controller.fleet_apply import export_fleet
        from vgpuctl.model.documents import to_json_value
        from vgpuctl.model.outcome import QueryResult

        data = export_fleet(connect(settings, *where))
        return run.CommandOutput(QueryResult(data), raw=document.text(to_json_value(data), "yaml"))

    return run.perform(settings, "controller-export-fleet", work)


@make_command(
    "apply-fleet", table=CONTROLLER_COMMANDS, page=_applied_page,
    examples=(
        ("vgpuctl controller apply-fleet -f fleet.yaml --dry-run", "what would change"),
        ("vgpuctl controller apply-fleet -f fleet.yaml", "again: nothing"),
    ),
)  # fmt: skip
@click.option("-f", "--file", required=True, type=click.Path(allow_dash=True), metavar="FILE", help="The file, or -.")
@changes_at_controller
@click.pass_obj
def apply_fleet(settings: Settings, file: str, where: Where) -> int:
    """Make a fleet what a YAML file says: hosts, images, pools, people, quotas and rights, in this order.

    What the fleet has and the file does not is kept. When something fails, what was done stays: run it again.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.controller.fleet_apply import apply_fleet
        from vgpuctl.controller.fleet_file import parse_fleet
        from vgpuctl.library.text_file import display_name, read_text
        from vgpuctl.model.outcome import Outcome

        given = parse_fleet(read_text(file, "fleet"), display_name(file))
        result = apply_fleet(connect(settings, *where), given, dry_run=where.dry_run)
        changed = any(one.change != "unchanged" for one in result.parts)
        return run.CommandOutput(Outcome(changed, result, warnings=result.warnings, dry_run=where.dry_run))

    return run.perform(settings, "controller-apply-fleet", work)


COMMANDS: dict[str, click.Command] = {str(one.name): one for one in (export_fleet, apply_fleet)}
