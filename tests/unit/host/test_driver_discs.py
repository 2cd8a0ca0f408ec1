# SPDX-License-Identifier: Apache-2.0
"""The discs with drivers for guests, on the file system of this machine."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path
from threading import Event, Thread

import pytest
from pycdlib import PyCdlib

from tests.drivers import put_driver, run_name
from tests.processes import left_by_a_killed_process
from vgpuctl.host.atomic_files import HostUnfinishedFiles
from vgpuctl.host.driver_discs import DriverDiscFiles
from vgpuctl.host.processes import HostClock, HostProcesses
from vgpuctl.model.guest_driver import DISC_LABEL

LIMIT = 4 << 20
NAME = run_name("580.159.03")


@pytest.fixture
def discs(tmp_path: Path) -> DriverDiscFiles:
    return DriverDiscFiles(tmp_path / "vgpuctl/drivers", HostClock(), of_root=False)


def files(discs: DriverDiscFiles) -> list[str]:
    """Return what is in the folder of the discs, without the lock, which stays."""
    return sorted(set(os.listdir(Path(discs.path("d.iso")).parent)) - {".lock"})


def test_a_disc_has_the_file_and_nothing_else(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME, text=os.urandom(3_000_001))
    read = discs.read(str(path), LIMIT)
    assert read is not None
    data = path.read_bytes()
    assert (read.head, read.size_bytes) == (data[: len(read.head)], len(data))
    assert (read.sha256, read.exposure) == (hashlib.sha256(data).hexdigest(), None)
    assert not discs.has("d.iso")
    discs.write("d.iso", str(path), read.sha256, LIMIT)
    disc = Path(discs.path("d.iso"))
    assert (disc.stat().st_mode & 0o777, disc.parent.stat().st_mode & 0o777) == (0o644, 0o755), "QEMU's user reads it"
    image, content = PyCdlib(), io.BytesIO()
    image.open(str(disc))
    assert image.pvd.volume_identifier.decode().strip() == DISC_LABEL
    assert [child.file_identifier() for child in image.list_children(joliet_path="/")][2:] == [NAME.encode("utf-16-be")]
    image.get_file_from_iso_fp(content, rr_path=f"/{NAME}")
    assert content.getvalue() == data
    image.close()
    assert files(discs) == ["d.iso"]


def test_qemus_user_reads_it_whatever_the_umask(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    before = os.umask(0o077)
    try:
        discs.write("d.iso", str(path), read.sha256, LIMIT)
    finally:
        os.umask(before)
    disc = Path(discs.path("d.iso"))
    modes = [oct(part.stat().st_mode & 0o777) for part in (disc, disc.parent, disc.parent.parent)]
    assert modes == ["0o644", "0o755", "0o755"]


def test_a_disc_that_exists_is_left_as_it_is(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    discs.write("d.iso", str(path), read.sha256, LIMIT)
    before = os.stat(discs.path("d.iso"))
    path.unlink()
    discs.write("d.iso", str(path), read.sha256, LIMIT)
    assert os.stat(discs.path("d.iso")) == before


def test_a_file_that_changes_meanwhile_makes_no_disc(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    put_driver(tmp_path, NAME, text=b"exit 1\n")
    with pytest.raises(ValueError, match="it has changed since it was read"):
        discs.write("d.iso", str(path), read.sha256, LIMIT)
    assert files(discs) == []


def test_what_is_no_file_is_not_read(discs: DriverDiscFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, number in ((tmp_path / "pipe", errno.EINVAL), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=str(path)) as raised:
            discs.read(str(path), LIMIT)
        assert raised.value.errno == number
    large = put_driver(tmp_path, NAME, text=bytes(LIMIT))
    with pytest.raises(OSError, match="it is larger than 4 MiB"):
        discs.read(str(large), LIMIT)
    assert discs.read(str(tmp_path / "missing"), LIMIT) is None
    assert discs.read(str(large / "below"), LIMIT) is None


def test_who_can_change_a_file_of_the_real_host_is_known(tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    path.chmod(0o666)
    read = DriverDiscFiles(tmp_path, HostClock(), of_root=True).read(str(path), LIMIT)
    assert read is not None
    assert read.exposure is not None


def test_a_disc_of_a_killed_process_is_cleaned_up(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    digest = read.sha256
    left_by_a_killed_process(lambda: discs.write("d.iso", str(path), digest, LIMIT))
    folder = tmp_path / "vgpuctl/drivers"
    assert not discs.has("d.iso")
    unfinished = HostUnfinishedFiles([folder], HostProcesses())
    (left,) = unfinished.all()
    unfinished.remove(left)
    assert files(discs) == []


DISC = f"vgpuctl-driver-580.159.03-{'0' * 16}.iso"


def made(discs: DriverDiscFiles, tmp_path: Path) -> Path:
    """Make a disc and return the driver's file."""
    path = put_driver(tmp_path, NAME)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    discs.write(DISC, str(path), read.sha256, LIMIT)
    return path


def test_only_discs_of_vgpuctl_are_listed(discs: DriverDiscFiles, tmp_path: Path) -> None:
    assert discs.sizes() == {}
    made(discs, tmp_path)
    folder = Path(discs.path(DISC)).parent
    (folder / "notes.txt").write_text("mine\n")
    (folder / DISC.replace("580", "570")).symlink_to(folder / DISC)
    assert discs.sizes() == {DISC: (folder / DISC).stat().st_size}


def test_a_disc_goes_only_if_nobody_uses_it(discs: DriverDiscFiles, tmp_path: Path) -> None:
    asked = []
    assert not discs.delete(DISC, lambda: bool(asked.append(1)))
    assert asked == []
    made(discs, tmp_path)
    assert not discs.delete(DISC, lambda: True)
    assert discs.has(DISC)
    assert discs.delete(DISC, lambda: False)
    assert files(discs) == []


def test_whoever_asks_who_uses_a_disc_keeps_others_from_relying_on_it(tmp_path: Path) -> None:
    """A command that has defined its VM meanwhile waits, finds the disc gone, and makes it again."""
    discs = DriverDiscFiles(tmp_path / "drivers", HostClock(), of_root=False)
    path = made(discs, tmp_path)
    read = discs.read(str(path), LIMIT)
    assert read is not None
    digest, begun, ended = read.sha256, Event(), Event()

    def rely_on_it() -> None:
        begun.set()
        DriverDiscFiles(tmp_path / "drivers", HostClock(), of_root=False).write(DISC, str(path), digest, LIMIT)
        ended.set()

    other = Thread(target=rely_on_it)

    def is_used() -> bool:
        other.start()
        begun.wait(30)
        assert not ended.is_set()
        return False

    assert discs.delete(DISC, is_used)
    other.join(30)
    assert (ended.is_set(), discs.has(DISC)) == (True, True)


def test_a_user_of_the_host_cannot_hold_the_lock(discs: DriverDiscFiles, tmp_path: Path) -> None:
    made(discs, tmp_path)
    assert (Path(discs.path(DISC)).parent / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_file_is_read_again_when_it_has_changed(discs: DriverDiscFiles, tmp_path: Path) -> None:
    path = put_driver(tmp_path, NAME)
    first = discs.read(str(path), LIMIT)
    assert discs.read(str(path), LIMIT) == first
    other = put_driver(tmp_path / "..", f"{tmp_path.name}.other", text=b"exit 7\n")
    os.utime(other, (1, 1))
    other.replace(path)
    assert first is not None
    changed = discs.read(str(path), LIMIT)
    assert changed is not None
    assert changed.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != first.sha256
