# SPDX-License-Identifier: Apache-2.0
"""ensure-vm: twice is once, only the state is changed in place, and a foreign VM is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.worlds import WAIT_SECONDS, Host, Silent, open_host, picture, wish, yes
from vgpuctl.engine.ensure import ensure_vm
from vgpuctl.errors import Foreign, InvalidInput, SpecDiffers
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.wish import VmWish

TYPED = {"profile": "typed", "memory": "typed", "vcpus": "typed"}


def ensure(host: Host, wanted: VmWish, state: str, *, dry_run: bool = False) -> Outcome:
    """Ensure a VM."""
    return ensure_vm(
        host.world,
        wanted,
        state=state,
        dry_run=dry_run,
        confirm=yes,
        wait_seconds=WAIT_SECONDS,
        progress=Silent(),
    )


@pytest.mark.parametrize("scenario", ["a100-40", "t4", "a16"])
@pytest.mark.parametrize("state", ["present", "started", "stopped", "absent"])
def test_ensuring_twice_changes_nothing_the_second_time(tmp_path, scenario, state):
    profile = {"a100-40": "A100-4C", "t4": "T4-2Q", "a16": "A16-2Q"}[scenario]
    host = open_host(tmp_path, scenario)
    wanted = wish(profile, name="vm", sources=TYPED)
    first = ensure(host, wanted, state)
    after = picture(host)
    second = ensure(host, wanted, state)
    assert (first.changed, second.changed) == (state != "absent", False)
    assert picture(host) == after
    assert not second.steps
    assert (second.data["before"], second.data["after"]) == (first.data["after"], first.data["after"])


def test_the_state_is_changed_in_place(tmp_path):
    host = open_host(tmp_path)
    wanted = wish("A100-4C", name="vm", sources=TYPED)
    assert ensure(host, wanted, "stopped").data["state"] == "stopped"
    started = ensure(host, wanted, "started")
    assert (started.changed, started.data["before"]["state"], started.data["state"]) == (True, "stopped", "running")
    assert ensure(host, wanted, "stopped").changed
    gone = ensure(host, wanted, "absent")
    assert (gone.changed, gone.data["before"]["name"], gone.data["after"]) == (True, "vm", None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"memory_mib": 2048}, "memory"), ({"vcpus": 8}, "vcpus"), ({"profiles": (("A100-5C", 1),)}, "profile")],
)
def test_any_other_difference_is_refused_with_before_and_after(tmp_path, changes, field):
    host = open_host(tmp_path)
    wanted = wish("A100-4C", name="vm", sources=TYPED)
    ensure(host, wanted, "present")
    before = picture(host)
    with pytest.raises(SpecDiffers) as raised:
        ensure(host, replace(wanted, **changes), "present")
    assert list(raised.value.facts["before"]) == list(raised.value.facts["after"]) == [field]
    assert picture(host) == before


def test_a_default_that_changed_makes_no_difference(tmp_path):
    host = open_host(tmp_path)
    wanted = wish("A100-4C", name="vm", sources={"profile": "typed"})
    ensure(host, wanted, "present")
    assert not ensure(host, replace(wanted, memory_mib=9999), "present").changed


def test_a_foreign_vm_is_not_touched(tmp_path):
    host = open_host(tmp_path, "mixed")
    before = picture(host)
    for state in ("present", "started", "stopped", "absent"):
        with pytest.raises(Foreign):
            ensure(host, wish("T4-4Q", name="old-desktop"), state)
    assert picture(host) == before


def test_a_vm_without_a_name_cannot_be_ensured(tmp_path):
    with pytest.raises(InvalidInput):
        ensure(open_host(tmp_path), replace(wish("A100-4C"), name=None), "present")


def test_a_dry_run_changes_nothing(tmp_path):
    host = open_host(tmp_path)
    before = picture(host)
    assert ensure(host, wish("A100-4C", name="vm"), "present", dry_run=True).dry_run
    assert picture(host) == before
