# SPDX-License-Identifier: Apache-2.0
"""Images that a controller brings to a host, at the agent's real socket: sent in parts, fetched, checked, deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import ROOT, RunningAgent, process, running
from tests.agent.image_server import ImageServer, qcow2_header, raw_image, serving, sha256
from tests.agent.test_fleet import FENCE, POOLS, Directory, HostRights
from tests.agent.test_members import BOB, EVE
from tests.namespaces import unshare
from vgpuctl import library
from vgpuctl.agent.channel import AgentChannel, IdleConnections
from vgpuctl.agent.connection import REMOTE_LIMITS
from vgpuctl.agent.image_client import ImageClient
from vgpuctl.agent.protocol import Fenced
from vgpuctl.errors import Busy, InUse, InvalidInput, NoSpace, NotFound, VgpuctlError
from vgpuctl.model.agent_service import OPERATORS_GROUP
from vgpuctl.model.desktop import Fence
from vgpuctl.model.image_copy import CopyState, ImageCopy, ImageRequest, NotACopy, WrongOffset

HOST = "sim:a100-40"
PATH = "/srv/images/office-1.img"
OWN = Fence(**FENCE)
CONTENT = raw_image()


class Images(ImageClient):
    """An agent's images, for a controller that has announced itself."""

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(AgentChannel(agent.dial, REMOTE_LIMITS, IdleConnections()), OWN)
        self.agent = agent
        agent.connect().announce_fleet(OWN)

    def show(self, path: str = PATH) -> ImageCopy:
        return next(one for one in self.list() if one.path == path)

    def wait(self, path: str = PATH) -> ImageCopy:
        """Return an image that the agent is no longer at work on."""
        end = time.monotonic() + 60
        while (copy := self.show(path)).state is CopyState.COPYING:
            assert time.monotonic() < end, copy
            time.sleep(0.02)
        return copy

    def wait_until_deleted(self, path: str = PATH) -> None:
        """Delete an image as soon as the agent no longer works on it."""
        while True:
            with suppress(Busy):
                assert self.delete(path)
                return
            time.sleep(0.02)

    def bring(self, content: bytes = CONTENT, path: str = PATH) -> ImageCopy:
        """Send a whole image."""
        copy = self.begin(ImageRequest(path, len(content), sha256(content)))
        assert copy.state is CopyState.COPYING
        self.send(path, copy.have, content[copy.have :])
        return self.wait(path)


@pytest.fixture
def images(agent: RunningAgent) -> Images:
    return Images(agent)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    with serving(tmp_path) as one:
        monkeypatch.setenv("SSL_CERT_FILE", str(one.authority))
        yield one


def parts(tmp_path: Path) -> list[str]:
    """Return the names of the files with content of images."""
    return sorted(path.name.partition("-")[2] for path in tmp_path.glob("state-home/vgpuctl/*/images/*"))


def error_of(act: Callable[[], object]) -> VgpuctlError:
    with pytest.raises(VgpuctlError) as caught:
        act()
    return caught.value


def test_an_image_is_sent_in_parts_and_used(images: Images, tmp_path: Path) -> None:
    request = ImageRequest(PATH, len(CONTENT), sha256(CONTENT))
    assert images.begin(request) == ImageCopy(PATH, CopyState.COPYING, len(CONTENT), 0)
    assert images.send(PATH, 0, CONTENT[:1000]) == 1000
    refused = error_of(lambda: images.send(PATH, 500, CONTENT[500:]))
    assert isinstance(refused, WrongOffset)
    assert refused.facts["have"] == 1000
    assert images.begin(request).have == 1000, "it goes on where it was"
    assert parts(tmp_path) != ["office-1.img"], "it has no name yet"
    assert images.send(PATH, 1000, CONTENT[1000:]) == len(CONTENT)
    assert images.wait() == ImageCopy(PATH, CopyState.READY, len(CONTENT), len(CONTENT))
    assert parts(tmp_path) == ["office-1.img"]
    assert images.begin(request).state is CopyState.READY
    assert images.send(PATH, 0, CONTENT[:1000]) == len(CONTENT), "it became ready while its sender asked how far it is"
    images.agent.connect().create_vm("vdi", profile="A100-4C", image=PATH)
    with pytest.raises(InUse, match="is the base image of vdi's disk"):
        images.delete(PATH)
    images.agent.connect().delete_vm("vdi")
    assert images.delete(PATH)
    assert not images.delete(PATH)
    assert images.list() == ()
    assert parts(tmp_path) == []
    actions = [(one.command, one.result) for one in images.agent.connect().log().data]
    assert ("delete-image", "in-use") in actions
    assert ("begin-image", "ok") in actions


