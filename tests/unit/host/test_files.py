# SPDX-License-Identifier: Apache-2.0
"""Reading and writing files below a root."""

import errno
import os
import socket

import pytest

from vgpuctl.host.files import HostFiles


def files_below(root, *, held=False):
    return HostFiles(str(root), lock_held=lambda: held)


@pytest.fixture
def tree(tmp_path):
    device = tmp_path / "sys/devices/pci0000:00/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")
    return tmp_path


@pytest.mark.parametrize("real_root", [True, False])
def test_reads_lists_and_follows_links(tree, real_root):
    files = files_below("/" if real_root else tree)
    start = str(tree) if real_root else ""
    device = f"{start}/sys/bus/pci/devices/0000:3b:00.0"
    assert files.read(f"{device}/vendor") == "0x10de\n"
    assert files.listdir(device) == ("driver", "vendor")
    assert files.readlink(f"{device}/driver").rpartition("/")[2] == "nvidia"
    assert files.listdir(f"{device}/driver/..") == ("nvidia",)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8192, 8193, 100_000])
def test_a_file_is_read_to_its_end(tmp_path, size):
    (tmp_path / "sys").mkdir()
    for name in ("sys/a", "b"):
        (tmp_path / name).write_text("x" * size)
        assert files_below(tmp_path).read(f"/{name}") == "x" * size


def test_a_long_file_that_the_kernel_hands_out_in_pieces():
    with open("/proc/kallsyms", "rb") as file:
        assert len(files_below("/").read("/proc/kallsyms").encode()) == len(file.read())


def test_undecodable_bytes_do_not_stop_a_command(tmp_path):
    (tmp_path / "name").write_bytes(b"GRID \xff\n")
    assert files_below(tmp_path).read("/name") == "GRID \N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("real_root", [True, False])
@pytest.mark.parametrize("call", ["read", "listdir", "readlink"])
def test_errors_carry_errno_and_the_callers_path(tmp_path, real_root, call):
    files = files_below("/" if real_root else tmp_path)
    path = f"{tmp_path}/no/such" if real_root else "/no/such"
    with pytest.raises(FileNotFoundError) as caught:
        getattr(files, call)(path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, path)


def test_an_error_of_the_read_itself_names_the_file(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        files_below("/").read(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../etc/hostname", "/../../etc/hostname"])
def test_no_link_leads_out_of_a_captured_tree(tmp_path, target):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/link").symlink_to(target)
    files = files_below(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read("/a/link")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("captured\n")
    assert files.read("/a/link") == "captured\n"
    assert files.read("/a/../../../etc/hostname") == "captured\n"
    assert files.readlink("/a/link") == target


def test_an_absolute_link_to_a_directory_stays_below_the_root(tmp_path):
    (tmp_path / "sys/real").mkdir(parents=True)
    (tmp_path / "sys/real/file").write_text("1")
    (tmp_path / "sys/link").symlink_to("/sys/real")
    assert files_below(tmp_path).listdir("/sys/link") == ("file",)


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links") as caught:
        files_below(tmp_path).read("/a")
    assert caught.value.errno == errno.ELOOP


def test_a_file_with_read_effects_is_not_read(tmp_path):
    fifo = tmp_path / "reset_gpu"  # opening a FIFO would block forever
    os.mkfifo(fifo)
    with pytest.raises(PermissionError, match="resets"):
        files_below("/").read(str(fifo))


def test_write_replaces_in_one_call(tmp_path):
    path = tmp_path / "sriov_numvfs"
    path.write_text("16")
    files_below("/").write(str(path), "0")
    assert path.read_text() == "0"


def test_write_does_not_make_a_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        files_below("/").write(str(tmp_path / "create"), "x")
    assert caught.value.filename == str(tmp_path / "create")


def test_the_kernels_refusal_reaches_the_caller():
    with pytest.raises(OSError, match=r".") as caught:
        files_below("/").write("/proc/self/oom_score_adj", "no number")
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/proc/self/oom_score_adj")


def test_nothing_is_written_under_the_host_lock(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    files = files_below("/", held=True)
    with pytest.raises(AssertionError):
        files.write(str(path), "after")
    with pytest.raises(AssertionError):
        files.write_uninterruptible(str(path), "after", gpu="0000:3b:00.0", deadline_seconds=1)
    assert path.read_text() == "before"


def test_the_real_root_costs_one_open_for_each_read(tmp_path):
    (tmp_path / "f").write_text("1")
    opened = []

    def count(event, arguments):
        if event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            opened.append(arguments[0])

    import sys

    sys.addaudithook(count)
    files_below("/").read(f"{tmp_path}/f")
    assert len(opened) == 1


@pytest.mark.parametrize("real_root", [True, False])
def test_permissions_are_those_of_what_a_link_leads_to(tree, real_root):
    (tree / "sys/vendor").symlink_to("devices/pci0000:00/0000:3b:00.0/vendor")
    (tree / "sys/devices/pci0000:00/0000:3b:00.0/vendor").chmod(0o640)
    prefix = str(tree) if real_root else ""
    files = files_below("/" if real_root else tree)
    seen = files.permissions(f"{prefix}/sys/vendor")
    assert (seen.mode, seen.owner, seen.group) == (0o640, os.getuid(), os.getgid())
    with pytest.raises(FileNotFoundError) as caught:
        files.permissions(f"{prefix}/sys/none")
    assert caught.value.filename == f"{prefix}/sys/none"


def a_fifo(path):
    os.mkfifo(path)


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [a_fifo, a_socket, a_device])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, put):
    put(tmp_path / "class")
    with pytest.raises(OSError, match=r".") as caught:
        files_below("/").read(f"{tmp_path}/class")
    assert caught.value.filename == f"{tmp_path}/class"
    assert caught.value.errno in (errno.EINVAL, errno.ENXIO)


def test_a_file_of_three_gigabytes_is_not_read_into_memory(tmp_path):
    for name in ("sys/class", "proc/mounts"):
        (tmp_path / name).parent.mkdir()
        with open(tmp_path / name, "wb") as file:
            file.truncate(3 << 30)
        with pytest.raises(OSError, match="larger than") as caught:
            files_below(tmp_path).read(f"/{name}")
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, f"/{name}")
