# SPDX-License-Identifier: Apache-2.0
"""host.yaml: the version must be there, unknown keys are refused, the defaults follow the VM spec's rules."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.spec.host import Defaults, HostSpec, parse_host_spec

NAME = "/etc/vgpuctl/host.yaml"


def test_a_host_file_is_read() -> None:
    text = (
        "version: 1\ndefaults:\n  image: /a\n  memory: 8192\n  vcpus: 4\n  network: n\n  os: linux\n  storage_pool: p\n"
    )
    assert parse_host_spec(text, NAME) == HostSpec(
        version=1,
        defaults=Defaults(image="/a", memory="8GiB", vcpus=4, network="n", os="linux", storage_pool="p"),
    )


@pytest.mark.parametrize("text", ["version: 1", "version: 1\ndefaults:\n", "version: 1\ndefaults: {}\n"])
def test_defaults_may_be_missing(text: str) -> None:
    assert parse_host_spec(text, NAME).defaults == Defaults()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: {}", f"{NAME}:1:1: version: it is missing"),
        ("", f"{NAME}:1:1: a mapping of fields"),
        ("version: 2", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: '1'", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: true", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: 1\ndefault: {}", f"{NAME}:2:1: default: there is no such field (did you mean 'defaults'?)"),
        ("version: 1\ndefaults:\n  imag: /a", f"{NAME}:3:3: defaults.imag: there is no such field (did you"),
        ("version: 1\ndefaults:\n  profile: A", f"{NAME}:3:3: defaults.profile: there is no such field"),
        ("version: 1\ndefaults:\n  memory: 8GB", f"{NAME}:3:11: defaults.memory: '8GB' has the unit GB"),
        ("version: 1\ndefaults: [1]", f"{NAME}:2:11: defaults: a mapping of fields"),
        ("version: 1\nversion: 1", f"{NAME}:2:1: version: the key is there twice"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(text, NAME)
    assert caught.value.message.startswith(message)
