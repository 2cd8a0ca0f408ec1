# SPDX-License-Identifier: Apache-2.0
"""Compares the references with exhaustive search, on few GPUs and few requests."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from random import Random

import pytest

from tests.bench.placement.bounds import Packing, offline_gib, with_free_migration
from tests.bench.placement.figures import H100_MIG, PRO_6000_MOST, divided, halved
from tests.bench.placement.fleets import SETTINGS, Setting, counts_of, kind_of
from tests.bench.placement.requests import sizes_gib
from vgpuctl.gpu.gpu_kind import GpuKind


def fits_somehow(kinds: list[GpuKind], wanted: tuple[tuple[str, int], ...]) -> bool:
    """Try every division of the wanted vGPUs among the GPUs; return whether one fits."""

    @cache
    def rest_fits(gpu: int, left: tuple[int, ...]) -> bool:
        if not any(left):
            return True
        if gpu == len(kinds):
            return False
        return any(
            kinds[gpu].fits(kinds[gpu].empty, dict(zip(names, part, strict=True)))
            and rest_fits(gpu + 1, tuple(n - p for n, p in zip(left, part, strict=True)))
            for part in product(*(range(n + 1) for n in left))
        )

    names = [profile for profile, _ in wanted]
    return rest_fits(0, tuple(number for _, number in wanted))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
@pytest.mark.parametrize("seed", range(4))
def test_free_migration_admits_what_exhaustive_search_admits(setting: Setting, seed: int) -> None:
    gpus = 2
    random = Random(f"{setting.name} {seed}")
    large = sorted(setting.demand, key=lambda p: -sizes_gib(setting)[p])[:4]
    requests = [random.choice(large) for _ in range(14)]
    packing = Packing(setting.cards, counts_of(setting, gpus), sorted(setting.demand))
    kinds = [kind_of(card) for card, n in zip(setting.cards, counts_of(setting, gpus), strict=True) for _ in range(n)]
    admitted: Counter[str] = Counter()
    expected = []
    for profile in requests:
        with_next = admitted + Counter([profile])
        expected.append(fits_somehow(kinds, tuple(sorted(with_next.items()))))
        admitted = with_next if expected[-1] else admitted
    assert with_free_migration(packing, requests) == expected
    assert packing.unproved == 0
    sizes = sizes_gib(setting)
    assert offline_gib(packing, sizes, requests) >= sum(sizes[p] * n for p, n in admitted.items()) - 1e-6


def test_offline_bound_is_the_best_choice_on_one_gpu() -> None:
    packing = Packing([H100_MIG], [1], sorted(H100_MIG.sizes))
    assert offline_gib(packing, H100_MIG.sizes, ["1g"] * 8) == pytest.approx(70)
    assert offline_gib(packing, H100_MIG.sizes, ["3g", "3g", "1g"]) == pytest.approx(80)
    assert offline_gib(packing, H100_MIG.sizes, ["2g"] * 4 + ["1g.20gb"]) == pytest.approx(80)


def test_placement_ids_follow_the_driver() -> None:
    """The expected values are for A40 and H100-80 (kernel_vgpu_mgr.c; the user guide's tables have their counts)."""
    assert halved(48, 8, 6) == (0, 16, 24, 40)
    assert halved(48, 16, 3) == (0, 32)
    assert halved(48, 4, 12) == (0, 8, 12, 20, 24, 32, 36, 44)
    assert halved(80, 8, 10) == (0, 12, 20, 32, 40, 52, 60, 72)
    assert halved(80, 4, 20) == (0, 6, 10, 16, 20, 26, 30, 36, 40, 46, 50, 56, 60, 66, 70, 76)
    assert halved(48, 12, 4) == (0, 12, 24, 36)
    assert divided(96, PRO_6000_MOST["2Q"])[:3] == (0, 3, 6)
    assert divided(96, PRO_6000_MOST["16Q"]) == (0, 16, 32, 48, 64, 80)
