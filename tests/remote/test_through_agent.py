# SPDX-License-Identifier: Apache-2.0
"""`--host ssh://USER@HOST` where the user is not root: through the host agent there, without sudo, with one login."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.agent.test_client import held
from tests.remote.conftest import ALONE, MEMBER, RESTRICTED
from tests.remote.network import USER, Network
from vgpuctl import library
from vgpuctl.agent.rights import HostRights
from vgpuctl.model.agent_service import OPERATORS_GROUP, RUN_DIRECTORY

HOST = "sim:a100-40"
UID = 4242
HOST_FILE = "version: 1\nagent:\n  allow: {networks: [default], pools: [default]}\n"


class Users:
    """The host's users. Implements `rights.Users`."""

    def name_of(self, uid: int) -> str | None:
        return {UID: USER}.get(uid)

    def groups_of(self, name: str) -> frozenset[str]:
        return frozenset({OPERATORS_GROUP})


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@contextmanager
def agent_on(network: Network, name: str, directory: Path, open_host: Any = None) -> Iterator[RunningAgent]:
    """Run the agent of a host, which USER may use as a member of the group."""
    host_file = directory / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True, exist_ok=True)
    host_file.write_text(HOST_FILE)
    rights = HostRights(library.open_ports(HOST), Users(), owner=os.geteuid())
    path = f"{network.state(name)}/home/agent.sock"
    with running(HOST, directory, policy=rights, open_host=open_host, path=path) as agent:
        os.chmod(path, 0o666)  # as if the user were in the group
        yield agent


def url(network: Network, name: str, user: str = USER) -> str:
    return f"--host=ssh://{user}@{network.hosts[name].address}"


def logins(network: Network, name: str) -> int:
    """Return how many logins a host has had."""
    return (network.state(name) / "log").read_text().count("Accepted publickey")


def stopped(
    network: Network, reached: threading.Event, *words: str, signals: bool = True
) -> tuple[int, dict[str, Any], str]:
    """Run a command, press Ctrl-C when it is `reached`, and return status, document and stderr."""
    pipe = subprocess.PIPE
    argv = network.argv(*words, "--json", "--progress")
    with subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True) as child:
        assert reached.wait(60)
        if signals:
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    return child.returncode, json.loads(out), err


def test_a_member_gets_what_a_local_command_prints(network: Network, tmp_path: Path) -> None:
    there = url(network, MEMBER)
    with agent_on(network, MEMBER, tmp_path) as agent:
        made = network.vgpuctl(there, "create-vm", "vdi-1", "--profile", "A100-4C")
        assert (made.returncode, made.stdout.splitlines()[0]) == (0, "vdi-1: running"), made.stderr
        assert "] start VM vdi-1" in made.stderr
        for words in (("show-vm", "vdi-1", "--json"), ("delete-vm", "vdi-1"), ("wait", "vdi-1", "--for", "running")):
            by_ssh, here = network.vgpuctl(there, *words), network.vgpuctl("--host", f"agent:{agent.path}", *words)
            assert (by_ssh.stdout, by_ssh.stderr, by_ssh.returncode) == (here.stdout, here.stderr, here.returncode)
        assert network.vgpuctl(there, "show-vm", "vdi-1", "--root", "/srv").returncode == 6, "as with a command"
        assert "vdi-1" in network.vgpuctl(there, "list-vms").stdout
        assert "vdi-1" not in network.vgpuctl(url(network, MEMBER, "root"), "list-vms").stdout, "it has its own state"


def test_the_question_is_asked_on_this_terminal(network: Network, tmp_path: Path) -> None:
    with agent_on(network, MEMBER, tmp_path) as agent:
        agent.change("create-vm", name="roots", profile="A100-4C")
        assert network.vgpuctl(url(network, MEMBER), "create-vm", "hers", "--profile", "A100-4C").returncode == 0
        terminal, child_end = pty.openpty()
        os.write(terminal, b"y\n")
        argv = network.argv(url(network, MEMBER), "delete-vm", "hers")
        with subprocess.Popen(argv, env=network.environment(), stdin=child_end, stderr=child_end) as child:
            assert child.wait(60) == 0
        shown = os.read(terminal, 1 << 16).decode()
        os.close(terminal)
        os.close(child_end)
        assert "Delete VM hers? It is running. [y/N]" in shown
        assert [vm["name"] for vm in agent.ask("GET", "/v1/list-vms").document["data"]] == ["roots"]


