# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller connect-desktop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, at_controller, connect
from vgpuctl.cli.commands.controller_people import read_password
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Page
from vgpuctl.errors import Interrupted, InvalidInput, NeedsConfirmation, NotAllowed, VgpuctlError

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.controller.client import FleetClient

SCREEN = "screen"


@make_command(
    "connect-desktop",
    table=CONTROLLER_COMMANDS,
    page=lambda data: Page([]),
    examples=(
        ("vgpuctl controller connect-desktop office-001 --user ada", "then: ssh -p PORT 127.0.0.1, as it says"),
        ("vgpuctl controller connect-desktop office-001 --port 3389 --listen 127.0.0.1:13389", "for an RDP client"),
        ("vgpuctl controller connect-desktop office-001 --screen", "its console, for a VNC viewer"),
    ),
)
@click.argument("name", metavar="DESKTOP")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Of the desktop. [the first of its pool]")
@click.option("--screen", is_flag=True, help="Its console instead of a port: the VM's screen, for a VNC viewer.")
@click.option("--listen", metavar="127.0.0.1:PORT", default="127.0.0.1:0", help="Where it listens. [any free port]")
@click.option("--user", metavar="PERSON", help="Sign in as this person, by a password, instead of with a token.")
@click.option(
    "--password-file", metavar="FILE", type=click.Path(dir_okay=False), help="Its first line; without: it is asked for."
)
@at_controller
@click.pass_obj
def connect_desktop(
    settings: Settings, name: str, port: int | None, screen: bool, listen: str, user: str | None,
    password_file: str | None, where: Where,
) -> int:  # fmt: skip
    """Connect a port of this machine to a port of a desktop, through the controller, until Ctrl-C.

    For desktops that are not reachable from here, such as those behind NAT. Its user may, and who operates its pool, to
    the ports in connect: of the pool's spec; to the console who operates the pool, and its user where the spec has
    console: true. Each connection ends with the session or token, and with the assignment.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.controller.tunnel import parse_local

        address, wanted = parse_local(listen), SCREEN if screen else port
        if screen and port is not None:
            raise InvalidInput("--screen is no port: omit --port")
        if user is None:
            if password_file is not None:
                raise InvalidInput("--password-file needs --user")
            return _serve(guard, connect(settings, *where), name, wanted, address)
        client = connect(settings, where.address, None, False, as_person=True)
        password = _ask_password(user) if password_file is None else read_password(password_file)
        with client.signed_in(user, password) as signed_in:
            return _serve(guard, signed_in, name, wanted, address)

    return run.perform(settings, "controller-connect-desktop", work)


def _ask_password(user: str) -> str:
    """Return a password that somebody types.

    Raises:
        NeedsConfirmation: there is no terminal.
    """
    import getpass
    import sys

    if not sys.stdin.isatty():
        raise NeedsConfirmation("a password is needed, but there is no terminal", hint="--password-file FILE")
    return getpass.getpass(f"Password of {user}: ")


def _serve(
    guard: SignalGuard, client: FleetClient, name: str, wanted: int | str | None, address: tuple[str, int]
) -> run.CommandOutput:
    """Serve the local port until a signal comes.

    Raises:
        Interrupted: it came.
    """
    import asyncio

    from vgpuctl.cli import streams
    from vgpuctl.controller.tunnel import DesktopTunnel

    if wanted == SCREEN:
        client.call("show-console", name=name)  # what refuses it is shown now
    port = None if wanted == SCREEN else _choose_port(client, name, wanted)
    what = "the screen" if port is None else f"port {port}"

    def on_ready(host: str, local: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        streams.write_err(f"{shown}:{local} leads to {what} of {name}; Ctrl-C ends it\n")

    def on_error(error: VgpuctlError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        streams.write_err(streams.sanitize(f"vgpuctl: a connection ended: {error.message}{hint}") + "\n")

    guard.restore_handlers()
    number = asyncio.run(DesktopTunnel(client, name, port, on_error).run(*address, on_ready))
    raise Interrupted("the connections ended", signal_number=number)


def _choose_port(client: FleetClient, name: str, wanted: int | str | None) -> int:
    """Return the port of a desktop: the one that is wanted, or its pool's first.

    Raises:
        NotAllowed: its pool does not connect to that one.
    """
    ports: tuple[int, ...] = client.call("connect-desktop", name=name).data.ports
    port = ports[0] if wanted is None else wanted
    if port not in ports:
        raise NotAllowed(
            f"{name} can be reached at {', '.join(map(str, ports))}, not at {port}",
            hint="an operator of the fleet changes connect: in the pool's spec",
            rule="connect",
        )
    return int(port)


COMMANDS: dict[str, click.Command] = {"connect-desktop": connect_desktop}
