# SPDX-License-Identifier: Apache-2.0
"""The commands about host.yaml: apply it, compare the host with it, write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.shown import Block, Page, Table, dry_run
from vgpuctl.value import field_names, replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.host import HostDifferenceResult, HostGpuResult

DIFFERS_STATUS = 7
_COMPARE_OPTIONS = (
    click.option(
        "-f",
        "--file",
        "path",
        metavar="FILE|-",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="Use this file instead of /etc/vgpuctl/host.yaml; - reads standard input.",
    ),
    click.option(
        "--set",
        "sets",
        metavar="gpus[GPU].KEY=VALUE",
        multiple=True,
        help="Set this key first, or one like agent.accounts[ada]; write GPU and VALUE as in host.yaml. Repeatable.",
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


def _apply_page(result: Outcome[HostDifferenceResult]) -> Page:
    data = result.data
    if result.dry_run:
        return Page([*dry_run(result).blocks, *_removed_lines(data, "would go from host.yaml:")])
    if not result.steps:
        return Page(["the host is as host.yaml says; nothing to do"])
    lines = [f"{gpu.address}: {_key_values(gpu.after)}" for gpu in data.gpus if gpu.steps or gpu.differences]
    lines += [f"{row.key}: {_yaml_text(row.wanted)}" for row in data.settings]
    lines += _removed_lines(data, "gone from host.yaml:")
    return Page([*lines, f"the host is as host.yaml says; steps done: {len(result.steps)}"])


def _removed_lines(data: HostDifferenceResult, title: str) -> list[str]:
    """Return the removed entries, one per line; nothing if none is removed."""
    rows = [f"  {row.entry}: {_yaml_text(row.keys)}" for row in data.removed]
    return [title, *rows] if rows else []


def _key_values(settings: HostGpuResult) -> str:
    values = ((key, getattr(settings, key)) for key in field_names(settings))
    parts = [f"{key} {_yaml_text(value)}" for key, value in values if value is not None]
    return ", ".join(parts) or "nothing is configured"


def _yaml_text(value: object) -> str:
    """Return a value as host.yaml writes it, in one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_yaml_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@make_command(
    "apply",
    page=_apply_page,
    shown_by="diff",
    examples=(
        ("vgpuctl --host sim:mixed apply --dry-run", "how the host differs from /etc/vgpuctl/host.yaml"),
        (
            "vgpuctl --host sim:mixed apply --set 'gpus[0000:17:00.0].mode=vgpu' --set 'gpus[A100].cordoned=true'",
            "change the host and host.yaml",
        ),
        (
            "mdevctl list -d --dumpjson | vgpuctl import - | vgpuctl apply -f -",
            "vgpuctl manages mdevctl's vGPUs from now on",
        ),
        ("vgpuctl apply --undo", "restore host.yaml and the host to before the last change"),
        ("vgpuctl export | vgpuctl apply -f - --dry-run", "only the file would be written: the host already matches"),
    ),
)
@compare_options
@click.option("--undo", is_flag=True, help="Go back to a saved version of host.yaml: the newest, or the N-th newest.")
@click.argument("version", metavar="[N]", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
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
    """Change this host to match /etc/vgpuctl/host.yaml: modes, virtual functions and schedulers of GPUs, and vGPUs.

    It sets up one GPU after the other, like set-mode and set-scheduler, then creates the missing vGPUs without a VM,
    all or none. All blockers are reported before anything changes. With -f FILE, FILE replaces host.yaml once the host
    matches it. With --set, host.yaml is edited and keeps its comments. GPUs that host.yaml does not name do not
    change. 'vgpuctl export' prints a file to start from.

    If -f or --undo would remove entries of host.yaml, apply lists them and asks; without a terminal it needs --yes.
    The last ten versions are saved as host.yaml.1 to .10. --undo goes back to the newest, --undo N to the N-th, and
    changes the host to match. It also works while host.yaml is invalid.
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
        raise click.UsageError(
            f"unexpected argument '{version}': use -f {version} for a file, --undo N for a saved version"
        )
    if undo and path is not None:
        raise click.UsageError("--undo and -f cannot be combined: a saved version is a file already")
    if undo and version is not None and version not in map(str, range(1, 11)):
        raise click.UsageError(f"--undo {version}: N is 1 to 10; 1 is the newest saved version")
    return int(version or 1) if undo else None


def _diff_page(result: Outcome[HostDifferenceResult]) -> Page:
    data = result.data
    rows = [(gpu.address, row) for gpu in data.gpus for row in gpu.differences]
    rows += [("host", row) for row in data.settings]
    removed = _removed_lines(data, "would go from host.yaml:")
    if not rows and not removed and not any(gpu.steps for gpu in data.gpus):
        return Page(["no differences: nothing to apply"])
    cells = tuple((target, row.key, _yaml_text(row.is_), _yaml_text(row.wanted)) for target, row in rows)
    blocks: list[Block] = [Table(("GPU", "KEY", "IS", "WANTED"), cells)] if cells else []
    if result.steps:
        blocks += ["", *dry_run(result).blocks]
    return Page([*blocks, *([""] if blocks and removed else []), *removed])


@make_command(
    "diff",
    page=_diff_page,
    examples=(
        ("vgpuctl --host sim:mixed diff", "how the host differs from host.yaml"),
        (
            "vgpuctl diff --set 'gpus[0000:17:00.0].mode=vgpu'",
            "what apply would do; exit status 7 if it would change anything",
        ),
        ("vgpuctl --host sim:mixed diff --quiet", "in a script: exit status 0 if the host matches host.yaml"),
    ),
)
@compare_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: the exit status says whether anything differs.")
@click.pass_obj
def diff(settings: Settings, path: str | None, sets: tuple[str, ...], drain: bool, quiet: bool) -> int:
    """Show where this host differs from its host.yaml, and what apply would do. It changes nothing.

    The exit status is 7 if something differs, otherwise 0. What would block a change, such as a running VM, is shown
    as a warning. Comments in the file, and how it names GPUs, are not differences.
    """

    def present(result: Outcome[HostDifferenceResult]) -> CommandOutput:
        status = DIFFERS_STATUS if result.changed else 0
        if not quiet:
            return CommandOutput(result, status=status)
        return CommandOutput(result if settings.json else replace(result, warnings=(), notes=()), "", status)

    return run.call(settings, "diff", lambda host: host.diff(file=path, sets=sets, drain=drain), present)


@make_command(
    "export",
    examples=(("vgpuctl --host sim:mixed export", "a host.yaml to save, or to start from"),),
)
@click.pass_obj
def export_host(settings: Settings) -> int:
    """Print a host.yaml that describes this host: modes, virtual functions, schedulers, cordons.

    It names every GPU by its address and copies defaults and vGPUs without a VM from the current file. diff finds no
    difference between this file and the host.
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
        ("vgpuctl import /etc/mdevctl.d", "the vGPUs that mdevctl creates at boot"),
        ("mdevctl list -d --dumpjson | vgpuctl import -", "the same, as mdevctl prints it"),
        ("vgpuctl import /etc/nvidia-vgpu-dm/config.yaml --config T4-8Q", "one configuration of several"),
    ),
)
@click.argument("path", metavar="FILE|DIRECTORY|-", type=click.Path(allow_dash=True))
@click.option("--config", metavar="NAME", help="The configuration to use from the file. [the only one, or default]")
@click.pass_obj
def import_host(settings: Settings, path: str, config: str | None) -> int:
    """Convert a file of another program to a host.yaml and print it. It writes nothing.

    It reads mdevctl's definitions (/etc/mdevctl.d, or the output of mdevctl list -d --dumpjson) and the files of
    NVIDIA's vgpu-device-manager and mig-parted. Settings that host.yaml does not have are omitted, with the reason as
    a comment and a warning. Check the result, then run vgpuctl diff -f FILE and vgpuctl apply -f FILE.
    """
    return run.call(
        settings,
        "import",
        lambda host: host.import_host(path, config=config),
        lambda result: CommandOutput(result, raw=result.data.text),
    )
