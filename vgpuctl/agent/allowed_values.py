# SPDX-License-Identifier: Apache-2.0
"""Values that host.yaml allows to users who are not root, for new VMs and for VMs that come from other hosts."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.errors import NotAllowed


def not_allowed(text: str, rule: str, value: str) -> NotAllowed:
    """Return the error for what host.yaml does not allow; `rule`: the key that would, with this value."""
    first, second, *rest = rule.split(".")
    hint = value if second == "accounts" else f"{first}: {{{second}: {{{rest[0]}: [{value}]}}}} in host.yaml allows it"
    return NotAllowed(text, hint=hint, rule=rule)


def check_params(allow: AllowSpec, params: Iterable[tuple[str, str]]) -> None:
    """Refuse a plugin parameter of a vGPU that host.yaml lists neither by its name nor with this value.

    Raises:
        NotAllowed: for the first one.
    """
    for key, value in params:
        if not {key, f"{key}={value}"} & {*allow.vgpu_params}:
            raise not_allowed(f"the plugin parameter {key}={value} is not allowed", "agent.allow.vgpu_params", key)
