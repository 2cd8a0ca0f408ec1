# SPDX-License-Identifier: Apache-2.0
"""GPU kinds and their states as data, so that a controller counts what its hosts count.

    rule, state = rule_of(kind), data_of_state(kind, state)
    kind = kind_of(rule)
    kind.count_remaining(state_of(rule, state), profile)

What comes from another machine is checked: whatever it says costs little memory and time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.slice_kind import COUNT_BITS, MAX_UNITS, Footprint, SliceKind
from vgpuctl.model.host_room import DivisionRule, ProfileRule

SLICES, ONE_SIZE, INSTANCES = "slices", "one-size", "instances"
MAX_PROFILES, MAX_SLICES, MAX_POOLS, MAX_INSTANCES = 250, 256, 250, 64
MAX_STARTS = 4000
"""So many places all profiles of a rule have together: each is weighed for each vGPU."""
_NAME = re.compile(r"[!-~]{1,100}", re.ASCII)
MAX_MIB = 1 << 40
_MAX_STATE_DIGITS = (MAX_SLICES + MAX_POOLS * COUNT_BITS) // 4

StateData = tuple[int | str, ...]


def rule_of(kind: GpuKind) -> DivisionRule:
    """Return a kind as data."""
    if isinstance(kind, SliceKind):
        return _slice_rule(kind)
    if isinstance(kind, EqualSizeKind):
        profiles = [
            ProfileRule(profile, kind.sizes[profile], maximum=count) for profile, count in kind.max_vgpus.items()
        ]
        return DivisionRule(ONE_SIZE, kind.name, kind.framebuffer_mib, tuple(profiles), one_type=kind.one_type)
    if isinstance(kind, SharedInstanceKind):
        needs = [
            ProfileRule(p, kind.sizes[p], maximum=need.max_vgpus, instance_profile=need.gi_profile_id)
            for p, need in kind.needs.items()
        ]
        return DivisionRule(
            INSTANCES,
            kind.name,
            kind.framebuffer_mib,
            tuple(needs),
            instances=kind.instances,
            carriers=kind.carriers,
        )
    raise TypeError(f"{kind} has no rule")


def _slice_rule(kind: SliceKind) -> DivisionRule:
    profiles = [
        ProfileRule(
            profile,
            kind.sizes.get(profile, 0),
            starts=tuple(footprint.starts),
            size=footprint.size,
            units=tuple(tuple(pair) for pair in footprint.units),
        )
        for profile, footprint in kind.footprints.items()
    ]
    return DivisionRule(
        SLICES, kind.name, kind.framebuffer_mib, tuple(profiles), slices=kind.slices, pools=tuple(kind.pools)
    )


def kind_of(rule: DivisionRule) -> GpuKind:
    """Return the kind that a rule describes.

    Raises:
        ValueError: it describes none.
    """
    _require(len(rule.profiles) <= MAX_PROFILES, f"{len(rule.profiles)} profiles")
    _require_each((rule.framebuffer_mib, *(one.framebuffer_mib for one in rule.profiles)), MAX_MIB)
    profiles = sorted(rule.profiles, key=lambda one: one.profile)
    sizes = {one.profile: one.framebuffer_mib for one in profiles}
    _require(len(sizes) == len(profiles), "a profile twice")
    _require(all(_NAME.fullmatch(name) for name in sizes), "a name that no profile has")
    if rule.form == SLICES:
        return _slice_kind(rule, profiles, sizes)
    _require_each((one.maximum for one in profiles), MAX_UNITS)
    if rule.form == ONE_SIZE:
        maxima = {one.profile: one.maximum for one in profiles}
        return EqualSizeKind(rule.name, rule.framebuffer_mib, sizes, maxima, one_type=rule.one_type)
    _require(rule.form == INSTANCES, f"the form {rule.form[:40]}")
    _require(len(rule.instances) <= MAX_INSTANCES, f"{len(rule.instances)} GPU instances")
    _require_each((rule.carriers,), MAX_UNITS)
    needs = {one.profile: InstanceNeed(one.instance_profile, max(one.maximum, 1)) for one in profiles}
    return SharedInstanceKind(
        rule.name, rule.framebuffer_mib, sizes, needs, instances=rule.instances, carriers=rule.carriers
    )


def _slice_kind(rule: DivisionRule, profiles: Sequence[ProfileRule], sizes: dict[str, int]) -> SliceKind:
    _require(0 <= rule.slices <= MAX_SLICES, f"{rule.slices} slices")
    _require(len(rule.pools) <= MAX_POOLS, f"{len(rule.pools)} pools")
    _require_each(rule.pools, MAX_UNITS)
    starts = sum(len(one.starts) for one in profiles)
    _require(starts <= MAX_STARTS, f"{starts} starts")
    footprints: dict[str, Footprint] = {}
    for one in profiles:
        _require_each(one.starts, rule.slices)
        _require(all(start + one.size <= rule.slices for start in one.starts), "slices beyond the last")
        _require(0 <= one.size <= rule.slices and bool(one.starts) == bool(one.size), f"{one.size} slices")
        units: list[tuple[int, int]] = []
        for pair in one.units:
            _require(len(pair) == 2 and 0 <= pair[0] < len(rule.pools) and 1 <= pair[1] <= MAX_UNITS, "units")
            units.append((pair[0], pair[1]))
        _require(bool(one.starts) or bool(units), "a profile that takes nothing")
        footprints[one.profile] = Footprint(tuple(one.starts), one.size, tuple(units))
    return SliceKind(rule.name, rule.framebuffer_mib, sizes, footprints, slices=rule.slices, pools=rule.pools)


def data_of_state(kind: GpuKind, state: State) -> StateData:
    """Return a state of a kind as data."""
    if isinstance(kind, SliceKind):
        return (f"{state:x}",)
    count, rest = state
    return (count, *(number for pair in rest for number in pair)) if isinstance(kind, SharedInstanceKind) else state


def state_of(rule: DivisionRule, data: StateData) -> State:
    """Return the state that data describe.

    Raises:
        ValueError: they describe none of this rule's.
    """
    if rule.form == SLICES:
        text = data[0] if len(data) == 1 else ""
        _require(isinstance(text, str) and 0 < len(text) <= _MAX_STATE_DIGITS, "a state of another form")
        state = int(str(text), 16)
        _require(0 <= state < 1 << (rule.slices + len(rule.pools) * COUNT_BITS), "a state beyond the last slice")
        return state
    if rule.form == ONE_SIZE:
        _require(len(data) == 2 and isinstance(data[1], int) and 0 <= data[1] <= MAX_UNITS, "a state of another form")
        return (data[0], data[1])
    numbers = [number for number in data if isinstance(number, int) and 0 <= number <= MAX_MIB]
    _require(len(numbers) == len(data) == 1 + 2 * len(rule.instances), "a state of another form")
    return (numbers[0], tuple(zip(numbers[1::2], numbers[2::2], strict=True)))


def _require_each(numbers: Iterable[int], most: int) -> None:
    for number in numbers:
        _require(0 <= number <= most, str(number))


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(what)
