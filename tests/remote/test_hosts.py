# SPDX-License-Identifier: Apache-2.0
"""Commands on one other host and on ten hosts, some of them broken, and every reason why a valid reply is missing."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.remote.conftest import (
    BARE,
    BROKEN,
    CHANGED,
    DEAD,
    ENDLESS,
    GOOD,
    HIDDEN,
    LIAR,
    MUTE,
    NOISY,
    OLDER,
    PORTED,
    SHA1,
    SLOW,
    SUDOER,
    TARDY,
    UNKNOWN,
)
from tests.remote.network import USER, Network

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]
SPEC = "{name: from-file, profile: A100-4C}\n"


def hosts_of(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the hosts of a document by name."""
    return {row["host"]: row for row in json.loads(result.stdout)["data"]["hosts"]}


def error_of(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the error of one host's document."""
    error: dict[str, Any] = json.loads(result.stdout)["error"]
    return error


def test_one_remote_host_prints_the_same_as_a_local_command(network: Network, ssh: Ssh) -> None:
    local = network.vgpuctl("--host", "sim:a100-40", "list-gpus")
    remote = ssh("gpu-01", "list-gpus")
    assert (remote.stdout, remote.stderr, remote.returncode) == (local.stdout, local.stderr, 0)


def test_the_json_of_one_remote_host_equals_the_local_json(network: Network, ssh: Ssh) -> None:
    local = network.vgpuctl("--host", "sim:a100-40", "list-profiles", "--json")
    assert ssh("gpu-01", "list-profiles", "--json").stdout == local.stdout


def test_remote_errors_equal_local_ones(ssh: Ssh) -> None:
    result = ssh("gpu-01", "create-vm", "--profile", "A100-4D")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "vgpuctl: no GPU on this host offers the profile 'A100-4D'   [not-found]" in result.stderr


@pytest.mark.usefixtures("named")
def test_on_ten_hosts_the_broken_ones_do_not_stop_the_others(network: Network) -> None:
    result = network.vgpuctl("--host", "ssh://gpu-{01..10}", "--host-deadline", "20", "list-gpus", "--json")
    hosts = hosts_of(result)
    assert list(hosts) == [*GOOD, DEAD, CHANGED, OLDER, SLOW]
    assert {name: hosts[name]["exit_status"] for name in GOOD} == dict.fromkeys(GOOD, 0)
    assert all(hosts[name]["document"]["data"][0]["address"] == "0000:3b:00.0" for name in GOOD)
    codes = {name: hosts[name]["document"]["error"]["code"] for name in (DEAD, CHANGED, OLDER, SLOW)}
    assert codes == {DEAD: "unreachable", CHANGED: "host-key", OLDER: "host-cannot", SLOW: "deadline"}
    assert hosts[OLDER]["document"]["error"]["facts"]["remote_version"] == "0.0.9"
    assert hosts[SLOW]["document"]["error"]["facts"]["host_deadline_seconds"] == 20
    assert result.returncode == 3
    assert json.loads(result.stdout)["error"]["facts"]["failed"] == [DEAD, CHANGED, OLDER, SLOW]


@pytest.mark.usefixtures("named")
def test_text_output_has_one_table_with_hosts(network: Network) -> None:
    words = ("--host", "ssh://gpu-{01..06}", "--host", "ssh://gpu-08", "--hosts-at-a-time", "2", "list-gpus")
    result = network.vgpuctl(*words, env={"VGPUCTL_HOST": "ssh://gpu-{09..10}"})
    head, *rows = result.stdout.splitlines()
    assert head.split()[:2] == ["HOST", "ADDRESS"]
    assert [row.split()[0] for row in rows] == list(GOOD)
    assert "gpu-08: its key is not the one of" in result.stderr
    assert result.stderr.splitlines()[-1] == ("vgpuctl: 1 of 7 hosts failed: gpu-08 (host-key)   [some-hosts-failed]")


def test_changes_run_on_each_host_and_progress_lines_name_the_host(ssh: Ssh, network: Network) -> None:
    result = ssh("gpu-02 gpu-03", "create-vm", "both", "--profile", "A100-4C")
    first, second = (network.hosts[name].address for name in ("gpu-02", "gpu-03"))
    assert result.returncode == 0
    assert result.stdout.startswith(f"== {first}\nboth: running\n")
    assert f"\n== {second}\nboth: running\n" in result.stdout
    last = r": \[(\d)/\1\] start VM both"  # one step fewer if another test has created the storage pool
    assert all(re.search(re.escape(address) + last, result.stderr) for address in (first, second))
    again = ssh("gpu-02 gpu-04", "create-vm", "both", "--profile", "A100-4C", "--json")
    assert [row["exit_status"] for row in hosts_of(again).values()] == [3, 0]
    assert json.loads(again.stdout)["changed"] is True
    assert again.stderr == ""


def test_a_question_is_not_answered_for_the_user(ssh: Ssh) -> None:
    assert ssh("gpu-05", "create-vm", "kept", "--profile", "A100-4C").returncode == 0
    refused = ssh("gpu-05", "delete-vm", "kept", "--json")
    assert (refused.returncode, error_of(refused)["code"]) == (2, "needs-confirmation")
    assert ssh("gpu-05", "delete-vm", "kept", "--yes").returncode == 0


@pytest.mark.parametrize("words", [("-f", "FILE"), ("-fFILE",), ("--file=FILE",), ("--file", "-")])
def test_a_local_file_reaches_the_remote_host(ssh: Ssh, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(SPEC)
    arguments = [word.replace("FILE", str(path)) for word in words]
    result = ssh("gpu-06", "ensure-vm", *arguments, "--json", stdin=SPEC if "-" in words else "")
    assert result.returncode == 0, result.stdout
    assert json.loads(result.stdout)["data"]["name"] == "from-file"


def test_no_argument_reaches_a_shell(ssh: Ssh, tmp_path: Path) -> None:
    mark = tmp_path / "made"
    name = f"a'b\"$(touch {mark})`touch {mark}`;touch {mark}"
    result = ssh("gpu-01", "show-vm", name, "--json")
    assert result.returncode == 2
    assert error_of(result)["message"].count(name) == 1
    assert not mark.exists()


def test_an_unknown_key_is_refused_and_nothing_is_written(network: Network, ssh: Ssh) -> None:
    known_hosts = network.home / ".ssh" / "known_hosts"
    before = known_hosts.read_text()
    error = error_of(ssh(UNKNOWN, "list-gpus", "--json"))
    assert error["code"] == "host-key"
    assert str(known_hosts) in error["facts"]["files"]
    assert known_hosts.read_text() == before


def test_a_host_on_another_port_matches_its_own_line_or_the_same_key_without_a_port(network: Network) -> None:
    known_hosts = network.home / ".ssh" / "known_hosts"
    before, address = known_hosts.read_text(), network.hosts[PORTED].address
    url = f"ssh://root@{address}:2222"
    assert network.vgpuctl("--host", url, "list-gpus").returncode == 0
    try:
        wrong_key = network.know(GOOD[0]).split()
        known_hosts.write_text(f"{before}[{address}]:2222 {wrong_key[1]} {wrong_key[2]}\n")
        refused = network.vgpuctl("--host", url, "list-gpus", "--json")
    finally:
        known_hosts.write_text(before)
    assert error_of(refused)["facts"]["place"] == f"{known_hosts}:{len(before.splitlines()) + 1}"
    assert f"ssh-keygen -R '[{address}]:2222' -f {known_hosts}; ssh -p 2222 root@{address}" in error_of(refused)["hint"]


def test_a_changed_key_shows_the_line_and_the_command_that_removes_it(network: Network, ssh: Ssh) -> None:
    result = ssh(CHANGED, "list-gpus", "--json")
    known_hosts = network.home / ".ssh" / "known_hosts"
    line = len(known_hosts.read_text().splitlines())
    assert result.returncode == 3
    assert error_of(result)["facts"]["place"] == f"{known_hosts}:{line}"
    assert f"ssh-keygen -R '{network.hosts[CHANGED].address}' -f {known_hosts}" in error_of(result)["hint"]


def test_an_unreachable_host_is_a_temporary_failure(ssh: Ssh) -> None:
    result = ssh(DEAD, "list-gpus", "--json")
    assert (result.returncode, error_of(result)["code"]) == (75, "unreachable")


def test_a_silent_host_is_dropped_at_its_timeout(ssh: Ssh) -> None:
    result = ssh(MUTE, "--host-deadline", "2", "list-gpus", "--json")
    assert (result.returncode, error_of(result)["code"]) == (75, "unreachable")
    assert "does not speak SSH" in error_of(result)["message"]


@pytest.mark.parametrize(
    ("host", "check", "output"),
    [
        (SHA1, "ssh-algorithms", "no algorithm in common"),
        (BARE, "vgpuctl", "vgpuctl cannot be run there"),
        (OLDER, "version", "its vgpuctl 0.0.9 does not accept a command line of"),
    ],
)
def test_an_unsuitable_host_reports_what_is_missing(ssh: Ssh, host: str, check: str, output: str) -> None:
    result = ssh(host, "list-gpus", "--json")
    assert (result.returncode, error_of(result)["facts"]["check"]) == (6, check)
    assert output in error_of(result)["message"]


@pytest.mark.parametrize(
    ("host", "line", "status", "code", "output"),
    [
        (
            LIAR,
            "list-vms",
            6,
            "host-cannot",
            "a result of list-vms that this version cannot read: data is null, not a list",
        ),
        (LIAR, "list-gpus", 1, "failed", "ok is false, and the exit status 0"),
        (LIAR, "list-images", 1, "failed", "ok is true, and the exit status 255"),
        (LIAR, "--yes delete-vm a", 5, "answer-lost", "ok is true, and the exit status 255"),
        (LIAR, "list-profiles", 1, "failed", "it printed more than 16 MiB"),
        (ENDLESS, "list-vms", 6, "host-cannot", "it printed more than 1 MiB before vgpuctl started"),
    ],
)
def test_an_invalid_reply_is_an_error_of_its_host_only(
    ssh: Ssh, network: Network, host: str, line: str, status: int, code: str, output: str
) -> None:
    result = ssh(f"{host} gpu-01", "--json", *line.split())
    liar, honest = (hosts_of(result)[network.hosts[name].address] for name in (host, "gpu-01"))
    assert (result.returncode, liar["exit_status"], liar["document"]["error"]["code"]) == (status, status, code)
    assert output in liar["document"]["error"]["message"]
    assert honest["document"]["kind"] == line.split()[-2 if "delete-vm" in line else -1]


def test_endless_stderr_does_not_fill_the_terminal(ssh: Ssh) -> None:
    result = ssh(LIAR, "list-vgpus")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert (len(lines), lines[10_000]) == (10_002, "further output on stderr is not shown")


def test_each_unusable_client_key_is_listed_with_the_reason(network: Network, ssh: Ssh, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "locked")], check=True)
    with_config(
        network, f"Host *\n IdentityFile {tmp_path}/key\n IdentityFile {tmp_path}/locked\n IdentitiesOnly yes\n"
    )
    try:
        error = error_of(ssh("gpu-01", "list-gpus", "--json"))
    finally:
        with_config(network, "")
    assert error["facts"]["check"] == "login"
    locked = f"{tmp_path}/locked: has a passphrase: add it to the agent with ssh-add"
    assert sorted(error["facts"]["reasons"]) == [f"{tmp_path}/key: refused", locked]


