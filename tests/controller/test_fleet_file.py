# SPDX-License-Identifier: Apache-2.0
"""A whole fleet as YAML and back: nothing changes twice, what is missing is made, errors name their place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import IMAGE, SPEC, wait_until
from tests.controller.controllers import Controller, running_controller


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with running_controller(tmp_path_factory.mktemp("fleet") / "controller") as one:
        yield one


def write(path: Path, content: Any) -> Path:
    YAML().dump(content, path)
    return path


def apply(controller: Controller, path: Path, *words: str) -> list[tuple[str, str, str]]:
    parts = controller.data("apply-fleet", "-f", str(path), *words)["parts"]
    return [(one["kind"], one["name"], one["change"]) for one in parts]


def fleet_of(agent: RunningAgent) -> dict[str, Any]:
    return {
        "version": 1,
        "hosts": {"gpu01": {"address": f"agent:{agent.path}", "labels": {"site": "berlin"}}},
        "images": {"office": {"path": IMAGE, "version": "7"}},
        "pools": {"office": {**SPEC, "maximum": 2, "open": "rdp", "rdp": {"use multimon": 1}}},
        "people": {"ada": {"groups": ["staff"]}, "eve": {"disabled": True}},
        "quotas": {"@staff": {"desktops": 2, "gpu_mib": 16384}},
        "entitlements": [{"who": "@staff", "right": "use", "pool": "office"}, {"who": "ada", "right": "viewer"}],
    }


def test_from_an_empty_controller_to_yaml_and_back(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    file = write(tmp_path / "fleet.yaml", fleet_of(agent))
    made = [
        ("host", "gpu01"), ("image", "office"), ("pool", "office"), ("person", "ada"), ("person", "eve"),
        ("quota", "@staff"),
        ("entitlement", "@staff on office"), ("entitlement", "ada"),
    ]  # fmt: skip
    assert apply(controller, file, "--dry-run") == [(*one, "created") for one in made]
    assert controller.data("list-hosts") == [], "a dry run makes nothing"
    printed = controller.run("apply-fleet", "-f", str(file))
    assert printed.stdout.splitlines()[0] == "host gpu01: created", printed.stderr
    assert apply(controller, file) == [(*one, "unchanged") for one in made]
    again = controller.run("apply-fleet", "-f", str(file))
    assert again.stdout == "nothing to change: 8 entries are so already\n"

    exported = tmp_path / "exported.yaml"
    exported.write_text(controller.run("export-fleet").stdout)
    assert {one[2] for one in apply(controller, exported)} == {"unchanged"}
    content = YAML(typ="safe").load(exported)
    assert content["pools"]["office"]["rdp"] == {"use multimon": 1}
    assert content["people"] == {
        "ada": {"groups": ["staff"], "realm": "local"},
        "eve": {"disabled": True, "realm": "local"},
    }

    content["pools"]["office"]["maximum"] = 3
    del content["pools"]["office"]["open"], content["pools"]["office"]["rdp"]
    content["hosts"]["gpu01"]["labels"] = {"site": "paris"}
    del content["people"]["ada"], content["quotas"]["@staff"]["gpu_mib"]
    changed = write(tmp_path / "changed.yaml", content)
    parts = controller.data("apply-fleet", "-f", str(changed))["parts"]
    assert [(one["kind"], one["fields"]) for one in parts if one["change"] != "unchanged"] == [
        ("host", ["labels"]),
        ("pool", ["maximum", "open", "rdp"]),
        ("quota", ["gpu_mib"]),
    ]
    assert controller.data("show-pool", "office")["maximum"] == 3
    assert controller.data("show-host", "gpu01")["labels"] == {"site": "paris"}
    assert controller.data("show-person", "ada")["groups"] == ["staff"], "what the file leaves out stays"

    content["hosts"]["gpu01"]["address"] = "local"
    moved = controller.run("apply-fleet", "-f", str(write(tmp_path / "moved.yaml", content)))
    assert (moved.returncode, "remove-host gpu01" in moved.stderr) == (2, True), moved.stderr


def test_what_was_done_before_a_failure_is_said_and_stays(controller: Controller, tmp_path: Path) -> None:
    content = {
        "version": 1,
        "images": {"lab": {"path": IMAGE}},
        "pools": {"lab": {**SPEC, "image": "nothing", "names": "lab-{:03}"}},
        "people": {"bob": {}},
    }
    file = write(tmp_path / "fleet.yaml", content)
    failed = controller.run("apply-fleet", "-f", str(file), "--json")
    error = json.loads(failed.stdout)["error"]
    assert (failed.returncode, error["code"], error["facts"]["part"]) == (2, "not-found", "pool lab")
    assert error["left"] == ["image lab: created"]
    assert controller.data("show-image", "lab")["path"] == IMAGE
    content["pools"]["lab"]["image"] = "lab"
    assert apply(controller, write(file, content)) == [
        ("image", "lab", "unchanged"), ("pool", "lab", "created"), ("person", "bob", "created"),
    ]  # fmt: skip


def test_a_dry_run_refuses_what_the_real_one_refuses(controller: Controller, tmp_path: Path) -> None:
    def tried(**parts: Any) -> tuple[int, str]:
        file = write(tmp_path / "fleet.yaml", {"version": 1, **parts})
        result = controller.run("apply-fleet", "-f", str(file), "--dry-run")
        return result.returncode, result.stdout + result.stderr

    names = {"names": "try-{:03}"}
    status, text = tried(pools={"try": {**SPEC, **names, "image": "nothing"}})
    assert (status, "there is no image nothing" in text) == (2, True), text
    status, text = tried(images={"new": {"path": IMAGE}}, pools={"try": {**SPEC, **names, "image": "nothing"}})
    assert (status, "there is no image nothing" in text) == (2, True), text
    new = {"path": IMAGE, "os": "windows11"}
    joins = {**SPEC, **names, "image": "new"}
    status, text = tried(images={"new": new}, pools={"try": {**joins, "names": "desktop-of-a-long-name-{:03}"}})
    assert (status, "at most 15" in text) == (2, True), text
    status, text = tried(images={"new": {"path": IMAGE}}, pools={"try": joins, "again": {**joins}})
    assert (status, "could be a desktop of this pool and of pool try" in text) == (2, True), text
    given = {"who": "zoe", "right": "use", "pool": "try"}
    status, text = tried(
        images={"new": {"path": IMAGE}}, pools={"try": joins}, people={"zoe": {}}, entitlements=[given]
    )
    assert status == 0, text
    assert "nobody who is known here" not in text, "the file makes this person"
    status, text = tried(people={"zoe": {}}, entitlements=[given])
    assert (status, "there is no pool try" in text) == (2, True), text
    assert "zoe: created" not in text, "a dry run leaves nothing"

    assert controller.run("ensure-image", "used", "--path", IMAGE).returncode == 0
    spec = write(tmp_path / "used.yaml", {**SPEC, "image": "used", "names": "used-{:03}"})
    assert (done := controller.run("ensure-pool", "used", "-f", str(spec))).returncode == 0, done.stderr
    wait_until(lambda: controller.data("list-desktops", "--pool", "used") != [], "desktops of the image")
    status, text = tried(images={"used": {"path": f"{IMAGE}.other"}})
    assert (status, "desktops are made of image used" in text) == (3, True), text


def test_the_file_comes_from_standard_input(controller: Controller) -> None:
    tried = controller.run("apply-fleet", "-f", "-", "--dry-run", stdin="version: 1\npeople: {iris: {}}\n")
    assert (tried.returncode, tried.stdout) == (0, "person iris: would be created\n"), tried.stderr
    wrong = controller.run("apply-fleet", "-f", "-", stdin="version: 2\n")
    assert "standard input:1:10: version: " in wrong.stderr
    missing = controller.run("apply-fleet", "-f", "/nowhere/fleet.yaml")
    assert "there is no fleet file /nowhere/fleet.yaml" in missing.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2\n", "f.yaml:1:10: version: this program reads version 1"),
        ("hosts: {}\n", "version: missing"),
        ("version: 1\npols: {}\n", "f.yaml:2:1: pols: unknown field (did you mean 'pools'?)"),
        ("version: 1\npools: {office: {kind: floating}}\n", "pools.office.image: missing"),
        ("version: 1\nhosts: {gpu01: {addres: local}}\n", "hosts.gpu01.addres: unknown field"),
        ("version: 1\nentitlements: [{who: ada, right: own}]\n", "entitlements[0].right: "),
        (
            "version: 1\nentitlements: [{who: ada, right: viewer}, {who: ada, right: operator}]\n",
            "entitlements[1]: ada has a right there already, in entry 0",
        ),
        ("version: 1\nentitlements: {who: ada}\n", "entitlements: expected a list"),
        ("version: 1\npeople: {everybody: {}}\n", "people.everybody: everybody is no user's name"),
        ("- 1\n", "expected a mapping"),
        ("version: 1\nimages: {a: {path: relative}}\n", "images.a.path: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_anything_is_asked(
    controller: Controller, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    refused = controller.run("apply-fleet", "-f", str(file))
    assert refused.returncode == 2
    assert words in refused.stderr, refused.stderr


def test_what_is_left_out_stays_and_what_says_nothing_changes_nothing(controller: Controller, tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "version": 1,
        "images": {"old": {"path": IMAGE, "version": "7", "os": "windows", "retired": True}},
        "people": {"pat": {"groups": [], "disabled": False}},
        "quotas": {"pat": {"running": 0}},
        "entitlements": [{"who": "pat", "right": "operator"}],
    }
    file = write(tmp_path / "fleet.yaml", content)
    first = apply(controller, file)
    assert first[0] == ("image", "old", "created")
    assert controller.data("show-image", "old")["retired"] is True
    assert {one[2] for one in apply(controller, file)} == {"unchanged"}
    content["images"]["old"] = {"path": f"{IMAGE}.new"}
    content["entitlements"] = [{"who": "pat", "right": "viewer"}]
    parts = controller.data("apply-fleet", "-f", str(write(file, content)))["parts"]
    changed = {(one["kind"], one["change"], *one["fields"]) for one in parts if one["change"] != "unchanged"}
    assert changed == {("image", "changed", "path"), ("entitlement", "changed", "right")}
    image = controller.data("show-image", "old")
    assert (image["path"], image["version"], image["os"], image["retired"]) == (f"{IMAGE}.new", "7", "windows", True)
    assert {one[2] for one in apply(controller, file)} == {"unchanged"}


def test_a_signature_in_a_url_and_groups_of_a_directory_are_not_exported(
    controller: Controller, tmp_path: Path
) -> None:
    url = "https://images.example.org/a.qcow2?sig=SECRET"
    made = controller.run("ensure-image", "signed", "--url", url, "--sha256", "a" * 64, "--size", "5")
    assert made.returncode == 0, made.stderr
    assert controller.run("ensure-person", "lea", "--realm", "ldap", "--group", "admins").returncode == 0
    text = controller.run("export-fleet").stdout
    assert "SECRET" not in text
    content = YAML(typ="safe").load(text)
    assert content["images"]["signed"]["url"] == "https://images.example.org/a.qcow2"
    assert content["people"]["lea"] == {"realm": "ldap"}
    image = content["images"]["signed"]

    def applied(**more: object) -> tuple[str, str]:
        """Apply the image with other keys; return what that is called, and the URL that the controller has then."""
        file = write(tmp_path / "fleet.yaml", {"version": 1, "images": {"signed": {**image, **more}}})
        ((_, _, change),) = apply(controller, file)
        return change, str(controller.data("show-image", "signed")["url"])

    assert applied() == ("unchanged", url)
    assert applied(url=url) == ("unchanged", url)
    assert applied(version="2") == ("changed", url), "the signature is not lost with another change"
    assert applied(version="3", url=f"{url}2") == ("changed", f"{url}2"), "a new one counts"
    assert applied(version="3", url="https://images.example.org/b.qcow2") == (
        "changed",
        "https://images.example.org/b.qcow2",
    )


def test_all_people_are_exported(controller: Controller, tmp_path: Path) -> None:
    names = [f"user-{number:04}" for number in range(1005)]
    file = write(tmp_path / "fleet.yaml", {"version": 1, "people": dict.fromkeys(names, None)})
    apply(controller, file)
    exported = YAML(typ="safe").load(controller.run("export-fleet").stdout)["people"]
    assert set(names) <= exported.keys()
    assert {one[2] for one in apply(controller, file)} == {"unchanged"}
