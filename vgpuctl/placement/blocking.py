# SPDX-License-Identifier: Apache-2.0
"""The fewest vGPUs that have to leave a GPU so that one more fits there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind, State

Allocated = tuple[str, int]
"""The profile of a vGPU, and its place."""


def find_fewest_blocking(
    kind: GpuKind, state: State, allocated: Sequence[Allocated], profile: str
) -> tuple[int, ...] | None:
    """Return the fewest of these vGPUs, by number, without which one more of the profile fits on a GPU.

    Empty when it fits as it is; None when it would not fit even without all of them.
    """
    empty = _without(kind, state, allocated)
    candidates = [
        blocking
        for placement in kind.all_placements(empty, profile)
        for blocking in _blocking_at(kind, state, allocated, profile, placement.place)
    ]
    return min(candidates, key=lambda numbers: (len(numbers), numbers), default=None)


def _blocking_at(
    kind: GpuKind, state: State, allocated: Sequence[Allocated], profile: str, place: int
) -> Iterator[tuple[int, ...]]:
    """Yield the fewest vGPUs without which one place is free, in the first way there is.

    All that cannot be beside it have to leave, and of the others as few as possible: those use what a GPU has only so
    much of, such as VFs.
    """
    empty = _without(kind, state, allocated)
    excluding = [
        number for number, vgpu in enumerate(allocated) if not _fit_beside(kind, empty, vgpu, (profile, place))
    ]
    rest = tuple(sorted(vgpu for number, vgpu in enumerate(allocated) if number not in excluding))
    remaining = _without(kind, state, [allocated[number] for number in excluding])
    for count in range(len(rest) + 1):
        for chosen in _distinct_subsets(rest, count):
            if kind.add(_without(kind, remaining, chosen), profile, place) is None:
                continue
            leaving = list(excluding)
            for vgpu in chosen:
                leaving.append(next(n for n, other in enumerate(allocated) if other == vgpu and n not in leaving))
            yield tuple(sorted(leaving))
            return


def _distinct_subsets(vgpus: tuple[Allocated, ...], number: int) -> Iterator[tuple[Allocated, ...]]:
    """Yield every distinct subset of this size; the input is sorted."""
    if not number:
        yield ()
        return
    for n, first in enumerate(vgpus[: len(vgpus) - number + 1]):
        if n and vgpus[n - 1] == first:
            continue
        for others in _distinct_subsets(vgpus[n + 1 :], number - 1):
            yield (first, *others)


def _fit_beside(kind: GpuKind, empty: State, one: Allocated, other: Allocated) -> bool:
    with_one = kind.add(empty, *one)
    return with_one is not None and kind.add(with_one, *other) is not None


def _without(kind: GpuKind, state: State, vgpus: Sequence[Allocated]) -> State:
    for profile, place in vgpus:
        state = kind.remove(state, profile, place)
    return state
