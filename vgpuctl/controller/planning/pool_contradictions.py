# SPDX-License-Identifier: Apache-2.0
"""Which keys of a pool's spec contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.arguments import NONE, RENDERING_MODE, VM_MODES
from vgpuctl.config.device_rules import find_device_contradictions
from vgpuctl.config.rules import Problem
from vgpuctl.controller.model import OnLogoff, PoolKind, ReadyWhen
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.desktop_address import OPEN_RDP
from vgpuctl.controller.planning.pool_vm import long_name_problem

_FOR_USERS = ("spare", "per_user", "logon", "on_logoff", "lease_days", "schedules", "open", "rdp", "connect", "console")


def find_pool_contradictions(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    """Return what the keys of a pool's spec contradict; works on unchecked values too."""
    problems: list[Problem] = []
    for check in (_check_kind, _check_opening, _check_numbers, _check_names, _check_vm):
        problems += check(fields)
    return tuple(problems)


def _check_kind(fields: Mapping[str, object]) -> Iterator[Problem]:
    kind, on_logoff = fields.get("kind"), fields.get("on_logoff")
    if kind == PoolKind.FIXED:
        for name in _FOR_USERS:
            if fields.get(name) not in (None, (), 0, {}):
                text = "a fixed pool has no users and no spares: it has exactly maximum VMs; omit this"
                yield Problem((name,), text, at_key=True)
    if kind == PoolKind.FLOATING and on_logoff in (OnLogoff.KEEP, OnLogoff.STOP):
        text = f"a floating desktop is always refreshed after its user: omit this; kind dedicated can {on_logoff}"
        yield Problem(("on_logoff",), text)
    is_refreshed = kind == PoolKind.FLOATING or (kind == PoolKind.DEDICATED and on_logoff == OnLogoff.REFRESH)
    if fields.get("prepared") is True and not is_refreshed:
        yield Problem(("prepared",), "nothing of this pool is refreshed: omit this, or on_logoff: refresh", at_key=True)


def _check_opening(fields: Mapping[str, object]) -> Iterator[Problem]:
    opening = fields.get("open")
    if fields.get("rdp") and opening != OPEN_RDP:
        yield Problem(("rdp",), "these are keys of RDP files: specify open: rdp", at_key=True)
    if fields.get("dns_name") and fields.get("addresses"):
        yield Problem(
            ("addresses",), "addresses cannot be checked for a DNS name: remove addresses or dns_name", at_key=True
        )
    if fields.get("dns_name") and fields.get("connect"):
        yield Problem(("connect",), "it goes to the address that the host sees: omit this, or dns_name", at_key=True)


def _check_numbers(fields: Mapping[str, object]) -> Iterator[Problem]:
    maximum, schedules = fields.get("maximum"), fields.get("schedules")
    if not isinstance(maximum, int):
        return
    for name in ("spare", "max_unavailable"):
        value = fields.get(name)
        if isinstance(value, int) and value > maximum:
            yield Problem((name,), f"{value} are more than maximum: {maximum}")
    for number, schedule in enumerate(schedules if isinstance(schedules, tuple) else ()):
        if schedule.spare > maximum:
            yield Problem(("schedules", number, "spare"), f"{schedule.spare} are more than maximum: {maximum}")


def _check_names(fields: Mapping[str, object]) -> Iterator[Problem]:
    names, maximum, vm = fields.get("names"), fields.get("maximum"), fields.get("vm")
    try:
        pattern = pool_rules.names(names)
    except ValueError:
        return
    if not isinstance(maximum, int):
        return
    digits, needed = pool_rules.digits(pattern), len(str(maximum))
    if digits is not None and digits < needed:
        better = pattern.replace(f":0{digits}", f":0{needed}")
        yield Problem(("names",), f"{digits} are too few digits for maximum: {maximum}; write {better}")
        return
    text = long_name_problem(pattern, maximum, str(vm.get("os") or "") if isinstance(vm, Mapping) else "")
    if text is not None:
        yield Problem(("names",), text)


def _check_vm(fields: Mapping[str, object]) -> Iterator[Problem]:
    """Check the VM that the pool's keys make together, by the rules of VM specs."""
    vm, profiles = fields.get("vm"), fields.get("profile")
    if vm is not None and not isinstance(vm, Mapping):
        return
    whole: dict[str, Any] = {**(vm or {})}
    whole = {name: tuple(value) if isinstance(value, list) else value for name, value in whole.items()}
    if profiles:
        whole["profile"] = profiles[0] if isinstance(profiles, tuple) else profiles
    problems = [*rules.find_contradictions(whole), *find_device_contradictions(whole)]
    if whole.get("mode") == RENDERING_MODE:
        text = f"desktops of a pool have a GPU or a part of one; {RENDERING_MODE} is for VMs of create-vm and ensure-vm"
        problems.append(Problem(("mode",), text))
    if whole.get("mode") in (None, *VM_MODES):
        problems += rules.find_missing_fields(whole)
    for problem in problems:
        yield problem if problem.path in ((), ("profile",)) else Problem(("vm", *problem.path), problem.text)
    ready = fields.get("ready_when")
    if whole.get("networks") == (NONE,) and isinstance(ready, tuple) and ready[0] is ReadyWhen.PORT:
        yield Problem(("ready_when",), "a VM without a network card has no port: specify guest or running")
    if whole.get("networks") == (NONE,) and fields.get("connect"):
        yield Problem(("connect",), "a VM without a network card has no port: omit this", at_key=True)
