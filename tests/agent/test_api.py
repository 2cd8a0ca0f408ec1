# SPDX-License-Identifier: Apache-2.0
"""The API: reads, operations and their events, keys, errors; bad requests get an answer that says what is wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from tests.agent.conftest import RunningAgent, running
from vgpuctl import library
from vgpuctl.agent import openapi, operations
from vgpuctl.agent.http_input import read_body
from vgpuctl.agent.operations import MAX_RUNNING
from vgpuctl.agent.protocol import MAX_BODY_BYTES
from vgpuctl.cli import schemas
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings

GPU = "0000:3b:00.0"
AT_0 = {"request": {"if_generation": 0}}


def events_of(agent: RunningAgent, operation: str, last: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
    """Return all events of an operation after a number, to its end."""
    text = agent.ask("GET", f"/v1/operations/{operation}/events", Last_Event_ID=str(last)).text
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events


def test_a_read_answers_with_the_document_of_the_command(agent: RunningAgent) -> None:
    answer = agent.ask("GET", "/v1/list-gpus")
    assert answer.status == 200
    jsonschema.validate(answer.document, schemas.document_schema("list-gpus"))
    assert [gpu["address"] for gpu in answer.document["data"]] == [GPU]


def test_arguments_of_a_read_are_in_the_url_or_in_a_body(agent: RunningAgent) -> None:
    by_url = agent.ask("GET", "/v1/fits?profiles=A100-4C:3&profiles=A100-4C&gpu=A100").document
    by_body = agent.ask("POST", "/v1/fits", {"profiles": ["A100-4C:3", "A100-4C"], "gpu": "A100"}).document
    assert by_url["ok"], by_url
    assert by_url == by_body
    assert agent.ask("GET", "/v1/list-gpus?everything=true").document["ok"]


def test_an_operation_tells_its_plan_its_steps_and_its_document(agent: RunningAgent) -> None:
    begun = agent.ask("POST", "/v1/create-vm", {"name": "vdi-1", "profile": "A100-4C"})
    assert (begun.status, begun.document["state"]) in ((202, "waiting"), (202, "running"))
    operation = begun.document["id"]
    assert begun.headers["location"] == f"/v1/operations/{operation}"
    received = events_of(agent, operation)
    kinds = [kind for _, kind, _ in received]
    assert (kinds[0], kinds[-1]) == ("plan", "result")
    assert kinds.count("step-finish") >= 3
    assert [number for number, _, _ in received] == [*range(1, len(received) + 1)]
    assert received[-1][2] == agent.ended(operation)
    assert received[-1][2]["ok"]
    assert received[-1][2]["data"]["name"] == "vdi-1"
    assert events_of(agent, operation, last=received[-3][0]) == received[-2:]
    listed = agent.ask("GET", "/v1/operations").document["operations"]
    assert [(one["id"], one["call"], one["state"]) for one in listed] == [(operation, "create-vm", "finished")]


def test_a_failure_has_the_error_of_the_command_and_undoes(agent: RunningAgent) -> None:
    document = agent.change("create-vm", name="x", profile="A100-99C")
    assert (document["ok"], document["error"]["code"]) == (False, "not-found")
    missing = agent.ask("GET", "/v1/show-vm?name=nothing")
    assert (missing.status, missing.document["error"]["code"]) == (404, "not-found")
    assert missing.document["error"]["hint"] == "vgpuctl list-vms shows the VMs"


def test_the_same_key_is_the_same_operation(agent: RunningAgent) -> None:
    body = {"name": "vdi-1", "profile": "A100-4C"}
    first = agent.ask("POST", "/v1/create-vm", body, Idempotency_Key="k").document["id"]
    assert agent.ended(first)["changed"]
    assert agent.ask("POST", "/v1/create-vm", body, Idempotency_Key="k").document["id"] == first
    other = agent.ask("POST", "/v1/create-vm", {**body, "name": "vdi-2"}, Idempotency_Key="k")
    assert (other.status, other.document["error"]["code"]) == (409, "key-reused")


def test_a_read_after_a_change_sees_it_and_says_how_old_its_look_is(agent: RunningAgent) -> None:
    assert agent.ask("GET", "/v1/list-vms").document["data"] == []
    assert agent.change("create-vm", name="vdi-1", profile="A100-4C")["ok"]
    answer = agent.ask("GET", "/v1/list-vms")
    assert [vm["name"] for vm in answer.document["data"]] == ["vdi-1"]
    assert answer.headers["age"] == "0"


def test_a_request_for_a_generation_changes_no_vm_that_was_changed_since(agent: RunningAgent) -> None:
    assert agent.change("create-vm", name="vdi-1", profile="A100-4C")["data"]["generation"] == 0
    body = {"name": "vdi-1", "owner": "ada", **AT_0}
    first = agent.ask("POST", "/v1/set-vm", body, Idempotency_Key="k").document["id"]
    assert agent.ended(first)["data"]["generation"] == 1
    late = agent.ask("POST", "/v1/set-vm", {"name": "vdi-1", "owner": "bob", **AT_0})
    assert (late.status, late.document["error"]["code"], late.document["error"]["exit_status"]) == (409, "stale", 3)
    assert late.document["error"]["facts"] == {"vm": "vdi-1", "generation": 1, "expected": 0}
    assert agent.ask("POST", "/v1/set-vm", body, Idempotency_Key="k").document["id"] == first
    shown = agent.ask("GET", "/v1/show-vm?name=vdi-1").document["data"]
    assert (shown["owner"], shown["generation"]) == ("ada", 1)
    gone = agent.ask("POST", "/v1/ensure-vm", {"name": "gone", **AT_0})
    assert (gone.status, gone.document["error"]["code"]) == (404, "not-found")
    assert len(agent.ask("GET", "/v1/operations").document["operations"]) == 2


def test_a_queued_operation_is_stale_when_it_begins(tmp_path: Path) -> None:
    """Two changes for the same generation wait behind eight operations, then run one after the other."""
    permits, make = threading.Semaphore(1), library.opener("sim:a100-40")

    def open_host(settings: CallSettings, clock: HostClock | None) -> GpuHost:
        if settings.if_generation is None:
            assert permits.acquire(timeout=60)
        return make(settings, clock)

    with running("sim:a100-40", tmp_path, open_host=open_host) as agent:
        agent.change("create-vm", name="vdi-1", profile="A100-4C")
        for _ in range(MAX_RUNNING):
            agent.ask("POST", "/v1/start-vm", {"name": "vdi-1"})
        queued = [
            agent.ask("POST", "/v1/set-vm", {"name": "vdi-1", "labels": {"by": by}, **AT_0}) for by in ("ada", "bob")
        ]
        assert [(answer.status, answer.document["state"]) for answer in queued] == [(202, "waiting")] * 2
        permits.release()
        first, second = (agent.ended(answer.document["id"]) for answer in queued)
        permits.release(MAX_RUNNING - 1)
        assert (first["data"]["labels"], first["data"]["generation"]) == ({"by": "ada"}, 1)
        assert (second["error"]["code"], second["error"]["facts"]["generation"]) == ("stale", 1)


def test_a_question_is_answered_by_the_caller(agent: RunningAgent) -> None:
    agent.change("create-vm", name="vdi-1", profile="A100-4C")
    asked = agent.change("delete-vm", name="vdi-1", request={"ask": True})
    assert asked["error"]["code"] == "needs-confirmation"
    facts = asked["error"]["facts"]
    confirmed = "\n".join([facts["question"], *facts["lines"]])
    assert agent.change("delete-vm", name="vdi-1", request={"ask": True, "confirmed": ["other"]})["ok"] is False
    assert agent.change("delete-vm", name="vdi-1", request={"ask": True, "confirmed": [confirmed]})["ok"]
    events = agent.ask("GET", "/v1/events").document["events"]
    ends = [(event["reason"], event["severity"]) for event in events if event["type"] == "operation-end"]
    assert [reason.rpartition(": ")[2] for reason, _ in ends[-3:]] == ["asks the caller", "asks the caller", "done"]
    assert {severity for _, severity in ends} == {"info"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        ("POST", "/v1/create-vm", b"{", 400, "not JSON"),
        ("POST", "/v1/create-vm", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/v1/create-vm", b"[]", 400, "not a JSON object"),
        ("POST", "/v1/create-vm", {"profile": "A100-4C", "colour": "red"}, 422, "colour"),
        ("POST", "/v1/create-vm", {"profile": "A100-4C", "start": "no"}, 400, "start is text, not true or false"),
        ("POST", "/v1/show-vm", {}, 422, "name: missing"),
        ("POST", "/v1/show-vm", {"name": 5}, 400, "name is a number"),
        ("POST", "/v1/show-vm", {"name": "x", "request": {"colour": 1}}, 422, "colour"),
        ("POST", "/v1/show-vm", {"name": "x", "request": 5}, 400, "request"),
        ("POST", "/v1/set-vm", {"name": "x", **AT_0, "colour": 1}, 422, "colour"),
        ("POST", "/v1/set-vm", {"name": "x", "request": {"if_generation": "0"}}, 400, "if_generation is text"),
        ("POST", "/v1/set-vm", {"name": "x", **AT_0}, 404, "no VM x"),
        ("POST", "/v1/create-vm", {"name": "x", "profile": "A100-4C", **AT_0}, 400, "a change of one VM"),
        ("POST", "/v1/create-vms", {"pattern": "x-{}", "count": 2, "profile": "A100-4C", **AT_0}, 400, "of one VM"),
        ("POST", "/v1/cordon", {"gpu": GPU, **AT_0}, 400, "a change of one VM"),
        ("POST", "/v1/show-vm", {"name": "x", **AT_0}, 400, "a change of one VM"),
        ("POST", "/v1/create-vm", b" " * (MAX_BODY_BYTES + 1), 413, "larger"),
        ("GET", "/v1/create-vm?profile=A100-4C", None, 405, "POST"),
        ("GET", "/v1/nothing", None, 404, "nothing"),
        ("POST", "/v1/install-host", {"dry_run": True}, 409, "the host agent does not make the call install-host"),
        ("GET", "/v1/uninstall-host", None, 409, "uninstall-host"),
        ("GET", "/v1/../v1/list-vms", None, 404, ""),
        ("GET", "/v1//list-vms", None, 404, ""),
        ("GET", "/v1/list-vms%00", None, 404, ""),
        ("GET", "/v1/operations/none", None, 404, "none"),
        ("GET", "/v1/operations/none?wait=-1", None, 404, "none"),
        ("DELETE", "/v1/list-vms", None, 405, ""),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    agent: RunningAgent, method: str, path: str, body: object, status: int, named: str
) -> None:
    answer = agent.ask(method, path, body)
    assert answer.status == status
    assert answer.document["ok"] is False
    assert named in answer.document["error"]["message"]
    assert agent.ask("GET", "/v1/operations").document == {"operations": []}


def test_garbage_is_refused_and_the_agent_goes_on(agent: RunningAgent) -> None:
    with agent.dial() as connection:
        connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b"400" in connection.recv(1000)
    assert agent.ask("GET", "/v1").status == 200


def test_who_goes_away_in_the_middle_leaves_an_operation_that_goes_on(agent: RunningAgent) -> None:
    body = json.dumps({"name": "vdi-1", "profile": "A100-4C"}).encode()
    with agent.dial() as connection:
        head = f"POST /v1/create-vm HTTP/1.1\r\nHost: a\r\nIdempotency-Key: mine\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.recv(1)
        connection.shutdown(socket.SHUT_RDWR)
    again = agent.ask("POST", "/v1/create-vm", json.loads(body), Idempotency_Key="mine").document["id"]
    assert agent.ended(again)["data"]["name"] == "vdi-1"
    assert len(agent.ask("GET", "/v1/operations").document["operations"]) == 1


def test_the_description_names_every_call_and_its_schemas_are_valid(agent: RunningAgent) -> None:
    described = agent.ask("GET", "/v1/openapi.json").document
    assert described == json.loads(openapi.text())
    calls = agent.ask("GET", "/v1").document["calls"]
    assert {f"/v1/{name}" for name in calls} <= {*described["paths"]}
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    document = agent.ask("GET", "/v1/list-gpus").document
    jsonschema.validate(document, {"$ref": "#/components/schemas/list-gpus-result", **described})


def test_an_old_operation_is_read_from_its_file(agent: RunningAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_IN_MEMORY", 1)
    first = agent.ask("POST", "/v1/cordon", {"gpu": GPU}, Idempotency_Key="first").document["id"]
    document = agent.ended(first)
    for _ in range(3):
        agent.change("uncordon", gpu=GPU)
    assert agent.ended(first) == document
    assert events_of(agent, first)[-1][2] == document
    assert agent.ask("POST", "/v1/cordon", {"gpu": GPU}, Idempotency_Key="first").document["id"] == first


def test_a_client_that_goes_away_with_half_a_request_is_no_error_of_the_agent() -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    with pytest.raises(HTTPException, match="the client went away") as caught:
        asyncio.run(read_body(HttpRequest({"type": "http"}, receive)))
    assert caught.value.status_code == 400
