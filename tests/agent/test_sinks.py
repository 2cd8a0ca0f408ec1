# SPDX-License-Identifier: Apache-2.0
"""Delivery to real programs, and to a real server, which speaks plain HTTP where the address is https."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Thread

import pytest

from tests.hosts import EagerClock
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.sinks import (
    HttpsSink,
    ProgramSink,
    SinkDelivery,
    build_opener,
    encode_event,
    open_sink,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.host.trusted_path import require_trusted_program
from vgpuctl.model.event import EventType, Sink

WAIT_SECONDS = 30
KEY = b"0123456789abcdef0123456789abcdef"
PROGRAM = Sink(program="/opt/notify")

FIVE_OCLOCK = 1_795_755_600.0
"""2026-11-27 05:00:00 UTC."""


@pytest.fixture
def log() -> EventLog:
    return EventLog(EagerClock(FIVE_OCLOCK), boot="b00t")


class Receiver:
    """Receives what a delivery delivers, and fails as often as the test says."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.attempts = 0
        self.received: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self.gave_up = ThreadEvent()

    def __call__(self, data: bytes) -> None:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise OSError("nobody is there")
        self.received.put(json.loads(data))

    def next(self) -> dict[str, object]:
        return self.received.get(timeout=WAIT_SECONDS)


def started(log: EventLog, receiver: Callable[[bytes], None], sink: Sink = PROGRAM) -> SinkDelivery:
    delivery = SinkDelivery(log, sink, receiver, pauses_seconds=(0.001, 0.002))
    delivery.start()
    return delivery


# -------------------------------------------------------------------- delivery


def test_what_happens_from_now_on_is_delivered(log: EventLog) -> None:
    log.publish(EventType.AGENT_STARTED)
    receiver = Receiver()
    delivery = started(log, receiver)
    log.publish(EventType.VM_CRASHED, vm="vdi-001", vm_uuid="u", reason="failed")
    assert receiver.next() == {
        "id": "b00t-2",
        "type": "vm-crashed",
        "severity": "error",
        "time": "2026-11-27T05:00:00.000Z",
        "vm": "vdi-001",
        "vm_uuid": "u",
        "gpu": None,
        "vgpu": None,
        "reason": "failed",
        "operation": None,
        "count": 1,
    }
    delivery.close()


def test_a_sink_gets_the_types_that_it_asked_for(log: EventLog) -> None:
    receiver = Receiver()
    delivery = started(log, receiver, Sink(program="/x", types=(EventType.GPU_LOST, EventType.CORDON)))
    for event_type in (EventType.GPU_XID, EventType.CORDON, EventType.AGENT_STARTED, EventType.GAP, EventType.GPU_LOST):
        log.publish(event_type)
    log.close()
    delivery.close()
    assert [receiver.next()["type"] for _ in range(3)] == ["cordon", "gap", "gpu-lost"]
    assert receiver.received.empty()


def test_a_failure_is_tried_again(log: EventLog) -> None:
    receiver = Receiver(failures=2)
    delivery = started(log, receiver)
    log.publish(EventType.CORDON)
    assert receiver.next()["type"] == "cordon"
    log.close()
    delivery.close()
    assert (receiver.attempts, delivery.left_out, delivery.problem) == (3, 0, None)


def test_what_fails_too_often_is_left_out_and_the_next_one_delivered(log: EventLog) -> None:
    receiver = Receiver(failures=3)
    delivery = started(log, receiver)
    log.publish(EventType.CORDON)
    log.publish(EventType.GPU_LOST)
    assert receiver.next()["type"] == "gpu-lost"
    assert (receiver.attempts, delivery.left_out) == (4, 1)
    delivery.close()


def test_a_slow_sink_delays_nobody_and_gets_a_gap() -> None:
    log = EventLog(EagerClock(FIVE_OCLOCK), boot="b00t", kept=10)
    entered, go_on = ThreadEvent(), ThreadEvent()
    slow, quick = Receiver(), Receiver()

    def wait(data: bytes) -> None:
        entered.set()
        assert go_on.wait(WAIT_SECONDS)
        slow(data)

    deliveries = [started(log, wait, Sink(program="/x", types=(EventType.CORDON,))), started(log, quick)]
    log.publish(EventType.CORDON)
    assert entered.wait(WAIT_SECONDS)
    assert quick.next()["id"] == "b00t-1"
    for number in range(2, 22):
        log.publish(EventType.CORDON)
        assert quick.next()["id"] == f"b00t-{number}"
    go_on.set()
    assert [slow.next()["type"] for _ in range(12)] == ["cordon", "gap", *["cordon"] * 10]
    for delivery in deliveries:
        delivery.close()


