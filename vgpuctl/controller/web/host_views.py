# SPDX-License-Identifier: Apache-2.0
"""The pages of hosts and images, from the results of their calls."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.controller.web.bars import badge_of, gpu_map, host_badges, pool_colors
from vgpuctl.controller.web.cells import (
    FIRST_HOST,
    NOTHING,
    Query,
    path_of,
    plural,
    short,
    with_query,
)
from vgpuctl.controller.web.parts import Cell, Fact, Link, PageView, Section, Steps, TableView
from vgpuctl.model.results.fleet import (
    FleetHostResult,
    FleetImageResult,
    FleetOverviewResult,
    OverviewHostResult,
)


def hosts_view(overview: FleetOverviewResult, query: Query) -> PageView:
    """Return a page of hosts."""
    if not overview.host_count:
        return PageView("Hosts", "hosts", "0 hosts", (Section("next", "What to do next", "steps", FIRST_HOST),))
    rows = tuple(
        (
            Cell(one.name, path_of("hosts", one.name)),
            _host_state(one),
            Cell(str(len(one.gpus))),
            Cell(str(one.desktops)),
            Cell(short(one.held or one.problem or ""), style="text"),
        )
        for one in overview.hosts
    )
    more = () if overview.next is None else (Link("More hosts", with_query("/hosts", {"after": overview.next})),)
    first = (Link("The first hosts", "/hosts"),) if query.get("after") else ()
    table = TableView(("Host", "State", "GPUs", "Desktops", "Why"), rows, "No more hosts.", frozenset((2, 3)))
    summary = plural(overview.host_count, "host")
    return PageView("Hosts", "hosts", summary, (Section("hosts", "Hosts", "table", table, (*first, *more)),))


def _host_state(host: OverviewHostResult) -> Cell:
    badges = host_badges(host)
    return (
        Cell(", ".join(one.text for one in badges), badge=badges[-1].badge) if badges else Cell("active", badge="good")
    )


def host_view(host: FleetHostResult, overview: FleetOverviewResult, query: Query) -> PageView:
    """Return the page of a host."""
    sections = []
    for text, hint in (
        (host.held, f"vgpuctl controller accept-host {host.name}"),
        (host.problem, "vgpuctl controller doctor"),
    ):
        if text:
            name = "held" if text == host.held else "problem"
            what = "Nothing is changed there" if name == "held" else "It cannot be reached"
            sections.append(Section(name, "", "notice", Steps(f"{what}: {text}", (("What helps:", hint),))))
    colors = pool_colors(one.name for one in overview.pools)
    sections.append(Section("gpus", "GPUs", "gpus", gpu_map(overview.hosts, 0, colors)))
    sections.append(Section("slices", "On its GPUs", "table", _slices_table(overview.hosts)))
    offers = tuple((Cell(name, style="code"), Cell(str(count))) for name, count in host.offers.items())
    table = TableView(("Profile", "How many more"), offers, "It has not said what it has room for.", frozenset((1,)))
    sections.append(Section("offers", "Room for more", "table", table))
    images = tuple((Cell(name, path_of("images", name)), Cell(text)) for name, text in sorted(host.images.items()))
    sections.append(Section("images", "Images", "table", TableView(("Image", "State"), images, "It has no image yet.")))
    labels = ", ".join(f"{key}={text}" for key, text in sorted(host.labels.items()))
    facts = (
        Fact("State", Cell(host.shown_state, badge="good" if host.state == "active" else "warn")),
        Fact("Address", Cell(host.address, style="code")),
        Fact("Labels", Cell(labels) if labels else NOTHING),
        Fact("Controller", Cell(host.holder) if host.holder else NOTHING),
        Fact("Driver", Cell(host.driver) if host.driver else NOTHING),
        Fact("Agent", Cell(host.agent_version) if host.agent_version else NOTHING),
        Fact("SSH key", Cell(host.host_key, style="code") if host.host_key else NOTHING),
        Fact("Machine", Cell(host.machine_id, style="code") if host.machine_id else NOTHING),
    )
    links = (
        Link("Its desktops", with_query("/desktops", {"host": host.name})),
        Link("Its journal", with_query("/journal", {"host": host.name})),
    )
    sections.append(Section("facts", "Facts", "facts", facts, links))
    summary = f"host, {host.shown_state}, {plural(host.desktops, 'desktop')}"
    return PageView(host.name, "hosts", summary, tuple(sections), (Link("Hosts", "/hosts"),))


def _slices_table(hosts: Sequence[OverviewHostResult]) -> TableView:
    rows = tuple(
        (
            Cell(one.desktop, path_of("desktops", one.desktop)) if one.desktop else Cell("others"),
            Cell(gpu.address, style="code"),
            Cell(one.profile or ("whole GPU" if one.framebuffer_mib is None else ""), style="code"),
            badge_of(one.phase) if one.phase else NOTHING,
            Cell(one.user) if one.user else NOTHING,
        )
        for host in hosts
        for gpu in host.gpus
        for one in gpu.slices
    )
    return TableView(("Desktop", "GPU", "Profile", "State", "User"), rows, "Nothing is on its GPUs.")


def images_view(images: Sequence[FleetImageResult], query: Query) -> PageView:
    """Return the page of all images."""
    rows = tuple(
        (
            Cell(one.name, path_of("images", one.name)),
            Cell(one.version),
            Cell(one.os),
            Cell(", ".join(one.pools)) if one.pools else NOTHING,
            Cell(f"{sum(text == 'ready' for text in one.hosts.values())} of {len(one.hosts)}"),
            Cell("retired", badge="warn") if one.retired else Cell("active", badge="plain"),
        )
        for one in images
    )
    columns = ("Image", "Version", "System", "Pools", "Ready on hosts", "State")
    table = TableView(
        columns, rows, "There is no image yet: vgpuctl controller ensure-image NAME --path FILE", frozenset((4,))
    )
    return PageView("Images", "images", plural(len(rows), "image"), (Section("images", "Images", "table", table),))


def image_view(image: FleetImageResult, query: Query) -> PageView:
    """Return the page of an image."""
    source = image.file or image.url
    facts = (
        Fact("Version", Cell(image.version)),
        Fact("System", Cell(image.os)),
        Fact("File on hosts", Cell(image.path, style="code")),
        Fact("Copied from", Cell(source, style="code") if source else Cell("nobody copies it")),
        Fact("SHA-256", Cell(image.sha256, style="code") if image.sha256 else NOTHING),
        Fact("Size", Cell(f"{image.bytes / 1e9:.2f} GB") if image.bytes else NOTHING),
        Fact("Pools", Cell(", ".join(image.pools)) if image.pools else NOTHING),
    )
    rows = tuple((Cell(name, path_of("hosts", name)), Cell(text)) for name, text in sorted(image.hosts.items()))
    table = TableView(("Host", "State"), rows, "No host has it yet.")
    sections = (Section("facts", "Facts", "facts", facts), Section("hosts", "On hosts", "table", table))
    return PageView(image.name, "images", f"image, version {image.version}", sections, (Link("Images", "/images"),))
