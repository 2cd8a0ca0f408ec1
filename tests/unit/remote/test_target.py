# SPDX-License-Identifier: Apache-2.0
"""Addresses of hosts on the command line."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.target import Target, parse_url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("ssh://gpu-01", Target("gpu-01", "gpu-01")),
        ("ssh://ops@gpu-01:2222", Target("ops@gpu-01:2222", "gpu-01", 2222, "ops")),
        ("ssh://root@[fe80::1%eth0]:22/", Target("root@[fe80::1%eth0]:22", "fe80::1%eth0", 22, "root")),
        ("ssh://10.0.0.1", Target("10.0.0.1", "10.0.0.1")),
    ],
)
def test_addresses(url, target):
    assert parse_url(url) == target


@pytest.mark.parametrize(
    "url",
    ["ssh://", "ssh:gpu", "ssh://a/b", "ssh://a:0", "ssh://a:70000", "ssh://-x", "ssh://-l@a", "ssh://a b", "ssh://a:b:c",
     "ssh://u:secret@a"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidInput):
        parse_url(url)
