# SPDX-License-Identifier: Apache-2.0
"""The section `agent:` of host.yaml: what members of the group vgpuctl, who are not root, may use on this host.

What is not listed is not allowed: without the section a member makes no VM with an image, a disk or a network. The
section changes nothing on GPUs, and nothing for root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.agent_metrics import (
    METRICS_SHAPE,
    READER_SHAPE,
    RESERVED_READER_NAMES,
    MetricsSpec,
    dump_reader,
    parse_metrics,
    parse_reader,
)
from vgpuctl.config.alert_thresholds import ALERTS_SHAPE, AlertsSpec, dump_alerts, parse_alerts
from vgpuctl.config.allow_spec import ALLOW_SHAPE, AllowSpec, dump_allow, parse_allow
from vgpuctl.config.event_sinks import SINK_SHAPE, dump_sink, parse_sink
from vgpuctl.config.shape import Key, Rule, Shape, nest_problems
from vgpuctl.config.vm_fields import integer_schema, pattern_schema
from vgpuctl.model.caller import Limits, Rights
from vgpuctl.model.deleted_disk import MAX_KEEP_DAYS
from vgpuctl.model.event import Sink
from vgpuctl.model.numbers import SIZE_PATTERN, format_size, parse_memory_size
from vgpuctl.model.usage import ReaderProgram
from vgpuctl.value import EMPTY_MAPPING, Value, as_dict, field_names, replace

ACCOUNT_RIGHTS = (Rights.OPERATOR.value, Rights.FLEET.value)
ACCOUNT_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}"
"""Names of users, also of a directory service's (`ada@example.org`, `EXAMPLE\\ada`)."""
MAX_COUNT, MAX_REMOVALS = 1_000_000, 1000


class LimitsSpec(Value):
    """How much VMs of members may take. `each_account`: one account; `accounts`: the exceptions, by account.

    `all_accounts`: all accounts together.
    """

    each_account: Limits = Limits()
    all_accounts: Limits = Limits()
    accounts: Mapping[str, Limits] = EMPTY_MAPPING

    def of_account(self, account: str) -> Limits:
        """Return the limits of one account: its own, key by key, else those of each account."""
        own = self.accounts.get(account, Limits())
        keys = field_names(Limits)
        return Limits(
            *(next((v for v in (getattr(own, k), getattr(self.each_account, k)) if v is not None), None) for k in keys)
        )


class AgentSpec(Value):
    """The section `agent:`. `accounts`: operator or fleet, by account; other members of the group are members.

    `notify`: where events are delivered, by a name for the log. `self_healing`: whether the agent by itself fixes what
    `reconcile-host` can fix, and starts VMs after a boot. `metrics`: where they are served on TCP; None: nowhere.
    `readers`: programs that read the use of GPUs, by name. `alerts`: thresholds of the rules that `vgpuctl monitoring`
    prints.
    """

    allow: AllowSpec = AllowSpec()
    accounts: Mapping[str, str] = EMPTY_MAPPING
    limits: LimitsSpec = LimitsSpec()
    notify: Mapping[str, Sink] = EMPTY_MAPPING
    self_healing: bool = True
    metrics: MetricsSpec | None = None
    readers: Mapping[str, ReaderProgram] = EMPTY_MAPPING
    alerts: AlertsSpec = AlertsSpec()


def dump_agent(spec: AgentSpec) -> dict[str, Any]:
    """Return the section as host.yaml writes it, without keys that have their defaults."""
    limits: dict[str, Any] = {
        key: limit for key in ("each_account", "all_accounts") if (limit := _dump_limits(getattr(spec.limits, key)))
    }
    if spec.limits.accounts:
        limits["accounts"] = {account: _dump_limits(limit) for account, limit in spec.limits.accounts.items()}
    notify = {name: dump_sink(sink) for name, sink in spec.notify.items()}
    sections: dict[str, Mapping[str, object]] = {"allow": dump_allow(spec.allow), "accounts": spec.accounts}
    sections |= {"limits": limits, "notify": notify, "alerts": dump_alerts(spec.alerts)}
    given: dict[str, Any] = {key: dict(section) for key, section in sections.items() if section}
    if spec.readers:
        given["readers"] = {name: dump_reader(reader) for name, reader in spec.readers.items()}
    if spec.metrics is not None:
        given["metrics"] = {key: value for key, value in as_dict(spec.metrics).items() if value is not None}
    return given if spec.self_healing else {**given, "self_healing": False}


def flat_agent(spec: AgentSpec) -> dict[str, object]:
    """Return every value of the section by the path of its key, like `allow.folders`."""
    return dict(_flatten("", dump_agent(spec)))


def _flatten(prefix: str, section: Mapping[str, Any]) -> list[tuple[str, object]]:
    values: list[tuple[str, object]] = []
    for key, value in section.items():
        values += _flatten(f"{prefix}{key}.", value) if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return values


def _dump_limits(limits: Limits) -> dict[str, object]:
    values: dict[str, object] = {"vms": limits.vms, "vgpus": limits.vgpus}
    values["gpu_memory"] = None if limits.gpu_memory_mib is None else format_size(limits.gpu_memory_mib)
    values |= {"removals_per_hour": limits.removals_per_hour, "keep_deleted_days": limits.keep_deleted_days}
    return {key: value for key, value in values.items() if value is not None}


