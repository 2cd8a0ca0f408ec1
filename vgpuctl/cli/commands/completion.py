# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.signals import SignalGuard


@make_command(
    "completion",
    examples=(
        ("vgpuctl completion bash > /etc/bash_completion.d/vgpuctl", "for every user of this host"),
        ("vgpuctl completion zsh > ~/.zfunc/_vgpuctl", "for one user, where fpath has ~/.zfunc"),
        ("vgpuctl completion fish > ~/.config/fish/completions/vgpuctl.fish", "for one user"),
    ),
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_obj
def command(settings: Settings, shell: str) -> int:
    """Print the script that completes commands, options, and this host's profiles, GPUs and VMs."""

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import app, shells
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.model.outcome import QueryResult
        from vgpuctl.model.results.program import CompletionResult

        script = shells.script(app.cli, shell, app.PROGRAM, app.COMPLETE_VARIABLE)
        return CommandOutput(QueryResult(CompletionResult(shell, script)), raw=script)

    return run.perform(settings, "completion", work)
