# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vgpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, field_options, run, wishes
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import Work
    from vgpuctl.model.outcome import Outcome


@make_command(
    "create-vgpu",
    examples=(
        (
            "vgpuctl --host sim:a100-40 create-vgpu spare --profile A100-4C",
            "a vGPU; with '> spare.xml' its element is in a file for 'virsh attach-device VM spare.xml --persistent'",
        ),
        ("vgpuctl --host sim:a100-40 create-vgpu other --profile A100-4C --dry-run", "what would be done"),
    ),
)
@click.argument("name", required=False)
@click.option(
    "--profile", required=True, metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile."
)
@field_options.fields(*field_options.WHERE, "vgpu_params")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    name: str | None,
    profile: str,
    dry_run: bool,
    **others: object,
) -> int:
    """Make a vGPU without a VM, and print the <hostdev> element with which a VM of virsh or virt-install gets it.

    It is kept in /etc/vgpuctl/host.yaml and made again after a boot; delete-vgpu takes it away. Only the element is
    printed to standard output. Without NAME it is vgpu-<8 random digits>.
    """

    def act(work: Work) -> Outcome:
        from vgpuctl.engine import vgpus

        typed = {"name": name, "profile": (profile,), **others}
        return vgpus.create_vgpu(
            work.world,
            wishes.from_options(work.world, typed),
            dry_run=dry_run,
            wait_seconds=work.wait_seconds,
            progress=work.progress,
        )

    return run.change(settings, "create-vgpu", act)
