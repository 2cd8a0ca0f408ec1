# SPDX-License-Identifier: Apache-2.0
"""install-host installs everything once and keeps user changes; uninstall-host leaves nothing of its own."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.hosts import Silent, SimulatedHost, context, open_sim_host
from vgpuctl.errors import Failed, HostCannot, Interrupted, PartlyApplied, Refused
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.host.system_files import HostSystem
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.installation import install_host, uninstall_host
from vgpuctl.operations.plans.installation import (
    HOOK_PATH,
    MAIN_HOOK_PATH,
    PACKAGE_UNIT_PATH,
    UNIT_PATH,
    UNIT_WANTS_LINK,
    unit_text,
)
from vgpuctl.value import replace

BASH = "usr/share/bash-completion/completions"


def install(
    host: SimulatedHost,
    *,
    dry_run: bool = False,
    restart: bool = False,
    python: str = "/usr/bin/python3",
    progress: Progress | None = None,
) -> Outcome:
    return install_host(
        host.ports,
        context(dry_run=dry_run, progress=progress),
        python=python,
        completions={"bash": "complete vgpuctl", "zsh": "#compdef vgpuctl"},
        restart_libvirt=restart,
    )


def uninstall(host: SimulatedHost, *, dry_run: bool = False) -> Outcome:
    return uninstall_host(host.ports, context(dry_run=dry_run), restart_libvirt=False)


def with_system(host: SimulatedHost, system: HostSystem | None) -> SimulatedHost:
    """Return the host with another system."""
    return dataclasses.replace(host, ports=replace(host.ports, system=system))


def files(root: Path) -> dict[str, str]:
    result = [p for top in ("etc", "usr") for p in sorted((root / top).rglob("*")) if p.is_file() or p.is_symlink()]
    return {str(p.relative_to(root)): p.read_text() if not p.is_symlink() else str(p.readlink()) for p in result}


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    result = open_sim_host(tmp_path)
    (tmp_path / "state" / BASH).mkdir(parents=True)
    return result


def test_installed_once_then_nothing_to_do_then_gone(host: SimulatedHost):
    root = host.directory / "state"
    before = files(root)
    assert install(host, dry_run=True).changed
    assert files(root) == before
    done = install(host)
    assert done.changed
    assert any("restart" in note for note in done.notes)
    assert set(files(root)) - set(before) == {HOOK_PATH[1:], UNIT_PATH[1:], UNIT_WANTS_LINK[1:], f"{BASH}/vgpuctl"}
    assert (root / HOOK_PATH[1:]).stat().st_mode & 0o777 == 0o755
    assert not install(host).changed
    assert uninstall(host, dry_run=True).changed
    assert uninstall(host).changed
    assert files(root) == before
    assert not uninstall(host).changed


def test_another_version_of_our_own_file_is_replaced(host: SimulatedHost):
    install(host)
    assert install(host, python="/opt/python3").changed
    assert "/opt/python3" in (host.directory / "state" / HOOK_PATH[1:]).read_text()


def put_package_unit(host: SimulatedHost) -> None:
    unit = host.directory / "state" / PACKAGE_UNIT_PATH[1:]
    unit.parent.mkdir(parents=True)
    unit.write_text(unit_text(PACKAGE_PYTHON))


def test_the_packages_python_writes_the_unit_where_the_package_has_put_none(host: SimulatedHost):
    done = install(host, python=PACKAGE_PYTHON)
    assert {UNIT_PATH[1:], UNIT_WANTS_LINK[1:], f"{BASH}/vgpuctl"} <= files(host.directory / "state").keys()
    assert UNIT_PATH in done.data.files
    assert [check.verdict for check in diagnose(host.ports, ("restore-unit", "start-hook")).checks] == ["ok", "ok"]
    assert not install(host, python=PACKAGE_PYTHON).changed
    put_package_unit(host)
    install(host, python=PACKAGE_PYTHON)
    assert UNIT_PATH[1:] not in files(host.directory / "state")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_package_takes_over_what_install_host_wrote(host: SimulatedHost, is_enabled: bool):
    root = host.directory / "state"
    install(host, python="/opt/vgpuctl/bin/python")
    if not is_enabled:
        (root / UNIT_WANTS_LINK[1:]).unlink()
    put_package_unit(host)
    done = install(host, python=PACKAGE_PYTHON)
    assert (done.changed, done.data.kept) == (True, ())
    after = files(root)
    assert PACKAGE_PYTHON in after[HOOK_PATH[1:]]
    assert not {UNIT_PATH[1:], f"{BASH}/vgpuctl"} & after.keys()
    assert after.get(UNIT_WANTS_LINK[1:]) == (PACKAGE_UNIT_PATH if is_enabled else None)
    assert not install(host, python=PACKAGE_PYTHON).changed
    assert uninstall(host).changed
    assert HOOK_PATH[1:] not in files(root)
    assert files(root).get(UNIT_WANTS_LINK[1:]) == (PACKAGE_UNIT_PATH if is_enabled else None)


def test_the_package_keeps_and_names_a_unit_that_was_changed_by_hand(host: SimulatedHost):
    root = host.directory / "state"
    install(host, python="/opt/vgpuctl/bin/python")
    unit = root / UNIT_PATH[1:]
    unit.write_text(unit.read_text() + "# mine\n")
    put_package_unit(host)
    assert install(host, python=PACKAGE_PYTHON).data.kept == (UNIT_PATH,)
    assert files(root)[UNIT_WANTS_LINK[1:]] == UNIT_PATH


def test_what_the_package_has_stays_without_a_warning(host: SimulatedHost):
    put_package_unit(host)
    completion = host.directory / "state" / BASH / "vgpuctl"
    completion.write_text("complete vgpuctl\n")
    install(host, python=PACKAGE_PYTHON)
    assert "belong to the Debian package" in uninstall(host, dry_run=True).notes[0]
    removed = uninstall(host)
    assert (removed.data.files, removed.warnings) == ((HOOK_PATH,), ())
    assert completion.exists()


def test_another_installation_does_not_replace_the_packages_hook(host: SimulatedHost):
    put_package_unit(host)
    install(host, python=PACKAGE_PYTHON)
    before = files(host.directory / "state")
    with pytest.raises(Refused, match="the Debian package vgpuctl has libvirt's hook") as refused:
        install(host, python="/opt/vgpuctl/bin/python")
    assert "apt remove vgpuctl" in (refused.value.hint or "")
    assert files(host.directory / "state") == before


@pytest.mark.parametrize("path", [HOOK_PATH, UNIT_PATH])
def test_a_file_changed_by_hand_stays_and_is_named(host: SimulatedHost, path: str):
    install(host)
    real = host.directory / "state" / path[1:]
    mine = real.read_text() + "# mine\n"
    real.write_text(mine)
    again = install(host, python="/opt/python3")
    assert again.data.kept == (path,)
    assert any(path in warning for warning in again.warnings)
    assert uninstall(host).data.kept == (path,)
    assert real.read_text() == mine


@pytest.mark.parametrize(
    ("path", "text"), [(MAIN_HOOK_PATH, "#!/bin/sh\nexit 0\n"), ("/etc/vgpuctl/host.yaml", "version: 1\n")]
)
def test_what_people_wrote_stays_as_it_is(host: SimulatedHost, path: str, text: str):
    real = host.directory / "state" / path[1:]
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(text)
    install(host)
    uninstall(host)
    assert real.read_text() == text


class Failing(HostSystem):
    """A host on which one change fails, the n-th."""

    def __init__(self, root: Path, nth: int) -> None:
        super().__init__(root)
        self.left = nth

    @property
    def has_systemd(self) -> bool:
        return True

    def is_active(self, unit: str) -> bool:
        return False

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put(self, path: str, text: str, mode: int | None) -> None:
        self._count()
        super().put(path, text, mode)

    def link(self, path: str, target: str, *, replace: bool = False) -> None:
        self._count()
        super().link(path, target, replace=replace)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def systemctl(self, *words: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Failed("systemctl daemon-reload failed: no bus", hint="systemctl daemon-reload")


@pytest.mark.parametrize(
    ("installed", "is_package", "run", "number"),
    [
        (None, False, install, 5),
        ("/opt/python3", False, install, 3),
        ("/opt/python3", True, partial(install, python=PACKAGE_PYTHON), 5),
        ("/usr/bin/python3", False, uninstall, 5),
    ],
    ids=["new", "upgrade", "package", "removal"],
)
def test_a_failure_leaves_whole_files_and_names_them_and_the_next_run_finishes(
    tmp_path: Path, installed: str | None, is_package: bool, run: Callable[[SimulatedHost], Outcome], number: int
):
    """`installed`: the Python whose files are there before; `is_package`: whether the Debian package's unit is."""

    def new_host(name: str) -> SimulatedHost:
        result = open_sim_host(tmp_path / name)
        (tmp_path / name / "state" / BASH).mkdir(parents=True)
        if installed is not None:
            install(result, python=installed)
        if is_package:
            put_package_unit(result)
        return result

    def fails_at(host: SimulatedHost, nth: int) -> SimulatedHost:
        return with_system(host, Failing(host.directory / "state", nth))

    whole = new_host("whole")
    before = files(whole.directory / "state")
    lines = run(fails_at(whole, 0)).steps
    after = files(whole.directory / "state")
    for nth in range(1, number + 1):
        host = new_host(str(nth))
        with pytest.raises(Failed if nth == 1 else PartlyApplied) as raised:
            run(fails_at(host, nth))
        done = raised.value.facts.get("lines", [])
        assert [*(str(line).removeprefix("done: ") for line in done), *raised.value.left] == (
            [] if nth == 1 else list(lines)
        )
        assert len(done) == nth - 1
        assert "run the command again" in str(raised.value.hint) or nth == 1
        now = files(host.directory / "state")
        assert all(text in (before.get(path), after.get(path)) for path, text in now.items())
        run(host)
        assert files(host.directory / "state") == after
    assert run(fails_at(new_host("more"), number + 1)).changed


