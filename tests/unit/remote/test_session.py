# SPDX-License-Identifier: Apache-2.0
"""Addresses of hosts on the command line."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.session import Target, expand_range, parse_url


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


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("ssh://gpu{08..10}", ["ssh://gpu08", "ssh://gpu09", "ssh://gpu10"]),
        ("ssh://ops@{a,b}-1.x:22", ["ssh://ops@a-1.x:22", "ssh://ops@b-1.x:22"]),
        ("ssh://gpu{1..1}", ["ssh://gpu1"]),
        ("ssh://root@[fe80::1:{1..2}]:22", ["ssh://root@[fe80::1:1]:22", "ssh://root@[fe80::1:2]:22"]),
        ("ssh://[::1]", ["ssh://[::1]"]),
    ],
)
def test_ranges(text, urls):
    assert list(expand_range(text)) == urls


@pytest.mark.parametrize(
    ("text", "hint"),
    [("ssh://a{1..", "'ssh://gpu{01..20}'"), ("ssh://a[1:3]", "write 'ssh://a{1..3}'"), ("ssh://{{1..2}}", "quotes")],
)
def test_what_is_no_range_is_refused(text, hint):
    with pytest.raises(InvalidInput, match="--host 'ssh://") as caught:
        expand_range(text)
    assert hint in str(caught.value.hint)
