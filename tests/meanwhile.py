# SPDX-License-Identifier: Apache-2.0
"""A simulated host on which something happens meanwhile, and the check that nothing of it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults import Watch
from tests.hosts import SimulatedHost, picture
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


@contextmanager
def unchanged(host: SimulatedHost, seen: Callable[[SimulatedHost], object] = picture) -> Iterator[None]:
    """Check that the block leaves a host as it was."""
    before = seen(host)
    yield
    assert seen(host) == before


def rebooted(host: SimulatedHost) -> SimulatedHost:
    """Return the host after a boot: devices and claims are gone."""
    host.sim.reboot()
    return host.again()


def on_call(ports: Host, call: str, act: Callable[[], object], *, nth: int | None = None, after: bool = False) -> Host:
    """Return the host on which `act` happens ahead of each call of this name, or of the n-th alone; or after it."""
    seen: list[int] = []

    def happen(number: int, called: str, args: tuple[Any, ...]) -> None:
        seen.extend([number] if called == call else [])
        if called == call and nth in (None, len(seen)):
            act()

    return (Watch(after=happen) if after else Watch(before=happen)).watch(ports)


class _WithCalls:
    def __init__(self, real: Any, calls: dict[str, Callable[..., Any]]) -> None:
        self._real, self._calls = real, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls[name] if name in self._calls else getattr(self._real, name)


def with_calls(ports: Host, port: str, **calls: Callable[..., Any]) -> Host:
    """Return the host with these calls of one of its ports replaced."""
    return replace(ports, **{port: _WithCalls(getattr(ports, port), calls)})
