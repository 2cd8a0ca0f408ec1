# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl ensure-vm`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import field_options, many, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import VM_STATES


@make_command(
    "ensure-vm",
    examples=(
        ("vgpuctl ensure-vm -f vdi-001.yaml", "make it as the file says, unless it is already"),
        (
            "echo '{name: vdi-001, profile: A100-4C}' | vgpuctl --host sim:a100-40 ensure-vm -f -",
            "the spec from standard input",
        ),
        (
            "echo '{name: \"vdi-{:03}\", profile: A100-4C}' | vgpuctl --host sim:a100-40 ensure-vm -f - --count 5",
            "five of them",
        ),
        ("vgpuctl ensure-vm -f vdi-001.yaml --state absent --yes", "remove it, if it is there"),
    ),
)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="SPEC|-",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The VM's spec, YAML or JSON; - reads it from standard input.",
)
@click.option(
    "--state",
    type=click.Choice(VM_STATES),
    default="present",
    show_default=True,
    help="present: made and started if it is not there, otherwise left on or off as it is.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and what differs.")
@field_options.fields("placement", "labels", "owner")
@many.options
@click.pass_obj
def ensure_vm(
    settings: Settings,
    /,
    path: str,
    state: str,
    dry_run: bool,
    count: int | None,
    parallel: int | None,
    **explicit: Any,
) -> int:
    """Make a VM equal to a spec file. Run twice, the second time changes nothing.

    Of a VM that exists the state, labels and owner are changed in place, and while it is off its profile, memory,
    vcpus, network and reserve. Any other difference is refused (exit 3) and shown. For such a VM its name is enough of
    a spec. The spec's fields are create-vm's options: docs/json/vm-spec.schema.json lists them.

    --placement, --label and --owner override those fields of the spec.

    With --count N the spec's name is a pattern such as 'vdi-{:03}', and N such VMs are to be there.
    """
    max_parallel = many.check_options(count, parallel, state=state)
    if count is not None:
        vm_count = count
        return run.call(
            settings,
            "ensure-vm",
            lambda host: host.ensure_vms(vm_count, file=path, parallel=max_parallel, dry_run=dry_run, **explicit),
        )
    return run.call(
        settings,
        "ensure-vm",
        lambda host: host.ensure_vm(file=path, state=state, dry_run=dry_run, **explicit),
    )
