# SPDX-License-Identifier: Apache-2.0
"""What several pages share: paths, texts and tables."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from vgpuctl.controller.web.bars import badge_of
from vgpuctl.controller.web.parts import Cell, Link, Steps, TableView
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.results.fleet import DesktopResult, FleetEventResult

Query = Mapping[str, str]
PAGE_DESKTOPS = 200
NOTHING = Cell("–", style="faint")
FIRST_HOST = Steps(
    "This fleet has no host yet. On the controller's machine:",
    (
        ("Add a host whose agent runs: this machine, or ssh://USER@HOST", "vgpuctl controller add-host gpu01 local"),
        ("Then make a pool of desktops from its spec", "vgpuctl controller ensure-pool office -f office.yaml"),
    ),
)


def path_of(kind: str, name: str) -> str:
    """Return the path of a page about something of this name."""
    return f"/{kind}/{quote(name, safe='', errors='replace')}"


def with_query(path: str, query: Mapping[str, object]) -> str:
    """Return a path with those values that are not empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def desktops_table(desktops: Sequence[DesktopResult], empty: str) -> TableView:
    """Return a table of desktops."""
    rows = tuple(
        (
            Cell(one.name, path_of("desktops", one.name)),
            badge_of(one.phase),
            Cell(one.user) if one.user else NOTHING,
            Cell(one.pool, path_of("pools", one.pool)),
            Cell(one.host, path_of("hosts", one.host)) if one.host else NOTHING,
            Cell(one.profile, style="code") if one.profile else NOTHING,
            Cell(short(one.why or one.error or ""), style="text"),
        )
        for one in desktops
    )
    return TableView(("Desktop", "State", "User", "Pool", "Host", "Profile", "Why"), rows, empty)


def events_table(events: Sequence[FleetEventResult]) -> TableView:
    """Return entries of the journal as a table."""
    rows = tuple(
        (
            time_cell(one.time),
            Cell(one.kind, with_query("/journal", {"kind": one.kind})),
            Cell(one.text, style="text", note=changes_text(one)),
            Cell(one.actor, note=", ".join(filter(None, (one.actor_kind, one.address)))),
            Cell(one.user) if one.user else NOTHING,
            Cell(one.desktop, path_of("desktops", one.desktop)) if one.desktop else NOTHING,
            Cell(one.pool, path_of("pools", one.pool)) if one.pool else NOTHING,
            Cell(one.host, path_of("hosts", one.host)) if one.host else NOTHING,
        )
        for one in events
    )
    return TableView(("Time", "Kind", "What", "By", "User", "Desktop", "Pool", "Host"), rows, "There is no such entry.")


def changes_text(event: FleetEventResult) -> str:
    """Return what an entry of the journal says was changed, before and after."""
    return "; ".join(
        f"{one.field}: {'nothing' if one.before is None else one.before} → "
        f"{'nothing' if one.after is None else one.after}"
        for one in event.changed
    )


def more_desktops(
    path: str, query: Mapping[str, object], rows: Sequence[DesktopResult], limit: int
) -> tuple[Link, ...]:
    """Return a link to the desktops after these, or to all of them with filters."""
    if len(rows) < limit:
        return (Link("With filters", with_query(path, query)),)
    return (Link("More desktops", with_query(path, {**query, "after": rows[-1].name})),)


def options(names: Sequence[str], chosen: str) -> tuple[tuple[str, str], ...]:
    """Return the choices of a field; what is asked for is one of them even if nothing has this name."""
    return tuple((name, name) for name in sorted({*names, *((chosen,) if chosen else ())}))


def time_cell(text: str | None) -> Cell:
    """Return a time as a cell."""
    return NOTHING if not text else Cell(f"{text[:10]} {text[11:19]} UTC", time=text, style="time")


def plural(count: int, word: str) -> str:
    """Return a number with a word."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def short(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= 160 else f"{text[:159]}…"


def as_list(value: object) -> Sequence[object]:
    """Return a value if it is a list; else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def spec_text(spec: Mapping[str, object]) -> str:
    """Return a spec as the YAML that its file could have."""
    from ruamel import yaml

    writer: Any = yaml.YAML(typ="safe", pure=True)  # its stubs know no type but None for allow_unicode
    writer.default_flow_style, writer.allow_unicode, writer.sort_base_mapping_type_on_output = False, True, False
    stream = io.StringIO()
    writer.dump(to_json_value(spec), stream)
    return stream.getvalue()


def schedule_text(schedule: object) -> str:
    """Return a schedule of a spec as a line."""
    if not isinstance(schedule, Mapping):
        return str(schedule)
    days = schedule.get("days", "daily")
    text = days if isinstance(days, str) else ", ".join(map(str, as_list(days)))
    lead = f", made ready from {schedule['lead']} before" if "lead" in schedule else ""
    return f"{text} from {schedule.get('from')} to {schedule.get('until')}: {schedule.get('spare')} ready{lead}"


def one_line(value: object) -> str:
    """Return a stored value as people read it; nothing: an empty text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={one_line(entry)}" for key, entry in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ", ".join(map(one_line, value))
    return "" if value is None else str(value)
