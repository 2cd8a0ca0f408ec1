# SPDX-License-Identifier: Apache-2.0
"""A picture of a host: each GPU is a bar of its framebuffer, its vGPUs are boxes in it, and free room is empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.cli import plot
from vgpuctl.cli.streams import sanitize
from vgpuctl.value import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from vgpuctl.model.results.gpus import GpuResult
    from vgpuctl.model.results.vgpus import VgpuResult

_COLORS = ("#56B4E9", "#F0E442", "#009E73", "#E69F00", "#CC79A7", "#0072B2", "#D55E00", "#BBBBBB")
"""Okabe and Ito's colours, which colour-blind people can tell apart. Black text is readable on the first five and the
last; the others get white text."""
_DARK = ("#0072B2", "#D55E00")
_FREE, _LINE, _TEXT = "#F4F4F4", "#555555", "#000000"
_WIDTH, _GPU_HEIGHT, _LEGEND_HEIGHT = 8.0, 0.82, 0.75
_BAR_HEIGHT, _FONT_POINTS = 0.6, 8.0
_SMALLEST_FONT_POINTS = 5.5
_MIB_PER_GIB = 1024


class Box(Value):
    """A vGPU in a GPU's bar; `start_gib` is its placement where the driver tells it, else the next free room."""

    vgpu: VgpuResult
    start_gib: float
    size_gib: float


def draw(gpus: Sequence[GpuResult], file_format: str) -> bytes:
    """Return the picture of a host's GPUs; the same GPUs give the same bytes."""
    shown = [gpu for gpu in gpus if gpu.framebuffer_mib or gpu.backend is not None]
    profiles = sorted({vgpu.profile or "whole GPU" for gpu in shown for vgpu in gpu.vgpus})
    colors = {profile: _COLORS[number % len(_COLORS)] for number, profile in enumerate(profiles)}

    def content(figure: Figure) -> None:
        heights = [_GPU_HEIGHT] * max(len(shown), 1) + [_LEGEND_HEIGHT]
        *rows, legend = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
        if not shown:
            rows[0].set_axis_off()
            rows[0].text(0.5, 0.5, "no GPU that can carry a vGPU", ha="center", va="center")
        for axes, gpu in zip(rows, shown, strict=False):
            _draw_gpu(axes, gpu, colors)
        _draw_legend(legend, colors)
        figure.draw_without_rendering()
        for axes in rows:
            for text in list(axes.texts):
                _fit(text, axes)

    return plot.render(content, (_WIDTH, _LEGEND_HEIGHT + _GPU_HEIGHT * max(len(shown), 1)), file_format)


def place_boxes(gpu: GpuResult) -> list[Box]:
    """Return the vGPUs of known size where they are on the GPU: first those with a placement, then the others."""
    total = _extent(gpu)
    boxes: list[Box] = []
    for vgpu in sorted(gpu.vgpus, key=lambda v: (v.placement_id is None, v.placement_id or 0, v.function, v.carrier)):
        if vgpu.carrier == vgpu.gpu:
            size = total
        elif vgpu.framebuffer_mib is not None:
            size = vgpu.framebuffer_mib / _MIB_PER_GIB
        else:
            continue
        start = float(vgpu.placement_id) if vgpu.placement_id is not None else _next_gap(boxes, size, total)
        boxes.append(Box(vgpu, start, size))
    return boxes


def _extent(gpu: GpuResult) -> float:
    """Return the length of a GPU's bar: its framebuffer in GiB, or 1 if that is not known."""
    return gpu.framebuffer_mib / _MIB_PER_GIB if gpu.framebuffer_mib else 1.0


def _next_gap(boxes: list[Box], size: float, total: float) -> float:
    start = 0.0
    for box in sorted(boxes, key=lambda b: b.start_gib):
        if box.start_gib - start >= size:
            return start
        start = max(start, box.start_gib + box.size_gib)
    return min(start, max(total - size, 0.0)) if start + size > total else start


