# SPDX-License-Identifier: Apache-2.0
"""A controller's process and two hosts, each with a real sshd, an agent's process and a key that reaches it alone.

It takes a minute: a host counts as silent only after 45 seconds.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.image_server import qcow2_header, sha256
from tests.controller.conftest import SPEC, wait_until
from tests.controller.controllers import Controller
from tests.remote.conftest import DIALS
from tests.remote.network import USER, Host, Network
from vgpuctl.model.agent_service import OPERATORS_GROUP

HOSTS = FIRST, SECOND = ("gpu01", "gpu02")
KEY_OPTIONS = 'command="vgpuctl agent dial",restrict'
AGENT = {
    "accounts": {USER: "fleet"},
    "allow": {"folders": ["/srv/images"], "networks": ["default"], "pools": ["default"]},
}
IMAGE = qcow2_header(size=66 << 20)
START = """\
mount --bind {0}/passwd /etc/passwd && mount --bind {0}/group /etc/group &&
exec env PYTHONPATH={1} XDG_STATE_HOME={0}/state {0}/bin/vgpuctl --host sim:a100-40 \
agent run --socket {0}/home/agent.sock --state {0}/agent
"""


class Fleet:
    """The controller on the client, and the two hosts."""

    def __init__(self, network: Network) -> None:
        self.network = network
        directory = network.place / "controller"
        self.controller = Controller(directory, 0, network.argv()[:3], network.environment())
        for name in network.hosts:
            self._start_agent(name)
        self.controller.start()

    def address(self, name: str) -> str:
        return f"ssh://{USER}@{self.network.hosts[name].address}"

    def host_key(self, name: str) -> str:
        """Return the key of a host, as its admin reads it there."""
        return self.network.run("ssh-keygen", "-lf", f"{self.network.state(name)}/host_key.pub").split()[1]

    def allow(self, name: str, options: str) -> None:
        """Have the controller's key on a host begin with these options."""
        key = (self.network.home / ".ssh" / "id_ed25519.pub").read_text()
        (self.network.state(name) / "authorized_keys").write_text(f"{options} {key}".lstrip())

    def replace_host_key(self, name: str) -> None:
        """Give a host's sshd another key, and end its sessions."""
        state = self.network.state(name)
        for path in state.glob("host_key*"):
            path.unlink()
        self.network.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{state}/host_key")
        server = (state / "sshd.pid").read_text().strip()
        self.network.run("kill", "-HUP", server)
        self.network.run("pkill", "-P", server)

    def vms(self, name: str) -> dict[str, Any]:
        """Return what the host itself says of its VMs, by name."""
        agent = f"--host=agent:{self.network.state(name)}/home/agent.sock"
        return {vm["name"]: vm for vm in json.loads(self.network.vgpuctl(agent, "list-vms", "--json").stdout)["data"]}

    def _start_agent(self, name: str) -> None:
        state = self.network.state(name)
        (state / "group").write_text(f"root:x:0:\n{OPERATORS_GROUP}:x:4300:{USER}\n")
        etc = state / "state/vgpuctl/a100-40/etc/vgpuctl"
        etc.mkdir(parents=True)
        (etc / "host.yaml").write_text(json.dumps({"version": 1, "agent": AGENT}))
        script = START.format(state, self.network._checkout)
        argv = self.network.inside("ip", "netns", "exec", name, "sh", "-c", script)
        null = subprocess.DEVNULL
        with (state / "agent.log").open("w") as log:
            subprocess.Popen(argv, stdin=null, stdout=log, stderr=log)  # it ends with the network
        path = state / "home/agent.sock"
        wait_until(path.is_socket, f"the agent of {name}: {(state / 'agent.log').read_text()}")
        path.chmod(0o666)  # as the group of the service's socket


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-fleet-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        hosts = [
            Host(
                name,
                commands={"vgpuctl": DIALS},
                key_options=KEY_OPTIONS,
                settings=(f"PidFile {path}/{name}/sshd.pid",),
            )
            for name in HOSTS
        ]
        network = Network(path, hosts)
        try:
            (network.home / ".ssh" / "known_hosts").unlink()  # keys are given to add-host
            one = Fleet(network)
            try:
                yield one
            finally:
                one.controller.stop()
        finally:
            network.close()