def test_a_sink_that_fails_does_not_hold_up_the_end(log: EventLog) -> None:
    receiver = Receiver(failures=99)
    delivery = SinkDelivery(log, PROGRAM, receiver, pauses_seconds=(9999.0,))
    delivery.start()
    for _ in range(3):
        log.publish(EventType.CORDON)
    log.close()
    delivery.close()
    assert receiver.attempts == delivery.left_out == 3
    assert delivery.problem == "nobody is there"


@pytest.mark.parametrize(
    "sink",
    [
        Sink(),
        Sink(program="/x", url="https://a/"),
        Sink(program="notify"),
        Sink(url="http://a/", secret_file="/s"),
        Sink(url="https:///x", secret_file="/s"),
        Sink(url="https://user:pw@a/", secret_file="/s"),
        Sink(url="file:///etc/passwd", secret_file="/s"),
        Sink(url="https://a/"),
    ],
)
def test_a_sink_that_cannot_be_is_refused(sink: Sink) -> None:
    with pytest.raises(InvalidInput):
        open_sink(sink)


# -------------------------------------------------------------------- programs


def write_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def trust(_path: str) -> None:
    """Whoever runs the tests owns the program, and its directory is in /tmp."""


def test_a_program_gets_the_event_on_stdin_and_no_environment(tmp_path: Path, log: EventLog) -> None:
    program = write_program(tmp_path / "notify", f"cat > {tmp_path}/event\nenv > {tmp_path}/env\n")
    log.publish(EventType.VM_CRASHED, vm="$(touch /tmp/no); 'vdi'")
    (event,) = log.since(None)
    ProgramSink(program, trust).deliver(encode_event(event))
    assert json.loads((tmp_path / "event").read_text())["vm"] == "$(touch /tmp/no); 'vdi'"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"LC_ALL", "PATH", "PWD", "SHLVL", "_"}


def test_a_program_that_fails_prints_much_or_reads_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="status 3"):
        ProgramSink(write_program(tmp_path / "fails", "exit 3"), trust).deliver(b"{}\n")
    ProgramSink(write_program(tmp_path / "prints", "head -c 5000000 /dev/zero"), trust).deliver(b"{}\n")
    ProgramSink(write_program(tmp_path / "ignores", "exec <&-"), trust).deliver(b"x" * 1_000_000)
    with pytest.raises(OSError, match="No such file"):
        ProgramSink(str(tmp_path / "none"), trust).deliver(b"{}\n")


def test_a_program_in_a_directory_of_others_is_not_started(tmp_path: Path) -> None:
    program = write_program(tmp_path / "notify", f"touch {tmp_path}/ran")
    with pytest.raises(PermissionError, match="root alone"):
        ProgramSink(program).deliver(b"{}\n")
    assert not (tmp_path / "ran").exists()


def check(path: Path, top: Path) -> None:
    require_trusted_program(str(path), owner=os.geteuid(), top=str(top))


def test_only_what_nobody_else_can_change_is_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o755)
    program = Path(write_program(inner / "notify", "true"))
    link, far = tmp_path / "link", tmp_path / "far"
    link.symlink_to("inner/../inner/notify")
    far.symlink_to(program)
    for path in (program, link, far, tmp_path / "inner" / ".." / "inner" / "notify"):
        check(path, tmp_path)
    for mode in (0o757, 0o777):
        program.chmod(mode)
        with pytest.raises(PermissionError, match="notify must belong to root"):
            check(link, tmp_path)
    program.chmod(0o755)
    inner.chmod(0o777)
    for path in (program, link, far):
        with pytest.raises(PermissionError, match="inner must belong to root"):
            check(path, tmp_path)
    inner.chmod(0o755)
    with pytest.raises(PermissionError, match="must belong to root"):
        require_trusted_program(str(program), owner=os.geteuid() + 1, top=str(tmp_path))