def _draw_gpu(axes: Axes, gpu: GpuResult, colors: dict[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    total = _extent(gpu)
    boxes = place_boxes(gpu)
    axes.barh([0], [total], height=_BAR_HEIGHT, color=_FREE, edgecolor=_LINE, linewidth=0.8)
    for box in boxes:
        vgpu = box.vgpu
        color = colors[vgpu.profile or "whole GPU"]
        hatch = None if vgpu.present else "///"
        axes.barh(
            [0], [box.size_gib], left=[box.start_gib], height=_BAR_HEIGHT, color=color, edgecolor=_LINE, hatch=hatch
        )
        owner = vgpu.vm or vgpu.name or vgpu.ownership.value
        middle = box.start_gib + box.size_gib / 2
        text = axes.text(
            middle, 0, f"{sanitize(owner)}\n{sanitize(vgpu.profile or 'whole GPU')}", ha="center", va="center",
            fontsize=_FONT_POINTS, color="white" if color in _DARK else _TEXT,
        )  # fmt: skip
        text.set_gid(f"{box.size_gib}")
    axes.set_title(sanitize(_title(gpu, boxes)), fontsize=_FONT_POINTS + 1, loc="left", pad=3)
    axes.set_xlim(0, max([total, *(box.start_gib + box.size_gib for box in boxes)]))
    axes.set_ylim(-_BAR_HEIGHT / 2 - 0.02, _BAR_HEIGHT / 2 + 0.02)
    axes.set_yticks([])
    if gpu.framebuffer_mib:
        axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 4, 8, 10]))
    else:
        axes.set_xticks([])
    axes.tick_params(axis="x", labelsize=_FONT_POINTS - 1, length=2, pad=1.5)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _title(gpu: GpuResult, boxes: list[Box]) -> str:
    used, unknown = sum(box.size_gib for box in boxes), len(gpu.vgpus) - len(boxes)
    amount = f"{used:g} of {_extent(gpu):g} GiB" if gpu.framebuffer_mib else "framebuffer unknown"
    more = f", {unknown} of unknown size" if unknown else ""
    mixed = len({box.size_gib for box in boxes}) > 1
    guessed = mixed and any(b.vgpu.placement_id is None and b.vgpu.gpu_instance_id is None for b in boxes)
    places = ", places unknown" if guessed else ""
    return f"{gpu.address}  {gpu.model}  ({gpu.mode.value}): {amount}{more}{places}"


def _draw_legend(axes: Axes, colors: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=color, edgecolor=_LINE, label=sanitize(name)) for name, color in colors.items()]
    handles.append(Patch(facecolor=_FREE, edgecolor=_LINE, label="free"))
    axes.set_axis_off()
    axes.legend(
        handles=handles, loc="lower left", borderaxespad=0, ncols=6, fontsize=_FONT_POINTS, frameon=False,
        title="profiles; scale: framebuffer in GiB; hatched: reserved, not created now",
        title_fontsize=_FONT_POINTS - 1, alignment="left",
    )  # fmt: skip


def _fit(text: Text, axes: Axes) -> None:
    """Make a box's text fit into it: as it is, upright with the name alone, or shorter."""
    left = axes.transData.transform((0, -_BAR_HEIGHT / 2))
    right = axes.transData.transform((float(text.get_gid() or 0), _BAR_HEIGHT / 2))
    width, height = right[0] - left[0] - 3, right[1] - left[1] - 3
    text.set_gid(None)
    name = text.get_text().partition("\n")[0]
    for content, rotation in ((text.get_text(), 0), (name, 0), (name, 90)):
        text.set_text(content)
        text.set_rotation(rotation)
        for points in (_FONT_POINTS, _FONT_POINTS - 1, _SMALLEST_FONT_POINTS):
            text.set_fontsize(points)
            extent = text.get_window_extent()
            if extent.width <= width and extent.height <= height:
                return
    while len(name) > 1 and (text.get_window_extent().height > height):
        name = name[:-1]
        text.set_text(f"{name}…")
    if text.get_window_extent().width > width:
        text.set_text("")
