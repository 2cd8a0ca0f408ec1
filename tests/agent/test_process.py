# SPDX-License-Identifier: Apache-2.0
"""The agent as a process: it starts and refuses to start, it is stopped and killed, and it is reached through dial."""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.agent.conftest import ROOT, process, running
from vgpuctl.agent import http_server, server
from vgpuctl.errors import FileFailed, Refused

HOST = "sim:a100-40"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run vgpuctl in a child."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "vgpuctl", *words]
    return subprocess.run(argv, env=environment, input=stdin, capture_output=True, timeout=60, check=False)


def test_a_second_agent_names_the_first(tmp_path: Path) -> None:
    with process(HOST, tmp_path) as first:
        second = run("--host", HOST, "--json", "agent", "run", "--socket", first.path, "--state", str(first.state))
        error = json.loads(second.stdout)["error"]
        assert (second.returncode, error["code"]) == (75, "locked")
        assert f"pid {first.process.pid}" in error["message"]
        assert first.ask("GET", "/v1").status == 200
        assert first.stop() == 0


def test_metrics_are_served_where_the_command_line_says(tmp_path: Path) -> None:
    for address, problem in (
        ("0.0.0.0:19935", "other machines reach that address"),
        ("localhost", "is not an address"),
    ):
        words = ("agent", "run", "--metrics", address, "--socket", f"{tmp_path}/a.sock", "--state", str(tmp_path / "s"))
        done = run("--host", HOST, *words)
        assert done.returncode == 2
        assert problem in done.stderr.decode()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--metrics", f"127.0.0.1:{taken.getsockname()[1]}", "--socket", f"{tmp_path}/a.sock")
        done = run("--host", HOST, "agent", "run", *words, "--state", str(tmp_path / "s"))
    assert "Address already in use" in done.stderr.decode()
    assert done.returncode == 2


def test_a_running_operation_ends_before_the_agent_does(tmp_path: Path) -> None:
    with process(HOST, tmp_path) as agent:
        body = {"pattern": "vdi-{}", "count": 8, "profile": "A100-4C"}
        operation = agent.ask("POST", "/v1/create-vms", body).document["id"]
        assert agent.stop(signal.SIGTERM) == 0
    with process(HOST, tmp_path) as again:
        shown = again.ask("GET", f"/v1/operations/{operation}").document
    assert (shown["state"], shown["document"]["ok"]) == ("finished", True)
    assert len(vgpuctl.open_host(HOST).list_vms().data) == 8


