# SPDX-License-Identifier: Apache-2.0
"""install-host installs everything once and keeps user changes; uninstall-host leaves nothing of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.hosts import Silent, context, open_sim_host
from tests.meanwhile import with_calls
from vgpuctl.errors import Failed, HostCannot, Interrupted, PartlyApplied, Refused
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.installation import install_host, uninstall_host
from vgpuctl.operations.plans.installation import HOOK_PATH, PACKAGE_UNIT_PATH, UNIT_PATH, UNIT_WANTS_LINK, unit_text
from vgpuctl.operations.service_installation import AGENT, CONTROLLER
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

BASH = "usr/share/bash-completion/completions"


def install(
    ports: Host,
    *,
    dry_run: bool = False,
    restart: bool = False,
    agent: bool = False,
    controller: bool = False,
    python: str = "/usr/bin/python3",
    progress: Progress | None = None,
) -> Outcome:
    return install_host(
        ports,
        context(dry_run=dry_run, progress=progress),
        python=python,
        completions={"bash": "complete vgpuctl", "zsh": "#compdef vgpuctl"},
        restart_libvirt=restart,
        services=[one for one, is_wanted in ((AGENT, agent), (CONTROLLER, controller)) if is_wanted],
    )


def uninstall(ports: Host, *, dry_run: bool = False) -> Outcome:
    return uninstall_host(ports, context(dry_run=dry_run), restart_libvirt=False)


def files(root: Path) -> dict[str, str]:
    result = [p for top in ("etc", "usr") for p in sorted((root / top).rglob("*")) if p.is_file() or p.is_symlink()]
    return {str(p.relative_to(root)): p.read_text() if not p.is_symlink() else str(p.readlink()) for p in result}


def new_host(directory: Path) -> Host:
    (directory / "state" / BASH).mkdir(parents=True)
    return open_sim_host(directory).ports


@pytest.fixture
def ports(tmp_path: Path) -> Host:
    return new_host(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that is / on the host."""
    return tmp_path / "state"


def test_installed_once_then_nothing_to_do_then_gone(ports: Host, root: Path):
    before = files(root)
    assert install(ports, dry_run=True).changed
    assert files(root) == before
    done = install(ports)
    assert done.changed
    assert any("restart" in note for note in done.notes)
    assert set(files(root)) - set(before) == {HOOK_PATH[1:], UNIT_PATH[1:], UNIT_WANTS_LINK[1:], f"{BASH}/vgpuctl"}
    assert (root / HOOK_PATH[1:]).stat().st_mode & 0o777 == 0o755
    assert not install(ports).changed
    (root / "etc/vgpuctl").mkdir(exist_ok=True)
    assert uninstall(ports, dry_run=True).changed
    assert uninstall(ports).changed
    assert (files(root), (root / "etc/vgpuctl").exists()) == (before, False)
    assert not uninstall(ports).changed


def test_another_version_of_our_own_file_is_replaced(ports: Host, root: Path):
    install(ports)
    assert install(ports, python="/opt/python3").changed
    assert "/opt/python3" in (root / HOOK_PATH[1:]).read_text()


def put_package_unit(root: Path) -> None:
    unit = root / PACKAGE_UNIT_PATH[1:]
    unit.parent.mkdir(parents=True)
    unit.write_text(unit_text(PACKAGE_PYTHON))


