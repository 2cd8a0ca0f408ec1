# SPDX-License-Identifier: Apache-2.0
"""A site's https server with images, its authority, and images of each kind."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[BaseHTTPRequestHandler], None]


class ImageServer:
    """What a server answers, by path. `requests`: the paths that it was asked for."""

    def __init__(self, port: int, authority: Path) -> None:
        self.url = f"https://localhost:{port}"
        self.authority = authority
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []

    def put(self, path: str, content: bytes, length: int | None = None) -> str:
        """Have it send a file, of which it says that it has another length; return the address."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content) if length is None else length))
            handler.end_headers()
            handler.wfile.write(content)

        self.answers[path] = answer
        return self.url + path

    def status(self, path: str, number: int, **headers: str) -> str:
        """Have it answer with a status and headers, and nothing else."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(number)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            if number == 200:
                handler.wfile.write(b"0\r\n\r\n" if "Transfer_Encoding" in headers else b"content")

        self.answers[path] = answer
        return self.url + path


@contextmanager
def serving(directory: Path) -> Iterator[ImageServer]:
    """Run a server with a certificate of an authority of its own."""
    authority = directory / "authority.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = directory / "server.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + authority.read_bytes()
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            answer = server.answers.get(self.path)
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(private)
    http.socket = context.wrap_socket(http.socket, server_side=True)
    server = ImageServer(http.server_address[1], authority)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(30)


def raw_image(size: int = 3 << 20, letter: bytes = b"x") -> bytes:
    """Return a disk image without any format."""
    return b"\0" * 510 + b"\x55\xaa" + letter * (size - 512)


def qcow2_header(backing: bytes = b"", *, data_file: bool = False, size: int = 1 << 20) -> bytes:
    """Return a qcow2 image of version 3 with its tables, of one MiB."""
    head = bytearray(size)
    numbers = {4: (3, 4), 20: (16, 4), 24: (1 << 30, 8), 36: (2, 4), 40: (3 << 16, 8), 48: (1 << 16, 8), 56: (1, 4)}
    numbers |= {96: (4, 4), 100: (104, 4)}
    if backing:
        numbers |= {8: (4096, 8), 16: (len(backing), 4)}
    if data_file:
        numbers |= {72: (1 << 2, 8)}
    head[:4] = b"QFI\xfb"
    for offset, (number, length) in numbers.items():
        head[offset : offset + length] = number.to_bytes(length, "big")
    head[4096 : 4096 + len(backing)] = backing
    return bytes(head)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
