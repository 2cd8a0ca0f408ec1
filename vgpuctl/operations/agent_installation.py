# SPDX-License-Identifier: Apache-2.0
"""The host agent's part of install-host and uninstall-host: groups, units, and whether they are enabled and run.

Nobody gets the agent without asking for it (`install-host --agent`). Once its units are on a host, every install-host
keeps them those of its own version. Groups and /var/lib/vgpuctl-agent stay when the agent goes: files may belong to the
groups, and results of operations are kept there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl import extras
from vgpuctl.errors import HostCannot
from vgpuctl.model import agent_service
from vgpuctl.operations import installation_actions
from vgpuctl.operations.installation_actions import Action
from vgpuctl.operations.plans.agent_units import AGENT_UNITS
from vgpuctl.operations.plans.installation import has_valid_checksum
from vgpuctl.value import Value
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.ports.system import System

UNIT_PATHS = frozenset(path for unit in AGENT_UNITS for path in (unit.path, unit.wants_link))
"""The units' files, and the links that enable them."""
_UNITS = tuple(unit.name for unit in AGENT_UNITS)
_DEADLINE_SECONDS = agent_service.STOP_SECONDS + 90.0
"""systemctl waits while the agent ends its running operations."""


class AgentChanges(Value):
    """What changes for the agent.

    `actions` come before systemd reads its units again, if they change any, and `services` after that. `files`: what is
    installed or removed; `kept_paths`: what was changed by hand.
    """

    actions: tuple[Action, ...] = ()
    services: tuple[Action, ...] = ()
    files: tuple[str, ...] = ()
    kept_paths: tuple[str, ...] = ()


def refuse_without_libraries(python: str, missing: Sequence[str]) -> None:
    """Refuse an agent that could not start.

    Raises:
        HostCannot: libraries of the extra `agent` are missing.
    """
    if missing:
        raise HostCannot(
            f"the agent needs the Python libraries {' and '.join(missing)}, which {python} does not have",
            hint=" && ".join(dict.fromkeys(extras.install_command(library) for library in missing)),
            check="python-library",
            libraries=list(missing),
        )


def plan_installation(system: System, python: str, *, is_package: bool, enable: bool) -> AgentChanges:
    """Return what installs the agent, or keeps an installed one up to date.

    `is_package`: the Debian package has the units, disabled; those that another installation wrote go, and what was
    enabled stays so. `enable`: also make the groups, enable the units and start them.
    """
    actions: list[Action] = []
    files: list[str] = []
    if is_package:
        kept_paths = _hand_over_to_package(system, actions)
    elif enable or any(system.read(unit.path) is not None for unit in AGENT_UNITS):
        units = [unit.file(python) for unit in AGENT_UNITS]
        writes, kept_paths = installation_actions.write_files(system, units)
        actions += writes
        files = [unit.path for unit in units]
    else:
        return AgentChanges()
    if enable:
        actions = [*_create_groups(system), *actions]
        for unit in AGENT_UNITS:
            if system.readlink(unit.wants_link) is None and unit.path not in kept_paths:
                target = unit.package_path if is_package else unit.path
                actions.append(installation_actions.link_unit(system, unit.wants_link, target))
    changes = AgentChanges(tuple(actions), (), tuple(files), tuple(kept_paths))
    services = _start_or_restart(system, changes, enable=enable) if system.has_systemd else ()
    return AgentChanges(changes.actions, services, changes.files, changes.kept_paths)


def plan_removal(system: System) -> AgentChanges:
    """Return what stops, disables and removes the agent. Units of the Debian package stay, disabled."""
    kept_paths = [unit.path for unit in AGENT_UNITS if _is_changed_by_hand(system.read(unit.path))]
    units = [unit for unit in AGENT_UNITS if unit.path not in kept_paths]
    actions: list[Action] = []
    if any(system.is_active(unit.name) for unit in units):
        actions.append(_systemctl(system, "stop", *(unit.name for unit in units)))
    for unit in units:
        if system.readlink(unit.wants_link) in (unit.path, unit.package_path):
            line = f"remove the link {unit.wants_link}"
            actions.append(installation_actions.remove(system, unit.wants_link, line))
    files = [unit.path for unit in units if system.read(unit.path) is not None]
    actions += [installation_actions.remove(system, path) for path in files]
    return AgentChanges(tuple(actions), (), tuple(files), tuple(kept_paths))


def _hand_over_to_package(system: System, actions: list[Action]) -> list[str]:
    """Add the removals of what another installation's install-host wrote; return the paths that are kept."""
    kept_paths: list[str] = []
    for unit in AGENT_UNITS:
        text = system.read(unit.path)
        if _is_changed_by_hand(text):
            kept_paths.append(unit.path)
            continue
        if text is not None:
            actions.append(installation_actions.remove(system, unit.path))
        if system.readlink(unit.wants_link) == unit.path:
            actions.append(installation_actions.link_unit(system, unit.wants_link, unit.package_path, replace=True))
    return kept_paths


def _is_changed_by_hand(text: str | None) -> bool:
    return text is not None and not has_valid_checksum(text)


def _create_groups(system: System) -> list[Action]:
    return [
        Action(f"create the system group {name}", f"the group {name}", "created", partial(system.add_group, name))
        for name in agent_service.GROUPS
        if not system.has_group(name)
    ]


def _start_or_restart(system: System, changes: AgentChanges, *, enable: bool) -> tuple[Action, ...]:
    """Return what makes this version run: a start where it is to run, a restart where another version does."""
    if not system.is_active(agent_service.SERVICE_UNIT):
        return (_systemctl(system, "start", *_UNITS),) if enable else ()
    if {action.path for action in changes.actions} & {unit.path for unit in AGENT_UNITS}:
        return (_systemctl(system, "restart", *_UNITS),)
    identity = agent_service.parse_identity(system.read(agent_service.IDENTITY_PATH))
    is_current = identity is None or identity[0] == __version__
    return () if is_current else (_systemctl(system, "restart", agent_service.SERVICE_UNIT),)


def _systemctl(system: System, *words: str) -> Action:
    return installation_actions.systemctl(system, *words, deadline_seconds=_DEADLINE_SECONDS)
