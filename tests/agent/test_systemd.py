# SPDX-License-Identifier: Apache-2.0
"""systemd hands sockets to a real child, hears what it says, and watches it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vgpuctl.agent import systemd

CHILD = """
import json, os, sys
from vgpuctl.agent import systemd
found = systemd.listen_sockets()
shown = {name: [one.getsockname(), one.fileno(), os.get_inheritable(one.fileno())] for name, one in found.items()}
left = sorted(name for name in os.environ if name.startswith("LISTEN_"))
print(json.dumps({"sockets": shown, "left": left, "again": len(systemd.listen_sockets())}), flush=True)
for one in found.values():
    connection, _ = one.accept()
    connection.sendall(connection.recv(100).upper())
"""
AS_SYSTEMD = 'LISTEN_PID=${OTHER_PID:-$$} exec "$0" "$@"'
"""systemd sets the variable to the pid that the service has after exec."""
ABOVE = 50


def start_service(*sockets: socket.socket, names: str | None, **more: str) -> subprocess.Popen[str]:
    """Start a child as systemd does: the sockets are its descriptors 3, 4 and so on."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, ABOVE) for one in sockets]  # none is 3 or 4 itself
    order = " ".join(f"{3 + index}<&{number}" for index, number in enumerate(high))
    words = ["bash", "-c", f"{AS_SYSTEMD} {order}", sys.executable, "-c", CHILD]
    environment = {**os.environ, "LISTEN_FDS": str(len(sockets)), **more}
    environment |= {} if names is None else {"LISTEN_FDNAMES": names}
    child = subprocess.Popen(words, env=environment, pass_fds=high, stdout=subprocess.PIPE, text=True)
    for number in high:
        os.close(number)
    return child


def listen(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(path))
    one.listen()
    return one


def answer(path: Path, text: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(text)
        return client.recv(100)


def test_a_service_serves_the_sockets_that_systemd_opened(tmp_path: Path) -> None:
    paths = [tmp_path / "a.sock", tmp_path / "b.sock"]
    with listen(paths[0]) as one, listen(paths[1]) as two, start_service(one, two, names="api:view") as child:
        assert child.stdout is not None
        shown = json.loads(child.stdout.readline())
        assert shown["sockets"] == {"api": [str(paths[0]), 3, False], "view": [str(paths[1]), 4, False]}
        assert (shown["left"], shown["again"]) == ([], 0)
        assert [answer(path, b"hello") for path in paths] == [b"HELLO", b"HELLO"]
        assert child.wait(30) == 0


@pytest.mark.parametrize(
    ("names", "expected"),
    [("api:api", ["api", "api:1"]), (None, ["unknown", "unknown:1"]), ("api", ["api", "unknown"])],
)
def test_every_socket_has_a_name_of_its_own(tmp_path: Path, names: str | None, expected: list[str]) -> None:
    paths = [tmp_path / "a.sock", tmp_path / "b.sock"]
    with listen(paths[0]) as one, listen(paths[1]) as two, start_service(one, two, names=names) as child:
        assert child.stdout is not None
        assert sorted(json.loads(child.stdout.readline())["sockets"]) == expected
        assert [answer(path, b"a") for path in paths] == [b"A", b"A"]


@pytest.mark.parametrize(
    "more", [{"OTHER_PID": "1"}, {"LISTEN_FDS": "0"}, {"LISTEN_FDS": "-1"}, {"LISTEN_FDS": "1e9"}, {"LISTEN_FDS": "²"}]
)
def test_sockets_for_another_process_or_none_at_all(tmp_path: Path, more: dict[str, str]) -> None:
    with listen(tmp_path / "a.sock") as one, start_service(one, names="api", **more) as child:
        assert child.stdout is not None
        shown = json.loads(child.stdout.readline())
        assert (shown["sockets"], shown["left"]) == ({}, [])
        assert child.wait(30) == 0


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_hears_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    name = str(tmp_path / "notify") if kind == "path" else f"@vgpuctl-agent-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(30)
        assert systemd.notify("READY=1", "STATUS=serves\nMAINPID=1", "WATCHDOG=1")
        assert manager.recv(200) == b"READY=1\nSTATUS=serves MAINPID=1\nWATCHDOG=1\n"
        assert systemd.notify("STATUS=\udcff")
        assert manager.recv(200) == b"STATUS=?\n"


@pytest.mark.parametrize(
    "name", [None, "", "/nowhere/notify", "relative", "@nobody-listens", f"/{'long' * 100}", "vsock:2:1"]
)
def test_nobody_to_tell_is_no_error(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if name is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    assert not systemd.notify("STOPPING=1")


@pytest.mark.parametrize(
    ("limit", "pid", "expected"),
    [
        ("60000000", "own", 60.0),
        ("60000000", None, 60.0),
        ("1500000", "own", 1.5),
        ("60000000", "1", None),
        ("0", "own", None),
        ("-5", "own", None),
        ("soon", "own", None),
        (None, None, None),
    ],
)
def test_the_watchdogs_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, pid: str | None, expected: float | None
) -> None:
    values = {"WATCHDOG_USEC": limit, "WATCHDOG_PID": str(os.getpid()) if pid == "own" else pid}
    for name, value in values.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert systemd.watchdog_seconds() == expected