def with_config(network: Network, text: str) -> None:
    """Write the client's ~/.ssh/config."""
    (network.home / ".ssh" / "config").write_text(text)


def test_output_that_is_no_document_is_an_error(ssh: Ssh) -> None:
    result = ssh(BROKEN, "list-gpus", "--json")
    assert result.returncode == 1
    assert error_of(result)["facts"]["printed"] == "[1, 2]\n"
    assert error_of(result)["facts"]["stderr_line"] == "trouble"


def test_a_noisy_bashrc_is_only_a_warning(ssh: Ssh) -> None:
    result = ssh(NOISY, "list-gpus", "--json")
    assert (result.returncode, json.loads(result.stdout)["kind"]) == (0, "list-gpus")
    assert "warning: 10.77.0.11: the shell there prints before any command" in result.stderr
    assert "Welcome to noisy" in result.stderr


def test_sudo_makes_a_user_root_or_the_error_shows_why_not(network: Network) -> None:
    url = f"ssh://{USER}@{network.hosts[SUDOER].address}"
    refused = network.vgpuctl("--host", url, "list-gpus", "--json")
    assert (refused.returncode, error_of(refused)["facts"]["check"]) == (6, "sudo")
    state = network.state(SUDOER)
    (state / "home" / "may").touch()
    (state / "state").mkdir(mode=0o777)
    (state / "state").chmod(0o777)
    assert network.vgpuctl("--host", url, "list-gpus", "--json").returncode == 0


