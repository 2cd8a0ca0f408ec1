# SPDX-License-Identifier: Apache-2.0
"""install-host puts everything there once, keeps what people changed, and uninstall-host leaves nothing of its own."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from tests.worlds import Host, Silent, open_host
from vgpuctl.engine.installation import install_host, uninstall_host
from vgpuctl.errors import Failed, HostCannot
from vgpuctl.host.system import HostSystem
from vgpuctl.model.outcome import Outcome
from vgpuctl.plan.installation import HOOK, MAIN_HOOK, UNIT, WANTED
from vgpuctl.value import replace

BASH = "usr/share/bash-completion/completions"


def install(host: Host, *, dry_run: bool = False, restart: bool = False, python: str = "/usr/bin/python3") -> Outcome:
    return install_host(
        host.world,
        python=python,
        completions={"bash": "complete vgpuctl", "zsh": "#compdef vgpuctl"},
        restart_libvirt=restart,
        dry_run=dry_run,
        progress=Silent(),
    )


def uninstall(host: Host, *, dry_run: bool = False) -> Outcome:
    return uninstall_host(host.world, restart_libvirt=False, dry_run=dry_run, progress=Silent())


def files(root: Path) -> dict[str, str]:
    found = [p for top in ("etc", "usr") for p in sorted((root / top).rglob("*")) if p.is_file() or p.is_symlink()]
    return {str(p.relative_to(root)): p.read_text() if not p.is_symlink() else str(p.readlink()) for p in found}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = open_host(tmp_path)
    (tmp_path / "state" / BASH).mkdir(parents=True)
    return found


def test_installed_once_then_nothing_to_do_then_gone(host: Host):
    root = host.directory / "state"
    before = files(root)
    assert install(host, dry_run=True).changed
    assert files(root) == before
    done = install(host)
    assert done.changed
    assert any("restart" in note for note in done.notes)
    assert set(files(root)) - set(before) == {HOOK[1:], UNIT[1:], WANTED[1:], f"{BASH}/vgpuctl"}
    assert (root / HOOK[1:]).stat().st_mode & 0o777 == 0o755
    assert not install(host).changed
    assert uninstall(host, dry_run=True).changed
    assert uninstall(host).changed
    assert files(root) == before
    assert not uninstall(host).changed


def test_another_version_of_our_own_file_is_replaced(host: Host):
    install(host)
    assert install(host, python="/opt/python3").changed
    assert "/opt/python3" in (host.directory / "state" / HOOK[1:]).read_text()


@pytest.mark.parametrize("path", [HOOK, UNIT])
def test_a_file_changed_by_hand_is_kept_and_named(host: Host, path: str):
    install(host)
    real = host.directory / "state" / path[1:]
    mine = real.read_text() + "# mine\n"
    real.write_text(mine)
    again = install(host, python="/opt/python3")
    assert again.data["kept"] == [path]
    assert any(path in warning for warning in again.warnings)
    assert uninstall(host).data["kept"] == [path]
    assert real.read_text() == mine


def test_the_admins_own_hook_stays_as_it_is(host: Host):
    real = host.directory / "state" / MAIN_HOOK[1:]
    real.parent.mkdir(parents=True)
    real.write_text("#!/bin/sh\nexit 0\n")
    install(host)
    uninstall(host)
    assert real.read_text() == "#!/bin/sh\nexit 0\n"


def test_what_people_wrote_in_etc_vgpuctl_stays(host: Host):
    config = host.directory / "state" / "etc" / "vgpuctl" / "host.yaml"
    config.write_text("version: 1\n")
    install(host)
    uninstall(host)
    assert config.read_text() == "version: 1\n"


def test_a_write_that_fails_takes_the_others_back(host: Host):
    root = host.directory / "state"
    before = files(root)
    (root / "etc" / "libvirt").write_text("a file where a directory should be")
    with pytest.raises(Failed, match=r"hooks/qemu\.d/vgpuctl cannot be written"):
        install(host)
    (root / "etc" / "libvirt").unlink()
    assert files(root) == before


def test_a_read_only_etc_is_said_to_be_one_and_not_a_matter_of_rights(host: Host):
    class ReadOnly(HostSystem):
        def put(self, path: str, text: str, mode: int) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with pytest.raises(Failed, match="Read-only file system") as raised:
        install(dataclasses.replace(host, world=replace(host.world, system=ReadOnly(host.directory / "state"))))
    assert "root" not in str(raised.value.hint).split()
    assert "findmnt" in str(raised.value.hint)


class Recorded(HostSystem):
    """A host with systemd, whose systemctl only notes what it was asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.said: list[tuple[str, ...]] = []

    @property
    def has_services(self) -> bool:
        return True

    def active(self, unit: str) -> bool:
        return unit == "virtqemud.service"

    def systemctl(self, *words: str) -> None:
        self.said.append(words)


def test_systemd_reads_the_unit_and_only_the_daemon_that_runs_is_restarted(host: Host):
    system = Recorded(host.directory / "state")
    installed = Host(replace(host.world, system=system), host.sim, host.directory, host.scenario)
    install(installed, restart=True)
    assert system.said == [("daemon-reload",), ("restart", "virtqemud.service")]
    system.said.clear()
    install(installed)
    assert system.said == []


def test_a_captured_tree_gets_nothing(host: Host):
    with pytest.raises(HostCannot):
        install(Host(replace(host.world, system=None), host.sim, host.directory, host.scenario))
