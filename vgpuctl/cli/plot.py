# SPDX-License-Identifier: Apache-2.0
"""A chart of a replay: framebuffer and GPUs in use over time, one line per policy. Also what every picture needs.

matplotlib draws it. It is large and needed only for pictures, so it is an extra of the package and imported only here
and in `gpu_plot`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl import extras
from vgpuctl.cli.streams import sanitize
from vgpuctl.errors import HostCannot, InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vgpuctl.model.results.simulation import SimulationResult

FORMATS = ("svg", "png")
_DOTS_PER_INCH = 150
_WIDTH, _HEIGHT = 9.0, 6.5
_SECONDS_PER_HOUR, _HOURS_PER_DAY = 3600.0, 24.0


def check_format(path: str) -> str:
    """Return the format of a picture from its file name, and check that it can be drawn.

    Raises:
        InvalidInput: the name does not end in a known format.
        HostCannot: matplotlib is not installed or does not work.
    """
    file_format = path.rpartition(".")[2].lower()
    if file_format not in FORMATS:
        raise InvalidInput(
            f"--plot {path}: the name has no known picture format", hint="use a name that ends in .svg or .png"
        )
    try:
        from matplotlib import figure  # noqa: F401
    except Exception as exc:
        raise HostCannot(
            f"--plot needs matplotlib, which cannot be loaded: {exc}",
            hint=f"{extras.install_command('matplotlib')}; or omit --plot: --json has the same numbers",
            check="matplotlib",
        ) from exc
    return file_format


def draw(data: SimulationResult, file_format: str) -> bytes:
    """Return the picture of a replay's data; the same data gives the same bytes."""

    def content(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        _draw_lines(upper, lower, data)

    return render(content, (_WIDTH, _HEIGHT), file_format)


def render(draw_content: Callable[[Figure], None], size: tuple[float, float], file_format: str) -> bytes:
    """Return the file of a picture of `size` (width and height in inches) that `draw_content` draws."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "vgpuctl", "svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
        draw_content(figure)
        buffer = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(buffer, format=file_format, metadata=metadata)
    return buffer.getvalue()


def _draw_lines(upper: Axes, lower: Axes, data: SimulationResult) -> None:
    unit, name = (
        (_SECONDS_PER_HOUR, "hours")
        if data.end_seconds < 3 * _HOURS_PER_DAY * _SECONDS_PER_HOUR
        else (_HOURS_PER_DAY * _SECONDS_PER_HOUR, "days")
    )
    for run in data.policies:
        times = [sample.seconds / unit for sample in run.timeline]
        allocated = [sample.allocated_mib / 1024 for sample in run.timeline]
        busy = [sample.busy_gpus for sample in run.timeline]
        upper.plot(times, allocated, drawstyle="steps-post", label=run.policy)
        lower.plot(times, busy, drawstyle="steps-post", label=run.policy)
    upper.axhline(data.framebuffer_mib / 1024, color="gray", linestyle=":", label="all GPUs")
    gpus = ", ".join(f"{gpu.count} x {gpu.model}" for gpu in data.gpus)
    upper.set_title(sanitize(f"{data.requests} requests on {gpus}"), fontsize="medium", wrap=True)
    upper.set_ylabel("allocated\nframebuffer [GiB]")
    upper.set_ylim(bottom=0)
    upper.legend(loc="best", fontsize="small")
    lower.set_ylabel("GPUs in use")
    lower.set_ylim(bottom=0)
    lower.set_xlabel(f"{name} since the start")
