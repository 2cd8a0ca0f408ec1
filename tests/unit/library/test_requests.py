# SPDX-License-Identifier: Apache-2.0
"""From options and files to a checked request, with the host's defaults."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.library import requests


@dataclass
class Files:
    """The one port that a request needs."""

    texts: dict[str, str] = field(default_factory=dict)
    error: OSError | None = None

    def read(self, path: str) -> str:
        if self.error is not None:
            raise self.error
        if path not in self.texts:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.texts[path]


def ports(files: Files | None = None) -> Any:
    return SimpleNamespace(sysfs=files or Files(), host_file=None, given_files=None)


HOST = Files({"/etc/vgpuctl/host.yaml": "version: 1\ndefaults: {memory: 16GiB}\n"})


def test_typed_values_win_over_the_hosts_defaults() -> None:
    typed = {"profile": ("A100-4C:2",), "memory": None, "disk": (), "force_console": False}
    request = requests.from_fields(ports(HOST), None, typed)
    assert request.profiles == (("A100-4C", 2),)
    assert (request.memory_mib, request.sources["memory"]) == (16384, "host.yaml")
    assert requests.from_fields(ports(HOST), None, {**typed, "memory": "2GiB"}).memory_mib == 2048
    assert requests.from_fields(ports(), None, typed).sources["memory"] == "default"


def test_a_host_file_that_cannot_be_read() -> None:
    with pytest.raises(InvalidInput, match=r"host\.yaml cannot be read: Input/output error") as raised:
        requests.read_spec_of_host(ports(Files(error=OSError(5, "Input/output error"))))
    assert "ls -l /etc/vgpuctl/host.yaml" in str(raised.value.hint)


def test_a_spec_file(tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text("name: vdi-001\nprofile: A100-4C\n", encoding="utf-8")
    assert requests.from_file(ports(), os.fspath(path), {}).name == "vdi-001"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"name": "vdi-001"}')))
    assert requests.from_file(ports(), "-", {}).name == "vdi-001"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no spec file") as absent:
        requests.from_file(ports(), os.fspath(tmp_path / "none"), {})
    assert absent.value.hint
    (tmp_path / "binary").write_bytes(b"name: \xff")
    with pytest.raises(InvalidInput, match="not UTF-8 text: byte 6") as binary:
        requests.from_file(ports(), os.fspath(tmp_path / "binary"), {})
    assert (
        binary.value.hint
        == f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {tmp_path}/binary > {tmp_path}/binary.utf8"
    )
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory") as directory:
        requests.from_file(ports(), os.fspath(tmp_path), {})
    assert directory.value.hint == f"ls -ld {tmp_path}"
    (tmp_path / "wrong").write_text("profil: A100-4C\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="wrong:1:1: profil: unknown field"):
        requests.from_file(ports(), os.fspath(tmp_path / "wrong"), {})


@pytest.mark.parametrize("path", ["/dev/zero", "-"])
def test_a_file_without_an_end_is_refused_and_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(InvalidInput, match="is larger than 1024 KiB, which no spec is"):
            requests.from_file(ports(), path, {})


def test_line_ends_of_windows_are_read_as_line_ends(tmp_path: Path) -> None:
    (tmp_path / "user-data").write_bytes(b"#cloud-config\r\nusers: []\r\n")
    typed = {"profile": ("A100-4C",), "image": "/a.qcow2", "cloud_init": os.fspath(tmp_path / "user-data")}
    seed = requests.from_fields(ports(), None, typed).seed
    assert seed is not None
    assert seed.user_data is not None
    assert seed.user_data.text == "#cloud-config\nusers: []\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link to a pipe"])
def test_user_data_that_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "user-data"
    if kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe"
        if kind == "link to a pipe":
            path = tmp_path / "link"
            path.symlink_to("pipe")
    typed = {"profile": ("A100-4C",), "image": "/a.qcow2", "cloud_init": os.fspath(path)}
    with pytest.raises(InvalidInput, match=r"not a regular file|it is a directory") as raised:
        requests.from_fields(ports(), None, typed)
    assert f"ls -ld {path}" in str(raised.value.hint)
