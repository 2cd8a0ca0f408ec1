# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl apply`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import host_options, run
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import Work
    from vgpuctl.model.outcome import Outcome


@make_command(
    "apply",
    examples=(
        ("vgpuctl --host sim:mixed apply --dry-run", "what /etc/vgpuctl/host.yaml asks for and is not so"),
        (
            "vgpuctl --host sim:mixed apply --set 'gpus[0000:17:00.0].mode=vgpu' --set 'gpus[A100].cordoned=true'",
            "changes the host, and host.yaml with it",
        ),
        (
            "mdevctl list -d --dumpjson | vgpuctl import - | vgpuctl apply -f -",
            "mdevctl's vGPUs are vgpuctl's from now on",
        ),
        ("vgpuctl export | vgpuctl apply -f - --dry-run", "only the file would be written: the host is as it is"),
    ),
)
@host_options.options
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, path: str | None, sets: tuple[str, ...], drain: bool, dry_run: bool) -> int:
    """Make this host as /etc/vgpuctl/host.yaml says: each GPU's mode, virtual functions and scheduler, and its vGPUs.

    GPU by GPU, each as set-mode and set-scheduler do it; then the vGPUs without a VM that are missing, all or none.
    What stands against it is told before anything is changed. With -f FILE that file becomes host.yaml, as it is, when
    the host is as it says; with --set host.yaml is edited and its comments stay. A GPU that host.yaml does not name is
    left alone. docs/host-file.md tells the format.
    """

    def act(work: Work) -> Outcome:
        from vgpuctl.engine import apply, host_plan

        asked = host_options.asked(work.world, path, sets)
        how = host_plan.How(drain, work.wait_seconds)
        return apply.apply_host(work.world, asked, how, dry_run=dry_run, progress=work.progress)

    return run.change(settings, "apply", act)
