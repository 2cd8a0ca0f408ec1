# SPDX-License-Identifier: Apache-2.0
"""Calls that another program makes: the host agent, or vgpuctl on another host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from vgpuctl.library.call import Calls, Data, Result
from vgpuctl.model.outcome import Outcome


class SentCalls(Calls):
    """The calls of a host that another program works on: each is sent to it."""

    def _send_call(self, method: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Send one call and return its result.

        Raises:
            VgpuctlError: the call's own error, or why its result is not known.
        """
        raise NotImplementedError

    def _query(self, method: Callable[..., Result], args: tuple[Any, ...], named: Mapping[str, Any]) -> Result:
        result: Result = self._send_call(method, args, named)
        return result

    def _change(
        self,
        command: str,
        about: Literal["vm", "gpu"] | None,
        method: Callable[..., Outcome[Data]],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Outcome[Data]:
        outcome: Outcome[Data] = self._send_call(method, args, named)
        return outcome


def arguments_of(
    method: Callable[..., Any], host: object, args: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, object]:
    """Return the arguments of a call by name; fields of a VM are arguments like the others."""
    signature = inspect.signature(method)
    bound = signature.bind(host, *args, **named).arguments
    arguments: dict[str, object] = {}
    for name, value in [*bound.items()][1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return arguments