def test_the_packages_python_writes_the_unit_where_the_package_has_put_none(ports: Host, root: Path):
    done = install(ports, python=PACKAGE_PYTHON)
    assert {UNIT_PATH[1:], UNIT_WANTS_LINK[1:], f"{BASH}/vgpuctl"} <= files(root).keys()
    assert UNIT_PATH in done.data.files
    assert [check.verdict for check in diagnose(ports, ("restore-unit", "start-hook")).checks] == ["ok", "ok"]
    assert not install(ports, python=PACKAGE_PYTHON).changed
    put_package_unit(root)
    install(ports, python=PACKAGE_PYTHON)
    assert UNIT_PATH[1:] not in files(root)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_package_takes_over_what_install_host_wrote(ports: Host, root: Path, is_enabled: bool):
    install(ports, python="/opt/vgpuctl/bin/python")
    if not is_enabled:
        (root / UNIT_WANTS_LINK[1:]).unlink()
    put_package_unit(root)
    done = install(ports, python=PACKAGE_PYTHON)
    assert (done.changed, done.data.kept) == (True, ())
    after = files(root)
    assert PACKAGE_PYTHON in after[HOOK_PATH[1:]]
    assert not {UNIT_PATH[1:], f"{BASH}/vgpuctl"} & after.keys()
    assert after.get(UNIT_WANTS_LINK[1:]) == (PACKAGE_UNIT_PATH if is_enabled else None)
    assert not install(ports, python=PACKAGE_PYTHON).changed
    assert uninstall(ports).changed
    assert HOOK_PATH[1:] not in files(root)
    assert files(root).get(UNIT_WANTS_LINK[1:]) == (PACKAGE_UNIT_PATH if is_enabled else None)


def test_the_package_keeps_and_names_a_unit_that_was_changed_by_hand(ports: Host, root: Path):
    install(ports, python="/opt/vgpuctl/bin/python")
    unit = root / UNIT_PATH[1:]
    unit.write_text(unit.read_text() + "# mine\n")
    put_package_unit(root)
    assert install(ports, python=PACKAGE_PYTHON).data.kept == (UNIT_PATH,)
    assert files(root)[UNIT_WANTS_LINK[1:]] == UNIT_PATH


def test_what_the_package_has_stays_without_a_warning(ports: Host, root: Path):
    put_package_unit(root)
    completion = root / BASH / "vgpuctl"
    completion.write_text("complete vgpuctl\n")
    install(ports, python=PACKAGE_PYTHON)
    assert "belong to the Debian package" in uninstall(ports, dry_run=True).notes[0]
    removed = uninstall(ports)
    assert (removed.data.files, removed.warnings) == ((HOOK_PATH,), ())
    assert completion.exists()


def test_another_installation_does_not_replace_the_packages_hook(ports: Host, root: Path):
    put_package_unit(root)
    install(ports, python=PACKAGE_PYTHON)
    before = files(root)
    with pytest.raises(Refused, match="the Debian package vgpuctl has libvirt's hook") as refused:
        install(ports, python="/opt/vgpuctl/bin/python")
    assert "apt remove vgpuctl" in (refused.value.hint or "")
    assert files(root) == before


@pytest.mark.parametrize("change", ["# mine\n{}", "{}# mine\n"], ids=["before", "after"])
@pytest.mark.parametrize("path", [HOOK_PATH, UNIT_PATH])
def test_a_file_changed_by_hand_stays_and_is_named(ports: Host, root: Path, path: str, change: str):
    install(ports)
    real = root / path[1:]
    mine = change.format(real.read_text())
    real.write_text(mine)
    again = install(ports, python="/opt/python3")
    assert again.data.kept == (path,)
    assert any(path in warning for warning in again.warnings)
    assert uninstall(ports).data.kept == (path,)
    assert real.read_text() == mine


@pytest.mark.parametrize(
    ("path", "text"), [("/etc/libvirt/hooks/qemu", "#!/bin/sh\nexit 0\n"), ("/etc/vgpuctl/host.yaml", "version: 1\n")]
)
def test_what_people_wrote_stays_as_it_is(ports: Host, root: Path, path: str, text: str):
    real = root / path[1:]
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(text)
    install(ports)
    uninstall(ports)
    assert real.read_text() == text


def fails_at(ports: Host, nth: int) -> Host:
    """Return a host with systemd on which the n-th change fails."""
    changes: list[str] = []

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if call.removeprefix("system.") in ("put", "link", "remove", "add_group", "add_user", "systemctl"):
            changes.append(call)
            if len(changes) == nth and call == "system.systemctl":
                raise Failed("systemctl daemon-reload failed: no bus", hint="systemctl daemon-reload")
            if len(changes) == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    calls = {"has_systemd": True, "is_active": lambda unit: False, "systemctl": lambda *words, **_: None}
    return Watch(before=fail).watch(with_calls(ports, "system", **calls))


