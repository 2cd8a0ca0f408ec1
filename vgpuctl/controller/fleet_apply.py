# SPDX-License-Identifier: Apache-2.0
"""Reads a controller's fleet as the file of `fleet_file`, and makes true what such a file says.

What the controller has and the file does not is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from vgpuctl.controller.client import FleetClient
from vgpuctl.controller.fleet_file import VERSION
from vgpuctl.controller.fleet_part import FleetPart, PartChecks
from vgpuctl.controller.model import Realm
from vgpuctl.controller.planning.pool_spec import dump_pool, parse_pool
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.model.results.fleet import AppliedFleetResult, AppliedPartResult, FleetFileResult
from vgpuctl.value import replace

PAGE_PEOPLE = 1000
_SOURCE = frozenset({"file", "url", "path", "folder", "sha256", "size"})
"""The keys of an image that say what is in it: with another source all of them are other ones."""


def export_fleet(client: FleetClient) -> FleetFileResult:
    """Return the file of a controller's fleet; the query of a URL, which may be a signature, is left out.

    Raises:
        VgpuctlError: as the controller's calls.
    """
    fleet = _read_fleet(client)
    return replace(fleet, images={name: _unsigned(one) for name, one in fleet.images.items()})


def _read_fleet(client: FleetClient) -> FleetFileResult:
    """Return a controller's fleet, with the URLs of images as it has them."""
    return FleetFileResult(
        VERSION,
        {one.name: _host(one) for one in client.call("list-hosts").data},
        {one.name: _image(one) for one in client.call("list-images").data},
        {one.name: dict(one.spec) for one in client.call("list-pools").data},
        {one.name: _person(one) for one in _people(client)},
        {one.who: _quota(one) for one in client.call("list-quotas").data},
        tuple(_entitlement(one) for one in client.call("list-entitlements").data),
    )


