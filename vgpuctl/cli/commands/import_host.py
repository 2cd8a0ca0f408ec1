# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.config.import_formats import ImportedConfig, MdevDefinition


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

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.engine import import_host

        result = import_host.import_host(hosts.open_host(settings), _read_document(path, config))
        data = result.data
        return CommandOutput(data, warnings=result.warnings, raw=str(data["text"]) if isinstance(data, dict) else "")

    return run.perform(settings, "import", work)


def _read_document(path: str, config: str | None) -> ImportedConfig:
    from vgpuctl.cli import requests
    from vgpuctl.config import import_formats

    if path != "-" and Path(path).is_dir():
        return import_formats.ImportedConfig("mdevctl", definitions=_read_definitions(Path(path)))
    display_name = "standard input" if path == "-" else path
    return import_formats.parse_import(requests.read_text(path), display_name, config)


def _read_definitions(directory: Path) -> tuple[MdevDefinition, ...]:
    """Return every definition below a directory like /etc/mdevctl.d; `scripts.d` holds programs.

    Raises:
        NotFound: there is no definition.
        InvalidInput: a definition is wrong, or cannot be read.
    """
    from vgpuctl.cli import requests
    from vgpuctl.config import import_formats
    from vgpuctl.errors import InvalidInput, NotFound

    try:
        files = sorted(
            file
            for parent in directory.iterdir()
            if parent.is_dir() and parent.name != "scripts.d"
            for file in parent.iterdir()
        )
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be read: {error.strerror}", hint=f"ls -l {directory}") from error
    definitions = [
        import_formats.parse_mdevctl_definition(
            requests.read_text(str(file), "definition"), str(file), file.parent.name, file.name
        )
        for file in files
    ]
    if not definitions:
        hint = "in /etc/mdevctl.d each is a file PARENT/UUID"
        raise NotFound(f"{directory} has no definitions of mdevctl", hint=hint, path=str(directory))
    return tuple(definitions)
