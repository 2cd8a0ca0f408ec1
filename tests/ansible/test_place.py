# SPDX-License-Identifier: Apache-2.0
"""The checks that role vgpuctl runs before it changes a host: its own script, and a package index on loopback."""

from __future__ import annotations

import http.server
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.options import COLLECTION
from tests.ansible.plays import ROOT

ROLE = COLLECTION / "roles/vgpuctl"
WHEEL = "vgpuctl-0.1.0-py3-none-any.whl"
HOW = "set vgpuctl_wheelhouse, vgpuctl_index, or a wheel's path as vgpuctl_source"


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with vgpuctl only. It requires a password below /closed."""

    def do_GET(self) -> None:
        statuses = {"/simple/vgpuctl/": 200, "/closed/vgpuctl/": 401}
        self.send_response(statuses.get(self.path, 404))
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Log nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    """Run the package index and return its URL."""
    with http.server.HTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def obstacles(
    home: Path, source: str = "vgpuctl", wheelhouse: str = "", index: str = "", oldest: str = "3.11", **pip: str
) -> str:
    """Return what prevents the installation of vgpuctl on this machine, with only these settings for pip."""
    argv = ["/usr/bin/python3", "-I", str(ROLE / "files/look.py"), oldest, source, wheelhouse, index, str(home / "no")]
    environment = {"HOME": str(home), "PIP_INDEX_URL": "", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", **pip}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_the_role_requires_the_same_python_as_vgpuctl() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f'vgpuctl_oldest_python: "{required.removeprefix(">=")}"\n' in (ROLE / "vars/main.yml").read_text()


def test_an_old_python_fails_with_the_version_needed(tmp_path: Path) -> None:
    (tmp_path / WHEEL).touch()
    reported = obstacles(tmp_path, wheelhouse=str(tmp_path), oldest="3.99")
    assert reported.startswith("/usr/bin/python3 is Python 3.")
    assert reported.endswith(", and vgpuctl needs 3.99 or newer: use a newer distribution")


def test_a_missing_wheelhouse_or_wheel_fails(tmp_path: Path) -> None:
    assert obstacles(tmp_path, wheelhouse="/nowhere").endswith(
        "no directory /nowhere on this host: copy the wheels there"
    )
    assert "has 0 wheels, but none of vgpuctl" in obstacles(tmp_path, wheelhouse=str(tmp_path))
    assert "there is no /nowhere.whl on this host" in obstacles(tmp_path, source="/nowhere.whl")
    (tmp_path / WHEEL).touch()
    assert obstacles(tmp_path, source="vgpuctl==0.1.0", wheelhouse=str(tmp_path)) == ""
    assert obstacles(tmp_path, source=str(tmp_path / WHEEL)) == ""


def test_a_host_without_an_index_fails_with_a_hint(tmp_path: Path) -> None:
    assert obstacles(tmp_path).endswith(f"no index in pip's configuration; {HOW}")
    assert obstacles(tmp_path, PIP_INDEX_URL="file:///nowhere", PIP_NO_INDEX="1").startswith("there is no source for")
    assert obstacles(tmp_path, PIP_FIND_LINKS="/srv/wheels") == ""
    (tmp_path / "no").write_text("")
    (tmp_path / "no").chmod(0o755)
    assert obstacles(tmp_path) == "", "one that is there asks for none"


def test_an_index_is_probed_and_refused_if_pip_would_fail(tmp_path: Path, index: str) -> None:
    assert obstacles(tmp_path, index=f"{index}/simple/") == ""
    assert obstacles(tmp_path, index=f"{index.replace('//', '//user:secret@')}/closed") == "", (
        "pip may know the password"
    )
    missing = obstacles(tmp_path, PIP_INDEX_URL=f"{index.replace('//', '//user:secret@')}/other")
    assert missing == f"vgpuctl cannot be downloaded: there is no {index}/other/vgpuctl/ (404); {HOW}"
    assert obstacles(tmp_path, PIP_INDEX_URL=f"{index}/other", PIP_EXTRA_INDEX_URL=f"{index}/simple") == ""
    assert "Connection refused" in obstacles(tmp_path, index="http://127.0.0.1:1/simple")
    assert "there is no file:///nowhere/vgpuctl/" in obstacles(tmp_path, index="file:///nowhere")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[install]\nindex-url = file:///elsewhere\n")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    argv = ["/usr/bin/python3", "-I", str(ROLE / "files/look.py"), "3.11", "vgpuctl", "", "", "/nowhere/vgpuctl"]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "there is no file:///elsewhere/vgpuctl/" in result.stdout