def _given(**fields: object) -> dict[str, object]:
    """Return the fields that say something."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value is not False and value not in ({}, [])
    }


def _host(one: Any) -> dict[str, object]:
    return _given(address=one.address, host_key=one.host_key, labels=dict(one.labels))


def _image(one: Any) -> dict[str, object]:
    is_copied = one.file is not None or one.url is not None
    folder = str(PurePosixPath(one.path).parent) if is_copied else None
    path = None if is_copied else one.path
    return _given(
        file=one.file, url=one.url, path=path, folder=folder, sha256=one.sha256, size=one.bytes, version=one.version,
        os=one.os, retired=one.retired,
    )  # fmt: skip


def _unsigned(image: Mapping[str, object]) -> dict[str, object]:
    return {name: _base(value) if name == "url" else value for name, value in image.items()}


def _base(url: object) -> str:
    """Return a URL without its query."""
    return str(url).partition("?")[0]


def _people(client: FleetClient) -> Iterator[Any]:
    """Yield all people, a page at a time."""
    after = None
    while True:
        page = client.call("list-people", after=after).data
        yield from page
        if len(page) < PAGE_PEOPLE:
            return
        after = page[-1].name


def _person(one: Any) -> dict[str, object]:
    groups = list(one.groups) if one.realm in (None, str(Realm.LOCAL)) else None  # a directory says those of others
    return _given(groups=groups, disabled=one.disabled, realm=one.realm)


def _quota(one: Any) -> dict[str, object]:
    numbers = {"desktops": one.desktops, "running": one.running, "gpu_mib": one.gpu_mib}
    return {name: number for name, number in numbers.items() if number is not None}


def _entitlement(one: Any) -> dict[str, object]:
    return _given(who=one.who, right=one.right, pool=one.pool)


def apply_fleet(client: FleetClient, given: Mapping[str, Any], *, dry_run: bool = False) -> AppliedFleetResult:
    """Make what a file says true: hosts, images, pools, people, quotas, entitlements, in this order.

    It can be repeated: what is so already is not touched. `dry_run`: the client's calls only check.

    Raises:
        VgpuctlError: as the controller's calls; `left` has what was done before. InvalidInput: a host's address or
            key is another one: it is removed and added by people.
    """
    done: list[AppliedPartResult] = []
    warnings: list[str] = []
    now = _read_fleet(client)
    checks = PartChecks(now)
    for part in list(_parts(client, given, now)):
        changed = [key for key in sorted({*part.after, *(part.before or {})}) if _differs(part, key)]
        kind = "created" if part.before is None else "changed" if changed else "unchanged"
        if kind != "unchanged":
            try:
                warnings += checks.check(part) if dry_run else part.make().warnings
            except VgpuctlError as error:
                made = () if dry_run else done
                error.left += [f"{one.kind} {one.name}: {one.change}" for one in made if one.change != "unchanged"]
                error.facts.update(part=f"{part.kind} {part.name}")
                raise
        done.append(AppliedPartResult(part.kind, part.name, kind, tuple(changed) if part.before is not None else ()))
    return AppliedFleetResult(tuple(done), tuple(dict.fromkeys(warnings)))


def _differs(part: FleetPart, key: str) -> bool:
    """Return whether a key differs; one that the file leaves out stays, but in a pool or quota, which are whole.

    What is empty or false is the same as nothing.
    """
    before, after = (_given(**{key: whole.get(key)}) for whole in (part.before or {}, part.after))
    return before != after if part.kind in ("pool", "quota") else key in part.after and before != after


def _parts(client: FleetClient, given: Mapping[str, Any], now: FleetFileResult) -> Iterator[FleetPart]:
    for name, entry in given.get("hosts", {}).items():
        yield _host_part(client, name, entry, now.hosts.get(name))
    for name, entry in given.get("images", {}).items():
        before = now.images.get(name)
        yield _image_part(client, name, entry, before, is_last=False)
    for name, spec in given.get("pools", {}).items():
        before = now.pools.get(name)
        yield FleetPart("pool", name, before, _normal(spec), _call(client, "ensure-pool", name=name, spec=spec))
    for name, entry in given.get("images", {}).items():
        if entry.get("retired") and not (now.images.get(name) or {}).get("retired"):
            yield _image_part(client, name, entry, now.images.get(name), is_last=True)
    for name, entry in given.get("people", {}).items():
        before = now.people.get(name)
        yield FleetPart("person", name, before, entry, _call(client, "ensure-person", name=name, **entry))
    for who, entry in given.get("quotas", {}).items():
        yield FleetPart("quota", who, now.quotas.get(who), entry, _call(client, "ensure-quota", who=who, **entry))
    known = {(one["who"], one.get("pool")): one for one in now.entitlements}
    for entry in given.get("entitlements", ()):
        who, pool = str(entry["who"]), entry.get("pool")
        name = who if pool is None else f"{who} on {pool}"
        yield FleetPart("entitlement", name, known.get((who, pool)), entry, _call(client, "entitle", **entry))


def _call(client: FleetClient, name: str, /, **arguments: Any) -> Callable[[], Any]:
    return lambda: client.call(name, **arguments)


def _normal(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pool's spec as the controller shows it."""
    return dump_pool(parse_pool(spec, "spec"))


def _image_part(
    client: FleetClient, name: str, entry: Mapping[str, Any], before: Mapping[str, Any] | None, *, is_last: bool
) -> FleetPart:
    """Return the part of an image: what the file leaves out stays. It is retired last: its pools may be made before.

    Of one URL, the signature in the file counts, and without one there that of the controller; it makes no difference.
    """
    stored = (before or {}).get("url")
    if before is not None and stored is not None and "url" in entry and _base(stored) == _base(entry["url"]):
        url = entry["url"] if "?" in entry["url"] else stored
        before, entry = {**before, "url": url}, {**entry, "url": url}
    kept = {key: value for key, value in (before or {}).items() if key not in _SOURCE or not _SOURCE & entry.keys()}
    after = {**kept, **entry} if is_last else {**kept, **entry, "retired": bool(kept.get("retired"))}
    shown = {key: value for key, value in after.items() if key in entry}
    return FleetPart("image", name, before, shown, _call(client, "ensure-image", name=name, **after))


def _host_part(
    client: FleetClient, name: str, entry: Mapping[str, Any], before: Mapping[str, object] | None
) -> FleetPart:
    if before is None:
        return FleetPart("host", name, None, entry, _call(client, "add-host", name=name, **entry))
    for key in ("address", "host_key"):
        if key in entry and entry[key] != before.get(key):
            raise InvalidInput(
                f"hosts: {name}: {key}: it is {before.get(key)} in the fleet, and {entry[key]} in the file",
                hint=f"a host that moved is removed and added again: vgpuctl controller remove-host {name}"
                if key == "address"
                else f"look, then vgpuctl controller accept-host {name} --host-key {entry[key]}",
                host=name,
            )
    return FleetPart(
        "host", name, before, entry, _call(client, "label-host", name=name, labels=entry.get("labels", {}))
    )
