# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl address`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "address",
    examples=(("vgpuctl address vdi-001", "its IP addresses, and who knows them"),),
)
@click.argument("name", shell_complete=complete.vms)
@click.pass_obj
def command(settings: Settings, name: str) -> int:
    """Print the IP addresses of a running VM, by name or uuid, and who knows them.

    Asked are the guest agent, then the DHCP leases of libvirt's networks, then the host's ARP table; the first that
    knows one answers. Loopback and link-local addresses do not count. While none is known the exit status is 75.
    """
    return run.call(settings, "address", lambda host: host.address(name))
