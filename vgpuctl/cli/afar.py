# SPDX-License-Identifier: Apache-2.0
"""Runs a command on other hosts: the same words to the vgpuctl on each, by SSH, and one result of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.cli.afar_words import HandedOn
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import Guard
    from vgpuctl.remote.bringing import Bring
    from vgpuctl.remote.crowd import Reply, Task
    from vgpuctl.remote.target import Target

HERE_ALONE = {
    "completion": "it is about this shell",
    "sim": "a simulated host is on this machine; VGPUCTL_HOST in the environment there names one",
}
READING = frozenset(
    {
        "list-gpus", "show-gpu", "list-profiles", "explain", "list-vgpus", "list-vms", "show-vm", "diff", "assert",
        "export", "import", "console", "address", "list-images", "fits", "simulate",
    }
)  # fmt: skip
"""Commands that change nothing: one whose answer was lost may be run again."""
SHOWING = ("dry_run", "print_xml")
MADE = ("plot", "write")
"""Options of simulate that name files to make: root would make them there, where nobody looks for them."""


def run(settings: Settings, context: click.Context) -> int:
    """Run a command on the hosts that the global options name, print the result, and return the exit status."""
    from vgpuctl.cli import afar_result, failures, signals

    settings.kind = "-".join(context.command_path.split()[1:])
    with signals.handled() as guard:
        try:
            targets = _targets(settings)
            replies = _replies(settings, context, targets, guard)
            guard.close()
        except BaseException as exc:  # noqa: BLE001
            guard.close()
            return failures.report(exc, settings, signal_status=guard.status)
        stopped = guard.status if guard.received else 0
        if len(settings.ssh_hosts) == 1 and settings.hosts is None:
            return afar_result.publish_one(settings, replies[0], stopped)
        return afar_result.publish(settings, replies, stopped)


def _targets(settings: Settings) -> tuple[Target, ...]:
    """Return the hosts, each once. One of VGPUCTL_HOST gives way to --hosts, as it does to --host.

    Raises:
        InvalidInput, NotFound: an address or the inventory is wrong, or a pattern means no host.
    """
    from vgpuctl.remote.target import parse_url

    if settings.hosts is not None and settings.host_typed and not settings.ssh_hosts:
        raise InvalidInput(f"--host {settings.host} does not go with --hosts {settings.hosts}", hint="leave one out")
    named = settings.ssh_hosts if settings.hosts is None or settings.host_typed else ()
    found = [parse_url(url) for url in named]
    if settings.hosts is not None:
        from vgpuctl.cli import wishes
        from vgpuctl.remote import inventory, limit

        read = inventory.parse(wishes.text_of(settings.hosts, "inventory"), settings.hosts)
        found += limit.limited(read, settings.limit)
    elif settings.limit:
        raise InvalidInput("--limit goes with --hosts FILE", hint="name a host alone: --host ssh://HOST")
    if not found:
        raise InvalidInput(f"{settings.hosts} names no host", hint="docs/remote.md tells the format")
    return tuple({target.name: target for target in found}.values())


def _replies(
    settings: Settings, context: click.Context, targets: tuple[Target, ...], guard: Guard
) -> tuple[Reply, ...]:
    words = context.command_path.split()[1:]
    if words[0] in HERE_ALONE:
        raise InvalidInput(f"{words[0]} is not for other hosts: {HERE_ALONE[words[0]]}", hint="leave --host ssh:// out")
    made = next((name for name in MADE if settings.kind == "simulate" and context.params.get(name)), None)
    if made is not None:
        raise InvalidInput(
            f"--{made} {context.params[made]}: simulate makes no file on another host",
            hint=f"leave --{made} out: --json tells what was found, and the same --seed makes the same requests",
        )
    task = _task(settings, context, one=len(targets) == 1 and settings.hosts is None)
    from vgpuctl.cli import signals

    with signals.held():
        from vgpuctl.remote import crowd
        from vgpuctl.remote.ssh import SshHosts
    return crowd.ask(targets, task, SshHosts(), lambda: len(guard.received))


def _task(settings: Settings, context: click.Context, *, one: bool) -> Task:
    from vgpuctl import __version__
    from vgpuctl.cli import afar_words, streams
    from vgpuctl.remote import crowd
    from vgpuctl.remote.ran import Asked

    root = context.find_root()
    handed = afar_words.handed_on(settings.words, context.command, root.command.params)
    shown = settings.progress or not settings.json
    front = ["--json", *(["--progress"] if shown and changes(settings, context) else [])]

    def told(name: str, line: str) -> None:
        if line.strip():
            streams.write_err(streams.clean(line) if one else f"{name}: {streams.clean(line)}")

    if settings.host_deadline == 0:
        raise InvalidInput("--host-deadline 0: no host answers at once", hint="say a number of seconds")
    words = (*front, *handed.words)
    return crowd.Task(
        Asked(words, _stdin(handed)),
        changes(settings, context),
        __version__,
        told,
        settings.host_deadline or crowd.DEADLINE_SECONDS,
        settings.hosts_at_a_time or crowd.AT_A_TIME,
        _bring(context, words, told if shown else None),
    )


def _bring(context: click.Context, words: tuple[str, ...], told: Callable[[str, str], None] | None) -> Bring | None:
    """Return the vgpuctl that install-host brings along.

    Raises:
        InvalidInput, NotFound: there is no wheelhouse with one.
    """
    directory = context.params.get("wheelhouse")
    if directory is None:
        return None
    from vgpuctl.plan import installation
    from vgpuctl.remote import bringing, wheelhouse

    referring = (installation.UNIT, installation.HOOK, installation.MAIN_HOOK)
    house = wheelhouse.read(directory)
    return bringing.bring(house, words, referring, dry_run=bool(context.params["dry_run"]), told=told)


def _stdin(handed: HandedOn) -> bytes:
    if handed.file is None:
        return b""
    from vgpuctl.cli import wishes

    return wishes.text_of(handed.file).encode()


def changes(settings: Settings, context: click.Context) -> bool:
    """Say whether the command may change a host: then it has progress, and what an answer's loss means is not known."""
    if settings.kind == "doctor" and not context.params.get("fix"):
        return False
    if settings.kind == "plan-moves" and not settings.yes:
        return False
    return settings.kind not in READING and not any(context.params.get(name) for name in SHOWING)