def test_what_only_root_may_do_is_done_with_sudo_where_that_works(network: Network, tmp_path: Path) -> None:
    words = (url(network, MEMBER), "reconcile-host", "--dry-run", "--json")
    state = network.state(MEMBER)
    state.joinpath("state").mkdir(exist_ok=True)
    with agent_on(network, MEMBER, tmp_path):
        refused = network.vgpuctl(*words)
        network.run("chown", "-R", str(UID), f"{state}/state")
        (state / "home" / "may").touch()
        done = network.vgpuctl(*words)
        (state / "home" / "may").unlink()
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (3, "not-allowed")
    assert done.returncode == 0, done.stdout


def test_a_restricted_key_works_with_one_login_for_each_command(network: Network, tmp_path: Path) -> None:
    there, spec = url(network, RESTRICTED), "{name: vdi-1, profile: A100-4C}\n"
    with agent_on(network, RESTRICTED, tmp_path):
        before = logins(network, RESTRICTED)
        assert network.vgpuctl(there, "ensure-vm", "-f", "-", stdin=spec).returncode == 0
        refused = network.vgpuctl(there, "cordon", "A100", "--json")
        assert json.loads(refused.stdout)["error"]["code"] == "not-allowed"
        as_root = network.vgpuctl(url(network, RESTRICTED, "root"), "cordon", "A100", "--json")
        assert json.loads(as_root.stdout)["changed"]
        assert json.loads(network.vgpuctl(there, "delete-vm", "vdi-1", "--yes", "--json").stdout)["changed"]
        assert logins(network, RESTRICTED) == before + 4
    for user in (USER, "root"):
        gone = network.vgpuctl(url(network, RESTRICTED, user), "list-vms", "--json")
        assert (gone.returncode, json.loads(gone.stdout)["error"]["code"]) == (75, "unreachable")
        assert "the host agent there does not answer: /" in json.loads(gone.stdout)["error"]["message"]


def test_several_hosts_go_each_its_own_way(network: Network, tmp_path: Path) -> None:
    hosts = [url(network, "gpu-01", "root"), url(network, MEMBER), url(network, ALONE)]
    first, member, alone = (network.hosts[name].address for name in ("gpu-01", MEMBER, ALONE))
    spec = "{name: mixed, profile: A100-4C}\n"
    with agent_on(network, MEMBER, tmp_path):
        made = network.vgpuctl(*hosts, "ensure-vm", "-f", "-", "--json", "--progress", stdin=spec)
        rows = {row["host"]: row for row in json.loads(made.stdout)["data"]["hosts"]}
        listed = network.vgpuctl(*hosts[:2], "list-vms", "--filter", "name=mixed")
        unasked = network.vgpuctl(*hosts[:2], "delete-vm", "mixed")
    assert {name: row["exit_status"] for name, row in rows.items()} == {
        f"root@{first}": 0, f"{USER}@{member}": 0, f"{USER}@{alone}": 6,
    }  # fmt: skip
    for name, row in rows.items():
        assert row["document"]["ok"] is (alone not in name)
    error = rows[f"{USER}@{alone}"]["document"]["error"]
    assert "sudo does not help: sudo: a password is required; nor does the host agent: /" in error["message"]
    assert ("log in as root" in error["hint"], "usermod -aG vgpuctl" in error["hint"]) == (True, True)
    assert f"{USER}@{member}: [" in made.stderr
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        [f"root@{first}", "mixed"],
        [f"{USER}@{member}", "mixed"],
    ]
    assert (unasked.returncode, unasked.stderr.count("confirmation required")) == (2, 2)


def test_many_operations_at_once_share_a_login(network: Network, tmp_path: Path) -> None:
    """One login has at most ten channels (MaxSessions)."""
    there = url(network, MEMBER)
    with agent_on(network, MEMBER, tmp_path):
        make = ("create-vm", "vdi-{}", "--count", "10", "--profile", "A100-4C")
        assert network.vgpuctl(there, *make).returncode == 0
        for words in (("stop-vm", "--force"), ("start-vm",)):
            many = network.vgpuctl(there, *words, "--all", "--parallel", "12", "--yes", "--json")
            assert many.returncode == 0, many.stdout


@pytest.mark.parametrize("several", [False, True])
def test_ctrl_c_cancels_the_operation_there(network: Network, tmp_path: Path, several: bool) -> None:
    reached = threading.Event()
    more = [url(network, ALONE)] if several else []
    words = (url(network, MEMBER), *more, "create-vm", "vdi-1", "--profile", "A100-4C")
    with agent_on(network, MEMBER, tmp_path, held(reached)) as agent:
        status, document, stderr = stopped(network, reached, *words)
        left = agent.ask("GET", "/v1/list-vms").document["data"]
    error = document["data"]["hosts"][0]["document"]["error"] if several else document["error"]
    assert (status, error["code"], error["left"], bool(error["undone"])) == (130, "interrupted", [], True)
    assert "undoing: " in stderr
    assert left == []


