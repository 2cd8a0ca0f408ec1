# SPDX-License-Identifier: Apache-2.0
"""The arguments that name several VMs, vGPUs or GPUs, and the runner of a command for one of them or for several.

One plain name is a call for this one, with its own page and document. A range, a glob, several names, --all, --label
and --owner are one command for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete, run
from vgpuctl.config.arguments import DEFAULT_PARALLEL, MAX_PARALLEL, MAX_VMS
from vgpuctl.config.name_patterns import is_pattern
from vgpuctl.model.numbers import count_text
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import Outcome, QueryResult
    from vgpuctl.model.results import SelectedResult

Command = Callable[..., int]
Rows = Sequence["SelectedResult"]
Question = Callable[[Rows, Rows], str]
"""Makes the one question for all from the rows to ask about, and from all rows."""


class Targets(Value):
    """What the user typed. `what`: "VM", "vGPU" or "GPU". `parallel`: how many at a time.

    `selectors`: how the options that select VMs by label or owner begin.
    """

    what: str
    names: tuple[str, ...]
    everything: bool = False
    labels: tuple[str, ...] = ()
    owner: str | None = None
    parallel: int = 1
    selectors: str = "--"

    @property
    def filtered(self) -> bool:
        """Whether it is limited to VMs with certain labels or an owner."""
        return bool(self.labels) or self.owner is not None

    @property
    def single(self) -> str | None:
        """The one plain name; None if it may be several."""
        plain = len(self.names) == 1 and not is_pattern(self.names[0])
        return self.names[0] if plain and not self.everything and not self.filtered else None


def vms(*, parallel: bool = True, selectors: str = "--", everything: str | None = None) -> Callable[[Command], Command]:
    """Return a decorator that adds VM... and the options that select VMs; the command gets them as `targets`.

    `selectors`: how these options begin, for a command in which --label and --owner mean something else. `everything`:
    the help of --all where it does not mean the VMs that vgpuctl manages; without `parallel` it means every VM.
    """
    every = everything or ("Every VM that vgpuctl manages." if parallel else "Every VM.")

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(*args: Any, **kwargs: Any) -> int:
            names, selects_all = kwargs.pop("names"), kwargs.pop("everything")
            labels, owner = kwargs.pop("target_labels"), kwargs.pop("target_owner")
            at_a_time = kwargs.pop("parallel", None) or DEFAULT_PARALLEL
            targets = Targets("VM", names, selects_all, labels, owner, at_a_time, selectors)
            if selects_all and names:
                raise click.UsageError("--all and names cannot be combined")
            require_some(targets)
            return function(*args, targets=targets, **kwargs)

        decorated: Command = command
        if parallel:
            decorated = click.option(
                "--parallel",
                metavar="P",
                type=click.IntRange(1, MAX_PARALLEL),
                help=f"Of several VMs, work on P at a time. [{DEFAULT_PARALLEL}]",
            )(decorated)
        decorated = click.option(f"{selectors}owner", "target_owner", metavar="NAME", help="Only VMs of this owner.")(
            decorated
        )
        decorated = click.option(
            f"{selectors}label",
            "target_labels",
            metavar="KEY=VALUE",
            multiple=True,
            help="Only VMs with this label; repeat it for VMs with all of several.",
        )(decorated)
        decorated = click.option("--all", "everything", is_flag=True, help=every)(decorated)
        return click.argument("names", nargs=-1, metavar="[VM]...", shell_complete=complete.vms)(decorated)

    return decorate


def gpus(function: Command) -> Command:
    """Add GPU... and --all to a command, which gets them as `targets`."""
    return gpus_before()(function)


def gpus_before(*words: str) -> Callable[[Command], Command]:
    """Return a decorator as `gpus`; after the GPUs one of `words` is completed."""

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(*args: Any, **kwargs: Any) -> int:
            targets = Targets("GPU", kwargs.pop("gpus"), kwargs.pop("everything"))
            require_some(targets)
            return function(*args, targets=targets, **kwargs)

        completion = complete.gpus_and(*words) if words else complete.gpus
        decorated = all_gpus_option(command)
        return click.argument("gpus", nargs=-1, metavar="[GPU]...", shell_complete=completion)(decorated)

    return decorate


def vgpus(function: Command) -> Command:
    """Add VGPU... and --all to a command about vGPUs without a VM, which gets them as `targets`."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int:
        targets = Targets("vGPU", kwargs.pop("names"), kwargs.pop("everything"))
        if targets.everything and targets.names:
            raise click.UsageError("--all and names cannot be combined")
        require_some(targets)
        return function(*args, targets=targets, **kwargs)

    option = click.option("--all", "everything", is_flag=True, help="Every vGPU without a VM that host.yaml has.")
    argument = click.argument("names", nargs=-1, metavar="[VGPU]...", shell_complete=complete.vgpus)
    return argument(option(command))


def all_gpus_option(function: Command) -> Command:
    """Add --all to a command about GPUs, as its argument `everything`."""
    option = click.option(
        "--all", "everything", is_flag=True, help="Every GPU; after a model, every GPU of this model."
    )
    return option(function)


