# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import Result
    from vgpuctl.cli.signals import Guard
    from vgpuctl.spec.foreign import Definition, Foreign


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

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import worlds
        from vgpuctl.cli.result import Result
        from vgpuctl.engine import imports

        found = imports.import_host(worlds.open_world(settings), _read(path, config))
        data = found.data
        return Result(data, warnings=found.warnings, raw=str(data["text"]) if isinstance(data, dict) else "")

    return run.perform(settings, "import", work)


def _read(path: str, config: str | None) -> Foreign:
    from vgpuctl.cli import wishes
    from vgpuctl.spec import foreign

    if path != "-" and Path(path).is_dir():
        return foreign.Foreign("mdevctl", definitions=_definitions(Path(path)))
    shown = "standard input" if path == "-" else path
    return foreign.read_foreign(wishes.text_of(path), shown, config)


def _definitions(directory: Path) -> tuple[Definition, ...]:
    """Return every definition below a directory like /etc/mdevctl.d; `scripts.d` holds programs.

    Raises:
        NotFound: there is none.
        InvalidInput: one is wrong, or cannot be read.
    """
    from vgpuctl.cli import wishes
    from vgpuctl.errors import InvalidInput, NotFound
    from vgpuctl.spec import foreign

    try:
        files = sorted(f for p in directory.iterdir() if p.is_dir() and p.name != "scripts.d" for f in p.iterdir())
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be read: {error.strerror}", hint=f"ls -l {directory}") from error
    found = [
        foreign.read_definition(wishes.text_of(str(f), "definition"), str(f), f.parent.name, f.name) for f in files
    ]
    if not found:
        hint = "in /etc/mdevctl.d each is a file PARENT/UUID"
        raise NotFound(f"{directory} has no definitions of mdevctl", hint=hint, path=str(directory))
    return tuple(found)