def test_what_is_no_program_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    text, loop = tmp_path / "text", tmp_path / "loop"
    text.write_text("no program")
    text.chmod(0o644)
    loop.symlink_to(loop)
    for path in (text, tmp_path):
        with pytest.raises(PermissionError, match="is not a program"):
            check(path, tmp_path)
    with pytest.raises(OSError, match="too many symbolic links"):
        check(loop, tmp_path)
    with pytest.raises(FileNotFoundError):
        check(tmp_path / "none", tmp_path)


def test_the_systems_own_programs_are_trusted() -> None:
    require_trusted_program("/usr/bin/env")


# ------------------------------------------------------------------- addresses


class Plain(urllib.request.HTTPSHandler):
    """Sends requests for https addresses to a server on this machine, without TLS."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def https_open(self, request: urllib.request.Request):
        return self.do_open(lambda _host, **options: HTTPConnection("127.0.0.1", self.port, **options), request)


class Server(ThreadingHTTPServer):
    """Answers each request with the next status, and keeps what it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int | None] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers.items()), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        if status is None:
            self.wfile.write(b"this is no answer\r\n\r\n")
            return
        self.send_response(status)
        if status in (301, 302, 307, 308):
            self.send_header("Location", "https://other.example/")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None: ...


def plain_opener(server: Server) -> urllib.request.OpenerDirector:
    return build_opener(Plain(server.server_address[1]), urllib.request.ProxyHandler({}))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def sink(server: Server, key_file: Path) -> HttpsSink:
    opener = plain_opener(server)
    return HttpsSink("https://events.example/hook?a=1", str(key_file), opener, key_owner=os.geteuid())


def test_a_receiver_can_check_who_sent_it_and_when(sink: HttpsSink, server: Server) -> None:
    sink.deliver(b'{"id":"b00t-1"}\n')
    ((path, headers, body),) = server.requests
    assert (path, body) == ("/hook?a=1", b'{"id":"b00t-1"}\n')
    assert (headers["Content-Type"], headers["Host"]) == ("application/json", "events.example")
    named = {name.lower(): value for name, value in headers.items()}
    signed = f"{named['x-vgpuctl-timestamp']}.".encode() + body
    assert named["x-vgpuctl-signature"] == f"sha256={hmac.new(KEY, signed, hashlib.sha256).hexdigest()}"


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 500, 503])
def test_other_answers_are_failures_and_no_redirect_is_followed(sink: HttpsSink, server: Server, status: int) -> None:
    server.statuses = [status]
    with pytest.raises(OSError, match=f"status {status}"):
        sink.deliver(b"{}\n")
    assert len(server.requests) == 1


def test_an_answer_that_is_none_and_a_server_that_is_gone_are_failures(sink: HttpsSink, server: Server) -> None:
    server.statuses = [None]
    with pytest.raises(OSError, match=r"events\.example"):
        sink.deliver(b"{}\n")
    closed = Server()
    closed.server_close()
    gone = HttpsSink(sink._url, sink._secret_file, plain_opener(closed), os.geteuid())
    with pytest.raises(OSError, match="refused"):
        gone.deliver(b"{}\n")


def test_a_key_is_read_each_time_and_only_if_nobody_else_can(sink: HttpsSink, server: Server, key_file: Path) -> None:
    key_file.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        sink.deliver(b"{}\n")
    key_file.chmod(0o600)
    key_file.write_bytes(b"short")
    with pytest.raises(PermissionError, match="shorter than 16 bytes"):
        sink.deliver(b"{}\n")
    key_file.unlink()
    with pytest.raises(FileNotFoundError):
        sink.deliver(b"{}\n")
    assert server.requests == []


def test_events_reach_an_address_from_the_log(sink: HttpsSink, server: Server, log: EventLog) -> None:
    server.statuses = [503]
    delivery = started(log, sink.deliver)
    log.publish(EventType.CORDON)
    log.publish(EventType.GPU_LOST, gpu="0000:3b:00.0")
    log.release(everything=True)
    while len(server.requests) < 3:
        assert log.wait_after(log.last_id, 0.01) == ()
    delivery.close()
    assert [json.loads(body)["type"] for _, _, body in server.requests] == ["cordon", "cordon", "gpu-lost"]