def parse_agent(value: object) -> AgentSpec:
    """Check the section."""
    given: dict[str, Any] = AGENT_SHAPE.check(value)
    taken = sorted(RESERVED_READER_NAMES & given.get("readers", {}).keys())
    if taken:
        raise rules.ValidationError((rules.Problem(("readers", taken[0]), "the agent has a source of this name"),))
    readers = {name: replace(reader, name=name) for name, reader in given.pop("readers", {}).items()}
    return AgentSpec(**given, readers=readers)


def _parse_limits_section(value: object) -> LimitsSpec:
    given: dict[str, Any] = LIMITS_SHAPE.check(value)
    return LimitsSpec(**given)


def _parse_limits(value: object) -> Limits:
    return _limits_of(LIMIT_SHAPE, value)


def _parse_account_limits(value: object) -> Limits:
    return _limits_of(ACCOUNT_LIMIT_SHAPE, value)


def _limits_of(shape: Shape, value: object) -> Limits:
    given: dict[str, Any] = shape.check({} if value is None else value)
    per_account = given.get("removals_per_hour"), given.get("keep_deleted_days")
    return Limits(given.get("vms"), given.get("vgpus"), given.get("gpu_memory"), *per_account)


def _account(value: object) -> str:
    text = rules.as_text(value)
    if not re.fullmatch(ACCOUNT_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a user")
    return text


def _gpu_memory(value: object) -> int:
    return parse_memory_size(rules.memory(value))


def _by_account(rule: Rule) -> Rule:
    """Return the rule of a mapping from accounts to values of one rule."""

    def check(value: object) -> dict[str, object]:
        if not isinstance(value, Mapping):
            raise rules.ValidationError((rules.Problem((), "expected a mapping of accounts (name: ...)"),))
        problems: list[rules.Problem] = []
        checked: dict[str, object] = {}
        for account, entry in value.items():
            try:
                checked[_account(account)] = rule(entry)
            except ValueError as error:
                problems += nest_problems(str(account), error)
        if problems:
            raise rules.ValidationError(tuple(problems))
        return checked

    return check


_COUNT_SCHEMA = integer_schema(0, MAX_COUNT)
LIMIT_SHAPE = Shape(
    "AgentLimit",
    "How much VMs may take together; a key that is not set is no limit.",
    (
        Key("vms", rules.whole_number(0, MAX_COUNT), "VMs, whatever their state", _COUNT_SCHEMA),
        Key("vgpus", rules.whole_number(0, MAX_COUNT), "vGPUs, VFs and whole GPUs in them", _COUNT_SCHEMA),
        Key(
            "gpu_memory",
            _gpu_memory,
            "framebuffer of these vGPUs and GPUs",
            {"anyOf": [pattern_schema(SIZE_PATTERN), {"type": "integer"}]},
        ),
    ),
)
ACCOUNT_LIMIT_SHAPE = Shape(
    "AgentAccountLimit",
    LIMIT_SHAPE.help,
    (
        *LIMIT_SHAPE.keys,
        Key(
            "removals_per_hour",
            rules.whole_number(0, MAX_REMOVALS),
            "how many VMs the account may delete or refresh in an hour; 0: none",
            integer_schema(0, MAX_REMOVALS),
        ),
        Key(
            "keep_deleted_days",
            rules.whole_number(1, MAX_KEEP_DAYS),
            "for so many days, disks that the account deletes wait in the bin of their pool",
            integer_schema(1, MAX_KEEP_DAYS),
        ),
    ),
)
LIMITS_SHAPE = Shape(
    "AgentLimits",
    "How much the VMs of members may take. VMs of root do not count.",
    (
        Key("each_account", _parse_account_limits, "the VMs of one account", nested_shape=ACCOUNT_LIMIT_SHAPE),
        Key("all_accounts", _parse_limits, "the VMs of all accounts together", nested_shape=LIMIT_SHAPE),
        Key(
            "accounts",
            _by_account(_parse_account_limits),
            "other limits for these accounts, in place of each_account",
            map_value_shape=ACCOUNT_LIMIT_SHAPE,
        ),
    ),
)
AGENT_SHAPE = Shape(
    "Agent",
    "What members of the group vgpuctl may do through the host agent.",
    (
        Key("allow", parse_allow, "what their VMs may use", nested_shape=ALLOW_SHAPE),
        Key(
            "accounts",
            _by_account(rules.one_of(ACCOUNT_RIGHTS)),
            "members with more rights. operator: may change the VMs of others; fleet: a controller of pools",
            {"type": "object", "additionalProperties": {"enum": list(ACCOUNT_RIGHTS), "type": "string"}},
        ),
        Key(
            "notify",
            _by_account(parse_sink),
            "receivers of events, by name; the agent reads them when it starts",
            map_value_shape=SINK_SHAPE,
        ),
        Key("limits", _parse_limits_section, "how much their VMs may take", nested_shape=LIMITS_SHAPE),
        Key(
            "readers",
            _by_account(parse_reader),
            "programs that read the use of other makers' GPUs, by name",
            map_value_shape=READER_SHAPE,
        ),
        Key(
            "metrics",
            parse_metrics,
            "where metrics are served for Prometheus; the agent reads it when it starts",
            nested_shape=METRICS_SHAPE,
        ),
        Key(
            "self_healing",
            rules.boolean,
            "false: the agent by itself neither fixes problems nor starts VMs after a boot; without the key, it does",
            {"type": "boolean"},
        ),
        Key("alerts", parse_alerts, "thresholds of the rules of 'vgpuctl monitoring'", nested_shape=ALERTS_SHAPE),
    ),
)
