# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl apply`."""

from __future__ import annotations

import click

from vgpuctl.cli import host_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


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
@host_options.options
@click.option("--undo", is_flag=True, help="Go back to a version of host.yaml that is kept: the newest, or the N-th.")
@click.argument("version", metavar="[N]", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
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
    left alone. docs/host-file.md tells the format.

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
