# SPDX-License-Identifier: Apache-2.0
"""The pool spec: what an admin writes of a pool, in YAML or JSON, and how it is checked.

kind: floating
image: office-2026-11
profile: A100-4C
names: office-{:03}
maximum: 40
spare: 5
vm: {memory: 8GiB, vcpus: 4, networks: [desktops]}
time_zone: Europe/Berlin
schedules:
- {days: weekdays, from: "07:30", until: "17:00", spare: 20, lead: 30}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from vgpuctl.config import labels as label_rules
from vgpuctl.config import rules
from vgpuctl.config.rules import Problem
from vgpuctl.config.shape import Key, Shape, nonempty_list, single_or_list
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.config.vm_spec import VM_SHAPE
from vgpuctl.controller.model import HostChoice, OnLogoff, PoolKind, PoolSpec, ReadyWhen, Schedule
from vgpuctl.controller.planning.pool_names import parts_of
from vgpuctl.controller.planning.schedules import DAY_MINUTES, find_clock_change
from vgpuctl.model.documents import to_json_value

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_GROUPS = {"weekdays": DAYS[:5], "weekend": DAYS[5:], "all": DAYS}
MAX_DESKTOPS, MAX_SCHEDULES, MAX_USERS, MAX_PROFILES = 20_000, 50, 10_000, 16
WINDOWS_NAME_CHARACTERS = 15
"""A Windows computer's NetBIOS name is no longer."""
MAX_LEAD_MINUTES = 240
NOT_IN_POOLS = frozenset(
    {"name", "image", "profile", "cloud_init", "network_config", "k8s_join", "disk", "cdrom", "gpu"}
)
"""Fields of a VM spec that a pool's `vm:` has not: the pool gives some itself, others name files or devices of one
host, or hold secrets, which the database must not have."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}", re.ASCII)
_CLOCK = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])", re.ASCII)


def parse_pool(text: str, path: str) -> PoolSpec:
    """Read a pool spec from YAML or JSON text; `path` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    from vgpuctl.config import yaml_reader

    return _spec_of(yaml_reader.parse_document(text, path, POOL_SHAPE))


def check_pool(value: object) -> PoolSpec:
    """Check a pool spec that came as JSON.

    Raises:
        rules.ValidationError: with every problem.
    """
    return _spec_of(POOL_SHAPE.check(value))


def dump_pool(spec: PoolSpec) -> dict[str, Any]:
    """Return the spec as a file has it, without keys that have their defaults."""
    default = PoolSpec(kind=spec.kind, image=spec.image, names=spec.names, maximum=spec.maximum)
    given: dict[str, Any] = {"kind": str(spec.kind), "image": spec.image, "names": spec.names, "maximum": spec.maximum}
    if spec.profiles:
        given["profile"] = list(spec.profiles) if len(spec.profiles) > 1 else spec.profiles[0]
    for attribute, name in _PLAIN.items():
        value = getattr(spec, attribute)
        if value != getattr(default, attribute):
            given[name] = _plain(value)
    if spec.ready_when is not default.ready_when:
        given["ready_when"] = f"port {spec.port}" if spec.ready_when is ReadyWhen.PORT else str(spec.ready_when)
    if spec.schedules:
        given["schedules"] = [_dump_schedule(one) for one in spec.schedules]
    return given


_PLAIN = {
    "vm": "vm", "spare": "spare", "per_user": "per_user", "users": "users", "boot_minutes": "boot_minutes",
    "on_logoff": "on_logoff", "lease_days": "lease_days", "starts_per_host": "starts_per_host",
    "max_unavailable": "max_unavailable", "hosts": "hosts", "choice": "placement", "apart": "apart",
    "time_zone": "time_zone",
}  # fmt: skip
"""Attributes whose value is written as it is, and their names in a file."""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, (HostChoice, OnLogoff)) else value


def _dump_schedule(schedule: Schedule) -> dict[str, Any]:
    given: dict[str, Any] = {
        "days": [DAYS[day] for day in schedule.days],
        "from": _clock_text(schedule.start),
        "until": _clock_text(schedule.until),
        "spare": schedule.spare,
    }
    return {**given, "lead": schedule.lead_minutes} if schedule.lead_minutes else given