@pytest.mark.long
def test_at_its_deadline_an_operation_is_cancelled(network: Network, tmp_path: Path) -> None:
    reached = threading.Event()
    words = (url(network, MEMBER), "create-vm", "vdi-1", "--profile", "A100-4C", "--host-deadline", "5")
    with agent_on(network, MEMBER, tmp_path, held(reached)):
        status, document, _ = stopped(network, reached, *words, signals=False)
    error = document["error"]
    assert (status, error["code"], error["left"], bool(error["undone"])) == (75, "deadline", [], True)


def test_an_operation_goes_on_when_the_connection_breaks(network: Network, tmp_path: Path) -> None:
    reached = threading.Event()
    argv = network.argv(url(network, RESTRICTED), "create-vm", "vdi-1", "--profile", "A100-4C", "--json")
    pipe = subprocess.PIPE
    with agent_on(network, RESTRICTED, tmp_path, held(reached)) as agent:
        with subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True) as child:
            assert reached.wait(60)
            network.run("sh", "-c", f"kill $(pgrep -f 'sshd: [{USER[0]}]{USER[1:]}')")
            error = json.loads(child.communicate(timeout=60)[0])["error"]
        ssh_home = network.home / ".ssh"
        options = f"-i {ssh_home}/id_ed25519 -o UserKnownHostsFile={ssh_home}/known_hosts"
        shown = network.run("sh", "-c", error["hint"].replace("| ssh ", f"| ssh {options} "))
        agent.ask("DELETE", f"/v1/operations/{error['facts']['operation']}")
        ended = agent.ended(error["facts"]["operation"])
    assert (child.returncode, error["code"]) == (5, "answer-lost")
    assert "create-vm goes on there" in error["message"]
    assert json.loads(shown.splitlines()[-1])["state"] == "running"
    assert ended["error"]["code"] == "interrupted"


def test_events_are_followed_until_ctrl_c(network: Network, tmp_path: Path) -> None:
    argv = network.argv(url(network, RESTRICTED), "events", "--follow", "--json")
    pipe = subprocess.PIPE
    with (
        agent_on(network, RESTRICTED, tmp_path) as agent,
        subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True) as child,
    ):
        assert child.stdout is not None
        began = threading.Event()

        def create() -> None:
            number = 0
            while not began.wait(0.5) and child.poll() is None:
                number += 1
                agent.change("create-vm", name=f"vdi-{number}", profile="A100-4C")

        creator = threading.Thread(target=create)
        creator.start()
        event = json.loads(child.stdout.readline())
        began.set()
        creator.join()
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert event["type"]
    assert child.returncode == 130


def test_events_of_a_host_without_an_agent_cannot_be_followed(network: Network) -> None:
    refused = network.vgpuctl(url(network, ALONE, "root"), "events", "--follow", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (75, "unreachable")
    several = network.vgpuctl(url(network, ALONE), url(network, MEMBER), "events", "--follow", "--json")
    assert (several.returncode, "is for one host" in several.stdout) == (2, True)


def test_without_root_and_group_a_command_here_fails_as_without_an_agent(network: Network) -> None:
    """The socket is there in the second run, and not for this user."""
    program = f"{network._python}/bin/python -m vgpuctl --host local cordon A100 2>&1; echo $?"
    line = f"exec setpriv --reuid {UID} --regid {UID} --clear-groups sh -c '{program}'"
    environment = f"cd / && export HOME=/tmp PYTHONPATH={network._checkout}"
    bind = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    socket_path = f"{RUN_DIRECTORY}/agent.sock"
    make = f"mkdir -m 755 -p {RUN_DIRECTORY} && python3 -c '{bind}' {socket_path} && chmod 660 {socket_path}"
    try:
        texts = [network.run("sh", "-c", f"{before} && {environment} && {line}") for before in ("true", make)]
    finally:
        network.run("rm", "-rf", RUN_DIRECTORY)
    assert texts[0] == texts[1]
    assert texts[0].startswith("vgpuctl: root is required to change this host, and uid 4242 is not root   [os-error]\n")
    assert texts[0].endswith("  hint: run the same command with sudo\n1\n")
