# SPDX-License-Identifier: Apache-2.0
"""What an admin writes about a pool, as YAML or JSON, and the same back as text.

What is refused here is never stored: the database has only specs that can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.arguments import NAME_PATTERN
from vgpuctl.config.labels import labels
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_fields import JsonSchema, enum_schema, integer_schema, nonempty_list_schema, pattern_schema
from vgpuctl.config.vm_spec import fill_number
from vgpuctl.controller.model import HostChoice, Logon, OnLogoff, PoolKind, PoolSpec, ReadyWhen, Schedule
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.pool_contradictions import find_pool_contradictions
from vgpuctl.controller.planning.pool_rules import MAX_DESKTOPS
from vgpuctl.controller.planning.pool_vm import POOL_VM_SHAPE, pool_vm
from vgpuctl.controller.planning.rdp_file import KEYS
from vgpuctl.controller.planning.schedules import DAY_NAMES, clock_problem, clock_text
from vgpuctl.errors import ClockChange, InvalidInput
from vgpuctl.value import field_names

MAX_SCHEDULES, MAX_PROFILES = 50, 16
MAX_SPEC_BYTES = 1 << 20
MAX_SUBNETS = 50
MAX_PORTS = 20
RDP_SCHEMA: JsonSchema = {
    "type": "object",
    "propertyNames": {"enum": sorted(KEYS)},
    "additionalProperties": {"type": ["integer", "string"]},
}


def _schedule(value: object) -> Schedule:
    given: dict[str, Any] = SCHEDULE_SHAPE.check(value)
    return Schedule(given["days"], given["from"], given["until"], given["spare"], given.get("lead", 0))


def _check_order(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    start, until = fields.get("from"), fields.get("until")
    if not isinstance(start, int) or not isinstance(until, int) or start < until:
        return ()
    text = f"{clock_text(until)} is not after from: {clock_text(start)}"
    if 0 < until < start:
        text += (
            f"; over midnight write it as two: from {clock_text(start)} until 24:00, and on the days after them from "
            f"00:00 until {clock_text(until)}"
        )
    return (Problem(("until",), text),)


_SPARE_SCHEMA = integer_schema(0, MAX_DESKTOPS)
SCHEDULE_SHAPE = Shape(
    "PoolSchedule",
    "At these times another number of desktops is ready; of several that hold, the last one counts.",
    (
        Key(
            "days",
            pool_rules.days,
            "mon to sun, or weekdays, weekend, daily; one or a list",
            nonempty_list_schema(enum_schema((*DAY_NAMES, *pool_rules.DAY_WORDS))),
            required=True,
        ),
        Key("from", pool_rules.clock_time, "local time, like 07:00", pool_rules.CLOCK_SCHEMA, required=True),
        Key("until", pool_rules.clock_time, "local time, at most 24:00", pool_rules.CLOCK_SCHEMA, required=True),
        Key("spare", rules.whole_number(0, MAX_DESKTOPS), "how many are ready", _SPARE_SCHEMA, required=True),
        Key("lead", pool_rules.minutes(0, 1440), "begin so long before from, like 30m", pool_rules.MINUTES_SCHEMA),
    ),
    _check_order,
)


def entries_schema(shape: Shape, most: int) -> JsonSchema:
    """Return the JSON Schema of a list of mappings of one shape, at most so many."""
    entry = {
        "type": "object",
        "description": shape.help,
        "properties": {key.name: {**key.json_schema, "description": key.help} for key in shape.keys},
        "required": [key.name for key in shape.keys if key.required],
        "additionalProperties": False,
    }
    return {"type": "array", "items": entry, "maxItems": most}


POOL_SHAPE = Shape(
    "PoolSpec",
    "A pool of desktops on the hosts of a fleet.",
    (
        Key(
            "kind",
            lambda value: PoolKind(rules.one_of(tuple(PoolKind))(value)),
            "floating: a user gets any desktop, which is refreshed after him; dedicated: a user keeps his; fixed: a "
            "number of VMs without users",
            enum_schema(PoolKind),
            required=True,
        ),
        Key("image", rules.name, "an image of the fleet, by name", pattern_schema(NAME_PATTERN), required=True),
        Key(
            "profile",
            pool_rules.unique_list(rules.allowed_profile, MAX_PROFILES),
            "vGPU profile, one or a list of alternatives, best first (2B fits any GPU model); whole GPUs and VFs have "
            "none: vm: {mode: passthrough}",
            nonempty_list_schema({"minLength": 1, "type": "string"}),
        ),
        Key("vm", pool_vm, POOL_VM_SHAPE.help, nested_shape=POOL_VM_SHAPE),
        Key(
            "names",
            pool_rules.names,
            "the names of the desktops, like office-{:03}; {} is the number",
            {"pattern": r"\{(:0[1-9])?\}", "type": "string"},
            required=True,
        ),
        Key(
            "maximum",
            rules.whole_number(1, MAX_DESKTOPS),
            "how many desktops at most; of a fixed pool: exactly",
            integer_schema(1, MAX_DESKTOPS),
            required=True,
        ),
        Key("spare", rules.whole_number(0, MAX_DESKTOPS), "how many are ready without a user", _SPARE_SCHEMA),
        Key("per_user", rules.whole_number(1, 100), "how many a user may have", integer_schema(1, 100)),
        Key(
            "ready_when",
            pool_rules.ready_when,
            "a desktop can take a user when it is running, its guest answers, or a port of it is open (port 3389)",
            pattern_schema("(running|guest|port( [0-9]{1,5})?)"),
        ),
        Key(
            "boot_minutes",
            pool_rules.minutes(1, 1440),
            "a desktop that is not ready so long after its start has failed",
            pool_rules.MINUTES_SCHEMA,
        ),
        Key(
            "logon",
            lambda value: Logon(rules.one_of(tuple(Logon))(value)),
            "whom the guest lets log on besides its administrators: domain: the desktop's user, whom it knows; local: "
            "the same, with an account that is made in it. It needs the guest helper. Without this key everybody",
            enum_schema(Logon),
        ),
        Key(
            "on_logoff",
            lambda value: OnLogoff(rules.one_of(tuple(OnLogoff))(value)),
            "what happens to a dedicated desktop when its user has logged off",
            enum_schema(OnLogoff),
        ),
        Key(
            "lease_days",
            rules.whole_number(1, 3650),
            "a user's desktop is released after so many days",
            integer_schema(1, 3650),
        ),
        Key(
            "starts_per_host",
            rules.whole_number(1, 100),
            "how many start or are made at a time on one host",
            integer_schema(1, 100),
        ),
        Key(
            "max_unavailable",
            rules.whole_number(0, MAX_DESKTOPS),
            "how many may be unavailable while a new image is rolled out; 0: it is not rolled out",
            _SPARE_SCHEMA,
        ),
        Key(
            "hosts",
            labels,
            "labels that a host must have",
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        Key(
            "placement",
            lambda value: HostChoice(rules.one_of(tuple(HostChoice))(value)),
            "which host gets a new desktop: where least is wasted, where most is free, or any",
            enum_schema(HostChoice),
        ),
        Key("apart", pool_rules.flag, "put the desktops on as many hosts as possible", {"type": "boolean"}),
        Key(
            "prepared",
            pool_rules.flag,
            "each desktop is set up once: its guest shuts down when cloud-init and its driver are done, and a refresh "
            "goes back to that in seconds, with its name, its keys and its membership of a domain",
            {"type": "boolean"},
        ),
        Key(
            "open",
            pool_rules.opening,
            "how users open their desktops: rdp, a file for any RDP client; or a link with {address}, {user}, {name}",
            {"type": "string", "maxLength": pool_rules.MAX_LINK},
        ),
        Key(
            "rdp",
            pool_rules.rdp_keys,
            "keys of the RDP files, like gatewayhostname, or use multimon: 1; clipboard, drives, printers and USB are "
            "off unless set",
            RDP_SCHEMA,
        ),
        Key(
            "addresses",
            pool_rules.unique_list(pool_rules.subnet, MAX_SUBNETS),
            "subnets in which the desktops are: users are shown no other address",
            nonempty_list_schema({"type": "string"}),
        ),
        Key(
            "dns_name",
            pool_rules.dns_name,
            "users are sent to this name in your DNS, like {name}.vdi.example.org, instead of to the address that the "
            "host sees",
            {"pattern": r"\{name\}", "type": "string"},
        ),
        Key(
            "connect",
            pool_rules.unique_list(rules.whole_number(1, 65535), MAX_PORTS),
            "ports to which users connect through the controller: vgpuctl controller connect-desktop; the first is its "
            "default",
            nonempty_list_schema(integer_schema(1, 65535)),
        ),
        Key(
            "console",
            pool_rules.flag,
            "users open the console of theirs, too: who has it starts the VM from its firmware on, and so can become "
            "root in the guest",
            {"type": "boolean"},
        ),
        Key("time_zone", pool_rules.time_zone, "of the schedules, like Europe/Berlin", {"type": "string"}),
        Key(
            "schedules",
            pool_rules.unique_list(_schedule, MAX_SCHEDULES),
            SCHEDULE_SHAPE.help,
            entries_schema(SCHEDULE_SHAPE, MAX_SCHEDULES),
        ),
    ),
    find_pool_contradictions,
)


def parse_pool(source: str | Mapping[str, object], name: str) -> PoolSpec:
    """Read a pool's spec from YAML or JSON text, or from a mapping; `name` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`; of a mapping as `path: what is wrong`.
        ClockChange: a schedule's time is skipped or repeated by summer time.
    """
    from vgpuctl.config import yaml_reader

    document = yaml_reader.load_document(source, name) if isinstance(source, str) else None
    try:
        spec = _spec_of(POOL_SHAPE.check(source if document is None else document.value))
    except ValidationError as error:
        raise _located(document, name, error.problems) from error
    problems = tuple(_clock_problems(spec))
    if problems:
        located = _located(document, name, problems)
        hint = "choose a time outside that hour, or time_zone: UTC"
        raise ClockChange(located.message, hint=hint, **located.facts)
    return spec


def _located(document: Any, name: str, problems: tuple[Problem, ...]) -> InvalidInput:
    from vgpuctl.config import yaml_reader

    if document is not None:
        return yaml_reader.problems_error(name, [yaml_reader.locate_problem(document, entry) for entry in problems])
    shown = [(rules.format_path(entry.path), entry.text) for entry in problems[: yaml_reader.MAX_PROBLEMS]]
    lines = [f"{path}: {text}" if path else text for path, text in shown]
    if len(problems) > len(shown):
        lines.append(f"and {len(problems) - len(shown)} more problems")
    return InvalidInput("\n".join(lines), problems=[{"path": path, "problem": text} for path, text in shown])


def _clock_problems(spec: PoolSpec) -> Iterator[Problem]:
    for number, schedule in enumerate(spec.schedules):
        for key in ("from", "until"):
            text = clock_problem(schedule, key, spec.time_zone)
            if text is not None:
                yield Problem(("schedules", number, key), text)


def _spec_of(given: dict[str, Any]) -> PoolSpec:
    ready, port = given.pop("ready_when", (PoolSpec.ready_when, PoolSpec.port))
    renamed = {"profile": "profiles", "placement": "choice"}
    fields = {renamed.get(key, key): value for key, value in given.items()}
    fields.setdefault("on_logoff", OnLogoff.REFRESH if fields["kind"] is PoolKind.FLOATING else OnLogoff.KEEP)
    return PoolSpec(ready_when=ready, port=port, **fields)


def dump_pool(spec: PoolSpec) -> dict[str, Any]:
    """Return a pool's spec as people write it, without keys that have their defaults; `parse_pool` gives it back."""
    given: dict[str, Any] = {
        "kind": spec.kind.value,
        "image": spec.image,
        "profile": spec.profiles[0] if len(spec.profiles) == 1 else list(spec.profiles),
        "vm": dict(spec.vm),
        "names": spec.names,
        "maximum": spec.maximum,
    }
    if spec.ready_when is not ReadyWhen.RUNNING:
        given["ready_when"] = f"port {spec.port}" if spec.ready_when is ReadyWhen.PORT else spec.ready_when.value
    if spec.kind is PoolKind.DEDICATED and spec.on_logoff is not OnLogoff.KEEP:
        given["on_logoff"] = spec.on_logoff.value
    renamed = {"choice": "placement"}
    written = {"profiles", "ready_when", "port", "on_logoff", *given}
    for name in (name for name in field_names(PoolSpec) if name not in written):
        value = getattr(spec, name)
        if value != getattr(PoolSpec, name):
            given[renamed.get(name, name)] = _plain(value)
    return {key: value for key, value in given.items() if value not in ({}, [])}


