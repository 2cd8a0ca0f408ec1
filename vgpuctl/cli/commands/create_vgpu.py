# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vgpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, field_options, requests, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import ChangeContext
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
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
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

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import vgpus

        fields = {"name": name, "profile": (profile,), **others}
        return vgpus.create_vgpu(
            context.host,
            requests.from_options(context.host, fields),
            dry_run=dry_run,
            wait_seconds=context.wait_seconds,
            progress=context.progress,
        )

    return run.change(settings, "create-vgpu", act)
