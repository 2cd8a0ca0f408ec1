# SPDX-License-Identifier: Apache-2.0
"""Desktops of a pool on the command line of their host: shown, refused, and changed by root who overrides."""

from __future__ import annotations

import pytest

import vgpuctl
from tests.unit.cli.conftest import Run
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.model.outcome import CallSettings

DESKTOP = "4b20d080-1b54-4048-85b3-a6a62d165c01"


def put_mark(dirty: bool, user: str | None, generation: int = 1) -> None:
    """Make the desktop, or write its mark."""
    mark = DesktopMark(DESKTOP, "office", "db-1", generation, dirty, user)
    settings = CallSettings(fleet=FleetRequest(Fence("db-1", 1, "a"), mark))
    host = vgpuctl.open_host("sim:a100-40").with_settings(settings)
    if generation == 1:
        host.create_vm("vdi", profile="A100-4C")
    else:
        host.mark_desktop("vdi")


@pytest.mark.parametrize(
    ("dirty", "user", "shown"),
    [
        (False, None, "office: nobody"),
        (True, "ada", "office: ada"),
        (True, None, "office: nobody, a refresh is due"),
    ],
)
def test_whose_desktop_a_vm_is_is_shown(sim: Run, dirty: bool, user: str | None, shown: str) -> None:
    put_mark(dirty, user)
    assert f" {shown}\n" in sim("show-vm vdi").out
    assert shown in sim("list-vms --columns name,desktop").out
    assert "desktop" not in sim("list-vms").out.lower()
    mark = sim("show-vm vdi --json").document["data"]["desktop"]
    assert mark == {
        "id": DESKTOP, "pool": "office", "incarnation": "db-1", "generation": 1, "dirty": dirty, "user": user,
    }  # fmt: skip


def test_a_vm_of_no_pool_has_none(sim: Run) -> None:
    sim("create-vm vdi --profile A100-4C")
    assert "desktop" not in sim("show-vm vdi").out
    assert sim("show-vm vdi --json").document["data"]["desktop"] is None


@pytest.mark.parametrize(
    "line", ["stop-vm vdi --force", "delete-vm vdi --yes", "set-vm vdi --owner eve", "reboot-vm vdi"]
)
def test_a_change_is_refused_and_the_error_says_where_to_ask(sim: Run, line: str) -> None:
    put_mark(dirty=False, user=None)
    refused = sim(line)
    assert refused.status == 3
    assert "vdi is a desktop of the pool office" in refused.err
    assert "vgpuctl controller list-desktops" in refused.err
    assert "--override-controller" in refused.err


def test_root_overrides_the_controller_and_the_journal_has_that(sim: Run) -> None:
    put_mark(dirty=False, user=None)
    assert sim("stop-vm vdi --force --override-controller").status == 0
    assert sim("--override-controller start-vm 'vd*'").status == 0
    arguments = [entry["arguments"] for entry in sim("log --vm vdi --json").document["data"]]
    assert sum("--override-controller" in words for words in arguments) == 2
    assert sim("stop-vm 'vd*'").status == 3
