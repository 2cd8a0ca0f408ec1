# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced atomically, and recognized if their writer is gone; the scratch directory of root alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import claim_store, open_sim_host
from tests.processes import left_by_a_killed_process
from tests.values import ME
from vgpuctl.host.atomic_files import SYSTEM_DIRECTORIES, HostUnfinishedFiles, open_unfinished_files
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.driver_discs import DIRECTORY as DISC_DIRECTORY
from vgpuctl.host.host_file import HOST_FILE_PATH, HostFileOnDisk
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.system_files import HostScratch, HostSystem
from vgpuctl.model.vm import DrainedVm
from vgpuctl.operations.plans import installation

LASTING: dict[str, Callable[[Path, str], None]] = {
    "host.yaml": lambda path, text: HostFileOnDisk(path, lock_held=lambda: False).replace(text, None),
    "a file of install-host": lambda path, text: HostSystem(path.parent).put(f"/{path.name}", text, 0o644),
}


@pytest.mark.parametrize("what", LASTING)
def test_the_text_is_on_the_disk_before_the_file_has_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A power failure leaves the old file or the new one: fsync(2) the file, rename(2), fsync(2) the directory."""
    seen: list[tuple[str, int, int | None]] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        known = os.fstat(descriptor)
        seen.append(("synced", known.st_ino, known.st_size if descriptor and not is_dir(known.st_mode) else None))

    def renamed(real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def call(old: Path, new: Path) -> None:
            seen.append(("renamed", os.stat(old).st_ino, os.stat(old).st_size))
            real(old, new)

        return call

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed(replace))
    monkeypatch.setattr(os, "rename", renamed(rename))
    path = tmp_path / "some.conf"
    LASTING[what](path, "text")
    number = os.stat(path).st_ino
    of_the_file = [event for event in seen if event[1] == number]
    assert of_the_file == [("synced", number, 4), ("renamed", number, 4)]
    assert seen[-2:] == [("renamed", number, 4), ("synced", os.stat(tmp_path).st_ino, None)]


def is_dir(mode: int) -> bool:
    return mode & 0o170000 == 0o040000


def claims_in(run: Path) -> ClaimStore:
    return claim_store(run)


WRITERS: dict[str, Callable[[Path], object]] = {
    "run/drained": lambda root: claims_in(root / "run").add_drained_vm(DrainedVm("uuid", None, ME)),
    "run/scratch": lambda root: HostScratch(root / "run/scratch").write("template", b"code"),
    "etc/vgpuctl": lambda root: HostFileOnDisk(root / "etc/vgpuctl/host.yaml", lock_held=lambda: False).replace(
        "", None
    ),
    "etc/systemd/system": lambda root: HostSystem(root).put(installation.UNIT_PATH, "", 0o644),
    "etc/libvirt/hooks": lambda root: HostSystem(root).put(installation.MAIN_HOOK_PATH, "", 0o755),
    "etc/libvirt/hooks/qemu.d": lambda root: HostSystem(root).put(installation.HOOK_PATH, "", 0o755),
}


@pytest.mark.parametrize("where", WRITERS)
def test_files_of_a_killed_process_are_removed(tmp_path: Path, where: str) -> None:
    left_by_a_killed_process(lambda: WRITERS[where](tmp_path))
    unfinished = open_unfinished_files(tmp_path, tmp_path / "run", tmp_path / "etc/vgpuctl/host.yaml", HostProcesses())
    files = unfinished.all()
    assert {Path(file.path).parent for file in files} == {tmp_path / where}
    for file in (*files, *files):
        unfinished.remove(file)
    assert list((tmp_path / where).iterdir()) == []


def test_only_temporary_files_of_dead_writers_are_listed(tmp_path: Path) -> None:
    me = HostProcesses().current_process()
    kept = [
        f".host.yaml.vgpuctl-{me.pid}-{me.start_ticks}",
        ".host.yaml.4194399",
        ".host.yaml.vgpuctl-4194399",
        ".host.yaml.vgpuctl-04194399-1",
        ".host.yaml.vgpuctl-4194399-1.swp",
        "host.yaml.vgpuctl-4194399-1",
        ".vgpuctl-4194399-1",
    ]
    for name in kept:
        (tmp_path / name).write_text("")
    (tmp_path / ".directory.vgpuctl-4194399-1").mkdir()
    (tmp_path / ".link.vgpuctl-4194399-1").symlink_to("host.yaml")
    (tmp_path / ".theirs.vgpuctl-4194399-1").write_text("")
    os.chown(tmp_path / ".theirs.vgpuctl-4194399-1", 1234, 1234)
    (tmp_path / ".host.yaml.vgpuctl-4194399-1").write_text("")
    (tmp_path / f".host.yaml.vgpuctl-{me.pid}-{me.start_ticks - 1}").write_text("")
    left = HostUnfinishedFiles([tmp_path, tmp_path / "missing"], HostProcesses()).all()
    assert {Path(file.path).name for file in left} == {
        ".host.yaml.vgpuctl-4194399-1",
        f".host.yaml.vgpuctl-{me.pid}-{me.start_ticks - 1}",
    }


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_left_where_host_yaml_is_somebody_elses_is_removed(tmp_path: Path, linked: bool) -> None:
    """The new file has the owner of the old one before the rename."""
    etc = tmp_path / "etc/vgpuctl"
    etc.mkdir(parents=True)
    real = etc / "host.yaml"
    if linked:
        real = tmp_path / "real.yaml"
        (etc / "host.yaml").symlink_to(real)
    real.write_text("version: 1\n")
    os.chown(real, 1234, 1234)
    file = HostFileOnDisk(etc / "host.yaml", lock_held=lambda: False)
    left_by_a_killed_process(lambda: file.replace("version: 1\n\n", "version: 1\n"))
    unfinished = open_unfinished_files(tmp_path, tmp_path / "run", etc / "host.yaml", HostProcesses())
    left = unfinished.all()
    assert [os.stat(one.path).st_uid for one in left] == [1234, 1234], "it, and the version before"
    for one in left:
        unfinished.remove(one)
    assert {path.name for path in (*etc.iterdir(), *real.parent.iterdir())} <= {"host.yaml", "real.yaml", "etc"}


def test_a_file_whose_writer_came_to_life_is_not_removed(tmp_path: Path) -> None:
    """Detection and removal may be seconds apart; only the moment of the removal counts."""
    me = HostProcesses().current_process()
    path = tmp_path / f".host.yaml.vgpuctl-{me.pid}-{me.start_ticks}"
    path.write_text("")

    class Gone(HostProcesses):
        def is_alive(self, process: object) -> bool:
            return False

    (file,) = HostUnfinishedFiles([tmp_path], Gone()).all()
    HostUnfinishedFiles([tmp_path], HostProcesses()).remove(file)
    assert path.exists()


def test_every_directory_in_which_files_are_put_is_looked_at() -> None:
    shells = [directory for places in installation.COMPLETION_DIRECTORIES.values() for directory, _ in places]
    files = [str(HOST_FILE_PATH), installation.UNIT_PATH, installation.MAIN_HOOK_PATH, installation.HOOK_PATH]
    assert {*shells, DISC_DIRECTORY, *(os.path.dirname(file) for file in files)} == set(SYSTEM_DIRECTORIES)


def test_where_host_yaml_is_a_link_the_directory_of_its_file_is_looked_at(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    real = tmp_path / "kept"
    real.mkdir()
    (real / "h.yaml").write_text("version: 1\n")
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.symlink_to(real / "h.yaml")
    left_by_a_killed_process(lambda: host.ports.host_file.replace("version: 1\n\n", "version: 1\n"))
    left = host.again().ports.unfinished_files.all()
    assert {Path(file.path).parent for file in left} == {real, host.sim.host_file.parent}, "it and the version before"


def test_a_file_is_replaced_atomically_without_leftovers(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    assert system.read("/a/b") is None
    system.put("/a/b", "one", 0o644)
    system.put("/a/b", "two", 0o755)
    assert system.read("/a/b") == "two"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]
    assert not system.is_empty("/a")
    assert not system.remove_directory("/a")
    system.remove("/a/b")
    system.remove("/a/b")
    assert system.remove_directory("/a")


def test_a_link_is_created_once_and_replaced_on_request(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    system.link("/a/b", "one")
    with pytest.raises(FileExistsError):
        system.link("/a/b", "two")
    (tmp_path / "a/.b.vgpuctl-link").symlink_to("of a run that was killed")
    system.link("/a/b", "two", replace=True)
    assert system.readlink("/a/b") == "two"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_services_are_not_touched_where_they_are_not_to_be(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    assert not system.has_systemd
    assert not system.is_active("libvirtd.service")


def test_systemd_is_notified_only_where_it_has_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not HostSystem(tmp_path).notify_ready("done")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not HostSystem(tmp_path).notify_ready("done")
    for name in (str(tmp_path / "notify"), f"@vgpuctl-{os.getpid()}"):
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(name.replace("@", "\0"))
            assert HostSystem(tmp_path).notify_ready("the vGPUs are ready")
            assert systemd.recv(100) == b"READY=1\nSTATUS=the vGPUs are ready\n"
            assert not HostSystem(tmp_path, allow_systemctl=False).notify_ready("a simulated host")


def test_files_are_read_and_private(tmp_path: Path) -> None:
    scratch = HostScratch(tmp_path / "run/vgpuctl/scratch")
    assert scratch.read("a") is None
    scratch.write("a", b"1")
    scratch.write("a", b"2")
    assert scratch.read("a") == b"2"
    directory = tmp_path / "run/vgpuctl/scratch"
    assert [path.name for path in directory.iterdir()] == ["a"]
    assert [os.stat(p).st_mode & 0o777 for p in (directory.parent, directory, directory / "a")] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o755])
def test_a_directory_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    scratch = HostScratch(tmp_path / "scratch")
    scratch.write("a", b"1")
    os.chmod(tmp_path / "scratch", mode)
    assert scratch.read("a") is None
    scratch.write("b", b"1")
    assert not (tmp_path / "scratch/b").exists()


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    HostScratch(tmp_path / "there").write("a", b"1")
    os.symlink(tmp_path / "there", tmp_path / "scratch")
    assert HostScratch(tmp_path / "scratch").read("a") is None


def test_a_failed_write_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_text("a file")
    scratch = HostScratch(tmp_path / "scratch")
    scratch.write("a", b"1")
    assert scratch.read("a") is None
