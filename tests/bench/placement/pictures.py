# SPDX-License-Identifier: Apache-2.0
"""The pictures in docs/placement.md: the framebuffer that each policy and the two references admit."""

from __future__ import annotations

from lxml import etree

from tests.bench.placement.fleets import Setting
from tests.bench.placement.runs import ARRIVALS, MIGRATION, OFFLINE, OURS, POLICIES, UNRANKED
from tests.bench.placement.table import Results, average

WIDTH, LEFT, ROW, TOP, BOTTOM = 760, 150, 22, 56, 34
COLOURS = {100: "#1f77b4", 130: "#d95f02"}
SVG = "http://www.w3.org/2000/svg"


def picture(results: Results, setting: Setting, gpus: int) -> bytes:
    """Return an SVG: one row per policy, with a dot for each load at the percent of framebuffer that it admits."""
    policies = [p for p in POLICIES if p != UNRANKED] + [MIGRATION, OFFLINE]
    shares = {
        (policy, load): average(results[key])
        for policy in policies
        for load in COLOURS
        if (key := (setting.name, gpus, ARRIVALS, load, policy)) in results
    }
    low = 5 * (min(shares.values()) // 5)
    height = TOP + ROW * len(policies) + BOTTOM
    root = etree.Element(
        "svg", nsmap={None: SVG}, width=str(WIDTH), height=str(height), viewBox=f"0 0 {WIDTH} {height}"
    )
    etree.SubElement(root, "rect", width="100%", height="100%", fill="white")
    _text(root, LEFT, 20, f"{setting.title}, {gpus} GPUs: framebuffer admitted, percent", size=14)
    for index, (load, colour) in enumerate(COLOURS.items()):
        etree.SubElement(root, "circle", cx=str(LEFT + 6 + 110 * index), cy="38", r="5", fill=colour)
        _text(root, LEFT + 16 + 110 * index, 42, f"load {load} %")

    def x_of(share: float) -> float:
        return LEFT + (WIDTH - LEFT - 30) * (share - low) / (100 - low)

    end = TOP + ROW * len(policies)
    for tick in range(int(low), 101, 5 if low >= 50 else 10):
        x = f"{x_of(tick):.1f}"
        etree.SubElement(root, "line", x1=x, x2=x, y1=str(TOP), y2=str(end), stroke="#dddddd")
        _text(root, x_of(tick), end + 16, str(tick), anchor="middle")
    for index, policy in enumerate(policies):
        y = TOP + ROW * index + ROW / 2
        _text(root, LEFT - 10, y + 4, policy, anchor="end", weight="bold" if policy == OURS else "normal")
        for load, colour in COLOURS.items():
            if (policy, load) in shares:
                x = f"{x_of(shares[policy, load]):.1f}"
                etree.SubElement(root, "circle", cx=x, cy=f"{y:.1f}", r="5", fill=colour)
    return bytes(etree.tostring(root, pretty_print=True, xml_declaration=True, encoding="UTF-8"))


def _text(
    root: etree._Element,
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
) -> None:
    element = etree.SubElement(root, "text", x=f"{x:.1f}", y=f"{y:.1f}")
    element.set("font-family", "sans-serif")
    element.set("font-size", str(size))
    element.set("text-anchor", anchor)
    element.set("font-weight", weight)
    element.text = text
