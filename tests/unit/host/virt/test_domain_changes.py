# SPDX-License-Identifier: Apache-2.0
"""A definition is repeated when libvirt could not read its own schema, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt.domain_changes import DEFINE_ATTEMPTS, define_with_schema

SCHEMA = (
    "cannot define VM vm-1: internal error: Unable to parse RelaxNG schema '/usr/share/libvirt/schemas/domain.rng': "
    "Error type 'string' is not exported by type library 'http://www.w3.org/2001/XMLSchema-datatypes'"
)
"""What libvirt 9.0 answered to some of six definitions at once, right after its start."""


def answers(*messages: str | None) -> tuple[Callable[[], str], list[str | None]]:
    """Return a definition that fails with these messages in turn, None is success; and those that are left."""
    left = list(messages)

    def define() -> str:
        message = left.pop(0)
        if message is not None:
            raise LibvirtFailed(message)
        return "defined"

    return define, left


def test_it_is_repeated_until_the_schema_is_read() -> None:
    define, left = answers(*[SCHEMA] * (DEFINE_ATTEMPTS - 1), None)
    assert (define_with_schema(define), left) == ("defined", [])


def test_at_last_the_error_is_reported() -> None:
    define, left = answers(*[SCHEMA] * DEFINE_ATTEMPTS, None)
    with pytest.raises(LibvirtFailed, match="Unable to parse RelaxNG schema"):
        define_with_schema(define)
    assert left == [None]


def test_another_error_is_reported_at_once() -> None:
    define, left = answers("operation failed: domain 'vm-1' already exists", None)
    with pytest.raises(LibvirtFailed, match="already exists"):
        define_with_schema(define)
    assert left == [None]
