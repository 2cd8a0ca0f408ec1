# SPDX-License-Identifier: Apache-2.0
"""The local decisions of the bootstrap of a host, with fake logins; its Debian package is read without dpkg."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.remote.test_fanout import Played
from vgpuctl.errors import HostCannot, Interrupted, InvalidInput, NotFound, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.remote import bootstrap, fanout
from vgpuctl.remote.bootstrap import DebianPackage
from vgpuctl.remote.session import RemoteCommand, RemoteOutput, RunControl, Target

PACKAGE = DebianPackage("dist/vgpuctl.deb", "vgpuctl.deb", "1.0-1", b"w" * 1000)
WORDS = ("--json", "install-host")
BROKE = RemoteOutput(None, "", "", "", abandon_reason="the connection broke")


def done(**data: Any) -> RemoteOutput:
    """Return the output of a successful command."""
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": True, "changed": True, "data": data, "warnings": []}
    return RemoteOutput(0, json.dumps(body), "", "")


def inspect_reply(was: str | None, *, present: bool = False) -> RemoteOutput:
    return done(was=was, present=present, steps=["copy"])


class Host:
    """A host that answers each command of a login with its next reply; it reads `taken` bytes of the last one."""

    def __init__(self, *answers: RemoteOutput, taken: int | None = None) -> None:
        self.answers = list(answers)
        self.taken = taken
        self.asked: list[RemoteCommand] = []

    def play(self, asked: RemoteCommand, watch: RunControl) -> RemoteOutput:
        self.asked.append(asked)
        if watch.report_sent is not None:
            for sent in range(0, (self.taken or len(asked.stdin)) + 1, 100):
                watch.report_sent(sent)
            watch.report_sent(self.taken or len(asked.stdin))
        return self.answers.pop(0)

    def reply(self, *, stops: Callable[[], int] = lambda: 0, **more: Any) -> fanout.HostReply:
        what = bootstrap.plan_package(PACKAGE, WORDS, **{"dry_run": False, "report_line": None, **more})
        task = fanout.FanoutTask(RemoteCommand(WORDS), True, "1.0", lambda name, line: None, bootstrap=what)
        (result,) = fanout.run([Target("gpu", "gpu")], task, lambda target, until: Played(self.play), stops)
        return result


def test_a_host_without_vgpuctl_gets_program_request_and_package():
    host = Host(inspect_reply("0.9"), done(brought={"version": "1.0", "was": "0.9"}))
    assert host.reply().parsed is not None
    observed, install = host.asked
    assert observed.program_bytes == install.program_bytes
    request, _, package = install.stdin[install.program_bytes :].partition(b"\n")
    assert (json.loads(request)["words"], package) == (list(WORDS), b"w" * 1000)
    assert b"w" * 1000 not in observed.stdin


def test_a_host_that_has_vgpuctl_runs_the_command():
    reported: list[str] = []
    host = Host(inspect_reply("1.0", present=True), done(steps=[]))
    assert host.reply(report_line=lambda name, line: reported.append(f"{name}: {line}")).parsed is not None
    assert (host.asked[1].arguments, host.asked[1].program_bytes) == (WORDS, None)
    assert reported == ["gpu: vgpuctl 1.0-1 is already installed there: nothing is copied"]


def test_a_dry_run_copies_nothing():
    host = Host(inspect_reply("0.9"))
    result = host.reply(dry_run=True).parsed
    assert result is not None
    assert result.document["data"]["steps"] == ["copy"]
    assert result.document["data"]["brought"] == {"version": "1.0-1", "was": "0.9"}


def test_sent_bytes_are_reported_in_quarters():
    reported: list[str] = []
    host = Host(inspect_reply(None), done())
    host.reply(report_line=lambda name, line: reported.append(line))
    size = len(host.asked[1].stdin)
    assert len(reported) == 4
    assert reported[-1] == f"sent {size:,} of {size:,} bytes"


@pytest.mark.parametrize(
    ("host", "raised", "output"),
    [
        (
            Host(RemoteOutput(127, "", "/usr/bin/python3 is Python 3.9.2", "")),
            HostCannot,
            "no Python 3.11 or newer: /usr/bin",
        ),
        (Host(BROKE), Unreachable, "the connection broke"),
        (Host(inspect_reply(None), BROKE, taken=500), Unreachable, "bytes were sent, and nothing was installed"),
        (Host(inspect_reply(None), BROKE), ResultUnknown, "its outcome is not known"),
    ],
)
def test_why_a_host_did_not_get_it(host: Host, raised: type[VgpuctlError], output: str):
    result = host.reply()
    assert isinstance(result.error, raised)
    assert output in result.error.message


def test_a_stop_while_the_package_is_sent_is_no_broken_connection():
    stopped = [0]

    def stop(name: str, line: str) -> None:
        stopped[0] = 1

    host = Host(inspect_reply(None), RemoteOutput(None, "", "", "", abandon_reason="it was not waited for"), taken=9000)
    result = host.reply(stops=lambda: stopped[0], report_line=stop)
    assert isinstance(result.error, Interrupted)


def test_a_refusal_there_is_the_hosts_answer():
    error = {"code": "unmanaged", "message": "m", "hint": None, "facts": {}, "exit_status": 3, "undone": [], "left": []}
    body = {"schema": "vgpuctl/1", "kind": "install-host", "ok": False, "changed": False, "error": error}
    result = Host(RemoteOutput(3, json.dumps({**body, "warnings": []}), "", "")).reply().parsed
    assert result is not None
    assert result.status == 3


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def package(
    directory: Path, control: str, compression: str = "xz", control_name: str = "./control", data: bytes = b""
) -> Path:
    """Write a Debian package that contains only its control file; `data` stands for an archive."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode=f"w:{compression}") as archive:
        info = tarfile.TarInfo(control_name)
        info.size = len(control)
        archive.addfile(info, io.BytesIO(control.encode()))
    path = directory / "vgpuctl_0.2.0-1_all.deb"
    parts = [member("debian-binary", b"2.0\n"), member(f"control.tar.{compression}", tar.getvalue())]
    path.write_bytes(b"".join([b"!<arch>\n", *parts, member("data.tar.xz", data)]))
    return path