def _clock_text(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _spec_of(given: Mapping[str, Any]) -> PoolSpec:
    values = {attribute: given[name] for attribute, name in _PLAIN.items() if name in given}
    kind, port = given.get("ready_when", (ReadyWhen.RUNNING, 3389))
    if given["kind"] is PoolKind.DEDICATED:
        values.setdefault("on_logoff", OnLogoff.KEEP)
    return PoolSpec(
        kind=given["kind"], image=given["image"], names=given["names"], maximum=given["maximum"],
        profiles=tuple(given.get("profile", ())), ready_when=kind, port=port,
        schedules=tuple(given.get("schedules", ())), **values,
    )  # fmt: skip


def _clock(value: object) -> int:
    text = rules.as_text(value)
    match = _CLOCK.fullmatch(text)
    minutes = None if match is None else int(match[1]) * 60 + int(match[2])
    if minutes is None or minutes > DAY_MINUTES:
        raise ValueError(f'{text!a} is no time of day: write it in quotes, like "07:30"; the day ends at "24:00"')
    return minutes


def _days(value: object) -> tuple[int, ...]:
    names = [rules.as_text(value)] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or len(names) > len(DAYS):
        raise ValueError("expected days: mon, tue, ..., or weekdays, weekend, all")
    days: list[str] = []
    for name in names:
        text = rules.as_text(name)
        days += _DAY_GROUPS.get(text) or (rules.one_of(DAYS)(text),)
    if len(set(days)) < len(days):
        raise ValueError("a day is there twice")
    return tuple(sorted(DAYS.index(day) for day in days))


def _schedules(value: object) -> tuple[Schedule, ...]:
    if isinstance(value, list | tuple) and len(value) > MAX_SCHEDULES:
        raise ValueError(f"{len(value)} schedules are too many: at most {MAX_SCHEDULES}")
    return tuple(single_or_list(_schedule)(value))  # type: ignore[arg-type]


def _schedule(value: object) -> Schedule:
    given: dict[str, Any] = SCHEDULE_SHAPE.check(value)
    if given["until"] <= given["from"]:
        raise rules.ValidationError(
            (Problem(("until",), "it is not after from: write two schedules for a time past midnight"),)
        )
    return Schedule(given["days"], given["from"], given["until"], given["spare"], given.get("lead", 0))


def _time_zone(value: object) -> str:
    text = rules.as_text(value)
    try:
        ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"{text!a} is no time zone of this machine, such as Europe/Berlin; Debian's package tzdata has them"
        ) from None
    return text


def _ready_when(value: object) -> tuple[ReadyWhen, int]:
    text = rules.as_text(value)
    match = re.fullmatch(r"port ([1-9][0-9]{0,4})", text, re.ASCII)
    if match is not None and int(match[1]) <= 65535:
        return ReadyWhen.PORT, int(match[1])
    if text in (ReadyWhen.RUNNING, ReadyWhen.GUEST):
        return ReadyWhen(text), 3389
    raise ValueError(f"{text!a}: write running, guest, or port 3389")


def _user(value: object) -> str:
    return check_user(rules.as_text(value))


def check_user(text: str) -> str:
    """Return the name of a user, also of a directory's (`ada@example.org`).

    Raises:
        ValueError: it is none.
    """
    if not _USER.fullmatch(text):
        raise ValueError(f"{text[:80]!a} is no name of a user: at most 64 letters, digits and . _ - @ \\")
    return text


def _users(value: object) -> tuple[str, ...]:
    names: tuple[str, ...] = nonempty_list(_user)(value)  # type: ignore[assignment]
    if len(names) > MAX_USERS:
        raise ValueError(f"{len(names)} users are too many: at most {MAX_USERS}; without users: everybody may")
    if len(set(names)) < len(names):
        raise ValueError("a user is there twice")
    return tuple(sorted(names))


def _names(value: object) -> str:
    text = rules.as_text(value)
    parts_of(text)
    return text


