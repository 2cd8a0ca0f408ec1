# SPDX-License-Identifier: Apache-2.0
"""Addresses of images: what is one, and what is below a folder that host.yaml lists."""

from __future__ import annotations

import pytest

from vgpuctl.config.image_urls import image_url, image_url_prefix, is_below_prefix

PREFIX = "https://images.example.org/fleet/"


@pytest.mark.parametrize(
    "text",
    [
        "http://h/x", "ftp://h/x", "https:///x", "https://", "h/x", "", "https://u@h/x", "https://u:p@h/x",
        "https://h/a b",
        "https://h/../x", "https://h/a/./x", "https://h/%2e%2e/x", "https://h/a//x", "https://h/x#y", "https://h\\x/y",
        "https://h/%5cx", "https://h/%252e%252e/x", "https://h:port/x", "https://[::1/x", "https://h/\u00e4",
        f"https://h/{'x' * 2000}",
        7, None,
    ],
)  # fmt: skip
def test_what_is_no_address(text: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        image_url(text)


def test_a_prefix_is_a_folder() -> None:
    assert image_url_prefix(PREFIX) == PREFIX
    for text in ("https://images.example.org/fleet", "https://images.example.org/fleet/?a=/"):
        with pytest.raises(ValueError, match="no folder of a server"):
            image_url_prefix(text)


@pytest.mark.parametrize(
    ("url", "is_below"),
    [
        ("https://images.example.org/fleet/office.qcow2", True),
        ("https://IMAGES.example.org:443/fleet/a/office.qcow2?v=1", True),
        ("https://images.example.org/fleet", False),
        ("https://images.example.org/fleet2/office.qcow2", False),
        ("https://images.example.org:8443/fleet/office.qcow2", False),
        ("https://images.example.org.evil.org/fleet/office.qcow2", False),
        ("https://evil.org/fleet/office.qcow2", False),
    ],
)
def test_what_is_below_a_prefix(url: str, is_below: bool) -> None:
    assert is_below_prefix(image_url(url), (PREFIX,)) is is_below
    assert not is_below_prefix(url, ())
