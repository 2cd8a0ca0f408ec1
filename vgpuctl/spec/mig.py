# SPDX-License-Identifier: Apache-2.0
"""How people write MIG: in host.yaml below a GPU, and as arguments. One set of rules for both.

Which profiles a GPU has is judged by what its driver says; here only what no driver can mean is kept out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.model.digits import whole
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.spec import rules
from vgpuctl.spec.rules import Problem, Refused

OFF = "off"
MOST_INSTANCES = 16
MOST_VGPUS = 256
_INSTANCE = re.compile(r"[1-9][0-9]?g\.[0-9]{1,4}gb([+-][a-z0-9.]+)*|[0-9]{1,3}")
_LIKE = "a GPU instance profile, like 1g.10gb, or its number, like 19"
MIG_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": [OFF, False]},
        {
            "type": "array",
            "items": {"type": ["string", "integer"]},
            "minItems": 1,
            "maxItems": MOST_INSTANCES,
        },
        {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MOST_VGPUS},
            "minProperties": 1,
        },
    ]
}


def mig_spec(value: object) -> MigSpec:
    """Return MIG as it is asked for: `off` (a YAML 1.1 tool writes false), a list of instances, a mapping of vGPUs.

    Raises:
        ValueError: with every problem.
    """
    if value is False or (isinstance(value, str) and value.lower() == OFF):
        return MigSpec()
    if isinstance(value, list | tuple):
        return MigSpec(_instances(value))
    if isinstance(value, Mapping):
        return MigSpec(vgpus=_vgpus(value))
    raise ValueError(
        f"off, a list of GPU instances ([1g.10gb, 3g.40gb]) or a mapping of vGPUs ({{H100-1-10C: 4}}) is due here,"
        f" not {str(value).lower() if isinstance(value, bool) else value}"
    )


def mig_value(spec: MigSpec) -> object:
    """Return MIG as it is written."""
    if spec.vgpus:
        return dict(spec.vgpus)
    return list(spec.instances) or OFF


def instance_name(value: object) -> str:
    """Check the name or number of a GPU instance profile; `MIG 1g.10gb`, as nvidia-smi prints it, is one too."""
    text = str(value) if type(value) is int else rules.as_text(value)
    name = text.strip().lower().removeprefix("mig ").strip()
    if not _INSTANCE.fullmatch(name):
        raise ValueError(f"'{text}' is not {_LIKE}")
    return name


def typed_mig(instances: Sequence[str], vgpus: Sequence[str]) -> MigSpec:
    """Return what was typed: GPU instance profiles or vGPU profiles, each with a number where it is `NAME:N`.

    Raises:
        ValueError: naming the first that cannot be meant.
    """
    counts: dict[str, int] = {}
    for text in vgpus:
        profile, count = _counted_vgpus(text)
        counts[profile] = counts.get(profile, 0) + count
    named = [name for text in instances for name in _counted_instances(text)]
    if vgpus:
        return mig_spec(counts)
    return mig_spec(named) if named else MigSpec()


def _counted_instances(value: str) -> tuple[str, ...]:
    name, colon, count = value.rpartition(":")
    if not colon:
        return (instance_name(value),)
    return (instance_name(name),) * _number(count, MOST_INSTANCES)


def _counted_vgpus(value: str) -> tuple[str, int]:
    name, count = rules.split_profile(value)
    if count > MOST_VGPUS:
        raise ValueError(f"{count} vGPUs of {name} are more than any GPU carries: at most {MOST_VGPUS}")
    return _profile(name), count


def together(given: Mapping[str, object]) -> tuple[Problem, ...]:
    """Return what contradicts itself among the keys of a GPU."""
    if given.get("mixed_size") is not True:
        return ()
    found = []
    mig, scheduler = given.get("mig"), given.get("scheduler")
    if isinstance(mig, MigSpec) and mig.on:
        found.append(Problem(("mixed_size",), "mixed sizes and MIG exclude each other"))
    if isinstance(scheduler, SchedulerSpec) and scheduler.policy is Policy.FIXED_SHARE:
        text = "with mixed sizes there is best_effort and equal_share only, no fixed_share"
        found.append(Problem(("mixed_size",), text))
    return tuple(found)


def _instances(value: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("the list is empty: name at least one GPU instance, or write off")
    if len(value) > MOST_INSTANCES:
        raise ValueError(f"these are {len(value)} GPU instances, and no GPU has more than {MOST_INSTANCES}")
    names, found = [], []
    for number, item in enumerate(value):
        try:
            names.append(instance_name(item))
        except ValueError as error:
            found.append(Problem((number,), str(error)))
    if found:
        raise Refused(tuple(found))
    return tuple(names)


def _vgpus(value: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    if not value:
        raise ValueError("the mapping is empty: name at least one vGPU profile, or write off")
    wanted, found = [], []
    for name, count in value.items():
        try:
            wanted.append((_profile(name), rules.whole_number(1, MOST_VGPUS)(count)))
        except ValueError as error:
            found.append(Problem((str(name),), str(error)))
    if found:
        raise Refused(tuple(found))
    return tuple(wanted)


def _profile(name: object) -> str:
    """Check a vGPU profile; the name of an instance is told apart, for the two are easily mistaken."""
    text = rules.allowed_profile(name)
    if _INSTANCE.fullmatch(text.lower()):
        raise ValueError(f"{text} is a GPU instance profile: those come as a list, as in [{text}, {text}]")
    return text


def _number(text: str, most: int) -> int:
    number = whole(text) if text.isdigit() else None
    if number is None or not 1 <= number <= most:
        raise ValueError(f"'{text}' after the colon is not a number, 1 to {most}")
    return number