def count_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add --count and --parallel to a command that makes several VMs."""
    parallel = click.option(
        "--parallel",
        metavar="P",
        type=click.IntRange(1, MAX_PARALLEL),
        help=f"With --count: how many VMs are worked on at the same time. [{DEFAULT_PARALLEL}]",
    )
    count = click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, MAX_VMS),
        help="N VMs, numbered from 1; the name is a pattern such as 'vdi-{:03}'.",
    )
    return count(parallel(function))


def check_count_options(
    count: int | None,
    parallel: int | None,
    *,
    print_xml: bool = False,
    wait_for: str | None = None,
) -> int:
    """Return how many VMs are worked on at the same time.

    Raises:
        click.UsageError: the options contradict each other.
    """
    if count is None and parallel is not None:
        raise click.UsageError("--parallel requires --count")
    if count is not None and print_xml:
        raise click.UsageError("--print-xml shows one VM: omit --count and specify one name")
    if count is not None and wait_for is not None:
        raise click.UsageError(f"--wait-for waits for one VM: omit it, then: vgpuctl wait NAMES --for {wait_for}")
    return parallel or DEFAULT_PARALLEL


def require_some(targets: Targets) -> None:
    """Refuse a command that names nothing.

    Raises:
        click.UsageError: saying what can be given.
    """
    if not targets.names and not targets.everything and not targets.filtered:
        begin = targets.selectors
        label = f", --all, {begin}label KEY=VALUE or {begin}owner NAME" if targets.what == "VM" else " or --all"
        raise click.UsageError(f"Missing argument '{targets.what}': name one or several{label}.")


def change(
    settings: Settings,
    kind: str,
    targets: Targets,
    call: Callable[[GpuHost, str], Outcome[Any]],
    *,
    question: Question | None = None,
    check: Callable[[GpuHost], object] | None = None,
    preview_notes: Callable[[Rows], tuple[str, ...]] | None = None,
    dry_run: bool = False,
    managed_only: bool = True,
    may_skip_all: bool = False,
) -> int:
    """Run a change for one plain name, or for several as one command.

    `question`: for a call that asks for confirmation; makes the one question for all. `check`: raises what prevents the
    change whatever it is for, once for all. `preview_notes`: notes about all of them for a dry run. `managed_only`
    False: patterns and --all select unmanaged VMs, too. `may_skip_all`: with --all it is no error that none of them can
    have the change.
    """
    name = targets.single
    if name is not None:
        return run.call(settings, kind, lambda host: call(host, name))

    def change_all(host: GpuHost) -> Outcome[Any]:
        selected = select(host, targets, managed_only=managed_only)
        if check is not None:
            check(host)
        notes = preview_notes(selected.data) if preview_notes is not None and dry_run else ()

        def ask(names: Sequence[str]) -> str:
            return "" if question is None else question([r for r in selected.data if r.name in names], selected.data)

        return host.for_each(
            kind,
            [row.name for row in selected.data],
            call,
            parallel=targets.parallel,
            question=None if question is None else ask,
            notes=(*selected.notes, *notes),
            dry_run=dry_run,
            skips=targets.everything,
            may_skip_all=may_skip_all and targets.everything,
        )

    return run.call(settings, kind, change_all)


def query(settings: Settings, kind: str, targets: Targets, call: Callable[[GpuHost, str], QueryResult[Any]]) -> int:
    """Run a command that changes nothing for one plain name, or for several as one command."""
    name = targets.single
    if name is not None:
        return run.call(settings, kind, lambda host: call(host, name))

    def query_all(host: GpuHost) -> QueryResult[Any]:
        names = [row.name for row in select(host, targets, managed_only=False).data]
        return host.show_vms(names) if kind == "show-vm" else host.query_each(names, lambda one: call(host, one))

    return run.call(settings, kind, query_all)


def count_rows(rows: Rows, what: str) -> str:
    """Return names with their number: `3 VMs (vdi-1, vdi-2, vdi-3)`; of many, the first ones."""
    from vgpuctl.cli.shown import shorten_names

    return f"{count_text(len(rows), what)} ({shorten_names([row.name for row in rows])})"


def running_text(rows: Rows) -> str:
    """Return the sentence about VMs that run: ` 3 of them are running.`; nothing if none does."""
    return of_them_text(sum(row.state == "running" for row in rows), "running")


def of_them_text(count: int, what: str) -> str:
    """Return the sentence about a part of them: ` 3 of them are running.`; nothing if there is none."""
    return f" {count} of them {'is' if count == 1 else 'are'} {what}." if count else ""


def select(host: GpuHost, targets: Targets, *, managed_only: bool) -> QueryResult[Any]:
    """Return the VMs, vGPUs or GPUs that the user means, from one look at the host."""
    if targets.what == "GPU":
        return host.select_gpus(*targets.names, everything=targets.everything)
    if targets.what == "vGPU":
        return host.select_vgpus(*targets.names, everything=targets.everything)
    from vgpuctl.config.labels import parse_selector

    labels = parse_selector(targets.labels, f"{targets.selectors}label")
    return host.select_vms(
        *targets.names, everything=targets.everything, labels=labels, owner=targets.owner, managed_only=managed_only
    )
