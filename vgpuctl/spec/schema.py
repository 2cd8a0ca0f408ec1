# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of the files that people write, for editors and for other programs' checks.

They are made from the models, so they cannot drift. A schema says less than the rules (it cannot judge fields
together), so vgpuctl itself never uses it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from vgpuctl.spec.host import HostSpec
from vgpuctl.spec.vm import VmSpec

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def vm_spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a VM spec."""
    return _schema(VmSpec, "vm-spec", "vgpuctl VM spec")


def host_schema() -> dict[str, Any]:
    """Return the JSON Schema of /etc/vgpuctl/host.yaml."""
    return _schema(HostSpec, "host", "vgpuctl host file")


def _schema(model: type[BaseModel], name: str, title: str) -> dict[str, Any]:
    body = model.model_json_schema()
    _tidy(body)
    return {**body, "$schema": DRAFT, "$id": f"urn:vgpuctl:schema:{name}", "title": title}


def _tidy(node: object) -> None:
    """Take out the titles and null defaults that pydantic makes up of the fields' names."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    for entry in properties.values() if isinstance(properties, dict) else ():
        entry.pop("title", None)
        if entry.get("default", ...) is None:
            del entry["default"]
    for value in node.values():
        _tidy(value)
