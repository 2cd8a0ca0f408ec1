# SPDX-License-Identifier: Apache-2.0
"""The table of vGPU releases, and what follows from it: releases of drivers, allowed guests, ends, dropped cards."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import check_table
from tests.values import a100
from vgpuctl.makers.nvidia_releases import (
    FIRST_UNKNOWN_BRANCH,
    LAST_RELEASES,
    RELEASES,
    TABLE_DATE,
    Architecture,
    GuestFit,
    Support,
    find_architecture,
    find_release,
    rate_guest,
    release_name,
    support_end,
    support_of,
)
from vgpuctl.model.vgpu_scheduler import GpuScheduler

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "nvidia-releases.md"
SUPPORTED, OLD, TOO_NEW, UNKNOWN = GuestFit
BRANCHES = st.integers(RELEASES[0].first_branch, FIRST_UNKNOWN_BRANCH - 1)
DRIVERS = st.builds("{}.{}.{:02}".format, BRANCHES, st.integers(0, 300), st.integers(0, 99))
MINORS = [(release, minor) for release in RELEASES for minor in release.minors]


@pytest.mark.parametrize(
    ("driver", "number", "name"),
    [
        ("580.178.05", 19, "19.6"),
        ("580.178.04", 19, "19.6"),
        ("582.78", 19, "19.6"),
        ("580.126.08", 19, "19.4"),
        ("580.129.08", 19, "19.4"),
        ("582.16", 19, "19.4"),
        ("580.105.06", 19, "19"),
        ("539.72", 16, "16.14"),
        ("596.86", 20, "20.2"),
        ("595.45.04", 20, "20"),
        ("570.211.01", 18, "18.6"),
        ("573.96", 18, "18.6"),
        ("551.61", 17, "17"),
        ("450.51.05", 11, "11"),
        ("449.1", None, None),
        ("600.1", None, None),
        ("620.10.01", None, None),
        ("Not Available", None, None),
        ("", None, None),
        ("-580.1", None, None),
    ],
)
def test_the_release_is_that_of_the_branch_and_its_name_that_of_the_exact_driver(driver, number, name):
    release = find_release(driver)
    assert (None if release is None else release.number) == number
    assert release_name(driver) == name


@pytest.mark.parametrize(
    ("host", "guest", "fit"),
    [
        ("580.178.05", "580.178.04", SUPPORTED),  # one release: the numbers differ
        ("580.178.05", "580.65.06", SUPPORTED),  # another release of the same major
        ("580.65.05", "580.178.04", SUPPORTED),
        ("580.159.01", "582.53", SUPPORTED),
        ("580.65.05", "573.96", SUPPORTED),  # the major before
        ("580.65.05", "539.72", SUPPORTED),  # the long-term support before: 19 with 16
        ("580.65.05", "550.90.07", OLD),
        ("580.65.05", "474.44", OLD),
        ("570.211.01", "535.309.01", OLD),  # nor has 18
        ("595.71.03", "580.159.03", SUPPORTED),
        ("595.71.03", "539.72", OLD),  # 20 has no long-term support
        ("595.71.03", "573.96", OLD),
        ("535.309.01", "474.44", SUPPORTED),
        ("535.54.06", "550.54.14", TOO_NEW),
        ("550.90.05", "572.60", TOO_NEW),
        ("580.178.05", "596.36", TOO_NEW),
        ("550.54.10", "553.62", SUPPORTED),
        ("550.90.05", "529.19", OLD),
        ("620.1.2", "620.4.5", SUPPORTED),  # one branch, whatever its release is called
        ("620.1.2", "580.65.06", UNKNOWN),
        ("580.65.05", "620.4.5", UNKNOWN),
        ("580.65.05", "nonsense", UNKNOWN),
    ],
)
def test_which_guest_a_host_allows(host, guest, fit):
    assert rate_guest(host, guest) is fit


@given(DRIVERS, DRIVERS)
def test_a_guest_is_too_new_exactly_when_its_release_is(host, guest):
    host_release, guest_release = find_release(host), find_release(guest)
    assert host_release is not None
    assert guest_release is not None
    fit = rate_guest(host, guest)
    assert (fit is TOO_NEW) is (guest_release.number > host_release.number)
    assert host_release.number - guest_release.number not in (0, 1) or fit is SUPPORTED
    assert rate_guest(host, host) is SUPPORTED


@given(DRIVERS, st.integers(0, 300))
def test_only_the_branch_decides_and_never_the_order_of_numbers(driver, other):
    branch = driver.partition(".")[0]
    assert rate_guest(driver, f"{branch}.{other}") is SUPPORTED
    assert find_release(f"{branch}.{other}") is find_release(driver)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_unknown_and_no_error(host, guest):
    assert rate_guest(host, guest) in (SUPPORTED, UNKNOWN, OLD, TOO_NEW)
    assert find_release(host) is None or release_name(host) is not None


@pytest.mark.parametrize(("release", "minor"), MINORS, ids=[minor.name for _, minor in MINORS])
def test_the_drivers_of_a_minor_release_belong_together(release, minor):
    for driver in (minor.manager, minor.linux, minor.windows):
        assert find_release(driver) is release
        assert release_name(driver) == minor.name
        assert rate_guest(minor.manager, driver) is SUPPORTED
    assert minor.name.partition(".")[0] == str(release.number)
    assert minor.source


def test_releases_are_in_order_and_none_is_left_out():
    assert [release.number for release in RELEASES] == [*range(11, RELEASES[-1].number + 1)]
    assert [release.first_branch for release in RELEASES] == sorted({release.first_branch for release in RELEASES})
    assert [release.number for release in RELEASES if release.long_term] == [11, 13, 16, 19]
    assert all(release.source and release.end_text for release in RELEASES)


@pytest.mark.parametrize(
    ("number", "support"),
    [(16, Support.OVER), (17, Support.OVER), (18, Support.OVER), (19, Support.SUPPORTED), (20, Support.ENDS_SOON)],
)
def test_what_is_supported_on_the_day_of_the_table(number, support):
    release = next(release for release in RELEASES if release.number == number)
    assert support_of(release, TABLE_DATE) is support


@given(st.sampled_from(RELEASES), st.dates(date(2020, 1, 1), date(2040, 1, 1)), st.integers(0, 2000))
def test_support_only_ends(release, day, days):
    order = [Support.SUPPORTED, Support.ENDS_SOON, Support.OVER]
    assert order.index(support_of(release, day)) <= order.index(support_of(release, day + timedelta(days)))


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        (a100(device_id="1db6"), Architecture.VOLTA),
        (a100(device_id="1df6"), Architecture.VOLTA),
        (a100(device_id="1b38"), Architecture.PASCAL),
        (a100(device_id="13bd"), Architecture.MAXWELL),
        (a100(device_id="1eb8"), None),
        (a100(device_id=None), None),
        (a100(device_id="1db6", scheduler=GpuScheduler(architecture=7)), None),
        (a100(device_id="20f1", scheduler=GpuScheduler(architecture=4)), Architecture.PASCAL),
    ],
)
def test_the_architecture_is_what_nvml_says_else_that_of_the_device(gpu, architecture):
    assert find_architecture(gpu) is architecture


def test_the_support_of_a_driver_ends_with_the_last_day_of_its_release():
    assert support_end("595.71.03") == datetime(2027, 4, 1, tzinfo=UTC).timestamp()
    assert support_end("620.10.01") is support_end("") is None


def test_the_last_release_of_each_dropped_architecture():
    assert {a: number for a, (number, _) in LAST_RELEASES.items()} == {
        Architecture.MAXWELL: 16,
        Architecture.PASCAL: 16,
        Architecture.VOLTA: 19,
    }


def test_the_page_has_the_table() -> None:
    shown = [release for release in RELEASES if release.number >= min(number for number, _ in LAST_RELEASES.values())]
    check_table(
        PAGE,
        ("vGPU", "branch", "support ends", "drivers seen: host, Linux guest, Windows guest", "last for"),
        (
            (
                f"{release.number}{' LTS' if release.long_term else ''}",
                f"R{release.first_branch}",
                release.end_text,
                "<br>".join(
                    f"{m.name}: {m.manager}, {m.linux}, {m.windows}{'' if m.sure else ' (unconfirmed)'}"
                    for m in release.minors
                )
                or "-",
                ", ".join(a for a, (number, _) in LAST_RELEASES.items() if number == release.number) or "-",
            )
            for release in shown
        ),
    )
    assert f"as of {TABLE_DATE}" in PAGE.read_text(encoding="utf-8")
