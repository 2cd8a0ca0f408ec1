# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl import`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.result import CommandOutput
from vgpuctl.cli.settings import Settings


@make_command(
    "import",
    examples=(
        ("vgpuctl import /etc/mdevctl.d", "the vGPUs that mdevctl makes at boot"),
        ("mdevctl list -d --dumpjson | vgpuctl import -", "the same, as mdevctl prints it"),
        ("vgpuctl import /etc/nvidia-vgpu-dm/config.yaml --config T4-8Q", "one configuration of several"),
    ),
)
@click.argument("path", metavar="FILE|DIRECTORY|-", type=click.Path(allow_dash=True))
@click.option("--config", metavar="NAME", help="Which configuration of the file. [the only one, or default]")
@click.pass_obj
def command(settings: Settings, path: str, config: str | None) -> int:
    """Print the host.yaml that says what files of other programs say; nothing is written.

    They are mdevctl's definitions (/etc/mdevctl.d, or what mdevctl list -d --dumpjson prints), and the files of
    NVIDIA's vgpu-device-manager and mig-parted. What host.yaml cannot say is left out, with the reason as a comment and
    a warning. Look at it, then: vgpuctl diff -f FILE, vgpuctl apply -f FILE.
    """
    return run.call(
        settings,
        "import",
        lambda host: host.import_host(path, config=config),
        lambda result: CommandOutput(result, raw=result.data.text),
    )
