# SPDX-License-Identifier: Apache-2.0
"""How people write a GPU's MIG and scheduler: in host.yaml below a GPU, and as options. One set of rules for both.

Whether a GPU has a profile, or its driver accepts a number, is checked later; these rules only refuse what no driver
could accept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Key, Shape
from vgpuctl.model.gpu import MigSpec
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec

OFF = "off"
MAX_INSTANCES = 16
MAX_VGPUS = 256
SRIOV_KEYS = ("vf_memory", "compute_partition", "memory_partition")
"""Keys of a GPU that only the mode sriov has."""
MODE_KEYS = ("vfs", *SRIOV_KEYS)
"""Keys of a GPU that need a mode. An entry of `gpus:` with a mode takes none of them from a wider entry."""
_INSTANCE = re.compile(r"[1-9][0-9]?g\.[0-9]{1,4}gb([+-][a-z0-9.]+)*|[0-9]{1,3}")
_INSTANCE_EXAMPLE = "a GPU instance profile, like 1g.10gb, or its number, like 19"
MIG_JSON_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": [OFF, False]},
        {
            "type": "array",
            "items": {"type": ["string", "integer"]},
            "minItems": 1,
            "maxItems": MAX_INSTANCES,
        },
        {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_VGPUS},
            "minProperties": 1,
        },
    ]
}

MAX_TIME_SLICE_MS, MAX_PREEMPT_TIMEOUT_US = 100_000, 100_000_000
"""The largest that Intel's firmware takes (guc_klvs_abi.h). A driver's own limits are checked on the GPU."""
MAX_FREQUENCY_HZ, MAX_AVERAGING_FACTOR = 1023, 255
"""The largest values that the registry dword of NVIDIA's driver can hold."""
POLICIES = tuple(str(policy) for policy in SchedulerPolicy)
_ADAPTIVE = ("frequency_hz", "averaging_factor")
_NUMBERS = ("time_slice_ms", *_ADAPTIVE, "preempt_timeout_us")


def parse_mig_spec(value: object) -> MigSpec:
    """Parse a MIG request: `off` (a YAML 1.1 tool writes false), a list of instances, or a mapping of vGPUs.

    Raises:
        ValueError: with every problem.
    """
    if value is False or (isinstance(value, str) and value.lower() == OFF):
        return MigSpec()
    if isinstance(value, list | tuple):
        return MigSpec(_parse_instances(value))
    if isinstance(value, Mapping):
        return MigSpec(vgpus=_parse_vgpus(value))
    raise ValueError(
        f"expected off, a list of GPU instances ([1g.10gb, 3g.40gb]) or a mapping of vGPUs ({{H100-1-10C: 4}}),"
        f" not {str(value).lower() if isinstance(value, bool) else value}"
    )


def dump_mig(spec: MigSpec) -> object:
    """Return a MIG specification as host.yaml writes it."""
    if spec.vgpus:
        return dict(spec.vgpus)
    return list(spec.instances) or OFF


def check_instance_name(value: object) -> str:
    """Check the name or number of a GPU instance profile; `MIG 1g.10gb`, as nvidia-smi prints it, is valid too."""
    text = str(value) if type(value) is int else rules.as_text(value)
    name = text.strip().lower().removeprefix("mig ").strip()
    if not _INSTANCE.fullmatch(name):
        raise ValueError(f"'{text}' is not {_INSTANCE_EXAMPLE}")
    return name


def parse_mig_options(instances: Sequence[str], vgpus: Sequence[str]) -> MigSpec:
    """Parse the arguments: GPU instance profiles or vGPU profiles, each with a number where it is `NAME:N`.

    Raises:
        ValueError: with the first invalid argument.
    """
    counts: dict[str, int] = {}
    for text in vgpus:
        profile, count = _split_vgpus(text)
        counts[profile] = counts.get(profile, 0) + count
    instance_names = [name for text in instances for name in _split_instances(text)]
    if vgpus:
        return parse_mig_spec(counts)
    return parse_mig_spec(instance_names) if instance_names else MigSpec()


def _split_instances(value: str) -> tuple[str, ...]:
    name, colon, count = value.rpartition(":")
    if not colon:
        return (check_instance_name(value),)
    return (check_instance_name(name),) * _parse_count(count, MAX_INSTANCES)


def _split_vgpus(value: str) -> tuple[str, int]:
    name, count = rules.split_profile(value)
    if count > MAX_VGPUS:
        raise ValueError(f"{count} vGPUs of {name} are more than any GPU carries: at most {MAX_VGPUS}")
    return _check_profile(name), count


