# SPDX-License-Identifier: Apache-2.0
"""Where metrics are served: on the agent's socket, and on a port with what host.yaml asks of it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPSConnection, RemoteDisconnected
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.agent.conftest import Answer, RunningAgent, running
from tests.agent.test_metrics import HOST, read, value
from vgpuctl.agent.http_server import PortProtocol
from vgpuctl.agent.metrics_server import MetricsServer
from vgpuctl.agent.metrics_text import CONTENT_TYPE
from vgpuctl.config.agent_metrics import MetricsSpec, parse_metrics
from vgpuctl.config.agent_spec import parse_agent
from vgpuctl.errors import FileFailed, InvalidInput
from vgpuctl.value import replace


def free_port() -> int:
    """Return a port that nobody uses now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two authorities, `ca` and `other`, and certificates that they signed."""
    directory = tmp_path_factory.mktemp("pki")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for ca in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "2")
    for name, ca in (("host", "ca"), ("scraper", "ca"), ("stranger", "other")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem")
    return directory


def tls_spec(pki: Path, port: int) -> MetricsSpec:
    """Return a section of host.yaml with certificates."""
    return MetricsSpec(f"127.0.0.1:{port}", str(pki / "host.pem"), str(pki / "host.key"), str(pki / "ca.pem"))


def scrape(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, bytes]:
    """Return what the port answers."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers.get("content-type", ""), response.read()


