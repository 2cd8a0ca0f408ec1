# SPDX-License-Identifier: Apache-2.0
"""install-host --agent installs, enables and starts the agent; uninstall-host stops it and leaves its groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hosts import context
from tests.meanwhile import with_calls
from tests.unit.operations.test_installation import files, install, new_host, put_package_unit, uninstall
from vgpuctl import extras
from vgpuctl.errors import HostCannot
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.model import agent_service
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.installation import install_host
from vgpuctl.operations.plans.agent_units import AGENT_UNITS
from vgpuctl.operations.service_installation import AGENT
from vgpuctl.ports.host import Host
from vgpuctl.version import __version__

UNITS = {unit.path[1:] for unit in AGENT_UNITS}
LINKS = {unit.wants_link[1:] for unit in AGENT_UNITS}
START = ("start", agent_service.SOCKET_UNIT, agent_service.SERVICE_UNIT)
RESTART = ("restart", *START[1:])
STOP = ("stop", *START[1:])
RELOAD = ("daemon-reload",)


@pytest.fixture
def ports(tmp_path: Path) -> Host:
    return new_host(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


def with_systemd(ports: Host, commands: list[tuple[str, ...]], active: Sequence[str] = ()) -> Host:
    """Return the host with a systemd on which these units run; `commands` gets each of its commands."""
    return with_calls(
        ports,
        "system",
        has_systemd=True,
        is_active=lambda unit: unit in active,
        systemctl=lambda *words, **_: commands.append(words),
    )


def put_package_units(root: Path) -> None:
    put_package_unit(root)
    for unit in AGENT_UNITS:
        (root / unit.package_path[1:]).write_text(unit.text(PACKAGE_PYTHON))


def publish(root: Path, version: str) -> None:
    path = root / agent_service.IDENTITY_PATH[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(agent_service.identity_text(version, 4711))


def test_installed_once_then_nothing_to_do_then_gone_but_its_groups(ports: Host, root: Path) -> None:
    install(ports)
    before = files(root)
    planned = install(ports, agent=True, dry_run=True)
    assert files(root) == before
    assert planned.steps[:2] == ("create the system group vgpuctl", "create the system group vgpuctl-view")
    assert f"write {AGENT_UNITS[0].path}" in planned.steps
    assert f"link {AGENT_UNITS[1].wants_link} to {AGENT_UNITS[1].path}" in planned.steps
    assert install(ports, agent=True).data.files == planned.data.files
    after = files(root)
    assert after.keys() - before.keys() == UNITS | LINKS | {"etc/group"}
    assert [line.split(":")[0] for line in after["etc/group"].splitlines()] == list(agent_service.GROUPS)
    assert not install(ports, agent=True).changed
    assert not install(ports).changed
    assert diagnose(ports, ("agent",)).verdict == "ok"
    assert uninstall(ports).changed
    assert diagnose(ports, ("agent",)).verdict == "not-applicable"
    assert not {*UNITS, *LINKS} & files(root).keys()
    assert files(root)["etc/group"] == after["etc/group"]
    assert not uninstall(ports).changed


def test_nobody_gets_the_agent_without_asking(ports: Host, root: Path) -> None:
    steps = install(ports).steps
    assert not any("agent" in line or "group" in line for line in steps)
    assert not {*UNITS, *LINKS, "etc/group"} & files(root).keys()


def test_an_existing_group_stays_as_it_is(ports: Host, root: Path) -> None:
    (root / "etc/group").write_text("root:x:0:\nvgpuctl:x:4711:alice\n")
    install(ports, agent=True)
    lines = files(root)["etc/group"].splitlines()
    assert lines[:2] == ["root:x:0:", "vgpuctl:x:4711:alice"]
    assert [line.split(":")[0] for line in lines[2:]] == ["vgpuctl-view"]


def test_systemd_reads_the_units_before_it_starts_them(ports: Host) -> None:
    commands: list[tuple[str, ...]] = []
    install(with_systemd(ports, commands), agent=True)
    assert commands == [RELOAD, START]
    commands.clear()
    assert not install(with_systemd(ports, commands, active=START[1:]), agent=True).changed
    assert install(with_systemd(ports, commands), agent=True).steps == (f"run systemctl {' '.join(START)}",)
    assert commands == [START]


def test_a_later_installation_keeps_the_agent_up_to_date_and_restarts_it(ports: Host, root: Path) -> None:
    install(ports, agent=True)
    commands: list[tuple[str, ...]] = []
    running = with_systemd(ports, commands, active=START[1:])
    install(running, python="/opt/new/bin/python3")
    assert commands == [RELOAD, RESTART]
    assert "/opt/new/bin/python3" in files(root)[AGENT_UNITS[1].path[1:]]
    commands.clear()
    publish(root, __version__)
    assert not install(running, python="/opt/new/bin/python3").changed
    publish(root, "0.0.1")
    install(running, python="/opt/new/bin/python3")
    assert commands == [("restart", agent_service.SERVICE_UNIT)]
    commands.clear()
    install(with_systemd(ports, commands), python="/opt/newer/bin/python3")
    assert commands == [RELOAD], "an agent that was stopped stays stopped"


def test_a_removal_stops_it_before_its_units_go(ports: Host, root: Path) -> None:
    install(ports, agent=True)
    commands: list[tuple[str, ...]] = []
    steps = uninstall(with_systemd(ports, commands, active=(agent_service.SERVICE_UNIT,))).steps
    assert commands == [STOP, RELOAD]
    assert steps[0] == f"run systemctl {' '.join(STOP)}"


def test_a_disabled_agent_stays_disabled(ports: Host, root: Path) -> None:
    install(ports, agent=True)
    for link in LINKS:
        (root / link).unlink()
    assert not install(ports).changed
    install(ports, agent=True)
    assert files(root).keys() >= LINKS


def test_units_changed_by_hand_stay_enabled_and_are_named(ports: Host, root: Path) -> None:
    install(ports, agent=True)
    path = AGENT_UNITS[1].path
    real = root / path[1:]
    real.write_text(f"# mine\n{real.read_text()}")
    assert install(ports, python="/opt/python3", agent=True).data.kept == (path,)
    assert uninstall(ports).data.kept == (path,)
    assert {path[1:], AGENT_UNITS[1].wants_link[1:]} <= files(root).keys()
    assert AGENT_UNITS[0].path[1:] not in files(root)


def test_the_package_has_the_units_and_install_host_enables_them(ports: Host, root: Path) -> None:
    put_package_units(root)
    install(ports, python=PACKAGE_PYTHON)
    assert not {*UNITS, *LINKS} & files(root).keys(), "disabled"
    commands: list[tuple[str, ...]] = []
    install(with_systemd(ports, commands), python=PACKAGE_PYTHON, agent=True)
    assert commands == [RELOAD, START]
    after = files(root)
    assert not UNITS & after.keys()
    assert [after[unit.wants_link[1:]] for unit in AGENT_UNITS] == [unit.package_path for unit in AGENT_UNITS]
    assert not install(ports, python=PACKAGE_PYTHON, agent=True).changed
    uninstall(ports)
    after = files(root)
    assert not LINKS & after.keys()
    assert {unit.package_path[1:] for unit in AGENT_UNITS} <= after.keys()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_package_takes_over_the_agent_of_another_installation(ports: Host, root: Path, is_enabled: bool) -> None:
    install(ports, python="/opt/vgpuctl/bin/python", agent=True)
    for link in () if is_enabled else LINKS:
        (root / link).unlink()
    put_package_units(root)
    commands: list[tuple[str, ...]] = []
    install(with_systemd(ports, commands, active=START[1:]), python=PACKAGE_PYTHON)
    after = files(root)
    assert commands == [RELOAD, RESTART]
    assert not UNITS & after.keys()
    targets = [after.get(unit.wants_link[1:]) for unit in AGENT_UNITS]
    assert targets == [unit.package_path if is_enabled else None for unit in AGENT_UNITS]


def test_an_agent_that_could_not_start_is_refused_before_anything_changes(ports: Host, root: Path) -> None:
    before = files(root)
    for dry_run in (True, False):
        with pytest.raises(HostCannot, match="starlette and uvicorn") as refused:
            install_host(
                ports,
                context(dry_run=dry_run),
                python="/usr/bin/python3",
                completions={},
                restart_libvirt=False,
                services=[AGENT],
                missing_libraries=extras.EXTRAS,
            )
        assert refused.value.hint
    assert files(root) == before
