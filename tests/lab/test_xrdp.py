"""Users log on by RDP: Debian's xrdp in L2, which is the guest of a desktop, and FreeRDP with the file of vgpuctl.

The file names the address that the host sees. It is one of the simulated host's network; there its port leads to L2's.
`test --all` installs FreeRDP and Xvfb.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.guest_network import serving
from tests.lab.machine import Lab
from tests.lab.test_logon import ADMIN, NAME, Site, desktop_in

PORT = 3389
PASSWORDS = {"ada": "correct-horse-27", "eve": "incorrect-pony-28"}
SESMAN_LOG = "/var/log/xrdp-sesman.log"
PREPARE = f"""
printf '%s\\n' {" ".join(f"{user}:{password}" for user, password in PASSWORDS.items())} | chpasswd
grep -v '^#' /etc/pam.d/vgpulab-session >> /etc/pam.d/xrdp-sesman
printf '#!/bin/sh\\nexec sleep 600\\n' > /etc/xrdp/startwm.sh
systemctl unmask xrdp-sesman.service xrdp.service
systemctl start xrdp-sesman.service xrdp.service
"""


def _relay(port: int) -> Callable[[socket.socket], None]:
    """Return what joins a connection to a port of this machine."""

    def serve(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as other:
            thread = threading.Thread(target=_copy, args=(connection, other), daemon=True)
            thread.start()
            _copy(other, connection)
            thread.join(10)

    return serve


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


class RdpClient:
    """FreeRDP, on a screen that nobody sees, in the network of the guests."""

    def __init__(self, site: Site, directory: Path) -> None:
        network = f"/proc/{os.getpid()}/fd/{site.network.descriptor}"
        self._words = ["nsenter", f"--net={network}", "setpriv", "--pdeathsig", "KILL"]
        self._directory = directory

    @contextmanager
    def open(self, file: Path, *words: str) -> Iterator[None]:
        """Open a file of a desktop, as a double click does. `words`: the password, and what else is typed."""
        log = self._directory / "freerdp.log"
        with self._screen() as display, log.open("w") as output:
            client = subprocess.Popen(
                [*self._words, "xfreerdp", file, *words, "/cert:ignore", "/log-level:INFO"],
                env={**os.environ, "DISPLAY": display, "HOME": str(self._directory)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                yield
            finally:
                client.send_signal(signal.SIGTERM)
                client.wait(30)

    @contextmanager
    def _screen(self) -> Iterator[str]:
        read, write = os.pipe()
        words = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1024x768x24", "-nolisten", "tcp", "-noreset"]
        with subprocess.Popen([*self._words, *words], pass_fds=[write], stderr=subprocess.DEVNULL) as server:
            os.close(write)
            with os.fdopen(read) as numbers:
                number = numbers.readline().strip()
            try:
                yield f":{number}"
            finally:
                server.terminate()


def _sessions(lab: Lab) -> list[str]:
    """Return the users who are logged on, as logind says."""
    listed = lab.run("loginctl list-sessions --no-legend").stdout
    return [line.split()[2] for line in listed.splitlines()]


@pytest.mark.deadline(900)
def test_a_user_opens_the_desktop_by_its_file(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desktop_in(lab, tmp_path, monkeypatch, PREPARE, logon="domain", open="rdp") as site:
        site.until_ready()
        site.assign("ada")
        answer = site.service.open_desktop(ADMIN, NAME).data
        assert answer.file is not None
        file = tmp_path / "desk-1.rdp"
        file.write_bytes(answer.file.encode())
        assert site.row.report is not None
        assert site.row.report.address is not None
        client = RdpClient(site, tmp_path)
        with serving(site.network.listen(site.row.report.address, PORT), _relay(_forward(lab))):
            with client.open(file, f"/p:{PASSWORDS['ada']}x"):
                lab.wait_until(f"grep -q 'AUTHFAIL: user=ada ' {SESMAN_LOG}")
                assert _sessions(lab) == []
            with client.open(file, "/u:eve", f"/p:{PASSWORDS['eve']}"):
                lab.wait_until(f"grep -q 'pam_acct_mgmt failed: Permission denied' {SESMAN_LOG}")
                assert _sessions(lab) == [], "it is ada's"
            with client.open(file, f"/p:{PASSWORDS['ada']}"):
                lab.wait_until("loginctl list-sessions --no-legend | grep -q ada", timeout=120)
                assert _sessions(lab) == ["ada"]
                site.until(lambda: site.users() == ("ada",), "her log-on")


def _forward(lab: Lab) -> int:
    """Have a port of this machine lead to L2's RDP server; return it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    assert lab.emulator.qmp.monitor(f"hostfwd_add control tcp:127.0.0.1:{port}-:{PORT}").strip() == ""
    return port