CONTROL = "Package: vgpuctl\nVersion: 0.2.0-1\nArchitecture: all\n"


@pytest.mark.parametrize("compression", ["xz", "gz"])
def test_version_and_checksum(tmp_path: Path, compression: str) -> None:
    path = package(tmp_path, CONTROL, compression)
    result = bootstrap.read_package(str(path))
    assert (result.filename, result.version) == ("vgpuctl_0.2.0-1_all.deb", "0.2.0-1")
    assert result.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_another_package_is_refused(tmp_path: Path) -> None:
    path = package(tmp_path, CONTROL.replace("vgpuctl", "incus"))
    with pytest.raises(InvalidInput, match="is a package of incus, not of vgpuctl"):
        bootstrap.read_package(str(path))


def test_no_package_is_refused(tmp_path: Path) -> None:
    whole = package(tmp_path, CONTROL).read_bytes()
    path = tmp_path / "x.deb"
    for content in (b"", b"PK\x03\x04", whole[:50], whole[:120], b"!<arch>\n", b"!<arch>\n" + b"x" * 60):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="is not a complete Debian package"):
            bootstrap.read_package(str(path))
    path.write_bytes(package(tmp_path, CONTROL, control_name="./other").read_bytes())
    with pytest.raises(InvalidInput, match="is not a complete Debian package"):
        bootstrap.read_package(str(path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        bootstrap.read_package(str(tmp_path / "nowhere.deb"))
    with pytest.raises(InvalidInput, match="it is a directory"):
        bootstrap.read_package(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput, match="it is a pipe"):
        bootstrap.read_package(str(tmp_path / "fifo"))