def _plain(value: object) -> object:
    if isinstance(value, Schedule):
        entry: dict[str, object] = {"days": pool_rules.day_texts(value.days), "from": clock_text(value.start)}
        entry |= {"until": clock_text(value.until), "spare": value.spare}
        return {**entry, "lead": f"{value.lead_minutes}m"} if value.lead_minutes else entry
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else str(value) if isinstance(value, StrEnum) else value


def refuse_shared_names(name: str, spec: PoolSpec, others: Mapping[str, PoolSpec]) -> None:
    """Refuse names of desktops that another pool could give, too. `others`: the specs of the other pools, by name.

    Raises:
        InvalidInput: there is such a pool.
    """
    for other, its_spec in others.items():
        shared = names_overlap(spec, its_spec)
        if shared is not None:
            raise InvalidInput(
                f"names: {shared} could be a desktop of this pool and of pool {other}",
                hint=f"begin them with something else, such as {name}-{{:03}}",
                pool=other,
            )


def names_overlap(one: PoolSpec, other: PoolSpec) -> str | None:
    """Return a name that desktops of both pools could have; None: there is none."""
    shared = desktop_names(one) & desktop_names(other)
    return min(shared, key=lambda name: (len(name), name), default=None)


def desktop_names(spec: PoolSpec) -> set[str]:
    """Return the names that a pool's desktops can have."""
    return {fill_number(spec.names, number) for number in range(1, spec.maximum + 1)}
