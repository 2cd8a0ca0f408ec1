# SPDX-License-Identifier: Apache-2.0
"""What people see of a desktop, and whether a user may have it."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import HOST, NOW, desktop_of, pool_of, ready_report
from vgpuctl.controller.model import DesktopReport, ReadyWhen
from vgpuctl.controller.planning.phase import is_assignable, phase_of
from vgpuctl.value import replace

POOL = pool_of()
PAUSED = pool_of(state="paused", reason="3 errors")
SILENT = replace(HOST, seen_at=NOW - 46)
HELD = replace(HOST, held="its driver changed")
READY = desktop_of(report=ready_report())
USED = desktop_of(user="ada", generation=2, handed_out=True, assigned_at=NOW - 60)
USED_REPORT = ready_report(generation=2, dirty=True, user="ada")
IN_USE = replace(USED, report=USED_REPORT)
ERROR = DesktopReport(False, code="no-capacity", error="no room", hint="vgpuctl explain 2B")


def with_report(desktop, **changes):
    return replace(desktop, report=replace(desktop.report, **changes))


@pytest.mark.parametrize(
    ("desktop", "pool", "host", "word", "why"),
    [
        (READY, POOL, HOST, "ready", ""),
        (READY, POOL, SILENT, "unknown", "host-1 is silent for 46 s"),
        (READY, POOL, None, "unknown", "its host is silent"),
        (READY, POOL, replace(HOST, seen_at=None), "unknown", "host-1 is silent"),
        (replace(READY, absent=True), POOL, HOST, "retiring", ""),
        (replace(READY, absent=True), POOL, SILENT, "retiring", "host-1 is silent"),
        (replace(READY, absent=True), POOL, HELD, "retiring", "its driver changed"),
        (desktop_of(host_id=None), POOL, None, "unplaced", ""),
        (desktop_of(host_id=None), PAUSED, None, "unplaced", "the pool desk is paused: 3 errors"),
        (desktop_of(), POOL, HOST, "making", ""),
        (desktop_of(), PAUSED, HOST, "waiting", "the pool desk is paused: 3 errors"),
        (desktop_of(), POOL, HELD, "waiting", "nothing is changed on host-1: its driver changed"),
        (desktop_of(errors=1, not_before=NOW + 5, report=ERROR), POOL, HOST, "waiting",
         "it tries again in 5 s: no room; vgpuctl explain 2B"),
        (desktop_of(errors=3, report=ERROR), POOL, HOST, "failed", "no room; vgpuctl explain 2B"),
        (desktop_of(report=DesktopReport(False, generation=1)), POOL, HOST, "lost",
         "its VM is gone, and nobody here deleted it"),
        (with_report(READY, code="record-newer", error="newer"), POOL, HOST, "failed", "newer"),
        (with_report(READY, state="stopped", ready=False), POOL, HOST, "starting", ""),
        (with_report(READY, state="stopped", ready=False), PAUSED, HOST, "waiting",
         "the pool desk is paused: 3 errors"),
        (with_report(READY, ready=False), POOL, HOST, "starting", "not ready yet (running)"),
        (with_report(READY, ready=False, running_since=NOW - 900), POOL, HOST, "failed",
         "not ready (running) 15 minutes after its start"),
        (replace(READY, power_on=False), POOL, HOST, "stopping", ""),
        (with_report(replace(READY, power_on=False), state="stopped"), POOL, HOST, "off", ""),
        (replace(READY, generation=2), POOL, HOST, "refreshing", ""),
        (with_report(READY, dirty=True), PAUSED, HOST, "dirty", "the pool desk is paused: 3 errors"),
        (with_report(READY, dirty=True, code="logged-on", error="logged on: eve"), POOL, HOST, "dirty",
         "logged on: eve"),
        (IN_USE, POOL, HOST, "assigned", ""),
        (replace(IN_USE, handed_out=False), POOL, HOST, "assigned", "its host has not confirmed it yet"),
        (with_report(IN_USE, guest_users=("ada",)), POOL, HOST, "connected", "logged on: ada"),
        (with_report(replace(IN_USE, assigned_at=NOW - 1800), running_since=NOW - 9999), POOL, HOST, "assigned",
         "no log-on was seen in 30 minutes; does the image have vgpuctl's guest helper?"),
        (with_report(IN_USE, logged_on_seen=True, logged_off=True), POOL, HOST, "assigned", "its user has logged off"),
        (with_report(replace(IN_USE, power_on=False), state="stopped"), POOL, HOST, "off", ""),
        (with_report(IN_USE, state="stopped", ready=False), POOL, HOST, "starting", ""),
    ],
)  # fmt: skip
def test_the_phase(desktop, pool, host, word, why):
    phase = phase_of(desktop, pool, host, NOW)
    assert (str(phase.word), phase.why) == (word, why)


def test_only_a_clean_and_ready_desktop_of_a_host_that_answers_is_given_to_a_user():
    assert is_assignable(READY, POOL, HOST, NOW)
    assert is_assignable(READY, pool_of(ready_when=ReadyWhen.GUEST), HOST, NOW)
    for row in (
        with_report(READY, dirty=True), replace(READY, generation=2), with_report(READY, ready=False), IN_USE,
        replace(READY, absent=True), desktop_of(), with_report(READY, code="other-user"), replace(READY, errors=3),
        with_report(READY, exists=False), replace(READY, power_on=False),
    ):  # fmt: skip
        assert not is_assignable(row, POOL, HOST, NOW), row
    for pool, host in ((PAUSED, HOST), (pool_of(state="draining"), HOST), (pool_of("fixed"), HOST), (POOL, SILENT),
                       (POOL, HELD), (POOL, None)):  # fmt: skip
        assert not is_assignable(READY, pool, host, NOW)
