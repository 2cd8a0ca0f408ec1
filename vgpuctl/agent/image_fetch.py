# SPDX-License-Identifier: Apache-2.0
"""Fetches an image from the site's https server: no redirects, no more than the server said, within a time.

Certificates are checked against the host's authorities (`update-ca-certificates` adds the site's own).
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from vgpuctl.model.image_copy import MAX_IMAGE_BYTES, ChecksumDiffers, UrlFailed, UrlRefused

CHUNK_BYTES = 1 << 20
SILENT_SECONDS = 30.0
"""A server that sends nothing for so long has failed."""
SLOWEST_BYTES, FIRST_SECONDS = 1 << 20, 600.0
"""A whole image takes as long as at this rate at most, and this longer."""


@contextmanager
def opened_url(url: str, expected_bytes: int | None) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield how many bytes an address has, and what yields them.

    Raises:
        UrlRefused: the server has it not, or sends a redirect, or does not say how long it is.
        UrlFailed: it does not answer, or stops half-way. ChecksumDiffers: its length is not `expected_bytes`.
    """
    parts = urlsplit(url)
    begin = time.monotonic()
    connection = http.client.HTTPSConnection(
        str(parts.hostname), parts.port or 443, timeout=SILENT_SECONDS, context=ssl.create_default_context()
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", target, headers={"Connection": "close", "Accept-Encoding": "identity"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise _failed(url, error) from error
        length = _length(url, response, expected_bytes)
        yield length, _read_parts(url, response, length, begin)
    finally:
        connection.close()


def _read_parts(url: str, response: http.client.HTTPResponse, length: int, begin: float) -> Iterator[bytes]:
    size = 0
    while size < length:
        if time.monotonic() > begin + FIRST_SECONDS + length / SLOWEST_BYTES:
            raise UrlFailed(f"{url} takes too long: less than {SLOWEST_BYTES >> 20} MiB in a second", url=url)
        try:
            data = response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _failed(url, error) from error
        if not data:
            raise UrlFailed(
                f"the server of {url} stopped after {size} of {length} bytes", hint=f"curl -I {url}", have=size
            )
        size += len(data)
        yield data


def _length(url: str, response: http.client.HTTPResponse, expected_bytes: int | None) -> int:
    hint = f"curl -I {url}"
    if 300 <= response.status < 400:
        raise UrlRefused(
            f"{url} leads to another address, and redirects are not followed (HTTP {response.status})",
            hint="use the address of the file itself",
            http_status=response.status,
        )
    if response.status >= 500:
        raise UrlFailed(f"the server of {url} has failed: HTTP {response.status}", hint=hint)
    if response.status != 200:
        raise UrlRefused(
            f"the server does not have {url}: HTTP {response.status}", hint=hint, http_status=response.status
        )
    if response.chunked or response.length is None:
        raise UrlRefused(f"the server does not say how long {url} is (Content-Length)", hint=hint)
    if not 0 < response.length <= MAX_IMAGE_BYTES:
        raise UrlRefused(f"the server says that {url} has {response.length} bytes", hint=hint)
    if expected_bytes not in (None, response.length):
        raise ChecksumDiffers(
            f"{url} has {response.length} bytes, and {expected_bytes} are expected",
            hint=hint,
            bytes=response.length,
            expected=expected_bytes,
        )
    return response.length


def _failed(url: str, error: Exception) -> UrlFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "the site's own authority goes to /usr/local/share/ca-certificates, then: update-ca-certificates"
        return UrlFailed(f"the certificate of {url} is not trusted: {error.verify_message}", hint=hint)
    reason = getattr(error, "strerror", None) or error
    return UrlFailed(f"the server of {url} does not answer, or not any more: {reason}", hint=f"curl -I {url}")
