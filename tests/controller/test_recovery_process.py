# SPDX-License-Identifier: Apache-2.0
"""Backup, restore and upgrade by the command line, with controllers as processes of their own."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import IMAGE, SPEC, wait_until
from tests.controller.controllers import Controller, running_controller


def with_pool(controller: Controller, agent: RunningAgent) -> None:
    """Add a host and a pool, and wait until ada has a desktop."""
    run, data = controller.run, controller.data
    assert run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
    assert run("ensure-image", "office", "--path", IMAGE).returncode == 0
    assert run("ensure-pool", "office", "-f", "-", stdin=json.dumps({**SPEC, "spare": 1})).returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 1, "a desktop")
    assert run("assign", "office", "ada").returncode == 0
    wait_until(lambda: data("show-desktop", "office-001")["address"] is not None, "the address")


def test_from_a_backup_to_a_fleet_that_works_again(tmp_path: Path, agent: RunningAgent) -> None:
    file = tmp_path / "fleet.gz"
    with running_controller(tmp_path / "first") as first:
        with_pool(first, agent)
        state = str(tmp_path / "first" / "state")
        made = first.run("backup", str(file), "--state", state)
        assert (made.returncode, made.stdout) == (0, f"{file}: 1 pools, {desktops(made.stdout)} desktops, 1 hosts\n")
        busy = first.run("restore", str(file), "--state", state, "--replace", "--yes")
        assert (busy.returncode, "another controller runs" in busy.stderr) == (75, True)
    state = str(tmp_path / "second" / "state")
    assert first.run("restore", "--state", state).returncode == 2
    assert first.run("restore", str(file), "--in-place", "--state", state).returncode == 2
    restored = first.run("restore", str(file), "--state", state)
    assert (restored.returncode, "confirm-restore" in restored.stderr) == (0, True), restored.stderr
    again = first.run("restore", str(file), "--state", state)
    assert (again.returncode, "--replace" in again.stderr) == (3, True)
    asked = first.run("restore", str(file), "--state", state, "--replace")
    assert (asked.returncode, "1 in pool" in asked.stderr) == (2, True)
    assert first.run("restore", str(file), "--state", state, "--replace", "--yes").returncode == 0
    with running_controller(tmp_path / "second") as second:
        assert second.data("show-restore")["waits"] is True
        shown = second.run("show-restore")
        assert "waits for confirm-restore" in shown.stdout
        assert "people, rights and tokens are those of 20" in shown.stdout
        assert "vgpuctl controller list-entitlements" in shown.stdout + shown.stderr
        refused = second.run("assign", "office", "ada")
        assert (refused.returncode, "confirm-restore" in refused.stderr) == (3, True)
        asked = second.run("confirm-restore")
        assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
        assert second.run("confirm-restore", "--yes").returncode == 0
        wait_until(lambda: second.data("show-desktop", "office-001")["address"] is not None, "ada's desktop")
        assert second.run("import-desktops", "--yes").stdout.startswith("desktops: ")
        assert second.run("accept-desktop", "office-001", "--yes").returncode == 3


def desktops(text: str) -> str:
    """Return how many desktops a backup has: the pool may have made a second one meanwhile."""
    number = text.split(" pools, ")[1].split(" ")[0]
    assert number in ("1", "2")
    return number


def test_a_lost_database_is_imported(tmp_path: Path, agent: RunningAgent) -> None:
    with running_controller(tmp_path / "first") as first:
        with_pool(first, agent)
    with running_controller(tmp_path / "second") as second:
        refused = second.run("add-host", "gpu01", f"agent:{agent.path}")
        assert (refused.returncode, "--lost-controller" in refused.stderr) == (3, True)
        held = second.run("add-host", "gpu01", f"agent:{agent.path}", "--lost-controller")
        assert "import-desktops" in held.stdout
        done = second.run("import-desktops", "--yes")
        assert "ensure-pool office -f FILE" in done.stderr
        assert "pool office needs its spec" in second.run("confirm-restore", "--yes").stdout
        wait_until(lambda: second.data("show-desktop", "office-001")["address"] is not None, "ada's desktop")


def test_an_older_controller_stops_once_the_database_is_upgraded(tmp_path: Path) -> None:
    with running_controller(tmp_path / "one") as controller:
        with sqlite3.connect(tmp_path / "one" / "state" / "fleet.db") as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        assert controller.process is not None
        _, text = controller.process.communicate(timeout=60)
        assert controller.process.returncode == 3
        assert "a newer vgpuctl made the database" in text
        assert "install that version of vgpuctl here, too" in text
        assert "Traceback" not in text
        again = controller.run("run", "--state", str(tmp_path / "one" / "state"), "--socket", str(tmp_path / "c.sock"))
        assert (again.returncode, "a newer vgpuctl" in again.stderr) == (3, True)
