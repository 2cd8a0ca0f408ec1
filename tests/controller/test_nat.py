# SPDX-License-Identifier: Apache-2.0
"""Pools on networks that a real agent reports as NAT."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.agent.conftest import running
from tests.controller.conftest import IMAGE, SPEC, wait_until
from tests.controller.controllers import Controller, running_controller

SCENARIO = """\
version: 1
gpus: [{model: A100}]
networks: [{name: default, forward: nat}]
bridges: [{name: br0}]
images: [{path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20, firmware: both}]
"""


def ensure_pool(one: Controller, directory: Path, **keys: object) -> subprocess.CompletedProcess[str]:
    spec = directory / "office.json"
    spec.write_text(json.dumps({**SPEC, "spare": 0, **keys}))
    return one.run("ensure-pool", "office", "-f", str(spec))


def test_a_pool_behind_nat_is_refused_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    scenario, directory = tmp_path / "nat.yaml", tmp_path / "agent"
    scenario.write_text(SCENARIO)
    directory.mkdir()
    with (
        running(f"sim:{scenario}", directory) as agent,
        running_controller(tmp_path / "controller") as one,
    ):
        assert one.run("ensure-image", "office", "--path", IMAGE).returncode == 0
        assert one.run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
        wait_until(lambda: bool(one.data("show-host", "gpu01")["offers"]), "what it has room for")
        refused = ensure_pool(one, tmp_path)
        assert (refused.returncode, "[refused]" in refused.stderr) == (3, True), refused.stderr
        assert "pool office: users cannot reach its desktops: the network default is behind NAT" in refused.stderr
        assert all(way in refused.stderr for way in ("bridge=br0", "without {address}", "connect: [3389]"))
        assert one.data("list-pools") == []
        for keys in ({"vm": {"networks": "bridge=br0"}}, {"open": "https://gw.example.org/{name}"}, {"connect": [22]}):
            made = ensure_pool(one, tmp_path, **keys)
            assert made.returncode == 0, made.stderr
        assert ensure_pool(one, tmp_path).returncode == 3, "nor does a change take the way out away"
        assert ensure_pool(one, tmp_path, hosts={"site": "berlin"}).returncode == 0, "gpu01 is not there"
        assert one.run("label-host", "gpu01", "site=berlin").returncode == 0
        assert ensure_pool(one, tmp_path, hosts={"site": "berlin"}, maximum=5).returncode == 0, "it is so already"