def test_an_interruption_names_what_was_done(host: SimulatedHost):
    class Interrupting(Silent):
        def on_step_start(self, number: int, text: str) -> None:
            if number == 2:
                raise Interrupted("stopped by SIGTERM", signal_number=15)

    with pytest.raises(Interrupted) as raised:
        install(host, progress=Interrupting())
    assert (raised.value.facts["lines"], len(raised.value.left)) == ([f"done: write {HOOK_PATH}"], 3)
    assert install(host).changed


def test_a_directory_that_is_a_file_is_named(host: SimulatedHost):
    (host.directory / "state/etc/libvirt").write_text("a file where a directory should be")
    with pytest.raises(Failed, match=r"hooks/qemu\.d/vgpuctl cannot be written"):
        install(host)


def test_a_read_only_etc_is_not_reported_as_a_permission_problem(host: SimulatedHost):
    class ReadOnly(HostSystem):
        def put(self, path: str, text: str, mode: int) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with pytest.raises(Failed, match="Read-only file system") as raised:
        install(with_system(host, ReadOnly(host.directory / "state")))
    assert "root" not in str(raised.value.hint).split()
    assert "findmnt" in str(raised.value.hint)


class Recorded(HostSystem):
    """A host with systemd, whose systemctl only logs its calls."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[tuple[str, ...]] = []

    @property
    def has_systemd(self) -> bool:
        return True

    def is_active(self, unit: str) -> bool:
        return unit == "virtqemud.service"

    def systemctl(self, *words: str) -> None:
        self.commands.append(words)


def test_systemd_reads_the_unit_and_only_the_daemon_that_runs_is_restarted(host: SimulatedHost):
    system = Recorded(host.directory / "state")
    install(with_system(host, system), restart=True)
    assert system.commands == [("daemon-reload",), ("restart", "virtqemud.service")]
    system.commands.clear()
    install(with_system(host, system))
    assert system.commands == []


def test_a_captured_tree_gets_nothing(host: SimulatedHost):
    with pytest.raises(HostCannot):
        install(with_system(host, None))
