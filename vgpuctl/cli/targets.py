# SPDX-License-Identifier: Apache-2.0
"""The arguments that name several VMs, vGPUs or GPUs, and the runner of a command for one of them or for several.

One plain name is a call for this one, with its own page and document. A range, a glob, several names, --all and --label
are one command for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete, run
from vgpuctl.config.arguments import DEFAULT_PARALLEL, MAX_PARALLEL
from vgpuctl.config.name_patterns import is_pattern
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import Outcome, QueryResult

Command = Callable[..., int]
Question = Callable[[Sequence[str], int], str]
"""Makes the one question for all from the names to ask about, and how many VMs of these run."""


class Targets(Value):
    """What the user typed. `what`: "VM", "vGPU" or "GPU". `parallel`: how many at a time."""

    what: str
    names: tuple[str, ...]
    everything: bool = False
    labels: tuple[str, ...] = ()
    parallel: int = 1

    @property
    def single(self) -> str | None:
        """The one plain name; None if it may be several."""
        plain = len(self.names) == 1 and not is_pattern(self.names[0])
        return self.names[0] if plain and not self.everything and not self.labels else None


def vms(*, parallel: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds VM..., --all, --label and --parallel; the command gets them as `targets`."""

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(*args: Any, **kwargs: Any) -> int:
            names, everything = kwargs.pop("names"), kwargs.pop("everything")
            labels, at_a_time = kwargs.pop("target_labels"), kwargs.pop("parallel", None)
            targets = Targets("VM", names, everything, labels, at_a_time or DEFAULT_PARALLEL)
            if everything and names:
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
        decorated = click.option(
            "--label",
            "target_labels",
            metavar="KEY=VALUE",
            multiple=True,
            help="Only VMs with this label; repeat it for VMs with all of several.",
        )(decorated)
        every = "Every VM that vgpuctl manages." if parallel else "Every VM."  # without --parallel: it changes nothing
        decorated = click.option("--all", "everything", is_flag=True, help=every)(decorated)
        return click.argument("names", nargs=-1, metavar="[VM]...", shell_complete=complete.vms)(decorated)

    return decorate


def gpus(function: Command) -> Command:
    """Add GPU... and --all to a command, which gets them as `targets`."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int:
        targets = Targets("GPU", kwargs.pop("gpus"), kwargs.pop("everything"))
        require_some(targets)
        return function(*args, targets=targets, **kwargs)

    decorated = all_gpus_option(command)
    return click.argument("gpus", nargs=-1, metavar="[GPU]...", shell_complete=complete.gpus)(decorated)


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


def require_some(targets: Targets) -> None:
    """Refuse a command that names nothing.

    Raises:
        click.UsageError: saying what can be given.
    """
    if not targets.names and not targets.everything and not targets.labels:
        label = ", --all or --label KEY=VALUE" if targets.what == "VM" else " or --all"
        raise click.UsageError(f"Missing argument '{targets.what}': name one or several{label}.")


def change(
    settings: Settings,
    kind: str,
    targets: Targets,
    call: Callable[[GpuHost, str], Outcome[Any]],
    *,
    question: Question | None = None,
    dry_run: bool = False,
) -> int:
    """Run a change for one plain name, or for several as one command.

    `question`: for a call that asks for confirmation; makes the one question for all.
    """
    name = targets.single
    if name is not None:
        return run.call(settings, kind, lambda host: call(host, name))

    def change_all(host: GpuHost) -> Outcome[Any]:
        selected = select(host, targets, managed_only=True)
        running = {row.name for row in selected.data if row.state == "running"}
        ask = None if question is None else lambda names: question(names, len(running.intersection(names)))
        return host.for_each(
            kind,
            [row.name for row in selected.data],
            call,
            parallel=targets.parallel,
            question=ask,
            notes=selected.notes,
            dry_run=dry_run,
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


def running_text(count: int) -> str:
    """Return the sentence about VMs that run: ` 3 of them are running.`; nothing if none does."""
    return f" {count} of them {'is' if count == 1 else 'are'} running." if count else ""


def select(host: GpuHost, targets: Targets, *, managed_only: bool) -> QueryResult[Any]:
    """Return the VMs, vGPUs or GPUs that the user means, from one look at the host."""
    if targets.what == "GPU":
        return host.select_gpus(*targets.names, everything=targets.everything)
    if targets.what == "vGPU":
        return host.select_vgpus(*targets.names, everything=targets.everything)
    from vgpuctl.config.labels import parse_selector

    labels = parse_selector(targets.labels)
    return host.select_vms(*targets.names, everything=targets.everything, labels=labels, managed_only=managed_only)
