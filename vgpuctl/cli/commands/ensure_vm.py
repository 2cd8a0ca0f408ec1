# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl ensure-vm`."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import field_options, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import VM_STATES


@make_command(
    "ensure-vm",
    shown_by="show-vm",
    examples=(
        ("vgpuctl ensure-vm -f vdi-001.yaml", "create the VM, or change it, to match the file"),
        (
            "echo '{name: vdi-001, profile: A100-4C}' | vgpuctl --host sim:a100-40 ensure-vm -f -",
            "read the spec from standard input",
        ),
        (
            "echo '{name: \"vdi-{:03}\", profile: A100-4C}' | vgpuctl --host sim:a100-40 ensure-vm -f - --count 5",
            "ensure that vdi-001 to vdi-005 exist",
        ),
        ("vgpuctl ensure-vm -f vdi-001.yaml --state absent --yes", "delete the VM if it exists"),
        (
            "echo '{name: \"vdi-{:03}\"}' | vgpuctl --host sim:a100-40 --yes ensure-vm -f - --count 5 --state absent",
            "delete those of vdi-001 to vdi-005 that exist",
        ),
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
    help="present: create and start a missing VM, and leave an existing one on or off; started, stopped: the same, but"
    " start or stop it; absent: delete it.",
)
@click.option("--dry-run", is_flag=True, help="Show the steps and the differences; change nothing.")
@field_options.fields("placement", "labels", "owner")
@targets.count_options
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
    """Create or change a VM so that it matches a spec file. A second run changes nothing.

    An existing VM is started or stopped as --state says. Its labels and owner can change at any time; profile, gpu,
    memory, vcpus, networks, hugepages, cpu_pin, display and reserve while it is off. Any other difference is refused
    (exit status 3) and shown. For an existing VM a spec with only its name is enough. The spec's fields are create-vm's
    options: 'vgpuctl create-vm --help' lists them. To change a few fields without a spec, use set-vm.

    --placement, --label and --owner override these fields of the spec.

    With --count N the spec's name is a pattern such as 'vdi-{:03}', and vdi-001 to vdi-N will exist. Missing VMs are
    created only if all of them fit. --state then works on each of the N: absent deletes those that exist. A smaller N
    deletes nothing.
    """
    max_parallel = targets.check_count_options(count, parallel)
    if count is not None:
        vm_count = count
        return run.call(
            settings,
            "ensure-vm",
            lambda host: host.ensure_vms(
                vm_count, file=path, state=state, parallel=max_parallel, dry_run=dry_run, **explicit
            ),
        )
    return run.call(
        settings,
        "ensure-vm",
        lambda host: host.ensure_vm(file=path, state=state, dry_run=dry_run, **explicit),
    )
