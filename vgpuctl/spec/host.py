# SPDX-License-Identifier: Apache-2.0
"""`/etc/vgpuctl/host.yaml`: what this host should look like, as far as it is read today.

`version: 1` must be there and unknown keys are refused from the first release on, so that a later key is
never silently ignored by an older vgpuctl.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema

from vgpuctl.spec.fields import DEFAULTABLE
from vgpuctl.spec.read import KNOWN_KEYS, invalid, load
from vgpuctl.spec.values import STRICT, FilePath, Memory, OsKind, ResourceName, Vcpus, help_of

VERSION = 1


def _version(value: object) -> object:
    if value != VERSION or isinstance(value, bool | float):
        raise ValueError(f"this vgpuctl reads version {VERSION} of host.yaml, written 'version: {VERSION}'")
    return value


def _or_none(value: object) -> object:
    """Take `defaults:` with every line below it commented out as no defaults."""
    return {} if value is None else value


class Defaults(BaseModel):
    """What fills a field that a VM spec or a command line leaves out."""

    model_config = STRICT

    image: FilePath | None = Field(None, description=help_of("image"))
    memory: Memory | None = Field(None, description=help_of("memory"))
    vcpus: Vcpus | None = Field(None, description=help_of("vcpus"))
    network: ResourceName | None = Field(None, description=help_of("network"))
    os: OsKind | None = Field(None, description=help_of("os"))
    storage_pool: ResourceName | None = Field(None, description=help_of("storage_pool"))


class HostSpec(BaseModel):
    """The host file /etc/vgpuctl/host.yaml."""

    model_config = STRICT

    version: Annotated[int, BeforeValidator(_version), WithJsonSchema({"const": VERSION})] = Field(
        description="the version of this file's format"
    )
    defaults: Annotated[Defaults, BeforeValidator(_or_none)] = Field(
        default_factory=Defaults, description="fill what is not typed for a new VM"
    )


KNOWN_KEYS[("HostSpec",)] = tuple(HostSpec.model_fields)
KNOWN_KEYS[("HostSpec", "defaults")] = DEFAULTABLE


def parse_host_spec(text: str, name: str) -> HostSpec:
    """Read host.yaml; `name` is its path, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    document = load(text, name)
    try:
        return HostSpec.model_validate(document.value)
    except ValidationError as exc:
        raise invalid(exc, document) from exc
