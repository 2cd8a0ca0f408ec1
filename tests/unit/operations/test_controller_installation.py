# SPDX-License-Identifier: Apache-2.0
"""install-host --controller installs, enables and starts a controller; uninstall-host leaves its user and its fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import context
from tests.unit.operations.test_agent_installation import RELOAD, UNITS, with_systemd
from tests.unit.operations.test_installation import files, install, new_host, put_package_unit, uninstall
from vgpuctl import extras
from vgpuctl.errors import HostCannot
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.model.controller_service import ACCOUNT, SERVICE_UNIT, STATE_DIRECTORY
from vgpuctl.operations.installation import install_host
from vgpuctl.operations.plans.controller_unit import CONTROLLER_UNITS
from vgpuctl.operations.service_installation import CONTROLLER
from vgpuctl.ports.host import Host

(UNIT,) = CONTROLLER_UNITS


@pytest.fixture
def ports(tmp_path: Path) -> Host:
    return new_host(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_installed_once_then_nothing_to_do_then_gone_but_its_user(ports: Host, root: Path) -> None:
    install(ports)
    before = files(root)
    commands: list[tuple[str, ...]] = []
    systemd = with_systemd(ports, commands)
    planned = install(systemd, controller=True, dry_run=True)
    assert (files(root), commands) == (before, [])
    assert f"create the system user {ACCOUNT}" in planned.steps
    assert install(systemd, controller=True).data.files == planned.data.files
    assert commands == [RELOAD, ("start", SERVICE_UNIT)]
    after = files(root)
    assert after.keys() - before.keys() == {UNIT.path[1:], UNIT.wants_link[1:], "etc/passwd"}
    assert f":{STATE_DIRECTORY}:" in after["etc/passwd"]
    running = with_systemd(ports, commands, active=(SERVICE_UNIT,))
    assert not install(running, controller=True).changed
    commands.clear()
    install(running, python="/opt/new/bin/python3")
    assert commands == [RELOAD, ("restart", SERVICE_UNIT)]
    commands.clear()
    assert uninstall(running).changed
    assert commands == [("stop", SERVICE_UNIT), RELOAD]
    assert not {UNIT.path[1:], UNIT.wants_link[1:]} & files(root).keys()
    assert files(root)["etc/passwd"] == after["etc/passwd"]


def test_the_agent_and_the_controller_are_independent(ports: Host, root: Path) -> None:
    install(ports, agent=True)
    assert UNIT.path[1:] not in files(root)
    uninstall(ports)
    install(ports, controller=True)
    assert not UNITS & files(root).keys()


def test_the_package_has_the_unit_and_install_host_enables_it(ports: Host, root: Path) -> None:
    put_package_unit(root)
    (root / UNIT.package_path[1:]).write_text(UNIT.text(PACKAGE_PYTHON))
    install(ports, python=PACKAGE_PYTHON)
    assert UNIT.wants_link[1:] not in files(root)
    install(ports, python=PACKAGE_PYTHON, controller=True)
    assert files(root)[UNIT.wants_link[1:]] == UNIT.package_path
    assert UNIT.path[1:] not in files(root)


def test_one_that_could_not_start_is_refused_before_anything_changes(ports: Host, root: Path) -> None:
    before = files(root)
    with pytest.raises(HostCannot, match="the controller needs the Python libraries sqlalchemy and"):
        install_host(
            ports, context(), python="/usr/bin/python3", completions={}, restart_libvirt=False, services=[CONTROLLER],
            missing_libraries=extras.EXTRAS,
        )  # fmt: skip
    assert files(root) == before
