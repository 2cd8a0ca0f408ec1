# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl agent run|dial`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, make_command
from vgpuctl.cli.command_table import AGENT_COMMANDS, COMMANDS
from vgpuctl.cli.global_options import Settings, global_options
from vgpuctl.cli.shown import Page

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.host import AgentResult

SOCKET_OPTION = click.option(
    "--socket",
    "path",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="The agent's socket. [/run/vgpuctl-agent/agent.sock]",
)


def _run_page(data: AgentResult) -> Page:
    return Page(stderr_lines=[f"the agent at {data.socket} has ended"])


@make_command(
    "run",
    table=AGENT_COMMANDS,
    page=_run_page,
    examples=(("vgpuctl agent run", "what vgpuctl-agent.service does"),),
)
@SOCKET_OPTION
@click.option(
    "--state",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where results of operations are kept. [/var/lib/vgpuctl-agent]",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve metrics for Prometheus there, on a loopback address. [host.yaml, agent: metrics:]",
)
@click.pass_obj
def run_agent(settings: Settings, path: str | None, state: str | None, metrics: str | None) -> int:
    """Run the host agent until SIGTERM or Ctrl-C: its API is on a Unix socket.

    Running operations go on for a minute at most and are undone then; what waits is not begun. No VM needs the agent
    to start or stop.

    To try the API, run the agent of a simulated host: --host sim:a100-40, with --socket and --state in directories of
    your own; then --host agent:/PATH/OF/agent.sock before any other command goes through it.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.agent import main
        from vgpuctl.model.outcome import QueryResult
        from vgpuctl.model.results.host import AgentResult

        guard.restore_handlers()
        socket_path = main.run(
            settings.host, root=settings.root, connect=settings.connect, path=path, state=state, metrics=metrics
        )
        return run.CommandOutput(QueryResult(AgentResult(socket_path)))

    return run.perform(settings, "agent-run", work)


@make_command(
    "dial",
    table=AGENT_COMMANDS,
    examples=(("ssh gpu01 vgpuctl agent dial", "what a program on another machine talks to"),),
)
@SOCKET_OPTION
@click.pass_obj
def dial(settings: Settings, path: str | None) -> int:
    """Join stdin and stdout to the agent's socket, for programs that reach this machine by SSH.

    In authorized_keys, command="vgpuctl agent dial",restrict lets a key do this and nothing else.
    """
    from vgpuctl.agent import dial as joiner
    from vgpuctl.cli import failures
    from vgpuctl.errors import Unreachable
    from vgpuctl.model.agent_service import SOCKET_PATH

    socket_path = path or SOCKET_PATH
    try:
        joiner.join(socket_path)
    except OSError as error:
        hint = "systemctl status vgpuctl-agent; groups shows whether you are in the group vgpuctl"
        unreachable = Unreachable(f"{socket_path}: {error.strerror or error}", hint=hint, path=socket_path)
        return failures.report(unreachable, settings)
    return 0


_COMMANDS: dict[str, click.Command] = {"run": run_agent, "dial": dial}

command = LazyGroup(
    "agent",
    headings={"Commands": {name: entry.summary for name, entry in AGENT_COMMANDS.items()}},
    load=_COMMANDS.__getitem__,
    help="The host agent: its API for programs, and for members of the group vgpuctl.",
    short_help=COMMANDS["agent"].summary,
    examples=(("vgpuctl agent run --help", "how it is run"),),
    params=global_options(),
    context_settings=CONTEXT_SETTINGS,
    subcommand_metavar="COMMAND",
)
