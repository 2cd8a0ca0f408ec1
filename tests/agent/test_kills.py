# SPDX-License-Identifier: Apache-2.0
"""The agent is killed in the middle of operations: the next one finishes or undoes each, and nothing is left over."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from tests import EVERYTHING
from tests.agent.conftest import AgentProcess, process
from tests.command_cases import IMAGE

KILLS = int(os.environ.get("VGPUCTL_KILLS") or (100 if EVERYTHING else 15))
MOST_EVENTS = {"create-vms": 24}
"""An operation is killed after at most so many events of its progress; one with fewer is killed when it has ended."""
MOST_EVENTS_OF_OTHERS = 8
MOST_VMS = 8
PROFILE = "A100-4C"

Request = tuple[str, dict[str, Any], set[str]]
"""A call, its arguments, and the VMs that it is about."""


def any_request(choose: random.Random, number: int, vms: list[dict[str, Any]]) -> Request:
    """Return a request that changes some of these VMs, or makes others."""
    own = [vm for vm in vms if vm["ownership"] == "managed"]
    off = [vm["name"] for vm in own if vm["state"] == "stopped"]
    runs = [vm["name"] for vm in own if vm["state"] == "running"]
    vgpus = {vm["name"]: len(vm["vgpus"]) for vm in own}
    calls: list[tuple[str, list[str], dict[str, Any]]] = [
        ("delete-vm", off + runs, {}),
        ("stop-vm", runs, {"force": True}),
        ("refresh-vm", [name for name in runs if vgpus[name]], {"image": IMAGE, "drain": True}),
        ("start-vm", off, {}),
        ("attach-vgpu", off, {"profile": PROFILE}),
        ("detach-vgpu", [name for name in off if vgpus[name] == 1], {}),
        ("set-vm", off, {"memory": choose.choice(["2GiB", "3GiB"]), "owner": f"owner-{number}"}),
    ]
    possible = [call for call in calls if call[1]]
    if not possible or (len(own) < MOST_VMS and choose.random() < 0.4):
        names = [f"k{number}-{index}" for index in range(1, choose.randint(2, 5))]
        more = {"start": choose.random() < 0.7, "reserve": choose.choice(["always", "running"])}
        body = {"pattern": f"k{number}-{{}}", "count": len(names), "profile": PROFILE, "image": IMAGE, **more}
        return "create-vms", body, set(names)
    call, names, arguments = choose.choice(possible)
    name = choose.choice(names)
    return call, {"name": name, **arguments}, {name}


def kill_after(agent: AgentProcess, operation: str, events: int) -> None:
    """Kill the agent when an operation has reported so many events, or its result."""
    with agent.dial() as stream:
        stream.settimeout(60)
        stream.sendall(f"GET /v1/operations/{operation}/events HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        received = b""
        while received.count(b"event: ") < events and b"event: result" not in received:
            received += stream.recv(65536)
        agent.stop(signal.SIGKILL)


def running_vms(agent: AgentProcess) -> set[str]:
    """Return the names of the VMs that run."""
    return {vm["name"] for vm in agent.ask("GET", "/v1/list-vms?fresh=1").document["data"] if vm["state"] == "running"}


def test_a_killed_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    seed = int(os.environ.get("VGPUCTL_SEED") or random.randrange(2**32))
    choose = random.Random(seed)
    states: list[str] = []
    request: Request | None = None
    operation = ""
    ran: set[str] = set()
    for number in range(KILLS + 1):
        case = f"VGPUCTL_SEED={seed}, kill {number}: {request}"
        with process("sim:mixed", tmp_path) as agent:
            if request is not None:
                call, body, targets = request
                shown = agent.ask("GET", f"/v1/operations/{operation}").document
                states.append(shown["state"])
                error = shown["document"].get("error")
                if shown["state"] == "interrupted":
                    assert (error["code"], error["exit_status"]) == ("interrupted", 130), case
                    if shown["started"] is not None:
                        assert agent.ended(error["facts"]["reconcile"])["ok"], case
                else:
                    assert shown["state"] == "finished", case
                    assert error is None or error["code"] == "no-capacity", (case, error)
                again = agent.ask("POST", f"/v1/{call}", body, Idempotency_Key=f"{number - 1}").document
                assert again["id"] == operation, case
                assert agent.change("reconcile-host", dry_run=True)["data"]["findings"] == [], case
                assert ran - targets <= running_vms(agent), case
            if number < KILLS:
                ran = running_vms(agent)
                request = any_request(choose, number, agent.ask("GET", "/v1/list-vms").document["data"])
                begun = agent.ask("POST", f"/v1/{request[0]}", request[1], Idempotency_Key=f"{number}")
                operation = begun.document["id"]
                events = choose.randrange(MOST_EVENTS.get(request[0], MOST_EVENTS_OF_OTHERS))
                kill_after(agent, operation, events)
    assert "interrupted" in states, f"VGPUCTL_SEED={seed}: no kill met an operation"
