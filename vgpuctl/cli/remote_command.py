# SPDX-License-Identifier: Apache-2.0
"""Runs a command on other hosts by SSH: the same arguments for vgpuctl on each host, and one combined result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from vgpuctl.agent.connection import SSH_SECONDS
from vgpuctl.cli import agent_login, command_line, entry, failures, field_options, remote_result, streams
from vgpuctl.cli.agent_login import SentFile
from vgpuctl.errors import InvalidInput
from vgpuctl.library import text_file
from vgpuctl.model.file_content import is_file_content
from vgpuctl.remote import bootstrap, fanout, ssh
from vgpuctl.remote.session import RemoteCommand, expand_range, is_range, parse_url
from vgpuctl.value import Value
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.remote.bootstrap import BootstrapPlan
    from vgpuctl.remote.fanout import FanoutTask, HostReply
    from vgpuctl.remote.session import Target

LOCAL_ONLY_COMMANDS = {
    "agent": "vgpuctl-agent.service runs it there, and --host ssh:// reaches it by itself",
    "completion": "it works on this shell",
    "import-job": "it reads files here: on that host, import-job - reads them from standard input",
    "import-vm": "it reads files here, and checks the disks beside them: copy them to the host and run it there",
    "sim": "a simulated host is on this machine; VGPUCTL_HOST in the environment there names one",
}
READ_ONLY_COMMANDS = frozenset(
    {
        "list-gpus", "show-gpu", "list-profiles", "explain", "list-vgpus", "list-vms", "show-vm", "diff",
        "export", "import", "import-job", "import-vm", "capacity", "show-console", "show-address", "list-images",
        "fits", "plan-moves", "wait", "log", "events", "top",
    }
)  # fmt: skip
"""Commands that change nothing: they may be run again if a reply was lost."""
PREVIEW_OPTIONS = ("dry_run", "print_xml")


def run(settings: Settings, context: click.Context) -> int:
    """Run a command on the hosts that the global options name, print the result, and return the exit status."""
    settings.kind = "-".join(context.command_path.split()[1:])
    settings.quiet = bool(context.params.get("quiet"))
    with entry.handle_signals() as guard:
        try:
            targets = _resolve_targets(settings)
            _refuse_command(settings, context)
            forwarded = forward_args(settings.args, context.command, context.find_root().command.params)
            sent_file = _read_sent_file(forwarded)
            task = _build_task(settings, context, forwarded, sent_file)
            replies = _collect_replies(task, targets, guard)
            agent = replies[0].agent
            if agent is None:
                guard.ignore_signals()
        except BaseException as exc:  # noqa: BLE001
            guard.ignore_signals()
            return failures.report(exc, settings, signal_status=guard.exit_status)
        if agent is not None:
            stops = partial(len, guard.received)
            return agent_login.run_here(settings, context, targets[0], agent, sent_file, stops)
        stopped = guard.exit_status if guard.received else 0
        if _has_single_host(settings):
            return remote_result.print_reply(settings, replies[0], stopped)
        return remote_result.print_replies(settings, replies, stopped)


def _has_single_host(settings: Settings) -> bool:
    """Return whether the command is for one host. A range is for several, however many hosts it stands for."""
    return len(settings.ssh_hosts) == 1 and not is_range(settings.ssh_hosts[0])


def _resolve_targets(settings: Settings) -> tuple[Target, ...]:
    """Return the hosts, each once.

    Raises:
        InvalidInput: an address or a range is wrong.
    """
    targets = [parse_url(url) for given in settings.ssh_hosts for url in expand_range(given)]
    return tuple({target.name: target for target in targets}.values())


def _refuse_command(settings: Settings, context: click.Context) -> None:
    """Refuse a command that cannot run on the hosts that were named.

    Raises:
        InvalidInput: why not.
    """
    name = context.command_path.split()[1]
    if name in LOCAL_ONLY_COMMANDS:
        raise InvalidInput(
            f"{name} does not work on other hosts: {LOCAL_ONLY_COMMANDS[name]}",
            hint="omit --host ssh://",
        )
    if agent_login.goes_on(settings, context) and not _has_single_host(settings):
        if name == "top":
            raise InvalidInput("the live screen of top is for one host", hint="add --once for a table of all hosts")
        raise InvalidInput("events --follow is for one host", hint="name one host with --host ssh://HOST")
    _refuse_relative_paths(context)


def _collect_replies(task: FanoutTask, targets: tuple[Target, ...], guard: SignalGuard) -> tuple[HostReply, ...]:
    with entry.block_signals():
        connect = ssh.SshConnector()  # imports paramiko
    return fanout.run(targets, task, connect, lambda: len(guard.received))


def _refuse_relative_paths(context: click.Context) -> None:
    """Refuse a path relative to this working directory: on another host it would be relative to another one.

    Raises:
        InvalidInput: naming the option and the path.
    """
    for name in (*field_options.PATH_FIELDS, "from_image", "paths"):
        value = context.params.get(name)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, str) and path and not path.startswith("/"):
                option = "PATH" if name == "paths" else f"--{name.removesuffix('_image').replace('_', '-')}"
                shown = "this text" if is_file_content(path) else f"'{path}'"
                raise InvalidInput(
                    f"{option}: {shown} is not an absolute path, and the file is on the other host: start with /"
                )


def _build_task(
    settings: Settings, context: click.Context, forwarded: ForwardedArgs, sent_file: SentFile
) -> FanoutTask:
    show_progress = settings.progress or not settings.json
    has_progress = show_progress and may_change_host(settings, context)
    front = ["--json", *(["--progress"] if has_progress else [])]
    single_host = _has_single_host(settings)

    def report_line(name: str, line: str) -> None:
        if line.strip():
            streams.write_err(streams.sanitize(line) if single_host else f"{name}: {streams.sanitize(line)}")

    if settings.host_deadline == 0:
        raise InvalidInput("--host-deadline must be greater than 0", hint="specify a number of seconds")
    remote_args = (*front, *forwarded.args)
    prepared = _prepare_bootstrap(context, remote_args, report_line if show_progress else None)
    agent = agent_login.plan_agent(settings, context, sent_file, single_host=single_host, has_progress=has_progress)
    names_paths_there = settings.root != "/" or settings.connect is not None
    return fanout.FanoutTask(
        RemoteCommand(remote_args, sent_file.text.encode()),
        may_change_host(settings, context),
        __version__,
        report_line,
        settings.host_deadline or _usual_deadline(settings, context),
        settings.hosts_at_a_time or fanout.MAX_PARALLEL,
        prepared,
        None if prepared is not None or names_paths_there else agent,
    )


def _usual_deadline(settings: Settings, context: click.Context) -> float:
    """Return how many seconds each host has without --host-deadline."""
    if agent_login.goes_on(settings, context):
        return SSH_SECONDS
    return fanout.DEADLINE_SECONDS + _own_wait(context)


def _own_wait(context: click.Context) -> float:
    """Return how long the command itself may wait for a VM, in seconds."""
    return max(float(context.params.get(name) or 0) for name in ("timeout", "wait_timeout"))


def _prepare_bootstrap(
    context: click.Context, remote_args: tuple[str, ...], report_line: Callable[[str, str], None] | None
) -> BootstrapPlan | None:
    """Return the plan that installs vgpuctl on the other host before install-host runs; None if that is not asked.

    Raises:
        InvalidInput, NotFound: there is no Debian package of vgpuctl.
    """
    package = context.params.get("deb")
    if package is None:
        return None
    return bootstrap.plan_package(
        bootstrap.read_package(package),
        remote_args,
        dry_run=bool(context.params["dry_run"]),
        report_line=report_line,
    )


def _read_sent_file(forwarded: ForwardedArgs) -> SentFile:
    path = forwarded.stdin_file
    return SentFile(path, "" if path is None else text_file.read_text(path))


def may_change_host(settings: Settings, context: click.Context) -> bool:
    """Say whether the command may change a host: then it has progress, and after a lost reply its result is unknown."""
    if settings.kind == "doctor" and not context.params.get("fix"):
        return False
    return settings.kind not in READ_ONLY_COMMANDS and not any(context.params.get(name) for name in PREVIEW_OPTIONS)


LOCAL_OPTIONS = frozenset(
    {
        "host", "host_deadline", "hosts_at_a_time", "json", "output", "color", "progress",
        "deb", "columns", "sort_by", "filter", "no_headers",
    }
)  # fmt: skip
"""Names of options that are not forwarded: the result is shown here. --json and --progress are added as needed."""
FILE_OPTION = "--file"
STDIN = "-"


class ForwardedArgs(Value):
    """Arguments for the remote vgpuctl, and the local file that it reads as standard input; None if it reads none."""

    args: tuple[str, ...]
    stdin_file: str | None = None


def forward_args(
    args: Sequence[str], command: click.Command, global_params: Sequence[click.Parameter]
) -> ForwardedArgs:
    """Return what to forward. click has parsed `args`, so `global_params` and `command` have every option in it."""
    outer, rest = command_line.split_front_options(list(args), dict(command_line.list_spellings(global_params)))
    inner = list(command_line.split_tokens(rest[1:], dict(command_line.list_spellings(command.params))))
    forwarded = [token for token in inner if not _is_local_option(token)]
    file_values = [
        command_line.option_value(token)
        for token in forwarded
        if token.option is not None and FILE_OPTION in token.option.opts
    ]
    stdin_args = [STDIN for token in forwarded if token.option is None and token.args == (STDIN,)]
    result = [arg for token in outer if not _is_local_option(token) for arg in token.args]
    result += [*rest[:1], *(arg for token in forwarded for arg in _read_from_stdin(token).args)]
    return ForwardedArgs(tuple(result), next(iter([*reversed(file_values), *stdin_args]), None))


def _read_from_stdin(token: command_line.Token) -> command_line.Token:
    """Return the token with standard input in place of a local file."""
    if token.option is None or FILE_OPTION not in token.option.opts:
        return token
    *before, last = token.args
    return command_line.Token((*before, last[: token.value_offset or 0] + STDIN), token.option, token.value_offset)


def _is_local_option(token: command_line.Token) -> bool:
    return token.option is not None and str(token.option.name).removeprefix("global_") in LOCAL_OPTIONS
