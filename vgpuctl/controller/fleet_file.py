# SPDX-License-Identifier: Apache-2.0
"""The form of a whole fleet in one YAML file, which `export-fleet` prints and `apply-fleet` makes true.

    version: 1
    hosts: {gpu01: {address: local}}
    images: {office: {path: /srv/images/office.qcow2}}
    pools: {office: {kind: floating, image: office, profile: 2B, names: "office-{:03}", maximum: 40}}
    people: {ada: {groups: [staff]}}
    quotas: {"@staff": {desktops: 2}}
    entitlements: [{who: "@staff", right: use, pool: office}]

It has no secrets: no passwords, no tokens, no signatures in URLs. `fleet_apply` reads and writes what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.labels import labels
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Key, Shape, mapping_of, nest_problems
from vgpuctl.config.yaml_reader import load_document, locate_problem, problems_error
from vgpuctl.controller.model import Right, Role
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.pool_spec import POOL_SHAPE, entries_schema
from vgpuctl.controller.quotas import MOST

VERSION = 1
MAX_TEXT, MAX_ENTRIES = 4096, 100_000


def _text(value: object) -> str:
    text = rules.as_text(value)
    if not 0 < len(text) <= MAX_TEXT or not text.isprintable():
        raise ValueError(f"1 to {MAX_TEXT} printable characters")
    return text


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    return [_text(one) for one in value]


HOST_SHAPE = Shape(
    "FleetFileHost",
    "A host of the fleet.",
    (
        Key("address", _text, "local, ssh://USER@HOST[:PORT] or agent:/PATH", {"type": "string"}, required=True),
        Key("host_key", _text, "SHA256:... of its SSH key; without it, that of known_hosts", {"type": "string"}),
        Key("labels", labels, "key: value", {"type": "object", "additionalProperties": {"type": "string"}}),
    ),
)
IMAGE_SHAPE = Shape(
    "FleetFileImage",
    "An image of the fleet; one of file, url and path.",
    (
        Key("file", rules.path, "of the controller's machine, which hosts get", {"type": "string"}),
        Key("url", _text, "https, where hosts fetch it", {"type": "string"}),
        Key("path", rules.path, "of the hosts, where it is already", {"type": "string"}),
        Key("folder", rules.path, "of the hosts, for copies", {"type": "string"}),
        Key("sha256", _text, "of its content", {"type": "string"}),
        Key("size", rules.whole_number(1, 1 << 50), "in bytes", {"type": "integer"}),
        Key("version", _text, "for people", {"type": "string"}),
        Key("os", _text, "linux or windows", {"type": "string"}),
        Key("retired", pool_rules.flag, "no pool may use it any more", {"type": "boolean"}),
    ),
)
PERSON_SHAPE = Shape(
    "FleetFilePerson",
    "Somebody who signs in. His password is not here: set-password.",
    (
        Key(
            "groups", _texts, "all of them; a directory's replace them", {"type": "array", "items": {"type": "string"}}
        ),
        Key("disabled", pool_rules.flag, "he cannot sign in", {"type": "boolean"}),
        Key("realm", rules.one_of(("local", "oidc", "ldap")), "who checks his password", {"type": "string"}),
    ),
)
ENTITLEMENT_SHAPE = Shape(
    "FleetFileEntitlement",
    "Who may what.",
    (
        Key("who", _text, "a person, @GROUP or everybody", {"type": "string"}, required=True),
        Key(
            "right",
            rules.one_of((*map(str, Right), *map(str, Role))),
            "on the pool: use, operate, manage; in the fleet: admin, operator, viewer",
            {"type": "string"},
            required=True,
        ),
        Key("pool", rules.name, "without it the right is a role in the fleet", {"type": "string"}),
    ),
)


_MANY = {"type": "integer", "minimum": 0}
QUOTA_SHAPE = Shape(
    "FleetFileQuota",
    "How much a person, each one of @GROUP, or everybody may have.",
    (
        Key("desktops", rules.whole_number(0, MOST["desktops"]), "so many", _MANY),
        Key("running", rules.whole_number(0, MOST["running"]), "so many that run", _MANY),
        Key("gpu_mib", rules.whole_number(0, MOST["gpu_mib"]), "so much GPU memory in all of them", _MANY),
    ),
)


def _version(value: object) -> int:
    if value != VERSION:
        raise ValueError(f"this program reads version {VERSION}")
    return VERSION


def _entitlements(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise ValueError(f"expected a list of at most {MAX_ENTRIES} entries")
    checked: list[dict[str, object]] = []
    problems: list[Problem] = []
    seen: dict[tuple[object, object], int] = {}
    for number, entry in enumerate(value):
        try:
            one = ENTITLEMENT_SHAPE.check(entry)
            if (key := (one["who"], one.get("pool"))) in seen:
                raise ValidationError((Problem((), f"{key[0]} has a right there already, in entry {seen[key]}"),))
            seen[key] = number
            checked.append(one)
        except ValidationError as error:
            problems += nest_problems(number, error)
    if problems:
        raise ValidationError(tuple(problems))
    return checked


FLEET_SHAPE = Shape(
    "FleetFile",
    "A whole fleet.",
    (
        Key("version", _version, "1", {"const": VERSION}, required=True),
        Key("hosts", mapping_of(rules.name, HOST_SHAPE), HOST_SHAPE.help, map_value_shape=HOST_SHAPE),
        Key("images", mapping_of(rules.name, IMAGE_SHAPE), IMAGE_SHAPE.help, map_value_shape=IMAGE_SHAPE),
        Key("pools", mapping_of(rules.name, POOL_SHAPE), POOL_SHAPE.help, map_value_shape=POOL_SHAPE),
        Key("people", mapping_of(pool_rules.user, PERSON_SHAPE), PERSON_SHAPE.help, map_value_shape=PERSON_SHAPE),
        Key("quotas", mapping_of(_text, QUOTA_SHAPE), QUOTA_SHAPE.help, map_value_shape=QUOTA_SHAPE),
        Key("entitlements", _entitlements, ENTITLEMENT_SHAPE.help, entries_schema(ENTITLEMENT_SHAPE, MAX_ENTRIES)),
    ),
)


def parse_fleet(text: str, name: str) -> dict[str, Any]:
    """Return what a file says; pools as they are written, checked. `name`: the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    document = load_document(text, name)
    try:
        given: dict[str, Any] = FLEET_SHAPE.check(document.value)
    except ValidationError as error:
        raise problems_error(name, [locate_problem(document, one) for one in error.problems]) from error
    written = document.value.get("pools") if isinstance(document.value, Mapping) else None
    return {**given, "pools": {str(pool): spec for pool, spec in (written or {}).items()}}