def test_a_key_that_does_not_reach_the_agent_or_reaches_more_is_said(fleet: Fleet) -> None:
    add = ("add-host", SECOND, fleet.address(SECOND), "--host-key", fleet.host_key(SECOND))
    unknown = fleet.controller.run(*add[:3])
    assert unknown.returncode, unknown.stdout
    assert "known_hosts" in unknown.stderr
    fleet.allow(SECOND, 'command="/bin/false",restrict')
    refused = fleet.controller.run(*add)
    assert refused.returncode, refused.stdout
    assert f"no host agent answers the controller's key at {SECOND}" in refused.stderr
    assert KEY_OPTIONS in refused.stderr
    fleet.allow(SECOND, "")
    warned = fleet.controller.run(*add, "--dry-run")
    assert f"the controller's key runs any command on {SECOND}" in warned.stderr
    fleet.allow(SECOND, KEY_OPTIONS)
    assert fleet.controller.run(*add, "--dry-run").stderr == ""


def test_a_fleet_by_ssh_is_used_and_survives_a_cut_and_a_new_host_key(fleet: Fleet, tmp_path: Path) -> None:
    desktops_come_from_an_image_that_was_sent(fleet, tmp_path)
    a_desktop_is_used_and_refreshed(fleet)
    a_host_comes_back_as_it_was_and_a_new_host_key_is_accepted(fleet)


def desktops_come_from_an_image_that_was_sent(fleet: Fleet, directory: Path) -> None:
    run, data = fleet.controller.run, fleet.controller.data
    for name in HOSTS:
        added = run("add-host", name, fleet.address(name), "--host-key", fleet.host_key(name))
        assert (added.stdout, added.stderr) == (f"host {name}: active\n", "")
    file, spec = directory / "office.qcow2", directory / "office.yaml"
    file.write_bytes(IMAGE)
    spec.write_text(json.dumps({**SPEC, "maximum": 2, "spare": 2, "apart": True}))
    path = data("ensure-image", "office", "--file", str(file))["path"]
    assert run("ensure-pool", "office", "-f", str(spec)).returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 2, "two desktops")
    assert data("show-image", "office")["hosts"] == dict.fromkeys(HOSTS, "ready")
    for name in HOSTS:
        (copy,) = fleet.network.state(name).glob("state/vgpuctl/*/images/*-office-*")
        assert sha256(copy.read_bytes()) == sha256(IMAGE)
        assert [vm["image"] for vm in fleet.vms(name).values()] == [path]


def a_desktop_is_used_and_refreshed(fleet: Fleet) -> None:
    run, data = fleet.controller.run, fleet.controller.data
    assert run("assign", "office", "ada").returncode == 0
    (mine,) = data("list-desktops", "--user", "ada")
    wait_until(lambda: data("show-desktop", mine["name"])["address"] is not None, "its address")
    generation = fleet.vms(mine["host"])[mine["name"]]["generation"]
    assert run("release", mine["name"], "--yes").returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 2, "its refresh")
    assert fleet.vms(mine["host"])[mine["name"]]["generation"] > generation


def a_host_comes_back_as_it_was_and_a_new_host_key_is_accepted(fleet: Fleet) -> None:
    run, data = fleet.controller.run, fleet.controller.data
    assert run("assign", "office", "ada").returncode == 0
    (mine,) = data("list-desktops", "--user", "ada")
    wait_until(lambda: data("show-desktop", mine["name"])["phase"] == "assigned", "its host's confirmation")
    away, (other,) = mine["host"], [name for name in HOSTS if name != mine["host"]]
    before = {name: fleet.vms(name) for name in HOSTS}
    link = f"v{HOSTS.index(away) + 1}"
    fleet.network.run("ip", "link", "set", link, "down")

    fleet.replace_host_key(other)
    wait_until(lambda: data("show-host", other)["held"] is not None, "the other key")
    assert "its key is ssh-ed25519 SHA256:" in data("show-host", other)["held"]
    refused = run("accept-host", other, "--yes")
    assert refused.returncode, refused.stdout
    assert run("accept-host", other, "--host-key", fleet.host_key(other), "--yes").returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 1, "the spare desktop")

    wait_until(lambda: data("show-desktop", mine["name"])["phase"] == "unknown", "the silence")
    fleet.network.run("ip", "link", "set", link, "up")
    wait_until(lambda: data("show-desktop", mine["name"])["phase"] == "assigned", "its return")
    assert {name: fleet.vms(name) for name in HOSTS} == before
    (again,) = data("list-desktops", "--user", "ada")
    assert (again["id"], again["generation"]) == (mine["id"], mine["generation"])
