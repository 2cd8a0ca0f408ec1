# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl create-vm` and `vgpuctl ensure-vm`: their options are the fields of a VM spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import field_options, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Seconds, Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.config.arguments import VM_STATES, WAIT_EVENTS

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.vms import XmlResult


@make_command(
    "create-vm",
    shown_by="show-vm",
    examples=(
        ("vgpuctl create-vm --profile A100-4C", "create and start a VM with this vGPU and an empty 40 GiB disk"),
        (
            "vgpuctl create-vm vdi-001 --profile A100-4C --image /var/lib/libvirt/images/debian.qcow2",
            "boot a clone of an image",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm 'vdi-{:03}' --count 5 --profile A100-4C",
            "create vdi-001 to vdi-005, those that do not exist yet",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm 'vdi-{:03}' --count 20 --profile A100-4C"
            " --reserve running --no-start",
            "define twenty desktops; as many as fit can run at once",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C:2 --dry-run",
            "show the steps and change nothing",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C"
            " --image /srv/images/ubuntu-24.04.qcow2 --wait-for guest",
            "return when the guest can be reached",
        ),
        (
            "vgpuctl create-vm vdi-001 --profile A16-2Q --image /srv/images/debian.qcow2 --network bridge=br0,vlan=30"
            " --network-config /root/vdi-001.yaml",
            "a network card in VLAN 30, with the static address in that file",
        ),
        (
            "vgpuctl create-vm 'app-{}' --count 3 --profile A16-2Q --image /srv/images/debian.qcow2"
            " --network bridge=br0 --network-config '/root/net-{}.yaml'",
            "three VMs, with the static addresses in net-1.yaml to net-3.yaml",
        ),
        (
            "vgpuctl --host sim:h100-pcie-x8 create-vm train-1 --mode passthrough --gpus 2",
            "two whole GPUs that are behind one PCIe switch",
        ),
        (
            "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C --network default"
            " --network bridge=br0,mac=52:54:00:12:34:56 --hugepages=2MiB --cpu-pin=auto",
            "two network cards, huge pages, and the CPUs of the GPU's NUMA node",
        ),
    ),
)
@click.argument("name", required=False)
@field_options.all_fields
@click.option("--no-start", is_flag=True, help="Create the VM and its vGPUs, but do not start it.")
@click.option("--dry-run", is_flag=True, help="Show the steps and the source of each value; change nothing.")
@click.option("--print-xml", is_flag=True, help="Print the domain XML; change nothing.")
@targets.count_options
@click.option("--wait-for", type=click.Choice(WAIT_EVENTS), help="Return when the guest is that far; see wait --help.")
@click.option(
    "--wait-timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="How long --wait-for waits. [300]",
)
@click.pass_obj
def create_vm(
    settings: Settings,
    /,
    no_start: bool,
    dry_run: bool,
    print_xml: bool,
    count: int | None,
    parallel: int | None,
    wait_for: str | None,
    wait_timeout: float | None,
    name: str | None,
    **explicit: Any,
) -> int:
    """Create and start a VM with vGPUs, plain virtual functions or whole GPUs.

    The command places the vGPU, creates its device, the disk and the domain, starts the VM and reads everything back.
    If a step fails, all earlier steps are undone. Without --image, --disk and --cdrom the VM gets an empty 40 GiB disk
    and boots from the network. Without NAME it is named vgpu-<8 digits of its uuid>. Unset options come from
    'defaults:' in /etc/vgpuctl/host.yaml.

    With --count N, NAME is a pattern such as 'vdi-{:03}', and N such VMs will exist. Matching VMs are left alone;
    missing ones are created only if all of them fit. A VM that fails is undone; the others stay. The paths of
    --cloud-init and --network-config may have the same placeholder, for one file per VM: 'net-{:03}.yaml'.

    With --reserve running the VM has its vGPU only while it runs, so you can define more VMs than fit at once. With
    --no-start such a VM takes no place and no device is created. start-vm places a VM elsewhere if another VM has its
    place.

    With --wait-for guest the command returns when the VM's guest agent answers or an address of the guest is known. If
    the timeout expires, the exit status is 75; the VM stays and runs.

    --hugepages and --cpu-pin work without a value too. Then put NAME first, or write --hugepages=2MiB and
    --cpu-pin=auto. Without --cpu-pin nothing is pinned.

    --network-config takes the file that cloud-init documents as network-config. One static address looks like this:
    {version: 2, ethernets: {lan: {match: {name: 'e*'}, addresses: [192.0.2.10/24], routes: [{to: default, via:
    192.0.2.1}], nameservers: {addresses: [192.0.2.53]}}}}

    --display needs a profile with a display: the Q, B or A series, on an mdev, or on a VF with libvirt 10.2 or newer.
    """
    explicit = field_options.with_absolute_paths(explicit)
    max_parallel = targets.check_count_options(count, parallel, print_xml=print_xml, wait_for=wait_for)
    if print_xml:
        return run.call(settings, "create-vm", lambda host: host.print_xml(name, **explicit), _as_text)
    choices: dict[str, Any] = {**explicit, "start": not no_start, "dry_run": dry_run}
    if count is not None:
        several = {**choices, "count": count, "parallel": max_parallel}
        return run.call(settings, "create-vm", lambda host: host.create_vms(name, **several))
    choices |= {"wait_for": wait_for, "wait_timeout": wait_timeout}
    return run.call(settings, "create-vm", lambda host: host.create_vm(name, **choices))


def _as_text(result: QueryResult[XmlResult]) -> CommandOutput:
    return CommandOutput(result, raw=f"{result.data.xml.rstrip()}\n")


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

    An existing VM is started or stopped as --state says. What 'vgpuctl set-vm --help' lists can change while it is off,
    what is marked [at any time] there also while it runs. Any other difference is refused (exit status 3) and shown.
    For an existing VM a spec with only its name is enough. The spec's fields are create-vm's options: 'vgpuctl
    create-vm --help' lists them. To change a few fields without a spec, use set-vm.

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
