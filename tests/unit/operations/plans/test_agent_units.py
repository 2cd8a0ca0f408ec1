# SPDX-License-Identifier: Apache-2.0
"""The agent's units: systemd understands every line, no VM waits for them, and no claim goes with them."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.model import agent_service
from vgpuctl.operations.plans.agent_units import AGENT_UNITS
from vgpuctl.operations.plans.installation import UNIT_NAME, unit_text

SOCKET, SERVICE = AGENT_UNITS
NEWER_KEYS = ("RestartSteps", "RestartMaxDelaySec")
"""Since systemd 254; older versions warn and go on."""
STARTS_VMS = {"libvirtd.service", "virtqemud.service", "libvirt-guests.service", UNIT_NAME}


def parse(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {name: dict(section) for name, section in parser.items()}


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    for unit in AGENT_UNITS:
        (tmp_path / unit.name).write_text(unit.file("/usr/bin/python3").text)
    (tmp_path / UNIT_NAME).write_text(unit_text("/usr/bin/python3"))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *(u.name for u in AGENT_UNITS)]
    done = subprocess.run(
        [*words[:-2], *(f"./{name}" for name in words[-2:])], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if not any(key in line for key in NEWER_KEYS)] == []


def test_no_vm_waits_for_the_agent_and_it_stops_before_them() -> None:
    unit = parse(SERVICE.text("/usr/bin/python3"))["Unit"]
    assert set(unit["After"].split()) >= STARTS_VMS
    assert unit["Requires"] == SOCKET.name
    for section in (unit, parse(SERVICE.text("a"))["Install"], parse(SOCKET.text("a"))["Install"]):
        assert not {"Before", "RequiredBy", "BindsTo", "PartOf"} & section.keys()


def test_stopping_the_agent_removes_no_claims_and_kills_no_writes() -> None:
    for unit in (SOCKET.text("a"), SERVICE.text("a"), unit_text("a")):
        assert "RuntimeDirectory" not in unit
        assert "ExecStopPost" not in unit
    service = parse(SERVICE.text("/usr/bin/python3"))["Service"]
    assert (service["KillMode"], service["TimeoutStopSec"]) == ("process", str(agent_service.STOP_SECONDS))
    assert (service["Type"], service["Restart"], service["StateDirectoryMode"]) == ("notify", "always", "0700")
    assert f"/var/lib/{service['StateDirectory']}" == agent_service.STATE_DIRECTORY
    assert parse(SERVICE.text("a"))["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_socket_is_for_one_group() -> None:
    socket = parse(SOCKET.text("/usr/bin/python3"))["Socket"]
    assert (socket["SocketMode"], socket["SocketGroup"]) == ("0660", agent_service.OPERATORS_GROUP)
    assert (socket["ListenStream"], socket["FileDescriptorName"]) == (agent_service.SOCKET_PATH, "api")


def test_it_runs_the_same_python_as_the_boot_unit() -> None:
    for python in (PACKAGE_PYTHON, '/opt/a b/100%/python"3'):
        (agent,) = [line for line in SERVICE.text(python).splitlines() if line.startswith("ExecStart=")]
        (boot,) = [line for line in unit_text(python).splitlines() if line.startswith("ExecStart=")]
        assert agent.removesuffix("agent run") == boot.removesuffix("restore-host")
