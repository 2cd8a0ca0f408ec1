# SPDX-License-Identifier: Apache-2.0
"""The commands that move VMs to other hosts, and the one by which another host's vgpuctl makes the calls of a move."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Block, Page
from vgpuctl.cli.targets import Rows, Targets, change, count_rows
from vgpuctl.model.hint_commands import command_on, end_migration_command
from vgpuctl.model.numbers import format_milliseconds
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.migration import EndedMigrationResult, MigratedVmResult, PlacedVgpuResult


def _migrated(result: Outcome[MigratedVmResult]) -> Page:
    """Return what was moved, or what a dry run says: where it goes, and how long it stands still."""
    data = result.data
    way = f"from {data.source} to {data.target}"
    how = "alive" if data.is_live else "while off"
    verb = "would move" if result.dry_run else "moved"
    took = "" if data.seconds is None else f", in {data.seconds:g} s"
    blocks: list[Block] = [f"{data.name} {verb} {way} {how}{took}"]
    blocks += _vgpu_lines(data.vgpus)
    blocks += [f"  copied: {', '.join(data.copied_disks)}"] if data.copied_disks else []
    blocks += _downtime_lines(data, dry_run=result.dry_run)
    return Page(blocks)


def _vgpu_lines(vgpus: Sequence[PlacedVgpuResult]) -> list[Block]:
    """Return a line for each vGPU; functions of one whole GPU, such as its audio, are in one line."""
    whole = {vgpu.gpu for vgpu in vgpus if vgpu.profile is None and vgpu.function == vgpu.gpu}
    lines: dict[str, list[PlacedVgpuResult]] = {}
    for vgpu in vgpus:
        lines.setdefault(vgpu.gpu if vgpu.gpu in whole else vgpu.from_carrier, []).append(vgpu)
    return [f"  {_vgpu_text(*functions)}" for functions in lines.values()]


def _vgpu_text(vgpu: PlacedVgpuResult, *others: PlacedVgpuResult) -> str:
    if vgpu.profile is None:
        word = "GPU" if vgpu.function == vgpu.gpu else "VF"
        here = _with_others(vgpu.from_carrier, [other.from_carrier for other in others])
        there = _with_others(vgpu.function, [other.function for other in others])
        return f"{word} {here} -> {word} {there} there"
    return f"{vgpu.profile} on GPU {vgpu.gpu} there" + ("" if vgpu.function == vgpu.gpu else f" ({vgpu.function})")


def _with_others(function: str, others: Sequence[str]) -> str:
    return f"{function} with {', '.join(others)}" if others else function


def _downtime_lines(data: MigratedVmResult, *, dry_run: bool) -> list[Block]:
    if not data.is_live:
        verb = "would be" if dry_run else "was"
        return [f"  it {verb} shut down, and started there"] if data.is_running else []
    if data.paused_ms is not None:
        return [f"  it stood still for {format_milliseconds(data.paused_ms)}"]
    if not dry_run:  # something came between, and nobody has measured it
        return ["  how long it stood still is not known"]
    estimate, limit = data.estimate.downtime_ms, data.max_downtime_ms
    expected = (
        "how long it stands still is not known"
        if estimate is None
        else f"stands still for {format_milliseconds(estimate)}"
    )
    allowed = "" if limit is None else f"; the move is given up if it needs more than {format_milliseconds(limit)}"
    return [f"  {expected}{allowed}", *(f"    {part}" for part in data.estimate.parts)]


@make_command(
    "migrate-vm",
    page=_migrated,
    words=("moved", "left alone"),
    examples=(
        (
            "vgpuctl migrate-vm vdi-001 --to ssh://gpu02 --dry-run",
            "every reason against it, and how long it stands still",
        ),
        ("vgpuctl migrate-vm vdi-001 --to ssh://root@gpu02", "alive; disks are on storage that both hosts have"),
        ("vgpuctl migrate-vm 'vdi-*' --to ssh://gpu02 --copy-storage", "one after the other, with their disks"),
        ("vgpuctl migrate-vm cad-1 --to ssh://gpu02 --offline --yes", "shut down, moved and started again"),
    ),
)
@targets.vms(parallel=False, everything="Every VM that vgpuctl manages; others stay.")
@click.option(
    "--to",
    required=True,
    metavar="HOST",
    shell_complete=complete.hosts,
    help="The other host: ssh://[user@]HOST[:port], or sim:NAME.",
)
@click.option("--offline", is_flag=True, help="Move it while it is off; one that runs is shut down, and started there.")
@click.option(
    "--copy-storage",
    is_flag=True,
    help="Copy the VM's local disks too. Without it all disks must be on shared storage.",
)
@click.option(
    "--max-downtime",
    type=click.FloatRange(min=0.001, max=86400),
    metavar="SECONDS",
    help="Let the VM stand still for at most SECONDS. [from the estimate]",
)
@click.option("--bandwidth", type=click.IntRange(min=1), metavar="MIB", help="Send at most MIB MiB per second. [any]")
@click.option(
    "--connections", type=click.IntRange(1, 16), metavar="N", help="Send memory in N connections, where QEMU can. [1]"
)
@click.option("--address", metavar="ADDRESS", help="Send memory and disks to this address. [that of --to]")
@click.option(
    "--libvirt-uri", metavar="URI", help="How this host's libvirt reaches the other's. [qemu+ssh://HOST/system]"
)
@click.option("--insecure-network", is_flag=True, help="Send memory and disks unencrypted.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done, and every reason against it.")
@click.pass_obj
def migrate_vm(
    settings: Settings,
    targets: Targets,
    to: str,
    offline: bool,
    copy_storage: bool,
    max_downtime: float | None,
    bandwidth: int | None,
    connections: int | None,
    address: str | None,
    libvirt_uri: str | None,
    insecure_network: bool,
    dry_run: bool,
) -> int:
    """Move VMs with their vGPUs to another host: alive, or with --offline while they are off.

    Both hosts are asked first; all reasons against a move are shown at once, and nothing changes. Then the other host
    makes the vGPUs, memory is sent while the VM runs, the VM stands still for a moment, and goes on there. If anything
    fails, the VM runs on here. It never runs on both. After a kill or a broken network run the command again, or
    end-migration. Several VMs go one after the other; one that fails does not stop the rest.

    Memory and disks are encrypted by TLS (certificates in /etc/pki/qemu on both hosts), with --offline by SSH. A VM
    with a whole GPU or a plain VF can only move --offline.
    """
    if offline:
        _refuse_live_options(max_downtime, bandwidth, connections, address, insecure_network or None)
    return change(
        settings,
        "migrate-vm",
        replace(targets, parallel=1),
        lambda host, name: host.migrate_vm(
            name,
            to=to,
            offline=offline,
            copy_storage=copy_storage,
            max_downtime=max_downtime,
            bandwidth=bandwidth,
            connections=connections,
            address=address,
            libvirt_uri=libvirt_uri,
            insecure_network=insecure_network,
            dry_run=dry_run,
        ),
        question=_offline_question if offline else None,
        preview_notes=lambda rows: (
            ("each VM was judged alone: there may not be room for all",) if len(rows) > 1 else ()
        ),
        dry_run=dry_run,
    )


def _refuse_live_options(*values: object) -> None:
    """Refuse options that are for a live move alone. `values`: theirs, None for one that was not given."""
    options = ("--max-downtime", "--bandwidth", "--connections", "--address", "--insecure-network")
    given = [option for option, value in zip(options, values, strict=True) if value is not None]
    if given:
        raise click.UsageError(f"--offline sends no memory, and disks by SSH: omit {', '.join(given)}")


def _offline_question(rows: Rows, _: Rows) -> str:
    return (
        f"Shut down {count_rows(rows, 'running VM')}, move {'it' if len(rows) == 1 else 'them'}, and start again there?"
    )


def _settled(result: Outcome[EndedMigrationResult]) -> Page:
    """Return where the VM goes on, in which state, what is lost by that, and what goes from the other host."""
    data = result.data
    if data.outcome == "none":
        return Page([f"{data.name}: no move between {data.source} and {data.target} was interrupted"])
    here, other = (data.source, data.target) if data.outcome == "source" else (data.target, data.source)
    would = result.dry_run
    blocks: list[Block] = [_state_line(data, here, dry_run=would)]
    if data.lost_on is not None:
        had = "had" if data.asked_both else "may have"
        blocks.append(f"  what it {had} in its memory on {data.lost_on} {'would be' if would else 'is'} lost")
    blocks += [f"  on {other}: {step}" for step in data.removed]
    if not data.asked_both:
        again = end_migration_command(data.name, data.not_asked or "")
        rest = f"; once it answers, this removes what it has of {data.name}: {again}" if data.state is not None else ""
        blocks.append(f"  {data.not_asked} was not asked{rest}")
        if data.state is not None and would:
            blocks.append(
                f"  if it runs on {data.not_asked}, both would write to its disks and destroy them: ask first"
            )
    elif not data.removed:
        blocks.append(f"  nothing of the move {'would be' if would else 'is'} left on {other}")
    return Page(blocks)


def _state_line(data: EndedMigrationResult, here: str, *, dry_run: bool) -> str:
    is_word = "would be" if dry_run else "is"
    if data.state == "running":
        return f"{data.name} {'would run' if dry_run else 'runs'} on {here}"
    if data.state == "stopped":
        return f"{data.name} {is_word} on {here}, and off: {command_on(here, f'start-vm {shlex.quote(data.name)}')}"
    return f"{data.name} {is_word} a VM of {here}" + ("" if data.state is None else f", and {data.state}")


@make_command(
    "end-migration",
    page=_settled,
    examples=(
        ("vgpuctl end-migration vdi-001 --with ssh://gpu02", "after a kill: where it runs, or can go on, it stays"),
        ("vgpuctl end-migration vdi-001 --runs-here", "the other host is gone for good, and this one has the VM"),
    ),
)
@click.argument("name", metavar="VM", shell_complete=complete.vms)
@click.option(
    "--with",
    "peer",
    metavar="HOST",
    shell_complete=complete.hosts,
    help="The other host: ssh://[user@]HOST[:port], or sim:NAME.",
)
@click.option("--runs-here", is_flag=True, help="The VM is here, and does not run on the other host.")
@click.option("--runs-there", is_flag=True, help="The other host has the VM: remove it here.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def end_migration(
    settings: Settings, name: str, peer: str | None, runs_here: bool, runs_there: bool, dry_run: bool
) -> int:
    """End a move to or from another host that was interrupted, on both hosts.

    Where the VM runs, it stays. If it runs on neither, both hosts together say where it goes on; until then it stays
    paused. With --runs-here or --runs-there you say it, because the other host is gone for good: be sure of it.
    """
    if (peer is not None) + runs_here + runs_there > 1:
        raise click.UsageError("specify one of --with HOST, --runs-here and --runs-there")
    outcome = "runs-here" if runs_here else "runs-there" if runs_there else None
    return run.call(
        settings,
        "end-migration",
        lambda host: host.end_migration(name, peer=peer, outcome=outcome, dry_run=dry_run),
    )


@make_command(
    "migration-call",
    page=lambda data: Page([]),
    examples=(("vgpuctl migration-call call.json --json", "with {call: show-migration, arguments: {name: vdi-001}}"),),
)
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.pass_obj
def migration_call(settings: Settings, file: str) -> int:
    """Make one call of a move for the vgpuctl of another host. FILE has a JSON object with call and arguments.

    migrate-vm and end-migration run this on the other host, with '-' for standard input; people need it only to
    look.
    """
    from vgpuctl.errors import InvalidInput
    from vgpuctl.library import text_file
    from vgpuctl.library.call_table import CALLS as LIBRARY_CALLS
    from vgpuctl.library.peers import CALLS
    from vgpuctl.model.json_yaml import parse_json

    def make(host: GpuHost) -> Any:
        document = parse_json(text_file.read_text(file, "call"))
        if not isinstance(document, dict) or set(document) != {"call", "arguments"} or document["call"] not in CALLS:
            raise InvalidInput(
                f"{text_file.display_name(file)} is not a JSON object with call ({', '.join(CALLS)}) and arguments"
            )
        call = LIBRARY_CALLS[document["call"]]
        return call.on(host, call.read_arguments(document["arguments"]))

    return run.call(settings, "migration-call", make)
