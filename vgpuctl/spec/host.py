# SPDX-License-Identifier: Apache-2.0
"""`/etc/vgpuctl/host.yaml`: what this host should look like, as far as it is read today.

`version: 1` must be there and unknown keys are refused from the first release on, so that a later key is
never silently ignored by an older vgpuctl.
"""

from __future__ import annotations

from typing import Any

from vgpuctl.spec.fields import DEFAULTABLE
from vgpuctl.spec.read import parse
from vgpuctl.spec.shape import Key, Shape
from vgpuctl.spec.values import key
from vgpuctl.value import Value

VERSION = 1


class Defaults(Value):
    """What fills a field that a VM spec or a command line leaves out."""

    image: str | None = None
    memory: str | None = None
    vcpus: int | None = None
    network: str | None = None
    os: str | None = None
    storage_pool: str | None = None


class HostSpec(Value):
    """The host file /etc/vgpuctl/host.yaml."""

    version: int
    defaults: Defaults = Defaults()


def parse_host_spec(text: str, name: str) -> HostSpec:
    """Read host.yaml; `name` is its path, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    given: dict[str, Any] = parse(text, name, HOST)
    return HostSpec(**given)


def _version(value: object) -> object:
    if value != VERSION or isinstance(value, bool | float):
        raise ValueError(f"this vgpuctl reads version {VERSION} of host.yaml, written 'version: {VERSION}'")
    return value


def _defaults(value: object) -> Defaults:
    given: dict[str, Any] = DEFAULTS.check(value)
    return Defaults(**given)


DEFAULTS = Shape(
    "Defaults",
    "What fills a field that a VM spec or a command line leaves out.",
    tuple(key(field) for field in DEFAULTABLE),
)
HOST = Shape(
    "HostSpec",
    "The host file /etc/vgpuctl/host.yaml.",
    (
        Key("version", _version, "the version of this file's format", {"const": VERSION}, required=True),
        Key("defaults", _defaults, "fill what is not typed for a new VM", shape=DEFAULTS),
    ),
)
