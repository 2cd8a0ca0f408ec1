# SPDX-License-Identifier: Apache-2.0
"""Advice by the history on a simulated host: profiles of a series, idle VMs, consumption; without a history."""

from __future__ import annotations

from pathlib import Path

import lxml.html
import pytest

from tests.callers import host_of
from tests.hosts import EagerClock, SimulatedHost, open_sim_host
from vgpuctl.errors import HostCannot
from vgpuctl.library import GpuHost
from vgpuctl.model.usage import EngineUse
from vgpuctl.model.usage_history import DAY_SECONDS, SizeVerdict
from vgpuctl.operations.usage import read_usage
from vgpuctl.value import replace

LIVELY = """
version: 1
gpus: [{model: L40S, count: 2}]
nvidia: {guest_driver: "550.90.07"}
"""
START = 1_790_000_000 // DAY_SECONDS * DAY_SECONDS
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A host with two VMs that run, one of ada and one of bob."""
    host = open_sim_host(tmp_path, text=LIVELY, clock=EagerClock(START))
    for name, owner, team in (("small", "ada", "cad"), ("full", "bob", "cad")):
        host_of(host, None).create_vm(name, profile="L40S-8Q", owner=owner, labels={"team": team})
    return host


def use_for(host: SimulatedHost, days: int, *, sm: float = 0.2) -> GpuHost:
    """Have both VMs use their vGPUs for days: `small` 1 GiB, `full` 7.5 GiB."""
    history, usage = host.ports.usage_history, read_usage(host.ports).data
    assert history is not None
    used = {"small": 1 * GIB, "full": 15 * GIB // 2}
    for minute in range(0, days * 24 * 60, 5):
        rows = [
            replace(row, use=replace(row.use, memory_used_bytes=used[row.vm], engines=EngineUse(sm=sm)))
            for row in usage.vgpus
            if row.use is not None and row.vm is not None
        ]
        for second in range(0, 240, 60) if minute % 60 == 0 else (0,):
            history.add(replace(usage, time=START + 60.0 * minute + second, vgpus=tuple(rows)))
    history.flush()
    host.ports.clock.seconds = START + days * DAY_SECONDS  # type: ignore[attr-defined]
    return host_of(host, None)


def test_profiles_of_the_series_are_advised(host: SimulatedHost) -> None:
    data = use_for(host, 12).advise_sizes().data
    by_name = {row.vm: row for row in data.sizes}
    small, full = by_name["small"], by_name["full"]
    assert (small.verdict, small.advised_profile, small.frees_mib) == (SizeVerdict.SMALLER, "L40S-2Q", 6144)
    assert small.command == "vgpuctl set-vm small --profile L40S-2Q --drain"
    assert (small.days, small.confidence, small.peak_memory_bytes) == (12, "low", GIB)
    assert (full.verdict, full.advised_profile, full.frees_mib) == (SizeVerdict.LARGER, "L40S-12Q", -4096)
    assert data.days == 12


def test_the_commands_run_as_they_are_shown(host: SimulatedHost) -> None:
    calls = use_for(host, 12)
    calls.stop_vm("small")
    command = next(row.command for row in calls.advise_sizes().data.sizes if row.vm == "small")
    assert command == "vgpuctl set-vm small --profile L40S-2Q"
    assert calls.set_vm("small", profile="L40S-2Q").data.vgpus[0].profile == "L40S-2Q"


def test_a_vm_with_two_vgpus_keeps_both(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=LIVELY, clock=EagerClock(START))
    host_of(host, None).create_vm("small", profile="L40S-8Q:2")
    rows = use_for(host, 12).advise_sizes().data.sizes
    assert [(row.index, row.advised_profile) for row in rows] == [(0, "L40S-2Q"), (1, "L40S-2Q")]
    assert {row.profiles for row in rows} == {("L40S-2Q", "L40S-2Q")}
    assert {row.command for row in rows} == {"vgpuctl set-vm small --profile L40S-2Q --profile L40S-2Q --drain"}


def test_advice_without_room_says_so(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=LIVELY.replace("count: 2", "count: 1"), clock=EagerClock(START))
    for name in ("small", "full"):
        host_of(host, None).create_vm(name, profile="L40S-8Q")
    reasons = {row.vm: row.reason for row in use_for(host, 12).advise_sizes().data.sizes}
    assert "no GPU has room for it now: vgpuctl explain L40S-2Q" in reasons["small"]


def test_memory_is_counted_by_owner_and_by_label(host: SimulatedHost) -> None:
    calls = use_for(host, 11)
    owners = calls.advise_sizes().data.consumption
    assert [(group.name, group.vms) for group in owners] == [("ada", 1), ("bob", 1)]
    assert owners[0].given_gib_hours == owners[1].given_gib_hours
    assert owners[0].used_gib_hours == pytest.approx(owners[0].given_gib_hours / 8, abs=0.1)
    (team,) = calls.advise_sizes(by="team").data.consumption
    assert (team.name, team.vms) == ("cad", 2)
    (nobody,) = calls.advise_sizes(by="none").data.consumption
    assert nobody.name == ""


def test_a_vm_that_is_gone_gets_no_advice(host: SimulatedHost) -> None:
    calls = use_for(host, 11)
    calls.stop_vm("small", force=True)
    calls.delete_vm("small")
    assert [row.vm for row in calls.advise_sizes().data.sizes] == ["full"]


def test_without_a_history_the_error_says_who_keeps_it(host: SimulatedHost) -> None:
    with pytest.raises(HostCannot, match="the host agent keeps it") as caught:
        host_of(host, None).advise_sizes()
    assert "install-host --agent" in str(caught.value.hint)


def test_top_has_the_peak_of_the_history(host: SimulatedHost) -> None:
    data = use_for(host, 1).top().data
    assert {row.vm: row.peak_memory_bytes for row in data.vgpus}["full"] == 15 * GIB // 2


def test_the_page_has_no_script_and_no_name_breaks_it(host: SimulatedHost) -> None:
    evil = "<script>alert(1)</script>"
    host_of(host, None).set_vm("small", owner=evil)
    calls = use_for(host, 12)
    text = calls.usage_report(by="team").data.text
    root = lxml.html.fromstring(text)
    assert "default-src 'none'" in root.xpath("//meta[@http-equiv]/@content")[0]
    assert root.xpath("//script | //b | //img | //link | //@src | //@href | //@onload") == []
    cells = [cell.text_content() for cell in root.xpath("//tr[@class='smaller']/td")]
    assert cells[:3] == ["small", evil, "L40S-8Q"]
    assert "1.0 of 8 GiB" in cells
    assert "vgpuctl set-vm full --profile L40S-12Q --drain" in root.xpath("//pre")[0].text_content().splitlines()