@pytest.mark.parametrize(
    ("installed", "is_package", "run", "number"),
    [
        (None, False, partial(install, agent=True), 12),
        (None, False, partial(install, controller=True), 9),
        (None, False, install, 5),
        ("/opt/python3", False, install, 3),
        ("/opt/python3", True, partial(install, python=PACKAGE_PYTHON), 5),
        ("/usr/bin/python3", False, uninstall, 5),
    ],
    ids=["agent", "controller", "new", "upgrade", "package", "removal"],
)
def test_a_failure_leaves_whole_files_and_names_them_and_the_next_run_finishes(
    tmp_path: Path, installed: str | None, is_package: bool, run: Callable[[Host], Outcome], number: int
):
    """`installed`: the Python whose files are there before; `is_package`: whether the Debian package's unit is."""

    def prepared(name: str) -> tuple[Host, Path]:
        ports, root = new_host(tmp_path / name), tmp_path / name / "state"
        if installed is not None:
            install(ports, python=installed)
        if is_package:
            put_package_unit(root)
        return ports, root

    ports, root = prepared("whole")
    before = files(root)
    lines = run(fails_at(ports, 0)).steps
    after = files(root)
    for nth in range(1, number + 1):
        ports, root = prepared(str(nth))
        with pytest.raises(Failed if nth == 1 else PartlyApplied) as raised:
            run(fails_at(ports, nth))
        done = raised.value.facts.get("lines", [])
        assert [*(str(line).removeprefix("done: ") for line in done), *raised.value.left] == (
            [] if nth == 1 else list(lines)
        )
        assert len(done) == nth - 1
        assert "run the command again" in str(raised.value.hint) or nth == 1
        now = files(root)
        groups = now.pop("etc/group", "")  # gets one line after the other
        assert after.get("etc/group", "").startswith(groups)
        assert all(text in (before.get(path), after.get(path)) for path, text in now.items())
        run(ports)
        assert files(root) == after
    assert run(fails_at(prepared("more")[0], number + 1)).changed


def test_an_interruption_names_what_was_done(ports: Host):
    class Interrupting(Silent):
        def on_step_start(self, number: int, text: str) -> None:
            if number == 2:
                raise Interrupted("stopped by SIGTERM", signal_number=15)

    with pytest.raises(Interrupted) as raised:
        install(ports, progress=Interrupting())
    assert (raised.value.facts["lines"], len(raised.value.left)) == ([f"done: write {HOOK_PATH}"], 3)
    assert install(ports).changed


def test_a_directory_that_is_a_file_is_named(ports: Host, root: Path):
    (root / "etc/libvirt").write_text("a file where a directory should be")
    with pytest.raises(Failed, match=r"hooks/qemu\.d/vgpuctl cannot be written"):
        install(ports)


def test_a_read_only_etc_is_not_reported_as_a_permission_problem(ports: Host):
    def put(path: str, text: str, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with pytest.raises(Failed, match="Read-only file system") as raised:
        install(with_calls(ports, "system", put=put))
    assert "root" not in str(raised.value.hint).split()
    assert "findmnt" in str(raised.value.hint)


def test_systemd_reads_the_unit_and_only_the_daemon_that_runs_is_restarted(ports: Host):
    commands: list[tuple[str, ...]] = []
    ports = with_calls(
        ports,
        "system",
        has_systemd=True,
        is_active=lambda unit: unit == "virtqemud.service",
        systemctl=lambda *words, **_: commands.append(words),
    )
    install(ports, restart=True)
    assert commands == [("daemon-reload",), ("restart", "virtqemud.service")]
    commands.clear()
    install(ports)
    assert commands == []


def test_a_captured_tree_gets_nothing(ports: Host):
    with pytest.raises(HostCannot):
        install(replace(ports, system=None))