def first_sample(agent: RunningAgent) -> Answer:
    """Return the metrics of an agent as soon as it has its first sample; before that it says that it has none."""
    while (answer := agent.ask("GET", "/v1/metrics")).status == 503:
        assert "not read yet" in answer.text
    return answer


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of an agent that serves metrics."""
    port = free_port()
    with running(HOST, tmp_path, metrics=MetricsSpec(f"127.0.0.1:{port}")) as agent:
        first_sample(agent)
        yield port


def test_the_port_has_metrics_and_nothing_else(port: int) -> None:
    status, content_type, text = scrape(port)
    assert (status, content_type) == (200, CONTENT_TYPE)
    assert value(read(text), "gpus_expected") == [4]
    assert scrape(port, "/v1/list-vms")[0] == scrape(port, "/")[0] == 404
    assert scrape(port, method="POST")[0] == 405


def test_who_may_read_gets_them_on_the_socket(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        assert read(first_sample(agent).text.encode())


def test_top_through_the_agent_is_its_last_sample(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        first_sample(agent)  # each `top` before it is a sample of its own
        first, second = (agent.connect().top().data for _ in range(2))
    assert first.time == second.time
    assert second.age_seconds > first.age_seconds


def test_a_scraper_needs_the_right_certificate(tmp_path: Path, pki: Path) -> None:
    port = free_port()

    def ask(name: str | None) -> int:
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        context.check_hostname = False
        if name is not None:
            context.load_cert_chain(pki / f"{name}.pem", pki / f"{name}.key")
        with closing(HTTPSConnection("127.0.0.1", port, context=context, timeout=60)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().status

    with running(HOST, tmp_path, metrics=tls_spec(pki, port)):
        assert ask("scraper") in (200, 503)
        for name in ("stranger", None):
            with pytest.raises((ssl.SSLError, ConnectionError, RemoteDisconnected)):
                ask(name)
        with pytest.raises((RemoteDisconnected, ConnectionError)):
            scrape(port)


def test_a_certificate_that_does_not_fit_is_refused(pki: Path) -> None:
    spec = tls_spec(pki, free_port())
    with pytest.raises(FileFailed, match="cannot be used"):
        MetricsServer(replace(spec, tls_key=str(pki / "ca.key")), bytes)
    with pytest.raises(FileFailed, match="No such file"):
        MetricsServer(replace(spec, client_ca="/none.pem"), bytes)


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"127.0.0.1:{port}: Address already in use") as caught:
            MetricsServer(MetricsSpec(f"127.0.0.1:{port}"), bytes)
        assert caught.value.hint == f"ss -ltnp 'sport = :{port}'"
        host_file = tmp_path / "state-home/vgpuctl/l40s-x4/etc/vgpuctl/host.yaml"
        with running(HOST, tmp_path) as agent:
            agent.connect().list_gpus()
        host_file.parent.mkdir(parents=True, exist_ok=True)
        host_file.write_text(f"version: 1\nagent: {{metrics: {{listen: '127.0.0.1:{port}'}}}}\n")
        with running(HOST, tmp_path) as agent:
            assert agent.ask("GET", "/v1").status == 200, "what host.yaml says of metrics stops no agent"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"listen": "0.0.0.0:19935"}, "other machines reach that address"),
        ({"listen": "[::]:19935"}, "other machines reach that address"),
        ({"listen": "192.0.2.1:19935", "tls_key": "/k"}, "tls_certificate is missing"),
        ({"listen": "127.0.0.1:19935", "client_ca": "/c"}, "tls_key is missing"),
        ({"listen": "localhost:19935"}, "is not an address with a port"),
        ({"listen": "127.0.0.1"}, "is not an address with a port"),
        ({"listen": "127.0.0.1:0"}, "is not an address with a port"),
        ({"listen": "127.0.0.1:65536"}, "is not an address with a port"),
        ({"listen": "127.0.0.1.:19935"}, "is not an address with a port"),
        ({"listen": 19935}, "is not text"),
        ({}, "listen is missing"),
        ({"port": 19935}, "unknown field"),
    ],
)
def test_a_section_that_is_wrong_is_refused(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_metrics(section)


@pytest.mark.parametrize("name", ["nvml", "sysfs", "agent"])
def test_a_program_has_no_name_of_another_source(name: str) -> None:
    with pytest.raises(ValueError, match="the agent has a source of this name"):
        parse_agent({"readers": {name: {"program": "/p", "user": "nobody"}}})


def test_a_section_that_is_right_is_taken() -> None:
    assert parse_metrics({"listen": "[::1]:19935"}) == MetricsSpec("[::1]:19935")
    files = {"tls_certificate": "/c", "tls_key": "/k", "client_ca": "/a"}
    spec = parse_metrics({"listen": "[2001:db8::1]:1", **files})
    assert (spec.address, spec.port) == ("2001:db8::1", 1)


@contextmanager
def serving(server: MetricsServer) -> Iterator[None]:
    """Serve in a thread."""
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        task = asyncio.create_task(server.serve())
        ends = asyncio.Event()
        loop.add_reader(ending[0], ends.set)
        await ends.wait()
        await server.close(task)

    ending = socket.socketpair()
    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield
    finally:
        ending[1].send(b"x")
        thread.join()
        loop.close()
        for end in ending:
            end.close()


def test_a_scraper_that_does_not_read_its_answer_is_cut_off() -> None:
    lost = Event()

    class HastyProtocol(PortProtocol):
        answer_seconds = 0.5

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    port = free_port()
    server = MetricsServer(MetricsSpec(f"127.0.0.1:{port}"), lambda: b"x" * (64 << 20), HastyProtocol)
    with serving(server), closing(socket.create_connection(("127.0.0.1", port))) as lazy:
        lazy.settimeout(60)
        lazy.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert lost.wait(60), "the server ended the connection although it was not read"
        received = 0
        while part := lazy.recv(1 << 20):
            received += len(part)
        assert 0 < received < 64 << 20


def test_a_scraper_that_reads_gets_a_large_answer_whole() -> None:
    port = free_port()
    with serving(MetricsServer(MetricsSpec(f"127.0.0.1:{port}"), lambda: b"x" * (64 << 20))):
        assert len(scrape(port)[2]) == 64 << 20


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, pki: Path) -> None:
    port = free_port()
    shutil.copytree(pki, tmp_path / "pki")
    spec = tls_spec(tmp_path / "pki", port)
    server = MetricsServer(spec, lambda: b"x 1\n")

    def subject() -> str:
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        context.check_hostname = False
        context.load_cert_chain(pki / "scraper.pem", pki / "scraper.key")
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as connection:
            certificate: Any = connection.getpeercert()
            return str(certificate["subject"][0][0][1])

    with serving(server):
        server.renew_certificate()
        assert subject() == "host"
        shutil.copy(pki / "scraper.pem", tmp_path / "pki/host.pem")
        server.renew_certificate()
        assert subject() == "host", "the key is still another one's"
        for suffix in ("pem", "key"):
            shutil.copy(pki / f"scraper.{suffix}", tmp_path / f"pki/host.{suffix}")
        os.utime(tmp_path / "pki/host.pem", ns=(1, 1))
        server.renew_certificate()
        assert subject() == "scraper"
        (tmp_path / "pki/host.pem").write_text("rubbish")
        server.renew_certificate()
        assert subject() == "scraper", "a wrong one is not used"
        (tmp_path / "pki/host.pem").unlink()
        server.renew_certificate()
        assert subject() == "scraper"
