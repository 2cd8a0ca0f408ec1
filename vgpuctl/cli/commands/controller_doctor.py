# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.host import CHECK_FAILED_STATUS, doctor_page
from vgpuctl.cli.global_options import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard


@make_command(
    "doctor",
    table=CONTROLLER_COMMANDS,
    page=doctor_page,
    examples=(
        ("vgpuctl controller doctor", "all checks"),
        ("vgpuctl controller doctor hosts leases --database @/etc/vgpuctl/database", "two of them, on PostgreSQL"),
    ),
)
@click.argument("ids", metavar="[CHECK]...", nargs=-1)
@click.option("--database", metavar="URL|@FILE", help="As of controller run.")
@click.option("--state", type=click.Path(file_okay=False), metavar="DIR", help="[/var/lib/vgpuctl-controller]")
@click.option(
    "--socket", "path", type=click.Path(dir_okay=False), metavar="PATH",
    help="The controller's. [/run/vgpuctl-controller/controller.sock]",
)  # fmt: skip
@click.option("--tls-certificate", metavar="FILE", type=click.Path(dir_okay=False), help="As of controller run.")
@click.option("--tls-key", metavar="FILE", type=click.Path(dir_okay=False), help="As of controller run.")
@click.option("--sign-in", metavar="FILE", type=click.Path(dir_okay=False), help="As of controller run.")
@click.pass_obj
def doctor(
    settings: Settings,
    ids: tuple[str, ...],
    database: str | None,
    state: str | None,
    path: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    sign_in: str | None,
) -> int:
    """Check a controller on its machine: database, hosts, leases, versions, secrets, limits. It changes nothing.

    Run it as the controller's user or root, with the options of controller run. Each check shows what it saw and how
    to fix a problem. The exit status is 6 if a check fails, otherwise 0.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.controller import doctor
        from vgpuctl.controller.installation import Options, read_installation
        from vgpuctl.model.outcome import Outcome

        checks = doctor.select(ids)
        options = Options(database, state, path, tls_certificate, tls_key, sign_in)
        data = doctor.examine(read_installation(options), checks)
        return run.CommandOutput(Outcome(False, data), status=CHECK_FAILED_STATUS if data.verdict == "fail" else 0)

    return run.perform(settings, "controller-doctor", work)


COMMANDS: dict[str, click.Command] = {"doctor": doctor}
