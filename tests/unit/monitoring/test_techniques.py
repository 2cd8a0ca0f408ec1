# SPDX-License-Identifier: Apache-2.0
"""The table of techniques is complete: each pair with a workload once, ranked by its fit, with sources."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.tables import check_table
from vgpuctl.config import arguments
from vgpuctl.model.results.techniques import Degree, Fit
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.monitoring.techniques import FITS, TECHNIQUES, WORKLOADS, Need

WORST_LAST = tuple(Fit)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "techniques.md"
SIGNS = dict(zip((*Fit, *Degree), ("++", "+", "-", "×", "●", "◐", "○"), strict=True))


def test_the_command_line_knows_every_workload() -> None:
    assert arguments.WORKLOADS == tuple(WORKLOADS) == tuple(FITS)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_technique_has_one_row_and_better_fits_come_first(workload: str) -> None:
    rows = FITS[workload]
    assert sorted(row.technique for row in rows) == sorted(TECHNIQUES)
    assert [row.fit for row in rows] == sorted((row.fit for row in rows), key=WORST_LAST.index)
    assert rows[0].fit is Fit.GOOD
    assert all(row.reason for row in rows)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_each_technique_says_what_it_needs_what_it_cannot_do_and_who_says_so(name: str) -> None:
    technique = TECHNIQUES[name]
    assert technique.limits
    assert technique.needs
    assert technique.sources
    for source in technique.sources:
        assert urlparse(source).scheme == "https" or source.startswith(("NVIDIA: ", "Huawei: ", "Linux: ")), source


def test_the_policies_of_the_driver_have_a_technique_each() -> None:
    by_policy = {t.policy: t for t in TECHNIQUES.values() if t.policy is not None}
    assert by_policy.keys() == set(SchedulerPolicy)
    assert all(Need.SCHEDULER in t.needs for t in by_policy.values())


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("vgpu-best-effort", (Degree.FULL, Degree.NONE, Degree.PARTIAL)),
        ("vgpu-fixed-share", (Degree.FULL, Degree.PARTIAL, Degree.PARTIAL)),
        ("mig-backed", (Degree.FULL, Degree.FULL, Degree.FULL)),
        ("whole-gpu", (Degree.FULL, Degree.FULL, Degree.FULL)),
        ("time-slicing-in-guest", (Degree.NONE, Degree.NONE, Degree.NONE)),
        ("mps-in-guest", (Degree.PARTIAL, Degree.PARTIAL, Degree.NONE)),
        ("virtio-gpu", (Degree.NONE, Degree.NONE, Degree.NONE)),
    ],
)
def test_what_the_makers_say_about_isolation(name: str, degrees: tuple[Degree, ...]) -> None:
    isolation = TECHNIQUES[name].isolation
    assert (isolation.memory.degree, isolation.compute.degree, isolation.faults.degree) == degrees


def test_it_is_said_which_schedulers_of_other_makers_vgpuctl_sets() -> None:
    assert "vgpuctl sets those of xe, from Linux 6.19 on" in TECHNIQUES["sriov"].isolation.compute.text
    limits = TECHNIQUES["vgpu-other-maker"].limits
    assert any("a scheduler for Moore Threads alone" in limit for limit in limits)
    assert not any("cannot change its scheduler" in limit for limit in limits)


def test_the_page_has_the_table() -> None:
    fits = {(workload, row.technique): row.fit for workload, rows in FITS.items() for row in rows}
    check_table(
        PAGE,
        ("technique", "memory", "compute", "faults", *WORKLOADS),
        (
            (
                technique.title,
                SIGNS[technique.isolation.memory.degree],
                SIGNS[technique.isolation.compute.degree],
                SIGNS[technique.isolation.faults.degree],
                *(SIGNS[fits[workload, name]] for workload in WORKLOADS),
            )
            for name, technique in TECHNIQUES.items()
        ),
    )