def test_ssh_config_sets_host_user_port_key_and_proxy(network: Network, tmp_path: Path) -> None:
    key = tmp_path / "elsewhere"
    (network.home / ".ssh" / "id_ed25519").rename(key)
    (network.home / ".ssh" / "more.conf").write_text("Host front\n  HostName 10.77.0.1\n")
    address = network.hosts[HIDDEN].address
    with_config(
        network,
        f"Include more.conf\nHost behind\n HostName {address}\n ProxyJump front\nHost *\n User root\n Port 22\n"
        f" IdentityFile {key}\n IdentitiesOnly yes\n ConnectTimeout 30\n",
    )
    try:
        direct = network.vgpuctl("--host", f"ssh://{address}", "list-gpus", "--json")
        by_jump_host = network.vgpuctl("--host", "ssh://behind", "list-gpus", "--json")
        command = f"ssh -i {key} -o UserKnownHostsFile={network.home}/.ssh/known_hosts -W %h:%p %r@10.77.0.1"
        with_config(
            network,
            f"Host behind\n User wrong\n Port 23\n HostName {address}\n IdentityFile {key}\n ProxyCommand {command}\n",
        )
        by_proxy_command = network.vgpuctl("--host", "ssh://root@behind:22", "list-gpus", "--json")
    finally:
        key.rename(network.home / ".ssh" / "id_ed25519")
        with_config(network, "")
    assert error_of(direct)["facts"]["check"] == "login"
    assert by_jump_host.returncode == 0, by_jump_host.stdout
    assert by_proxy_command.returncode == 0, by_proxy_command.stdout


