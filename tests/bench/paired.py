"""Times two commands alternately, so that a busy machine slows both equally, and prints the result in one line."""

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
"""Whether to do long runs, whose figures can be quoted. Otherwise there is one short smoke pass."""

PROGRAM = "import sys\nfrom vgpuctl.cli.entry import main\nsys.exit(main())"
"""What the installed `vgpuctl` does."""


def runs(smoke: int, full: int) -> int:
    """Return how many times to run."""
    return full if FULL else smoke


def vgpuctl(*words: str) -> list[str]:
    """Return the command that runs this checkout's vgpuctl."""
    return [sys.executable, "-c", PROGRAM, *words]


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Return an environment in which both commands find compiled modules, even if the checkout has none."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VGPUCTL_", "_VGPUCTL", "PYTHONDONTWRITE"))}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cache), **more}


@dataclass(frozen=True)
class Pair:
    """The seconds that each side took in each run."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the ratios of consecutive runs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    def medians(self) -> str:
        """Both medians, as text."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return f"{ours:.3f} s against {theirs:.3f} s, {len(self.ours)} runs"


def seconds(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Run a command, which must succeed, and return how long it took."""
    started = time.perf_counter()
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def paired(ours: Callable[[], float], theirs: Callable[[], float], times: int) -> Pair:
    """Measure both sides alternately; the first side changes each time. One run of each before that does not count."""
    ours()
    theirs()
    pairs: list[tuple[float, float]] = []
    for number in range(times):
        if number % 2:
            second = theirs()
            pairs.append((ours(), second))
        else:
            first = ours()
            pairs.append((first, theirs()))
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


class Lines:
    """A pytest plugin that collects the lines of a run and prints them at its end."""

    NAME = "benchmark-lines"

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the measurements."""
        terminalreporter.section("benchmarks" if FULL else "benchmarks, smoke pass")
        for line in self.lines:
            terminalreporter.write_line(line)


def tell(config: pytest.Config, name: str, ratio: float, limit: float, details: str, unit: str = "") -> None:
    """Record one line for the end of the run. It says if the limit is exceeded; that does not fail the test."""
    what = "ratio" if not unit else "value"
    verdict = "" if ratio <= limit else "   OVER THE LIMIT"
    if not config.pluginmanager.has_plugin(Lines.NAME):
        config.pluginmanager.register(Lines(), Lines.NAME)
    plugin = config.pluginmanager.get_plugin(Lines.NAME)
    assert isinstance(plugin, Lines)
    plugin.lines.append(f"bench: {name} {what} {ratio:.2f}{unit} (limit {limit:g}{unit}): {details}{verdict}")