def test_dial_carries_requests(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        request = b"GET /v1/list-gpus HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        done = run("agent", "dial", "--socket", agent.path, stdin=request)
        assert done.returncode == 0, done.stderr
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert json.loads(body)["ok"]
    gone = run("agent", "dial", "--socket", f"{tmp_path}/none.sock")
    assert gone.returncode == 75
    assert b"No such file" in gone.stderr
    assert gone.stdout == b""


def test_dial_ends_without_any_input_although_the_agent_would_wait(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/agent.sock")
        silent.listen()
        ended = run("agent", "dial", "--socket", f"{tmp_path}/agent.sock")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_dial_ends_when_nobody_reads_any_more(tmp_path: Path) -> None:
    """As when a login's channel is closed: sshd counts it until its command has ended."""
    words = [sys.executable, "-m", "vgpuctl", "agent", "dial", "--socket", f"{tmp_path}/agent.sock"]
    pipe = subprocess.PIPE
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/agent.sock")
        silent.listen()
        with subprocess.Popen(words, env=ENVIRONMENT, stdin=pipe, stdout=pipe) as child:
            connection, _ = silent.accept()
            assert child.stdout is not None
            child.stdout.close()
            assert child.wait(60) == 0
        connection.close()


def test_dial_loads_the_standard_library_alone() -> None:
    code = (
        "import sys; before = {*sys.modules}; import vgpuctl.agent.dial;"
        "print([m for m in {*sys.modules} - before if m.split('.')[0] not in {*sys.stdlib_module_names, 'vgpuctl'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_members_get_through_the_directory_that_is_made_for_the_socket(tmp_path: Path) -> None:
    with server.bind(f"{tmp_path}/made/agent.sock"):
        modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "made", tmp_path / "made/agent.sock")]
    assert modes == [0o755, 0o660]


def test_a_place_where_others_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(Refused, match="others may write there"):
        server.bind(f"{shared}/agent.sock")
    own = tmp_path / "own"
    own.mkdir()
    (own / "agent.sock").write_text("precious")
    with pytest.raises(Refused, match="is not a socket"):
        server.bind(f"{own}/agent.sock")
    assert (own / "agent.sock").read_text() == "precious"


def test_a_socket_that_everybody_may_use_is_refused(tmp_path: Path) -> None:
    listening = server.bind(f"{tmp_path}/a.sock")
    os.chmod(f"{tmp_path}/a.sock", 0o666)
    with listening, pytest.raises(Refused, match="everybody may use it"):
        server.check_socket(listening)


def test_a_state_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(FileFailed, match="state directory"), server.only_agent(tmp_path / "state"):
        raise AssertionError("it went on")


def test_a_damaged_operation_is_set_aside_and_the_others_stay(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        made = agent.ask("POST", "/v1/reconcile-host", {}).document["id"]
        agent.ended(made)
        damaged, newer = (agent.state / "operations" / f"{digit * 32}.json" for digit in "01")
    damaged.write_text("{")
    of_newer = json.dumps({**json.loads((damaged.parent / f"{made}.json").read_text()), "created": "today"})
    newer.write_text(of_newer)
    (damaged.parent / "notes.txt").write_text("not ours")
    with running(HOST, tmp_path) as again:
        listed = again.ask("GET", "/v1/operations").document["operations"]
    assert [one["id"] for one in listed] == [made]
    assert damaged.with_suffix(".damaged").read_text() == "{"
    assert newer.with_suffix(".damaged").read_text() == of_newer
    assert (damaged.parent / "notes.txt").exists()


def test_a_header_that_does_not_become_whole_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.05)
    with running(HOST, tmp_path) as agent, agent.dial() as slow:
        slow.settimeout(60)
        slow.sendall(b"GET /v1 HTT")
        assert slow.recv(100) == b""


def test_events_are_read_and_followed(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        host: Any = agent.connect()
        host.create_vm("vdi-1", profile="A100-4C")
        kinds = [str(event.type) for event in host.read_events().data]
        assert kinds[0] == "agent-started"
        assert {"operation-begin", "operation-end"} <= {*kinds}
        operations = [event for event in host.read_events().data if str(event.type).startswith("operation-")]
        assert {event.vm for event in operations} == {"vdi-1"}
        following = host.follow_events(host.read_events().data[0].id)
        seen = set()
        while "vm-started" not in seen:
            event = next(following)
            seen.add(str(event.type))
        assert event.vm == "vdi-1"
        following.close()
        words = [sys.executable, "-m", "vgpuctl", "--host", f"agent:{agent.path}", "--json", "events", "--follow"]
        with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
            words_since = ["--host", f"agent:{agent.path}", "events", "--since", host.read_events().data[0].id]
            assert b"operation-end" in run(*words_since).stdout
            assert follower.stdout is not None
            readable = select.poll()
            readable.register(follower.stdout, select.POLLIN)
            while not readable.poll(0):
                host.cordon("A100")
                host.uncordon("A100")
            assert json.loads(follower.stdout.readline())["id"]
            follower.send_signal(signal.SIGINT)
            assert follower.wait(60) == 130
        shown = run("--host", f"agent:{agent.path}", "--json", "events")
        assert json.loads(shown.stdout)["data"][0]["type"] == "agent-started"


def test_the_sixty_fifth_follower_is_told_so(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        streams = [agent.dial() for _ in range(64)]
        for stream in streams:
            stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n")
            assert b"200" in stream.recv(100)
        refused = agent.ask("GET", "/v1/events", Accept="text/event-stream")
        assert (refused.status, refused.document["error"]["facts"]["readers"]) == (503, 64)
        for stream in streams:
            stream.close()


def test_a_receiver_that_others_could_change_gets_nothing_and_the_journal_says_why(tmp_path: Path) -> None:
    program = tmp_path / "page"  # below /tmp, where everybody may write
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o757)
    host_file = tmp_path / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True, exist_ok=True)
    host_file.write_text(f"version: 1\nagent: {{notify: {{pager: {{program: {program}}}}}}}\n")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vgpuctl.agent")
    logger.addHandler(handler)
    try:
        with running(HOST, tmp_path):
            while "cannot be delivered" not in (line := lines.get(timeout=60)):
                pass
    finally:
        logger.removeHandler(handler)
    assert "must belong to root" in line
    assert not (tmp_path / "ran").exists()
