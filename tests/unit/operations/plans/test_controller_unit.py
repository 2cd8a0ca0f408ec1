# SPDX-License-Identifier: Apache-2.0
"""The controller's unit: systemd understands every line, an ordinary user runs it, only its own files are writable."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.unit.operations.plans.test_agent_units import NEWER_KEYS, parse
from vgpuctl.model import controller_service
from vgpuctl.operations.plans.controller_unit import CONTROLLER_UNITS

(UNIT,) = CONTROLLER_UNITS


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    (tmp_path / UNIT.name).write_text(UNIT.file("/usr/bin/python3").text)
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", f"./{UNIT.name}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if not any(key in line for key in NEWER_KEYS)] == []


def test_an_ordinary_user_runs_it_and_only_its_own_directories_are_writable() -> None:
    service = parse(UNIT.text("/usr/bin/python3"))["Service"]
    assert (service["User"], service["ProtectSystem"]) == (controller_service.ACCOUNT, "strict")
    assert f"/var/lib/{service['StateDirectory']}" == controller_service.STATE_DIRECTORY
    assert controller_service.SOCKET_PATH.startswith(f"/run/{service['RuntimeDirectory']}/")
    assert (service["StateDirectoryMode"], service["RuntimeDirectoryMode"]) == ("0700", "0700")
    assert "ReadWritePaths" not in service
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    assert service["EnvironmentFile"] == f"-{controller_service.OPTIONS_FILE}"
    assert service["ExecStart"].endswith(" controller run $OPTIONS")