def check_gpu_keys(given: Mapping[str, object]) -> tuple[Problem, ...]:
    """Return the contradictions among the keys of a GPU."""
    problems = [
        Problem((key,), f"{key} needs the mode sriov, not {given['mode']}")
        for key in SRIOV_KEYS
        if key in given and given.get("mode", "sriov") != "sriov"
    ]
    if given.get("mixed_size") is not True:
        return tuple(problems)
    mig, scheduler = given.get("mig"), given.get("scheduler")
    if isinstance(mig, MigSpec) and mig.is_requested:
        problems.append(Problem(("mixed_size",), "mixed sizes and MIG cannot be combined"))
    if isinstance(scheduler, SchedulerSpec) and scheduler.policy is SchedulerPolicy.FIXED_SHARE:
        text = "mixed sizes allow only best_effort and equal_share, not fixed_share"
        problems.append(Problem(("mixed_size",), text))
    return tuple(problems)


def _parse_instances(value: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("the list is empty: specify at least one GPU instance, or off")
    if len(value) > MAX_INSTANCES:
        raise ValueError(f"these are {len(value)} GPU instances, and no GPU has more than {MAX_INSTANCES}")
    names, problems = [], []
    for number, item in enumerate(value):
        try:
            names.append(check_instance_name(item))
        except ValueError as error:
            problems.append(Problem((number,), str(error)))
    if problems:
        raise ValidationError(tuple(problems))
    return tuple(names)


def _parse_vgpus(value: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    if not value:
        raise ValueError("the mapping is empty: specify at least one vGPU profile, or off")
    requested, problems = [], []
    for name, count in value.items():
        try:
            requested.append((_check_profile(name), rules.whole_number(1, MAX_VGPUS)(count)))
        except ValueError as error:
            problems.append(Problem((str(name),), str(error)))
    if problems:
        raise ValidationError(tuple(problems))
    return tuple(requested)


def _check_profile(name: object) -> str:
    """Check a vGPU profile; a GPU instance profile gets its own message, because the two are easily confused."""
    text = rules.allowed_profile(name)
    if _INSTANCE.fullmatch(text.lower()):
        raise ValueError(f"{text} is a GPU instance profile: write a list, like [{text}, {text}]")
    return text


def _parse_count(text: str, maximum: int) -> int:
    number = parse_integer(text) if text.isdigit() else None
    if number is None or not 1 <= number <= maximum:
        raise ValueError(f"'{text}' after the colon is not a number, 1 to {maximum}")
    return number


def parse_scheduler_spec(value: object) -> SchedulerSpec:
    """Return a scheduler from a mapping of its keys.

    Raises:
        ValidationError: with every problem.
    """
    given: dict[str, Any] = SCHEDULER_SHAPE.check(value)
    return SchedulerSpec(**{**given, "policy": SchedulerPolicy(given["policy"])})


def dump_scheduler(spec: SchedulerSpec) -> dict[str, object]:
    """Return a scheduler as host.yaml writes it: only the keys that are set."""
    numbers = {name: getattr(spec, name) for name in _NUMBERS}
    return {"policy": str(spec.policy), **{name: n for name, n in numbers.items() if n is not None}}


def _check_keys(given: Mapping[str, object]) -> tuple[Problem, ...]:
    numbers = [name for name in _NUMBERS if name in given]
    if given.get("policy") == SchedulerPolicy.BEST_EFFORT and numbers:
        return (Problem((numbers[0],), "best_effort has neither slices nor a frequency nor a timeout"),)
    adaptive = [name for name in numbers if name in _ADAPTIVE]
    if adaptive and "time_slice_ms" in given:
        text = f"a time slice and adaptive round robin ({adaptive[0]}) cannot be combined"
        return (Problem(("time_slice_ms",), text),)
    return ()


def _number_key(name: str, maximum: int, text: str) -> Key:
    return Key(name, rules.whole_number(1, maximum), text, {"minimum": 1, "maximum": maximum, "type": "integer"})


SCHEDULER_SHAPE = Shape(
    "Scheduler",
    "How the driver divides a GPU's time among its vGPUs or plain VFs.",
    (
        Key(
            "policy",
            rules.one_of(POLICIES),
            "best_effort, equal_share or fixed_share",
            {"enum": list(POLICIES), "type": "string"},
            required=True,
        ),
        _number_key("time_slice_ms", MAX_TIME_SLICE_MS, "strict round robin with slices of this length"),
        _number_key("frequency_hz", MAX_FREQUENCY_HZ, "adaptive round robin: turns each second"),
        _number_key(
            "averaging_factor",
            MAX_AVERAGING_FACTOR,
            "adaptive round robin: over how many turns a VM's time is evened out",
        ),
        _number_key(
            "preempt_timeout_us",
            MAX_PREEMPT_TIMEOUT_US,
            "how long a VM may keep the GPU after its slice before the engine is reset (Intel)",
        ),
    ),
    _check_keys,
)
