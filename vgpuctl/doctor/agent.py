# SPDX-License-Identifier: Apache-2.0
"""The host agent: whether it runs as it was installed, who can connect, and that it is of this version.

A host on which nobody enabled it has nothing to check. The running agent writes its version and pid into a file, so
that no check has to connect to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.doctor.check import (
    SLICE_DIRECTORIES,
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    Verdict,
    not_applicable,
    ok,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.own_files import UNIT_DIRECTORIES, WANTS_DIRECTORY
from vgpuctl.model.agent_service import (
    GROUPS,
    IDENTITY_PATH,
    OPERATORS_GROUP,
    SERVICE_UNIT,
    SOCKET_MODE,
    SOCKET_PATH,
    SOCKET_UNIT,
    parse_identity,
)
from vgpuctl.model.autostart import starts_after_boot
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import Value
from vgpuctl.version import __version__

ENABLE_COMMAND = "vgpuctl install-host --agent"
GROUP_FILE = "/etc/group"
SOCKETS_WANTS_DIRECTORY = "/etc/systemd/system/sockets.target.wants"
_RESTART = f"systemctl restart {SERVICE_UNIT}"
_RESTART_BOTH = f"systemctl restart {SOCKET_UNIT} {SERVICE_UNIT}"
_PROCESS_FILES = tuple(f"{directory}/{SERVICE_UNIT}/cgroup.procs" for directory in SLICE_DIRECTORIES)
_WANTS = {SOCKET_UNIT: SOCKETS_WANTS_DIRECTORY, SERVICE_UNIT: WANTS_DIRECTORY}
_OTHERS = 0o007


class AgentProblem(Value):
    """One thing that is wrong, how bad it is, and what fixes it."""

    verdict: Verdict
    line: str
    fix: str


def _check_agent(context: CheckContext) -> Finding:
    enabled = {unit for unit, folder in _WANTS.items() if unit in (context.folder(folder).names or ())}
    pids = [pid for path in _PROCESS_FILES for pid in (context.file(path).text or "").split()]
    identity = parse_identity(context.file(IDENTITY_PATH).text)
    runs = identity is not None and identity[1] in pids  # what an agent that ended left in its cgroup is not the agent
    if not enabled and not runs:
        problems = [problem for folder in _WANTS.values() if (problem := context.folder(folder).problem)]
        waiting = _vms_to_start(context)
        if waiting and not problems:
            names = ", ".join(shorten(list(waiting)))
            line = f"after a boot nobody starts {names}: the agent, which should, is not enabled"
            return warn(line, fix=ENABLE_COMMAND)
        return unknown(*problems) if problems else not_applicable(f"the agent is not enabled: {ENABLE_COMMAND}")
    unreadable = [problem for path in (*_PROCESS_FILES, GROUP_FILE) if (problem := context.file(path).problem)]
    if unreadable:
        return unknown(*unreadable, fix="run it as root")
    if all(context.folder(directory).names is None for directory in SLICE_DIRECTORIES):
        return unknown(f"{SERVICE_UNIT} is enabled; systemd's services are not visible in {SLICE_DIRECTORIES[0]}")
    faults = [
        *_find_unit_problems(context, enabled),
        *_find_access_problems(context),
        *_find_run_problems(identity if runs else None),
    ]
    if not faults and identity is not None:
        return ok(
            f"{SERVICE_UNIT} runs (pid {identity[1]}), version {__version__}", f"{SOCKET_PATH}: {OPERATORS_GROUP}"
        )
    verdict = Verdict.FAIL if any(one.verdict is Verdict.FAIL for one in faults) else Verdict.WARN
    return Finding(verdict, tuple(one.line for one in faults), "; ".join(dict.fromkeys(one.fix for one in faults)))


def _vms_to_start(context: CheckContext) -> tuple[str, ...]:
    """Return the VMs that the agent should start after a boot."""
    vms = () if context.snapshot is None else context.snapshot.vms
    return tuple(vm.name for vm in vms if vm.record is not None and starts_after_boot(vm.record))


def _find_unit_problems(context: CheckContext, enabled: set[str]) -> Iterator[AgentProblem]:
    for unit, folder in _WANTS.items():
        if not any(unit in (context.folder(directory).names or ()) for directory in UNIT_DIRECTORIES):
            yield AgentProblem(Verdict.FAIL, f"there is no {unit} in {', '.join(UNIT_DIRECTORIES[:2])}", ENABLE_COMMAND)
        elif unit not in enabled:
            yield AgentProblem(Verdict.WARN, f"{unit} is not enabled: {folder} has no link to it", ENABLE_COMMAND)


def _find_access_problems(context: CheckContext) -> Iterator[AgentProblem]:
    """Compare groups and socket. A group that is not in /etc/group may come from a directory service."""
    group_ids = _read_groups(context.file(GROUP_FILE).text or "")
    socket = context.permissions.get(SOCKET_PATH)
    for name in GROUPS:
        if name not in group_ids and (socket is None or not socket.group or name != OPERATORS_GROUP):
            yield AgentProblem(Verdict.WARN, f"{GROUP_FILE} has no group {name}", ENABLE_COMMAND)
    if socket is None:
        yield AgentProblem(
            Verdict.FAIL, f"there is no {SOCKET_PATH}: nobody can connect", f"systemctl start {SOCKET_UNIT}"
        )
        return
    if socket.mode != SOCKET_MODE:
        verdict = Verdict.FAIL if socket.mode & _OTHERS else Verdict.WARN
        yield AgentProblem(verdict, f"{SOCKET_PATH} has mode {socket.mode:04o}, not {SOCKET_MODE:04o}", _RESTART_BOTH)
    expected = group_ids.get(OPERATORS_GROUP, socket.group)
    if socket.owner or socket.group != expected:
        line = f"{SOCKET_PATH}: owner {socket.owner}, group {socket.group}, not root and {OPERATORS_GROUP} ({expected})"
        yield AgentProblem(Verdict.FAIL, line, _RESTART_BOTH)


def _find_run_problems(identity: tuple[str, str] | None) -> Iterator[AgentProblem]:
    """Check the running agent's version; `identity` None: none runs."""
    if identity is None:
        yield AgentProblem(
            Verdict.FAIL,
            f"{SERVICE_UNIT} does not run",
            f"systemctl start {SERVICE_UNIT}; journalctl -b -u {SERVICE_UNIT} shows why",
        )
    elif identity[0] != __version__:
        line = f"the agent that runs is version {identity[0]}, this vgpuctl is {__version__}"
        yield AgentProblem(Verdict.WARN, line, _RESTART)


def _read_groups(text: str) -> dict[str, int]:
    """Return the ids of the groups of /etc/group (group(5))."""
    rows = [line.split(":") for line in text.splitlines()]
    return {row[0]: number for row in rows if len(row) > 2 and (number := parse_integer(row[2])) is not None}


CHECKS = (
    Check(
        id="agent",
        title="the host agent, and who can connect to it",
        looks_at=f"`{SERVICE_UNIT}` and `{SOCKET_UNIT}` in systemd's directories and cgroups, `{SOCKET_PATH}`, "
        f"`{IDENTITY_PATH}`, `{GROUP_FILE}`, VMs with `autostart`",
        run=_check_agent,
        needs_vms=True,
        paths=PathsToRead(
            files=(*_PROCESS_FILES, IDENTITY_PATH, GROUP_FILE),
            folders=(*UNIT_DIRECTORIES, *_WANTS.values(), *SLICE_DIRECTORIES),
            permissions=(SOCKET_PATH,),
        ),
    ),
)