def test_more_than_was_announced_is_refused(images: Images) -> None:
    images.begin(ImageRequest(PATH, 1024, sha256(CONTENT)))
    with pytest.raises(WrongOffset):
        images.send(PATH, 0, CONTENT)
    with pytest.raises(NotFound, match="no image is on its way"):
        images.send("/srv/images/other.img", 0, b"x")
    connection = images.agent.dial()
    head = f"PUT /v1/images/ranges?path={PATH}&offset=0 HTTP/1.1\r\nHost: a\r\nContent-Length: {65 << 20}\r\n\r\n"
    connection.sendall(head.encode())
    with suppress(BrokenPipeError):
        for _ in range(65):
            connection.sendall(bytes(1 << 20))
    assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    connection.close()


BAD = {
    "checksum-differs": (raw_image(letter=b"y"), "its SHA-256 is"),
    "a backing file": (qcow2_header(b"/etc/shadow"), "needs its backing file /etc/shadow"),
    "a data file": (qcow2_header(data_file=True), "keeps its data in another file"),
    "cut off": (qcow2_header()[:150_000], "is cut off"),
    "another format": (b"KDMV" + raw_image()[4:], "is vmdk"),
    "no image": (b"hello\n", "no whole number of sectors"),
    "no version": (b"QFI\xfb\0\0\0\x09" + bytes(1016), "looks like a qcow2 image, but"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_whole_image_never_gets_its_name(images: Images, tmp_path: Path, name: str) -> None:
    content, text = BAD[name]
    digest = sha256(CONTENT) if name == "checksum-differs" else sha256(content)
    images.begin(ImageRequest(PATH, len(content), digest))
    images.send(PATH, 0, content)
    copy = images.wait()
    assert (copy.state, copy.code) == (
        CopyState.FAILED,
        "checksum-differs" if name == "checksum-differs" else "bad-image",
    )
    assert text in (copy.error or "")
    assert parts(tmp_path) == [], "nothing is left"
    assert images.bring().state is CopyState.READY, "the next try begins again"


def test_a_whole_qcow2_is_one(images: Images) -> None:
    assert images.bring(qcow2_header()).state is CopyState.READY
    (row,) = images.agent.connect().list_images(PATH).data
    assert (row.format, row.size_bytes) == ("qcow2", 1 << 30)


BAD_REQUESTS = {
    "relative": {"path": "office.img", "bytes": 1, "sha256": "0" * 64},
    "dots": {"path": "/srv/images/../x.img", "bytes": 1, "sha256": "0" * 64},
    "no folder": {"path": "/x.img", "bytes": 1, "sha256": "0" * 64},
    "no checksum": {"path": PATH, "bytes": 1},
    "short checksum": {"path": PATH, "bytes": 1, "sha256": "0"},
    "no size": {"path": PATH, "sha256": "0" * 64},
    "size 0": {"path": PATH, "bytes": 0, "sha256": "0" * 64},
    "unknown": {"path": PATH, "bytes": 1, "sha256": "0" * 64, "mode": 511},
    "type": {"path": PATH, "bytes": "1", "sha256": "0" * 64},
    "http": {"path": PATH, "url": "http://h/a/x", "sha256": "0" * 64},
    "password": {"path": PATH, "url": "https://ada:secret@h/a/x", "sha256": "0" * 64},
    "dots in a url": {"path": PATH, "url": "https://h/a/%2e%2e/x", "sha256": "0" * 64},
    "shared url": {"path": PATH, "url": "https://h/x", "shared": True},
    "empty": {},
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_writes_nothing(images: Images, tmp_path: Path, name: str) -> None:
    answer = images.agent.ask("POST", "/v1/images", BAD_REQUESTS[name], vgpuctl_fence=json.dumps(FENCE))
    assert answer.status in (400, 422), answer.text
    assert "secret" not in answer.text
    assert images.list() == ()
    assert parts(tmp_path) == []
    assert not (images.agent.state / "images.json").exists()


def test_an_image_is_fetched_from_the_sites_server(images: Images, server: ImageServer, tmp_path: Path) -> None:
    url = server.put("/office.img?version=1", CONTENT)
    begun = images.begin(ImageRequest(PATH, url=url, sha256=sha256(CONTENT)))
    assert begun.state is not CopyState.FAILED
    assert images.wait() == ImageCopy(PATH, CopyState.READY, len(CONTENT), len(CONTENT))
    assert parts(tmp_path) == ["office-1.img"]
    assert images.delete(PATH)


def bad_answers(server: ImageServer) -> dict[str, tuple[str, str, str]]:
    """Return what goes wrong with a server: the address, the code, and the text."""
    less = server.put("/less", CONTENT[:2000], len(CONTENT))
    return {
        "redirect": (server.status("/r", 302, Location="/office.img"), "url-refused", "redirects are not followed"),
        "404": (server.url + "/none", "url-refused", "does not have"),
        "500": (server.status("/500", 500), "url-failed", "HTTP 500"),
        "no length": (server.status("/l", 200), "url-refused", "does not say how long"),
        "chunked": (server.status("/c", 200, Transfer_Encoding="chunked"), "url-refused", "does not say how long"),
        "less": (
            less,
            "url-failed",
            f"stopped after 2000 of {len(CONTENT)}",
        ),
        "more": (server.put("/more", CONTENT, 2048), "checksum-differs", "its SHA-256 is"),
        "nobody": ("https://localhost:1/x", "url-failed", "does not answer"),
        "other": (server.put("/other", raw_image(letter=b"z")), "checksum-differs", "its SHA-256 is"),
    }


NAMES = ("redirect", "404", "500", "no length", "chunked", "less", "more", "nobody", "other")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_server_does_wrong_has_its_own_text(
    images: Images, server: ImageServer, tmp_path: Path, name: str
) -> None:
    server.put("/office.img", CONTENT)
    url, code, text = bad_answers(server)[name]
    images.begin(ImageRequest(PATH, url=url, sha256=sha256(CONTENT)))
    copy = images.wait()
    assert (copy.state, copy.code) == (CopyState.FAILED, code)
    assert text in (copy.error or "")
    assert parts(tmp_path) == []
    assert "/office.img" not in server.requests, "no redirect was followed"


def test_another_size_than_was_meant_is_not_fetched(images: Images, server: ImageServer) -> None:
    url = server.put("/office.img", CONTENT)
    images.begin(ImageRequest(PATH, len(CONTENT) + 512, url=url, sha256=sha256(CONTENT)))
    copy = images.wait()
    assert copy.code == "checksum-differs"
    assert f"{len(CONTENT) + 512} are expected" in (copy.error or "")


def test_a_server_with_another_authority_is_not_trusted(
    images: Images, server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    images.begin(ImageRequest(PATH, url=server.put("/x", CONTENT), sha256=sha256(CONTENT)))
    copy = images.wait()
    assert copy.code == "url-failed"
    assert "is not trusted" in (copy.error or "")
    assert server.requests == []


def test_a_server_that_stops_sending_is_left_when_the_image_is_deleted(
    images: Images, server: ImageServer, tmp_path: Path
) -> None:
    go_on = threading.Event()

    def slowly(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])
        go_on.wait(60)
        with suppress(OSError):
            handler.wfile.write(CONTENT[1000:])

    server.answers["/slow"] = slowly
    images.begin(ImageRequest(PATH, url=f"{server.url}/slow", sha256=sha256(CONTENT)))
    while images.show().have == 0:
        time.sleep(0.02)
    refused = error_of(lambda: images.delete(PATH))
    assert refused.code == "busy"
    go_on.set()
    images.wait_until_deleted()
    assert (images.list(), parts(tmp_path)) == ((), [])


def test_nothing_is_begun_without_room(images: Images, tmp_path: Path) -> None:
    terabytes = 500 << 40
    refused = error_of(lambda: images.begin(ImageRequest(PATH, terabytes, "0" * 64)))
    assert isinstance(refused, InvalidInput), "no image has so many"
    free = error_of(lambda: images.begin(ImageRequest(PATH, 60 << 40, "0" * 64))).facts["free_bytes"]
    assert isinstance(free, int)
    first = ImageRequest(PATH, free // 2, "0" * 64)
    images.begin(first)
    second = ImageRequest("/srv/images/second.img", free // 2, "1" * 64)
    refused = error_of(lambda: images.begin(second))
    assert isinstance(refused, NoSpace)
    assert refused.facts["on_its_way_bytes"] == free // 2
    images.delete(PATH)
    assert images.begin(second).state is CopyState.COPYING
    assert parts(tmp_path) == []


def test_an_image_that_is_on_the_host_is_checked_and_never_deleted(images: Images) -> None:
    shared = "/srv/images/ubuntu-24.04.qcow2"
    assert images.begin(ImageRequest(shared, shared=True)).state is CopyState.READY
    missing = images.begin(ImageRequest("/srv/images/none.qcow2", shared=True))
    assert (missing.state, missing.code) == (CopyState.FAILED, "not-found")
    differs = images.begin(ImageRequest(shared, 4711, shared=True))
    assert (differs.state, differs.code) == (CopyState.FAILED, "checksum-differs")
    assert images.begin(ImageRequest(shared, shared=True)).state is CopyState.READY
    with pytest.raises(NotACopy, match="was not brought to this host"):
        images.delete(shared)
    assert images.agent.connect().list_images(shared).data


def test_what_a_killed_agent_left_is_taken_up(tmp_path: Path) -> None:
    request = ImageRequest(PATH, len(CONTENT), sha256(CONTENT))
    with process(HOST, tmp_path) as agent:
        images = Images(agent)
        images.begin(request)
        images.send(PATH, 0, CONTENT[:100_000])
        agent.process.kill()
        agent.process.wait(60)
    (left,) = parts(tmp_path)
    assert left.startswith(".office-1.img.")
    assert left.endswith(".part")
    with process(HOST, tmp_path) as agent:
        images = Images(agent)
        copy = images.begin(request)
        assert (copy.state, copy.have) == (CopyState.COPYING, 100_000)
        images.send(PATH, 100_000, CONTENT[100_000:])
        assert images.wait().state is CopyState.READY
        agent.process.kill()
        agent.process.wait(60)
    with process(HOST, tmp_path) as agent:
        assert Images(agent).show().state is CopyState.READY, "it is known after the next start, too"


def test_a_part_that_breaks_off_counts(images: Images) -> None:
    images.begin(ImageRequest(PATH, len(CONTENT), sha256(CONTENT)))
    connection = images.agent.dial()
    head = f"PUT /v1/images/ranges?path={PATH}&offset=0 HTTP/1.1\r\nHost: a\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
    connection.sendall(head.encode() + CONTENT[: 3 << 19])
    while images.show().have == 0:
        time.sleep(0.02)
    connection.close()
    assert images.bring().state is CopyState.READY


def test_a_disk_that_becomes_full_loses_the_part_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "state-home/vgpuctl/a100-40/images"
    with process(HOST, tmp_path) as first:
        Images(first).begin(ImageRequest(PATH, 512, "0" * 64))
    folder.mkdir(parents=True, exist_ok=True)
    script = tmp_path / "full.py"
    script.write_text(
        "import subprocess, sys\n"
        f"subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1200k', 'tmpfs', {str(folder)!r}], check=True)\n"
        "from vgpuctl.__main__ import main\n"
        "sys.exit(main())\n"
    )
    folder_of_socket = tmp_path_factory.mktemp("s")
    folder_of_socket.chmod(0o755)
    path = str(folder_of_socket / "a.sock")
    words = [*unshare(), sys.executable, str(script), "--host", HOST, "agent", "run"]
    words += ["--socket", path, "--state", str(tmp_path / "full-state")]
    child = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    try:
        agent = RunningAgent(path, tmp_path / "full-state", HOST)
        end = time.monotonic() + 60
        while True:
            try:
                agent.dial().close()
                break
            except OSError:
                assert child.poll() is None, child.stderr.read() if child.stderr else ""
                assert time.monotonic() < end
                time.sleep(0.05)
        images = Images(agent)
        images.begin(ImageRequest(PATH, len(CONTENT), sha256(CONTENT)))
        refused = error_of(lambda: images.send(PATH, 0, CONTENT))
        assert isinstance(refused, NoSpace)
        assert "No space left on device" in refused.message
        assert images.show().have == 0, "the part is gone"
        assert images.bring(CONTENT[: 1 << 20]).state is CopyState.READY, "a smaller one fits"
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def policed(tmp_path: Path) -> Iterator[tuple[RunningAgent, Path]]:
    """An agent for whom this process is not root."""
    host_file = tmp_path / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True)
    host_file.write_text("version: 1\nagent: {accounts: {pools: fleet}}\n")
    users = Directory()
    users.names |= {POOLS: "pools"}
    users.groups |= {"pools": {OPERATORS_GROUP}}
    with running(HOST, tmp_path, policy=HostRights(library.open_ports(HOST), users, owner=os.geteuid())) as agent:
        os.chmod(os.path.dirname(agent.path), 0o755)
        os.chmod(agent.path, 0o666)
        yield agent, host_file


def send(agent: RunningAgent, uid: int, method: str, path: str, body: object = None, fence: object = FENCE) -> Any:
    words = ["curl", "-sS", "-X", method, "--unix-socket", agent.path, f"http://agent/v1/{path}"]
    words += [] if body is None else ["-d", body if isinstance(body, str) else json.dumps(body)]
    words += [] if fence is None else ["-H", f"Vgpuctl-Fence: {json.dumps(fence)}"]
    done = subprocess.run(words, user=uid, group=uid, extra_groups=[], capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)


def code_in(answer: Any) -> str:
    return str(answer["error"]["code"]) if answer.get("ok") is False else ""


def test_what_a_controllers_account_may_bring_is_listed(
    policed: tuple[RunningAgent, Path], server: ImageServer
) -> None:
    agent, host_file = policed
    url = server.put("/images/office.img", CONTENT)
    sent = {"path": PATH, "bytes": len(CONTENT), "sha256": sha256(CONTENT)}
    fetched = {"path": PATH, "url": url, "sha256": sha256(CONTENT)}
    send(agent, POOLS, "POST", "fleet", {"fence": FENCE})
    for uid in (BOB, EVE):
        assert code_in(send(agent, uid, "GET", "images")) == "not-allowed"
        assert code_in(send(agent, uid, "POST", "images", sent)) == "not-allowed"
        assert code_in(send(agent, uid, "PUT", f"images/ranges?path={PATH}&offset=0", "x")) == "not-allowed"
        assert code_in(send(agent, uid, "DELETE", f"images?path={PATH}")) == "not-allowed"
    assert code_in(send(agent, POOLS, "POST", "images", sent, fence=None)) == "fence-needed"
    assert code_in(send(agent, POOLS, "POST", "images", sent, fence={**FENCE, "epoch": 0})) == "fenced"
    refused = send(agent, POOLS, "POST", "images", sent)
    assert refused["error"]["facts"]["rule"] == "agent.allow.folders"
    assert code_in(send(agent, POOLS, "PUT", f"images/ranges?path={PATH}&offset=0", "x")) == "not-allowed"
    host_file.write_text("version: 1\nagent: {accounts: {pools: fleet}, allow: {folders: [/srv/images]}}\n")
    assert send(agent, POOLS, "POST", "images", sent)["state"] == "copying"
    assert send(agent, POOLS, "PUT", f"images/ranges?path={PATH}&offset=0", "x" * 100) == {"have": 100}
    assert send(agent, POOLS, "DELETE", f"images?path={PATH}") == {"changed": True}
    refused = send(agent, POOLS, "POST", "images", fetched)
    assert refused["error"]["facts"]["rule"] == "agent.allow.image_urls"
    listed = f"folders: [/srv/images], image_urls: ['{server.url}/images/']"
    host_file.write_text(f"version: 1\nagent: {{accounts: {{pools: fleet}}, allow: {{{listed}}}}}\n")
    for other in ("/other/office.img", "/images"):
        answer = send(agent, POOLS, "POST", "images", {**fetched, "url": server.url + other})
        assert code_in(answer) == "not-allowed", other
    assert server.requests == []
    assert send(agent, POOLS, "POST", "images", fetched)["state"] in ("copying", "ready")


def test_a_former_controller_brings_nothing(images: Images) -> None:
    images.agent.connect().announce_fleet(Fence(OWN.incarnation, OWN.epoch + 1, "another"))
    for act in (
        lambda: images.begin(ImageRequest(PATH, 512, "0" * 64)),
        lambda: images.send(PATH, 0, b"x"),
        lambda: images.delete(PATH),
    ):
        with pytest.raises(Fenced):
            act()
