# SPDX-License-Identifier: Apache-2.0
"""The commands that use a running VM: a reboot, waiting for it, its screen, console and addresses."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Seconds, Settings
from vgpuctl.cli.shown import Page, Pairs
from vgpuctl.cli.targets import Targets, change, query, select
from vgpuctl.config.arguments import DEFAULT_TIMEOUT_SECONDS, WAIT_TARGETS

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.vms import (
        AddressesResult,
        ConsoleResult,
        GuestSoftwareResult,
        ScreenResult,
        WaitedVmResult,
    )


def _waited(data: tuple[WaitedVmResult, ...]) -> Page:
    lines = []
    for vm in data:
        addresses = [str(entry.address) for entry in (() if vm.guest is None else vm.guest.addresses)]
        lines.append(", ".join((f"{vm.name}: {vm.state}", *addresses, *_software(vm.guest_software))))
    return Page(lines)


def _software(software: GuestSoftwareResult | None) -> list[str]:
    if software is None:
        return []
    return [f"driver {software.driver}", *([] if software.license is None else [software.license])]


@make_command(
    "wait",
    page=_waited,
    examples=(
        ("vgpuctl --host sim:a100-40 wait vdi-001 --for running", "returns at once if it runs"),
        ("vgpuctl wait vdi-001 vdi-002 --for off --timeout 600", "both are off, or the exit status is 75"),
        ("vgpuctl wait 'vdi-{001..030}' --for guest", "thirty desktops can be reached"),
        ("vgpuctl wait vdi-001 --for license --timeout 600", "the guest's driver runs and has its license"),
        ("vgpuctl wait vdi-001 --for address && vgpuctl show-address vdi-001", "its address, as soon as there is one"),
    ),
)
@targets.vms(parallel=False)
@click.option("--for", "event", type=click.Choice(WAIT_TARGETS), required=True, help="What to wait for.")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT_SECONDS,
    help=f"How long to wait ({DEFAULT_TIMEOUT_SECONDS:g}).",
)
@click.pass_obj
def wait(settings: Settings, targets: Targets, event: str, timeout: float) -> int:
    """Wait until VMs run or are off, or their guests are ready. With several VMs: until this holds for all.

    guest: the guest agent answers, or an address is known. address: an address is known, by the sources that
    show-address asks. A DHCP lease from before a reboot counts. driver: NVIDIA's driver runs in the guest. license: it
    has a license for its vGPUs. NVML on the host tells both, of vGPUs alone: not of a GPU that a VM has as a whole.

    If the timeout expires, the exit status is 75, and the error shows the state of each VM. A VM that is deleted, or
    that is off while its guest is waited for, ends the command at once. Nothing is changed.
    """

    def wait_for_all(host: GpuHost) -> QueryResult[tuple[WaitedVmResult, ...]]:
        name = targets.single
        names = [row.name for row in select(host, targets, managed_only=False).data] if name is None else [name]
        return host.wait(*names, event=event, timeout_seconds=timeout)

    return run.call(settings, "wait", wait_for_all)


@make_command(
    "reboot-vm",
    shown_by="show-vm",
    words=("rebooted", "unchanged"),
    examples=(
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001", "asks the guest to reboot"),
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001 --force", "resets the VM; unsaved work is lost"),
        ("vgpuctl reboot-vm --label team=cad --parallel 4", "the CAD team's desktops, four at a time"),
    ),
)
@targets.vms()
@click.option("--force", is_flag=True, help="Reset the VM at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def reboot_vm(settings: Settings, targets: Targets, force: bool, dry_run: bool) -> int:
    """Reboot running VMs and wait until they have, at most --wait seconds each. They keep their vGPUs.

    vgpuctl asks the guest agent, or presses the ACPI power button. libvirt reports when the VM is reset. If the guest
    agent answered before, vgpuctl waits for it again. If the guest does not reboot in time, the exit status is 75; it
    may still reboot later.
    """
    return change(
        settings,
        "reboot-vm",
        targets,
        lambda host, name: host.reboot_vm(name, force=force, dry_run=dry_run),
        dry_run=dry_run,
    )


def _console(data: ConsoleResult) -> Page:
    items = [("name", str(data.name)), ("state", str(data.state))]
    for screen in data.graphics:
        password = {True: "asks for a password", False: "no password", None: "password not known"}[screen.password]
        items.append((screen.type, f"{_screen_address(screen)}, {password}"))
    items += [("serial", shlex.join(serial.command)) for serial in data.serial]
    stderr_lines = [] if data.graphics or data.serial else [f"{data.name} has neither a screen nor a serial console"]
    if data.serial:
        stderr_lines.append("the command after 'serial:' opens the serial console in this terminal; Ctrl-] leaves it")
    for screen in data.graphics:
        port, listen = screen.port, screen.listen
        if port and listen in ("127.0.0.1", "::1", "localhost"):
            stderr_lines.append(f"from another machine: ssh -L {port}:localhost:{port} HOST, then localhost:{port}")
    return Page([Pairs(tuple(items))], stderr_lines)


def _screen_address(screen: ScreenResult) -> str:
    if screen.socket:
        return str(screen.socket)
    host = f"[{screen.listen}]" if ":" in (screen.listen or "") else (screen.listen or "?")
    ports = [f"{host}:{screen.port}"] if screen.port else []
    ports += [f"{host}:{screen.tls_port} (TLS)"] if screen.tls_port else []
    return " and ".join(ports) or "no port yet"


@make_command(
    "show-console",
    page=_console,
    examples=(("vgpuctl show-console vdi-001", "where its screen is, and the command that opens its serial console"),),
)
@targets.vms(parallel=False)
@click.pass_obj
def console(settings: Settings, targets: Targets) -> int:
    """Show how to reach VMs: their VNC or SPICE screens and serial consoles.

    The address and the ports are those of the running VM. The page shows whether a password is set, never the password;
    null in JSON means that you may not see it. 'serial' is the command that opens the serial console in this terminal,
    virsh console NAME; Ctrl-] leaves it. Nothing is opened or changed.
    """
    return query(settings, "show-console", targets, lambda host, name: host.show_console(name))


def _address(data: AddressesResult) -> Page:
    source = {"agent": "the guest agent", "lease": "a DHCP lease", "arp": "the host's ARP table"}[data.source]
    return Page([str(entry.address) for entry in data.addresses], [f"known from {source}"])


@make_command(
    "show-address",
    page=_address,
    examples=(("vgpuctl show-address vdi-001", "its IP addresses, and which source knows them"),),
)
@click.option(
    "--seen-by-host",
    is_flag=True,
    help="Only what the host sees itself: a DHCP lease, or its ARP table on the VM's own bridge. Use it where somebody "
    "is sent there with a password: a guest can claim any address.",
)
@targets.vms(parallel=False)
@click.pass_obj
def address(settings: Settings, targets: Targets, seen_by_host: bool) -> int:
    """Show the IP addresses of running VMs, and which source knows them.

    vgpuctl asks the guest agent, then the DHCP leases of libvirt's networks, then the host's ARP table, and shows the
    first answer. Loopback and link-local addresses do not count. If no source knows an address, the exit status is 75.
    """
    return query(
        settings, "show-address", targets, lambda host, name: host.show_address(name, seen_by_host=seen_by_host)
    )
