# SPDX-License-Identifier: Apache-2.0
"""The simulated host that --host names, and the list of the built-in ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl import sim
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import InvalidInput
from vgpuctl.simulated import PREFIX, open_simulated_host

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def open_selected_host(settings: Settings) -> Host:
    """Return the simulated host that --host names."""
    return open_simulated_host(selected_scenario(settings))


def selected_scenario(settings: Settings) -> str:
    """Return the scenario's name or file.

    Raises:
        InvalidInput: --host is a real host, or other options contradict it.
    """
    if not settings.host.startswith(PREFIX):
        raise InvalidInput(
            f"--host {settings.host} is not a simulated host",
            hint="say for example --host sim:a100-40; 'vgpuctl sim list-scenarios' lists them",
        )
    if settings.connect is not None or settings.root != "/":
        raise InvalidInput("--root and --connect are for --host local: a simulated host brings its own")
    return settings.host.removeprefix(PREFIX)


def list_scenarios() -> list[tuple[str, str]]:
    """Return name and title of each built-in scenario; only the title is read from its file."""
    return [(name, _title(name)) for name in sim.SCENARIOS]


def reboot(settings: Settings) -> None:
    """Boot the simulated host again."""
    sim.open_host(selected_scenario(settings)).reboot()


def reset(settings: Settings) -> None:
    """Forget what happened on the simulated host."""
    sim.reset_host(selected_scenario(settings))


def _title(name: str) -> str:
    from importlib import resources

    text = (resources.files("vgpuctl.sim") / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line.startswith("title:"))
    return next(lines, "").removeprefix("title:").strip()
