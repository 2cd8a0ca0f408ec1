# SPDX-License-Identifier: Apache-2.0
"""A picture of a replay: framebuffer and locked GPUs over time, a line for each policy.

matplotlib draws it. It is large and only this needs it, so it is an extra of the package and imported here alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.cli.streams import clean
from vgpuctl.errors import HostCannot, InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png")
_DOTS_PER_INCH = 150
_WIDTH, _HEIGHT = 9.0, 6.5
_HOURS, _DAY = 3600.0, 24.0


def checked(path: str) -> str:
    """Return the format of a picture by its name, and see that one can be drawn.

    Raises:
        InvalidInput: the name does not say.
        HostCannot: matplotlib is not installed, or cannot be used.
    """
    kind = path.rpartition(".")[2].lower()
    if kind not in FORMATS:
        raise InvalidInput(f"--plot {path}: what it is to be is not known by its name", hint="end it in .svg or .png")
    try:
        from matplotlib import figure  # noqa: F401
    except Exception as exc:
        raise HostCannot(
            f"a picture needs matplotlib, which cannot be used here: {exc}",
            hint="pip install 'vgpuctl[plot]', or leave --plot out: --json has the same numbers",
            check="matplotlib",
        ) from exc
    return kind


def drawn(data: Mapping[str, Any], kind: str) -> bytes:
    """Return the picture of a replay's data; the same data gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "vgpuctl", "svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DOTS_PER_INCH, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        _lines(upper, lower, data)
        written = io.BytesIO()
        nothing = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(written, format=kind, metadata=nothing)
    return written.getvalue()


def _lines(upper: Axes, lower: Axes, data: Mapping[str, Any]) -> None:
    unit, name = (_HOURS, "hours") if data["end_seconds"] < 3 * _DAY * _HOURS else (_DAY * _HOURS, "days")
    alone = len(data["policies"]) == 1
    for run in data["policies"]:
        times = [moment["seconds"] / unit for moment in run["timeline"]]
        allocated = [moment["allocated_mib"] / 1024 for moment in run["timeline"]]
        label = "allocated" if alone else run["policy"]
        upper.plot(times, allocated, drawstyle="steps-post", label=label)
        if alone:
            stranded = [moment["stranded_mib"] / 1024 for moment in run["timeline"]]
            upper.plot(times, stranded, drawstyle="steps-post", label="stranded")
        locked = [moment["locked_gpus"] for moment in run["timeline"]]
        lower.plot(times, locked, drawstyle="steps-post", label=run["policy"])
    upper.axhline(data["framebuffer_mib"] / 1024, color="gray", linestyle=":", label="all GPUs")
    gpus = ", ".join(f"{gpu['count']} x {gpu['model']}" for gpu in data["gpus"])
    upper.set_title(clean(f"{data['requests']} requests on {gpus}"), fontsize="medium", wrap=True)
    upper.set_ylabel("framebuffer [GiB]")
    upper.set_ylim(bottom=0)
    upper.legend(loc="best", fontsize="small")
    lower.set_ylabel("GPUs locked\nto another size")
    lower.set_ylim(bottom=0)
    lower.set_xlabel(f"{name} from the beginning")
