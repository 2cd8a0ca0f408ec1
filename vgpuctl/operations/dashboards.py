# SPDX-License-Identifier: Apache-2.0
"""Make dashboards for Grafana from the table templates/monitoring/dashboards.yml.

Panels are placed from left to right in rows of 24 columns, so none overlaps another. Each query uses the data source
that the page chooses. Source: Grafana's "Dashboard JSON model", schema version 39 (Grafana 11); nobody has opened the
result in Grafana.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

COLUMNS = 24
SCHEMA_VERSION = 39
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GREEN, _RED = {"color": "green", "value": None}, "red"


def render_dashboard(name: str, table: Mapping[str, Any]) -> str:
    """Return a dashboard as JSON. `table`: its entry in dashboards.yml."""
    dashboard = {
        "uid": f"vgpuctl-{name}",
        "title": table["title"],
        "tags": ["vgpuctl"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source_variable(), *_variables(table["variables"])]},
        "panels": list(_panels(table["panels"])),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _data_source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variables(table: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, query in table.items():
        yield {
            "name": name,
            "type": "query",
            "datasource": _DATA_SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(table: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    left = top = row_height = 0
    for number, panel in enumerate(table, 1):
        width, height = map(int, panel["size"].split("x"))
        if left + width > COLUMNS:
            left, top, row_height = 0, top + row_height, 0
        place = {"x": left, "y": top, "w": width, "h": height}
        left, row_height = left + width, max(row_height, height)
        yield {"id": number, "gridPos": place, "title": panel["title"], "type": panel["kind"], **_content(panel)}


def _content(panel: Mapping[str, Any]) -> dict[str, Any]:
    kind = panel["kind"]
    if kind == "text":
        return {"options": {"mode": "markdown", "content": panel["text"]}}
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short"), "min": 0, "custom": {}}
    if "max" in panel:
        defaults["max"] = panel["max"]
    if "bad" in panel:
        defaults["thresholds"] = {"mode": "absolute", "steps": [_GREEN, {"color": _RED, "value": panel["bad"]}]}
    if panel.get("stacked"):
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    content: dict[str, Any] = {
        "datasource": _DATA_SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": list(_targets(panel)),
    }
    if kind == "table":
        content["transformations"] = list(_table_columns(panel))
    return content


def _targets(panel: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for ref, (legend, expr) in zip("ABCDEFGHIJ", panel["queries"].items(), strict=False):
        target = {"refId": ref, "datasource": _DATA_SOURCE, "expr": expr, "legendFormat": legend}
        if panel["kind"] == "timeseries":
            yield {**target, "range": True}
        else:
            yield {**target, "instant": True, "format": "table" if panel["kind"] == "table" else "time_series"}


def _table_columns(panel: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what makes one table of the answers, with the labels of the panel and a column for each query."""
    labels, legends = panel["columns"], list(panel["queries"])
    fields = ["Value"] if len(legends) == 1 else [f"Value #{ref}" for ref in "ABCDEFGHIJ"[: len(legends)]]
    yield {"id": "merge", "options": {}}
    yield {"id": "filterFieldsByName", "options": {"include": {"names": [*labels, *fields]}}}
    order = {name: position for position, name in enumerate([*labels, *fields])}
    names = dict(zip(fields, legends, strict=True))
    yield {"id": "organize", "options": {"indexByName": order, "renameByName": names}}
