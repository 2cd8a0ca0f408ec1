# SPDX-License-Identifier: Apache-2.0
"""The streams that keep pages live: what they say, how many there are, and how they end."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.controller.controllers import running_controller
from tests.web.site import ADMIN, Site, running_site
from vgpuctl.agent.http_server import StreamProtocol
from vgpuctl.controller.web.live import MAX_OF_A_PERSON, MAX_STREAMS, LiveTimes


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Site]:
    """A controller that does nothing by itself, with one host and three pools."""
    with running_site(tmp_path, hosts=1, engine=False) as site:
        yield site


class Reader:
    """A browser's end of a stream."""

    def __init__(self, site: Site, page: str = "/pools", secret: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", site.port), timeout=20)
        head = (
            f"GET /web/stream?page={page} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret or site.secret}\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    def line(self) -> str:
        """Return the next line that is not empty and no length of a chunk; empty at the end."""
        while raw := self._file.readline():
            line = raw.decode().strip()
            if line.startswith((":", "data", "event")):
                return line
        return ""

    def data(self) -> dict[str, str]:
        """Return the next digests."""
        while not (line := self.line()).startswith("data: {"):
            assert line, "the stream ended"
        result: dict[str, str] = json.loads(line.removeprefix("data: "))
        return result

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_a_change_of_one_section_changes_its_digest_alone(quiet: Site) -> None:
    reader = Reader(quiet, "/pools/office")
    assert (reader.status, reader.headers["cache-control"]) == (200, "no-store")
    assert reader.headers["content-security-policy"]
    first = reader.data()
    page = quiet.get("/pools/office").tree
    assert first == {one.get("id"): one.get("data-digest") for one in page.xpath("//*[@data-digest]")}
    spec = dict(quiet.fleet.show_pool(ADMIN, "office").data.spec)
    quiet.fleet.ensure_pool(ADMIN, "office", {**spec, "maximum": 13})
    second = reader.data()
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {"counts", "spec"}
    fragment = quiet.get("/pools/office?section=counts")
    assert fragment.text.count("<section") == 1
    assert f'data-digest="{second["counts"]}"' in fragment.text
    reader.close()


def test_without_a_change_there_are_only_beats(quiet: Site) -> None:
    reader = Reader(quiet)
    reader.data()
    assert reader.line() == ": beat"
    reader.close()


def test_a_person_has_four_streams_and_all_have_two_hundred(quiet: Site) -> None:
    assert (MAX_OF_A_PERSON, MAX_STREAMS) == (4, 200)
    with ExitStack() as stack:

        def opened(secret: str = "") -> Reader:
            reader = Reader(quiet, "/pools", secret)
            stack.callback(reader.close)
            return reader

        assert [opened().status for _ in range(5)] == [200] * 4 + [429]
        assert opened(quiet.fleet.add_token(ADMIN, "other").data.secret).status == 200
        for number in range(49):
            secret = quiet.fleet.add_token(ADMIN, f"person-{number}").data.secret
            statuses = [opened(secret).status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert quiet.get("/pools").status == 200
        assert threading.active_count() < 60
    assert quiet.live is not None
    live = quiet.live
    quiet.wait_until(lambda: live.count == 0, "all readers to be forgotten")
    reader = Reader(quiet)
    assert reader.data()
    reader.close()


def test_who_loses_his_right_is_sent_to_the_page_again(quiet: Site) -> None:
    secret = quiet.fleet.add_token(ADMIN, "other").data.secret
    reader = Reader(quiet, secret=secret)
    reader.data()
    quiet.fleet.delete_token(ADMIN, "other")
    assert reader.data() == {"": "gone"}
    reader.close()


def test_a_stream_ends_after_its_life_and_the_browser_begins_another(tmp_path: Path) -> None:
    with running_site(tmp_path, times=LiveTimes(beat=0.05, settle=0.05, idle=0.1, life=0.3), engine=False) as site:
        reader = Reader(site)
        lines = []
        while line := reader.line():
            lines.append(line)
        assert lines[-2:] == ["event: again", "data:"]
        reader.close()


@pytest.mark.parametrize(
    "page", ["", "nope", "/nope", "//evil.example/", "/?x=1", "/pools?a=1&a=2", "/" + "a" * 3000, "/[::"]
)
def test_there_is_no_stream_of_what_is_no_page(quiet: Site, page: str) -> None:
    assert quiet.get(f"/web/stream?page={page.replace('&', '%26')}").status in (400, 404)


def test_a_stream_does_not_keep_the_controller_from_its_end(tmp_path: Path) -> None:
    with running_site(tmp_path, engine=False) as site:
        reader = Reader(site)
        reader.data()  # running_site asserts that the server ends
    while reader.line():
        pass
    reader.close()


def test_a_controller_that_stops_ends_its_streams_in_order(tmp_path: Path) -> None:
    with running_controller(tmp_path / "controller") as controller:
        secret = controller.run("add-token", "ada", "--role", "viewer").stdout.strip()
        reader = Reader(controller, "/", secret)
        assert reader.data()
        assert controller.stop() == 0
        lines = []
        while line := reader.line():
            lines.append(line)
        assert "event: again" in lines
        assert "Traceback" not in controller.log
        reader.close()


def test_a_reader_that_never_reads_is_cut_off(quiet: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to it fills the buffers of both ends; then it has some seconds."""
    monkeypatch.setattr(StreamProtocol, "unread_seconds", 0.2)
    (sheet,) = quiet.get("/").tree.xpath("//link[@rel='stylesheet']/@href")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", quiet.port))
        one.settimeout(1.0)
        with suppress(OSError):
            one.sendall(f"GET {sheet} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 3000)
        ends = select.poll()
        ends.register(one, 0)  # how it ends, and not what there is to read
        assert ends.poll(20_000)
