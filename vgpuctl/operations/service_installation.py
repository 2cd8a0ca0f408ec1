# SPDX-License-Identifier: Apache-2.0
"""The services' part of install-host and uninstall-host: accounts, units, and whether they are enabled and run.

Nobody gets the host agent or the controller without asking for it (`install-host --agent`, `--controller`). Once their
units are on a host, every install-host keeps them those of its own version. Groups, users, /var/lib/vgpuctl-agent and
/var/lib/vgpuctl-controller stay when a service goes: files may belong to the accounts, and results of operations, or
the fleet, are kept there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from vgpuctl import extras
from vgpuctl.errors import HostCannot
from vgpuctl.model import agent_service, controller_service
from vgpuctl.operations import installation_actions
from vgpuctl.operations.installation_actions import Action
from vgpuctl.operations.plans.agent_units import AGENT_UNITS, ServiceUnit
from vgpuctl.operations.plans.controller_unit import CONTROLLER_UNITS
from vgpuctl.operations.plans.installation import has_valid_checksum
from vgpuctl.value import Value, field_names
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.ports.system import System

_DEADLINE_SECONDS = agent_service.STOP_SECONDS + 90.0
"""systemctl waits while the agent ends its running operations."""


class InstalledService(Value):
    """A service. `units`: in the order in which they start; the last one is the service itself.

    `extra`: the optional libraries that it needs. `user`, `home`: the system user who runs it; None: root.
    `identity_path`: where it says of which version it is.
    """

    name: str
    extra: str
    units: tuple[ServiceUnit, ...]
    groups: tuple[str, ...] = ()
    user: str | None = None
    home: str = ""
    identity_path: str | None = None


AGENT = InstalledService(
    "agent", "agent", AGENT_UNITS, groups=agent_service.GROUPS, identity_path=agent_service.IDENTITY_PATH
)
CONTROLLER = InstalledService(
    "controller",
    "controller",
    CONTROLLER_UNITS,
    user=controller_service.ACCOUNT,
    home=controller_service.STATE_DIRECTORY,
)
SERVICES = (AGENT, CONTROLLER)
UNIT_PATHS = frozenset(path for one in SERVICES for unit in one.units for path in (unit.path, unit.wants_link))
"""The units' files, and the links that enable them."""


class ServiceChanges(Value):
    """What changes for a service.

    `actions` come before systemd reads its units again, if they change any, and `services` after that. `files`: what is
    installed or removed; `kept_paths`: what was changed by hand.
    """

    actions: tuple[Action, ...] = ()
    services: tuple[Action, ...] = ()
    files: tuple[str, ...] = ()
    kept_paths: tuple[str, ...] = ()


def refuse_without_libraries(service: InstalledService, python: str, missing: Sequence[str]) -> None:
    """Refuse a service that could not start.

    Raises:
        HostCannot: libraries of its extra are missing.
    """
    if missing:
        raise HostCannot(
            f"the {service.name} needs the Python libraries {' and '.join(missing)}, which {python} does not have",
            hint=" && ".join(dict.fromkeys(extras.install_command(library) for library in missing)),
            check="python-library",
            libraries=list(missing),
        )


def plan_installations(
    system: System, wanted: Sequence[InstalledService], python: str, *, is_package: bool
) -> ServiceChanges:
    """Return what installs the `wanted` services, and keeps installed ones up to date; see `_plan_installation`."""
    return _join([_plan_installation(system, one, python, is_package, one in wanted) for one in SERVICES])


def plan_removals(system: System) -> ServiceChanges:
    """Return what stops, disables and removes all services. Units of the Debian package stay, disabled."""
    return _join([_plan_removal(system, one) for one in SERVICES])


def _join(changes: Sequence[ServiceChanges]) -> ServiceChanges:
    return ServiceChanges(
        *(tuple(chain(*(getattr(one, key) for one in changes))) for key in field_names(ServiceChanges))
    )


def _plan_installation(
    system: System, service: InstalledService, python: str, is_package: bool, enable: bool
) -> ServiceChanges:
    """Return what installs a service, or keeps an installed one up to date.

    `is_package`: the Debian package has the units, disabled; those that another installation wrote go, and what was
    enabled stays so. `enable`: also make its accounts, enable the units and start them.
    """
    actions: list[Action] = []
    files: list[str] = []
    if is_package:
        kept_paths = _hand_over_to_package(system, service, actions)
    elif enable or any(system.read(unit.path) is not None for unit in service.units):
        units = [unit.file(python) for unit in service.units]
        writes, kept_paths = installation_actions.write_files(system, units)
        actions += writes
        files = [unit.path for unit in units]
    else:
        return ServiceChanges()
    if enable:
        actions = [*_create_accounts(system, service), *actions]
        for unit in service.units:
            if system.readlink(unit.wants_link) is None and unit.path not in kept_paths:
                target = unit.package_path if is_package else unit.path
                actions.append(installation_actions.link_unit(system, unit.wants_link, target))
    changes = ServiceChanges(tuple(actions), (), tuple(files), tuple(kept_paths))
    services = _start_or_restart(system, service, changes, enable=enable) if system.has_systemd else ()
    return ServiceChanges(changes.actions, services, changes.files, changes.kept_paths)


def _plan_removal(system: System, service: InstalledService) -> ServiceChanges:
    kept_paths = [unit.path for unit in service.units if _is_changed_by_hand(system.read(unit.path))]
    units = [unit for unit in service.units if unit.path not in kept_paths]
    actions: list[Action] = []
    if any(system.is_active(unit.name) for unit in units):
        actions.append(_systemctl(system, "stop", *(unit.name for unit in units)))
    for unit in units:
        if system.readlink(unit.wants_link) in (unit.path, unit.package_path):
            line = f"remove the link {unit.wants_link}"
            actions.append(installation_actions.remove(system, unit.wants_link, line))
    files = [unit.path for unit in units if system.read(unit.path) is not None]
    actions += [installation_actions.remove(system, path) for path in files]
    return ServiceChanges(tuple(actions), (), tuple(files), tuple(kept_paths))


def _hand_over_to_package(system: System, service: InstalledService, actions: list[Action]) -> list[str]:
    """Add the removals of what another installation's install-host wrote; return the paths that are kept."""
    kept_paths: list[str] = []
    for unit in service.units:
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


def _create_accounts(system: System, service: InstalledService) -> list[Action]:
    actions = [
        Action(f"create the system group {name}", f"the group {name}", "created", partial(system.add_group, name))
        for name in service.groups
        if not system.has_group(name)
    ]
    if service.user is not None and not system.has_user(service.user):
        add = partial(system.add_user, service.user, service.home)
        actions.append(Action(f"create the system user {service.user}", f"the user {service.user}", "created", add))
    return actions


def _start_or_restart(
    system: System, service: InstalledService, changes: ServiceChanges, *, enable: bool
) -> tuple[Action, ...]:
    """Return what makes this version run: a start where it is to run, a restart where another version does."""
    names = [unit.name for unit in service.units]
    if not system.is_active(names[-1]):
        return (_systemctl(system, "start", *names),) if enable else ()
    if {action.path for action in changes.actions} & {unit.path for unit in service.units}:
        return (_systemctl(system, "restart", *names),)
    text = None if service.identity_path is None else system.read(service.identity_path)
    identity = agent_service.parse_identity(text)
    is_current = identity is None or identity[0] == __version__
    return () if is_current else (_systemctl(system, "restart", names[-1]),)


def _systemctl(system: System, *words: str) -> Action:
    return installation_actions.systemctl(system, *words, deadline_seconds=_DEADLINE_SECONDS)
