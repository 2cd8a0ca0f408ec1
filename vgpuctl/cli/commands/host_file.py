# SPDX-License-Identifier: Apache-2.0
"""The commands about host.yaml: apply it, compare the host with it, write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.settings import Settings
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.host import HostDifferenceResult

DIFFERS_STATUS = 7
_COMPARE_OPTIONS = (
    click.option(
        "-f",
        "--file",
        "path",
        metavar="FILE|-",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="A file in the place of /etc/vgpuctl/host.yaml; - reads it from standard input.",
    ),
    click.option(
        "--set",
        "sets",
        metavar="gpus[GPU].KEY=VALUE",
        multiple=True,
        help="Change a key first; GPU as host.yaml names it, VALUE as it is written there. Repeat it for several.",
    ),
    click.option(
        "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
    ),
)


def compare_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say what the host is compared with, and how."""
    for add in reversed(_COMPARE_OPTIONS):
        function = add(function)
    return function


@make_command(
    "apply",
    examples=(
        ("vgpuctl --host sim:mixed apply --dry-run", "what /etc/vgpuctl/host.yaml asks for and is not so"),
        (
            "vgpuctl --host sim:mixed apply --set 'gpus[0000:17:00.0].mode=vgpu' --set 'gpus[A100].cordoned=true'",
            "changes the host, and host.yaml with it",
        ),
        (
            "mdevctl list -d --dumpjson | vgpuctl import - | vgpuctl apply -f -",
            "mdevctl's vGPUs are vgpuctl's from now on",
        ),
        ("vgpuctl apply --undo", "host.yaml and the host as before the last change"),
        ("vgpuctl export | vgpuctl apply -f - --dry-run", "only the file would be written: the host is as it is"),
    ),
)
@compare_options
@click.option("--undo", is_flag=True, help="Go back to a version of host.yaml that is kept: the newest, or the N-th.")
@click.argument("version", metavar="[N]", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def apply(
    settings: Settings,
    path: str | None,
    sets: tuple[str, ...],
    drain: bool,
    undo: bool,
    version: str | None,
    dry_run: bool,
) -> int:
    """Make this host as /etc/vgpuctl/host.yaml says: each GPU's mode, virtual functions and scheduler, and its vGPUs.

    GPU by GPU, each as set-mode and set-scheduler do it; then the vGPUs without a VM that are missing, all or none.
    What stands against it is told before anything is changed. With -f FILE that file becomes host.yaml, as it is, when
    the host is as it says; with --set host.yaml is edited and its comments stay. A GPU that host.yaml does not name is
    left alone. docs/reference/host-file.md tells the format.

    When entries of host.yaml would go away, by -f or --undo, it lists them and asks; without a terminal it needs --yes.
    The last ten versions are kept as host.yaml.1 to .10: --undo makes the newest of them host.yaml again, --undo N the
    N-th, and this host as that says. It works while host.yaml is broken, too.
    """
    number = _number(undo, version, path)

    return run.call(
        settings,
        "apply",
        lambda host: host.apply(file=path, sets=sets, undo=number, drain=drain, dry_run=dry_run),
    )


def _number(undo: bool, version: str | None, path: str | None) -> int | None:
    """Return how many versions --undo goes back, None without it."""
    if not undo and version is not None:
        raise click.UsageError(f"apply takes no '{version}': a file is -f {version}, a version is --undo N")
    if undo and path is not None:
        raise click.UsageError("--undo and -f exclude each other: a version that is kept is a file already")
    if undo and version is not None and version not in map(str, range(1, 11)):
        raise click.UsageError(f"--undo {version}: N is 1 to 10, 1 being the newest version that is kept")
    return int(version or 1) if undo else None


@make_command(
    "diff",
    examples=(
        ("vgpuctl --host sim:mixed diff", "what is not as host.yaml says"),
        ("vgpuctl diff --set 'gpus[0000:17:00.0].mode=vgpu'", "what apply would do; exit status 7 when it would"),
        ("vgpuctl --host sim:mixed diff --quiet", "in a script: exit status 0 when the host is as host.yaml says"),
    ),
)
@compare_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: the exit status says whether anything differs.")
@click.pass_obj
def diff(settings: Settings, path: str | None, sets: tuple[str, ...], drain: bool, quiet: bool) -> int:
    """Show where this host differs from its host.yaml, and what apply would do. It changes nothing.

    The exit status is 7 if something differs, 0 if nothing does. Whatever prevents a change, such as a running VM, is
    a warning here. Comments in the file, and how it names GPUs, do not count as differences.
    """

    def present(result: Outcome[HostDifferenceResult]) -> CommandOutput:
        status = DIFFERS_STATUS if result.changed else 0
        if not quiet:
            return CommandOutput(result, status=status)
        return CommandOutput(result if settings.json else replace(result, warnings=(), notes=()), "", status)

    return run.call(settings, "diff", lambda host: host.diff(file=path, sets=sets, drain=drain), present)


@make_command(
    "export",
    examples=(("vgpuctl --host sim:mixed export", "a host.yaml to keep, or to begin with"),),
)
@click.pass_obj
def export_host(settings: Settings) -> int:
    """Print the host.yaml of this host as it is: modes, virtual functions, schedulers, cordons.

    Every GPU is named by its address; defaults and vGPUs without a VM are those of the current file. diff finds no
    difference between what is printed and the host.
    """
    return run.call(
        settings,
        "export",
        lambda host: host.export_host(),
        lambda result: CommandOutput(result, raw=result.data.text),
    )


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
def import_host(settings: Settings, path: str, config: str | None) -> int:
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