def _profiles(value: object) -> tuple[str, ...]:
    profiles: tuple[str, ...] = nonempty_list(rules.profile)(value)  # type: ignore[assignment]
    if len(profiles) > MAX_PROFILES or len(set(profiles)) < len(profiles):
        raise ValueError(f"at most {MAX_PROFILES} profiles, each once: the alternatives, best first")
    return profiles


def _vm(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise rules.ValidationError((Problem((), "expected a mapping (key: value)"),))
    refused = tuple(
        Problem((str(name),), f"a pool's vm: has no {name}: {_WHY_NOT.get(name, 'it is of one host')}", at_key=True)
        for name in value
        if name in NOT_IN_POOLS
    )
    if refused:
        raise rules.ValidationError(refused)
    checked: dict[str, object] = to_json_value(VM_SHAPE.check(value))
    return checked


_WHY_NOT = {
    "name": "names: says them",
    "image": "the pool's image: names one",
    "profile": "the pool's profile: says it",
    "disk": "a desktop has the disk of its image",
    "cloud_init": "it may hold secrets, which the database must not have; put it into the image",
    "network_config": "desktops have their addresses by DHCP",
    "k8s_join": "it is a secret of one host",
}


def _one_of(kind: type[Any]) -> Callable[[object], Any]:
    check = rules.one_of(tuple(str(member) for member in kind))
    return lambda value: kind(check(value))


def _find_contradictions(given: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return what does not go together; a value that was refused is not there, or raw."""
    maximum, kind, names = given.get("maximum"), given.get("kind"), given.get("names")
    problems = _count_problems(given, maximum) if isinstance(maximum, int) else []
    if kind is PoolKind.FIXED:
        words = ("spare", "per_user", "users", "on_logoff", "lease_days", "schedules")
        problems += [Problem((w,), "a fixed pool has no users", at_key=True) for w in words if w in given]
    if kind is PoolKind.FLOATING and given.get("on_logoff") not in (None, OnLogoff.REFRESH):
        problems.append(Problem(("on_logoff",), "a floating desktop is always refreshed: the next user is another one"))
    if isinstance(names, str) and isinstance(maximum, int):
        problems += _name_problems(names, maximum, given.get("vm"))
    mode = given["vm"].get("mode", "vgpu") if isinstance(given.get("vm"), Mapping) else "vgpu"
    if mode == "vgpu" and "profile" not in given:
        problems.append(Problem(("profile",), "missing: write one, or vm: {mode: passthrough} for whole GPUs"))
    if mode != "vgpu" and "profile" in given:
        problems.append(Problem(("profile",), f"desktops of mode {mode} have no profile", at_key=True))
    return (*problems, *_clock_problems(given))


def _count_problems(given: Mapping[str, Any], maximum: int) -> list[Problem]:
    counts: list[tuple[tuple[str | int, ...], object]] = [((n,), given.get(n)) for n in ("spare", "max_unavailable")]
    for number, one in enumerate(given.get("schedules", ()) or ()):
        counts.append((("schedules", number, "spare"), getattr(one, "spare", None)))
    return [
        Problem(path, f"it is more than maximum: {maximum}")
        for path, count in counts
        if isinstance(count, int) and count > maximum
    ]


def _name_problems(names: str, maximum: int, vm: object) -> list[Problem]:
    try:
        before, digits, after = parts_of(names)
    except ValueError:
        return []
    longest = len(before) + max(digits, len(str(maximum))) + len(after)
    is_windows = isinstance(vm, Mapping) and str(vm.get("os", "")).startswith("windows")
    if is_windows and longest > WINDOWS_NAME_CHARACTERS:
        text = f"Windows' names have at most {WINDOWS_NAME_CHARACTERS} characters; these have {longest}"
        return [Problem(("names",), text)]
    return []


def _clock_problems(given: Mapping[str, Any]) -> list[Problem]:
    """Return the schedules that begin or end in an hour that summer time skips or repeats."""
    zone = given.get("time_zone", "UTC")
    problems: list[Problem] = []
    for number, one in enumerate(given.get("schedules", ()) or ()):
        if not isinstance(one, Schedule) or not isinstance(zone, str):
            continue
        for name, minutes in (("from", one.start), ("until", one.until)):
            change = find_clock_change(zone, one.days, minutes)
            if change is not None:
                when = f"{_clock_text(minutes)} on {change.day}"
                text = f"in {zone} the clock {change.word} {when}: choose a time before or after"
                problems.append(Problem(("schedules", number, name), text))
    return problems


_COUNT = {"minimum": 0, "type": "integer"}
_TEXT = {"type": "string"}
_CLOCK_SCHEMA = {"pattern": "^([01]?[0-9]|2[0-4]):[0-5][0-9]$", "type": "string"}
SCHEDULE_SHAPE = Shape(
    "PoolSchedule",
    "On which days and at which times more desktops are ready; of several that hold, the last one counts.",
    (
        Key("days", _days, "mon, tue, ..., or weekdays, weekend, all", {"type": ["string", "array"]}, required=True),
        Key("from", _clock, 'a time of day, in quotes: "07:30"', _CLOCK_SCHEMA, required=True),
        Key("until", _clock, 'a later time of the same day, to "24:00"', _CLOCK_SCHEMA, required=True),
        Key("spare", rules.whole_number(0, MAX_DESKTOPS), "how many are ready without a user", _COUNT, required=True),
        Key("lead", rules.whole_number(0, MAX_LEAD_MINUTES), "minutes before from, to have them ready then", _COUNT),
    ),
)
POOL_SHAPE = Shape(
    "PoolSpec",
    "A pool of desktops on the hosts of a fleet.",
    (
        Key(
            "kind",
            _one_of(PoolKind),
            "floating: refreshed after each user; dedicated: a user keeps his; fixed: VMs without users",
            {"enum": [str(kind) for kind in PoolKind]},
            required=True,
        ),
        Key("image", rules.resource_name, "an image of the fleet, by its name", _TEXT, required=True),
        Key("names", _names, "the desktops' names: office-{:03} is office-001 and so on", _TEXT, required=True),
        Key(
            "maximum",
            rules.whole_number(1, MAX_DESKTOPS),
            "how many desktops at most; in a fixed pool, exactly",
            {"maximum": MAX_DESKTOPS, "minimum": 1, "type": "integer"},
            required=True,
        ),
        Key("profile", _profiles, "the vGPU of each, or alternatives, best first", {"type": ["string", "array"]}),
        Key("vm", _vm, "further fields of a VM spec", {"type": "object"}),
        Key("spare", rules.whole_number(0, MAX_DESKTOPS), "how many are always ready without a user", _COUNT),
        Key("per_user", rules.whole_number(1, 100), "how many a user may have (1)", _COUNT),
        Key("users", _users, "who may have one; without it, everybody", {"items": _TEXT, "type": "array"}),
        Key("ready_when", _ready_when, "running, guest (its helper or agent answers), or port 3389", _TEXT),
        Key("boot_minutes", rules.whole_number(1, 240), "one that is not ready after so long has failed (15)", _COUNT),
        Key("on_logoff", _one_of(OnLogoff), "of a dedicated pool: keep (the default), stop, refresh", _TEXT),
        Key("lease_days", rules.whole_number(1, 3650), "a user's desktop is released after so many days", _COUNT),
        Key("starts_per_host", rules.whole_number(1, 64), "how many start at a time on one host (4)", _COUNT),
        Key("max_unavailable", rules.whole_number(1, 1000), "how many get a new image at a time (1)", _COUNT),
        Key("hosts", label_rules.labels, "labels that a host must have", {"type": "object"}),
        Key("placement", _one_of(HostChoice), "which host: least-waste, spread, random", _TEXT),
        Key("apart", rules.boolean, "true: on as many hosts as possible", {"type": "boolean"}),
        Key("time_zone", _time_zone, "of the schedules, such as Europe/Berlin (UTC)", _TEXT),
        Key("schedules", _schedules, "when more desktops are ready", map_value_shape=None),
    ),
    _find_contradictions,
)
assert FIELDS.keys() >= NOT_IN_POOLS
