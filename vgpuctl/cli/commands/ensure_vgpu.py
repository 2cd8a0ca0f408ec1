# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl ensure-vgpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, field_options, requests, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import ChangeContext
    from vgpuctl.model.outcome import Outcome

STATES = ("present", "absent")


@make_command(
    "ensure-vgpu",
    examples=(
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --profile A100-4C", "make it, unless it is there"),
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --state absent --yes", "remove it, if it is there"),
    ),
)
@click.argument("name", shell_complete=complete.vgpus)
@click.option("--profile", metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile.")
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
@click.option(
    "--state",
    type=click.Choice(STATES),
    default="present",
    show_default=True,
    help="present: made if it is not there; absent: removed if it is.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    name: str,
    profile: str | None,
    state: str,
    dry_run: bool,
    **others: object,
) -> int:
    """See to it that a vGPU without a VM is there, or is not. Run twice, the second time changes nothing.

    One that is there with another profile, on another GPU than was typed or with other parameters is refused (exit 3)
    and shown. create-vgpu and delete-vgpu say the rest.
    """

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import ensure_vgpu

        fields = {**others, "profile": (profile,) if profile else ()}
        return ensure_vgpu.ensure_vgpu(
            context.host,
            requests.for_vgpu(context.host, name, fields),
            state=state,
            dry_run=dry_run,
            confirm=context.confirm,
            wait_seconds=context.wait_seconds,
            progress=context.progress,
        )

    return run.change(settings, "ensure-vgpu", act)