def test_keys_of_the_agent_are_used(network: Network, tmp_path: Path) -> None:
    key = network.home / ".ssh" / "id_ed25519"
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        env = {"SSH_AUTH_SOCK": str(socket)}
        wait = network.inside("sh", "-c", f"while ! [ -S {socket} ]; do sleep 0.05; done")
        subprocess.run(wait, check=True, timeout=30)
        subprocess.run(["ssh-add", "-q", str(key)], env=network.environment(**env), check=True)
        key.rename(tmp_path / "away")
        assert network.vgpuctl("--host", "ssh://root@10.77.0.1", "list-gpus", env=env).returncode == 0
        assert network.vgpuctl("--host", "ssh://root@10.77.0.1", "list-gpus").returncode == 6
    finally:
        (tmp_path / "away").rename(key)
        agent.terminate()
        agent.wait(timeout=30)


def test_ctrl_c_on_the_client_undoes_the_changes_on_the_host(network: Network) -> None:
    """The command creates ten VMs, one second each. Complete VMs stay; no partly created VM is left."""
    url = f"ssh://root@{network.hosts[TARDY].address}"
    argv = network.argv(
        "--host", url, *shlex.split("create-vm 'c-{:03}' --count 10 --profile A100-4C --json --progress")
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stderr.readline()
        child.send_signal(signal.SIGINT)
        out, _ = child.stdout.read(), child.stderr.read()
    error = json.loads(out)["error"]
    assert child.returncode == 130
    assert error["code"] == "interrupted"
    assert network.vgpuctl("--host", url, "reconcile-host", "--dry-run", "--json").returncode == 0
    rows = json.loads(network.vgpuctl("--host", url, "list-vms", "--json").stdout)["data"]
    assert len([row for row in rows if row["name"].startswith("c-")]) < 10


def test_remote_work_continues_when_the_client_dies(network: Network) -> None:
    url = f"ssh://root@{network.hosts['gpu-04'].address}"
    argv = network.argv("--host", url, *shlex.split("create-vm 'k-{:03}' --count 6 --profile A100-4C"))
    null = subprocess.DEVNULL
    with subprocess.Popen(argv, env=network.environment(), stdout=null, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline()
        child.kill()

    def states() -> list[str]:
        rows = json.loads(network.vgpuctl("--host", url, "list-vms", "--json").stdout)["data"]
        return [row["state"] for row in rows if row["name"].startswith("k-")]

    deadline = time.monotonic() + 60
    while states() != ["running"] * 6:
        assert time.monotonic() < deadline


def test_ctrl_c_reports_what_happened_on_each_host(network: Network, ssh: Ssh) -> None:
    hosts = [f"--host=ssh://{network.hosts[name].address}" for name in ("gpu-02", SLOW)]
    argv = network.argv(*hosts, "--hosts-at-a-time", "1", "create-vm", "later", "--profile", "A100-4C", "--json")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv[:-1], env=network.environment(), stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stderr is not None
        while "start VM later" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert child.returncode == 130
    assert f"vgpuctl: {network.hosts[SLOW].address}: " in rest
    assert error_of(ssh("gpu-02", "create-vm", "later", "--profile", "A100-4C", "--json"))["code"] == "exists"


def test_the_tests_leave_nothing_on_this_machine(network: Network) -> None:
    """The bridge and the hosts exist only in the test network, so they disappear with it."""
    assert "hub" in network.run("ip", "-br", "link")
    assert "hub" not in subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert "gpu-01" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_apply_removes_host_yaml_entries_only_with_yes_and_undo_restores_them(ssh: Ssh, tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    file.write_text("version: 1\n")
    assert ssh("gpu-06", "cordon", "A100").returncode == 0
    for empty in ("/dev/null", "-"):
        result = ssh("gpu-06", "apply", "--yes", "-f", empty)
        assert (result.returncode, "standard input is empty" in result.stderr) == (2, True)
    unconfirmed = ssh("gpu-06", "apply", "-f", str(file))
    assert (unconfirmed.returncode, "gpus.0000:3b:00.0: cordoned true" in unconfirmed.stderr) == (2, True)
    assert error_of(ssh("gpu-06", "apply", "-f", str(file), "--json"))["code"] == "needs-confirmation"
    assert ssh("gpu-06", "diff").stdout == "no differences: nothing to apply\n"
    assert "gone from host.yaml:" in ssh("gpu-06", "apply", "--yes", "-f", str(file)).stdout
    assert "cordoned" not in ssh("gpu-06", "export").stdout
    assert ssh("gpu-06", "apply", "--undo", "1", "--json").returncode == 0
    assert "cordoned: true" in ssh("gpu-06", "export").stdout
    assert ssh("gpu-06", "uncordon", "A100").returncode == 0
