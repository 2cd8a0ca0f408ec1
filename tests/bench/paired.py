"""Timing two commands in turn, so that a busy machine slows both alike, and printing what came out in one line."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FULL = os.environ.get("VGPUCTL_BENCH") == "full"
"""Long runs, for figures that are quoted; else one smoke pass."""

PROGRAM = "import sys\nfrom vgpuctl.cli.entry import main\nsys.exit(main())"
"""What the installed `vgpuctl` does."""


def runs(smoke: int, full: int) -> int:
    """Return how often to run."""
    return full if FULL else smoke


def vgpuctl(*words: str) -> list[str]:
    """Return the command that runs this checkout's vgpuctl."""
    return [sys.executable, "-c", PROGRAM, *words]


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Return an environment in which both sides find compiled modules, also where the checkout has none."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VGPUCTL_", "_VGPUCTL", "PYTHONDONTWRITE"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cache), **more}


@dataclass(frozen=True)
class Pair:
    """Seconds of both sides, run by run."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the ratios of runs that were made one after the other."""
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    def medians(self) -> str:
        """Both medians, for people."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return f"{ours:.3f} s against {theirs:.3f} s, {len(self.ours)} runs"


def seconds(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Run a command, which must succeed, and return how long it took."""
    begun = time.perf_counter()
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def paired(ours: Callable[[], float], theirs: Callable[[], float], times: int) -> Pair:
    """Measure both in turn after one run of each that does not count; who is first changes each time."""
    ours()
    theirs()
    found: list[tuple[float, float]] = []
    for number in range(times):
        if number % 2:
            second = theirs()
            found.append((ours(), second))
        else:
            first = ours()
            found.append((first, theirs()))
    return Pair(tuple(a for a, _ in found), tuple(b for _, b in found))


class Lines:
    """The lines of a run, as a plugin that prints them at its end."""

    NAME = "benchmark-lines"

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was measured."""
        terminalreporter.section("benchmarks" if FULL else "benchmarks, smoke pass")
        for line in self.lines:
            terminalreporter.write_line(line)


def tell(config: pytest.Config, name: str, ratio: float, limit: float, details: str, unit: str = "") -> None:
    """Keep one line for the end of the run, and say when a limit was passed; that fails nothing."""
    what = "ratio" if not unit else "value"
    passed = "" if ratio <= limit else "   OVER THE LIMIT"
    if not config.pluginmanager.has_plugin(Lines.NAME):
        config.pluginmanager.register(Lines(), Lines.NAME)
    kept = config.pluginmanager.get_plugin(Lines.NAME)
    assert isinstance(kept, Lines)
    kept.lines.append(f"bench: {name} {what} {ratio:.2f}{unit} (limit {limit:g}{unit}): {details}{passed}")
