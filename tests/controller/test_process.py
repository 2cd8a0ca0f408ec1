# SPDX-License-Identifier: Apache-2.0
"""A controller as a process of its own: its command line, its API on a port, its tokens, its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent
from tests.agent.image_server import qcow2_header, sha256
from tests.controller.conftest import IMAGE, SPEC, opened, wait_until
from tests.controller.controllers import Controller, running_controller
from tests.controller.test_store import add_events
from vgpuctl.controller import openapi
from vgpuctl.controller.database.store import upgrade
from vgpuctl.controller.model import Role
from vgpuctl.controller.routes import API

DOCS = Path(__file__).resolve().parents[2] / "docs/json"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running_controller(tmp_path / "controller") as one:
        yield one


def secret(controller: Controller, role: str) -> dict[str, str]:
    """Return the header with a new token."""
    done = controller.run("add-token", role, "--role", role, "--days", "30")
    assert done.returncode == 0, done.stderr
    return {"Authorization": f"Bearer {done.stdout.strip()}"}


def test_from_a_host_to_a_users_desktop(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    run, data = controller.run, controller.data
    assert run("add-host", "gpu01", f"agent:{agent.path}", "--label", "site=a").stdout == "host gpu01: active\n"
    assert run("ensure-image", "office", "--path", IMAGE, "--version", "11", "--os", "linux").returncode == 0
    spec = tmp_path / "office.yaml"
    spec.write_text(json.dumps({**SPEC, "hosts": {"site": "a"}}))
    assert run("ensure-pool", "office", "-f", str(spec)).stdout == "pool office: active\n"
    assert run("ensure-pool", "office", "--file", "-", stdin=spec.read_text()).stdout == "pool office: unchanged\n"
    wait_until(lambda: data("show-pool", "office")["ready"] == 2, "two desktops")
    assert run("assign", "office", "ada").returncode == 0
    wait_until(lambda: data("show-desktop", "office-001")["address"] is not None, "the address")
    assert "office-001" in run("list-desktops", "--user", "ada").stdout
    assert data("list-desktops", "--on", "gpu01", "--pool", "office")[0]["user"] == "ada"
    assert "ada" in run("list-desktops", "-o", "wide").stdout
    assert data("list-pools")[0]["assigned"] == 1
    assert data("show-host", "gpu01")["labels"] == {"site": "a"}
    assert data("list-hosts")[0]["name"] == "gpu01"
    assert data("list-images")[0]["pools"] == ["office"]
    assert data("show-fleet")["desktops"] == 3
    fits_and_why_not(controller, spec)
    refused = run("release", "office-001")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert run("release", "office-001", "--yes").returncode == 0
    assert run("pause-pool", "office", "--reason", "new storage").stdout == "pool office: paused\n"
    assert "new storage" in run("assign", "office", "bob").stderr
    assert run("resume-pool", "office").returncode == 0
    assert run("label-host", "gpu01", "site=b").returncode == 0
    assert run("cordon-host", "gpu01").returncode == 0
    assert run("uncordon-host", "gpu01").returncode == 0
    assert run("drain-host", "gpu01").returncode == 0
    assert run("delete-pool", "office", "--yes").returncode == 0
    wait_until(lambda: data("list-pools") == [], "the end of the pool")
    assert run("remove-host", "gpu01", "--yes").returncode == 0
    assert run("delete-image", "office").returncode == 0
    events = data("list-events", "--limit", "1000")
    assert data("list-events", "--after", str(events[-2]["id"])) == events[-1:]
    assert events[-1]["text"] == "office"


def fits_and_why_not(controller: Controller, spec: Path) -> None:
    run, data = controller.run, controller.data
    wait_until(lambda: data("fits", "office")["free"] == 7, "the host's count")
    fits = data("fits", "office", "--count", "3")
    assert (fits["fits"], fits["free"], fits["maximum_left"], fits["unplaced"]) == (True, 7, 3, 0)
    (host,) = fits["hosts"]
    assert (host["name"], host["profiles"], host["image"], host["why"]) == ("gpu01", {"A100-4C": 7}, "ready", None)
    shown = run("fits", "office", "--count", "4")
    first, *others = shown.stdout.splitlines()
    assert (shown.returncode, first) == (4, "office: no: 4 desktops; 3 more desktops fit")
    assert others == ["  the hosts have room for 7, and its spec allows 3 more", "  gpu01: 7"]
    other = json.dumps({**json.loads(spec.read_text()), "profile": "L40S-4Q"})
    none = run("fits", "--file", "-", stdin=other)
    assert (none.returncode, none.stdout) == (0, "0 more desktops fit\n  gpu01: none: offers no L40S-4Q\n")
    elsewhere = run("fits", "-f", "-", stdin=spec.read_text().replace('"a"', '"b"'))
    assert elsewhere.stdout.endswith("  gpu01: none: lacks the label site=b\n")
    for words in (("fits",), ("fits", "office", "-f", str(spec)), ("fits", "none"), ("fits", "office", "--count", "0")):
        assert run(*words).returncode == 2, words
    bad = run("fits", "-f", "-", stdin='{"kind": "floating"}')
    assert (bad.returncode, "Traceback" in bad.stderr) == (2, False)
    image = run("fits", "-f", "-", stdin=spec.read_text().replace('"image": "office"', '"image": "none"'))
    assert (image.returncode, "no image none" in image.stderr) == (2, True)


def test_a_dry_run_checks_and_changes_nothing(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    run, data = controller.run, controller.data
    spec = tmp_path / "office.yaml"
    spec.write_text(json.dumps(SPEC))
    added = (
        "add-host gpu01 agent:" + str(agent.path),
        f"ensure-image office --path {IMAGE}",
        f"ensure-pool office -f {spec}",
    )
    for line in added:
        assert run(*line.split(), "--dry-run").stdout.startswith("would change: ")
        assert run(*line.split()).returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 2, "two desktops")
    assert run("assign", "office", "ada", "--dry-run").stdout.startswith("would change: desktop office-00")
    assert data("list-desktops", "--user", "ada") == []
    data("pause-pool", "office")
    before = [data(f"list-{kind}") for kind in ("pools", "images", "tokens", "events")]
    changes = (
        "stop-desktop office-001", "restart-desktop office-001", "delete-desktop office-001", "drain-host gpu01",
        "drain-host gpu01 --maintenance", "drain-host gpu01 --live", "label-host gpu01 a=b", "resume-pool office",
        "delete-pool office",
        f"ensure-image office --path {IMAGE} --version 2",
    )  # fmt: skip
    for line in changes:
        done = run(*line.split(), "--dry-run", "--json")
        assert json.loads(done.stdout)["data"]["dry_run"] is True, done.stdout
        assert (done.returncode, json.loads(done.stdout)["changed"]) == (0, True), line
    assert run("drain-host", "gpu01", "--dry-run").stdout == "would change: host gpu01: draining\n"
    assert run("drain-host", "gpu01", "--live", "--dry-run").stdout == "would change: host gpu01: draining live\n"
    assert run("drain-host", "gpu01", "--live", "--maintenance", "--dry-run").returncode == 2
    assert run("cordon-host", "gpu02", "--dry-run").returncode == 2
    assert run("remove-host", "gpu01", "--dry-run").returncode == 3
    assert [data(f"list-{kind}") for kind in ("pools", "images", "tokens", "events")] == before
    assert run("upgrade-db", "--state", str(tmp_path), "--dry-run", "--json").stdout.count('"changed": true') == 1
    assert run("upgrade-db", "--state", str(tmp_path)).returncode == 0
    assert '"changed": false' in run("upgrade-db", "--state", str(tmp_path), "--dry-run", "--json").stdout


def test_an_image_is_sent_to_a_host_and_shown(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    run, data = controller.run, controller.data
    file = tmp_path / "office.qcow2"
    file.write_bytes(qcow2_header())
    assert run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
    added = run("ensure-image", "office", "--file", str(file), "--version", "11", "--folder", "/srv/images")
    path = f"/srv/images/office-{sha256(file.read_bytes())[:12]}.img"
    assert added.stdout == f"image office: {path}\n", added.stderr
    spec = tmp_path / "office.yaml"
    spec.write_text(json.dumps({**SPEC, "spare": 1}))
    assert run("ensure-pool", "office", "-f", str(spec)).returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 1, "a desktop")
    shown = data("show-image", "office")
    assert (shown["path"], shown["file"], shown["hosts"]) == (path, str(file), {"gpu01": "ready"})
    assert "gpu01" in run("show-image", "office").stdout
    assert "1 ready" in run("list-images").stdout
    assert data("show-host", "gpu01")["images"] == {"office": "ready"}
    used = run("delete-image", "office")
    assert used.returncode == 3
    assert "is used by pools office and desktops office-001" in used.stderr
    token = secret(controller, "admin")
    status, answer, _ = controller.request("PUT", f"{API}/images/other", {"file": str(file)}, **token)
    assert (status, answer["error"]["code"]) == (403, "not-allowed"), "a token from elsewhere names no file"


def test_tokens(controller: Controller, tmp_path: Path) -> None:
    viewer, operator = secret(controller, "viewer"), secret(controller, "operator")
    request = controller.request
    assert request("GET", f"{API}/pools")[0] == 401
    assert request("GET", f"{API}/pools", Authorization="Bearer vgpuctl_wrong")[0] == 401
    assert request("GET", "/metrics")[0] == 401
    assert request("GET", f"{API}/pools", **viewer)[0] == 200
    assert [token["name"] for token in controller.data("list-tokens")] == ["operator", "viewer"]
    assert controller.run("delete-token", "viewer").stdout == "token viewer: deleted\n"
    assert request("GET", f"{API}/pools", **viewer)[0] == 401
    file = tmp_path / "token"
    file.write_text(operator["Authorization"].removeprefix("Bearer ") + "\n")
    address = f"http://127.0.0.1:{controller.port}"
    shown = controller.run("show-fleet", "--controller", address, "--token-file", str(file))
    assert "operator" in shown.stdout
    by_variable = controller.run("show-fleet", VGPUCTL_CONTROLLER=address, VGPUCTL_TOKEN_FILE=str(file))
    assert by_variable.stdout == shown.stdout
    no_tls = controller.run("show-fleet", "--controller", f"https{address[4:]}", "--token-file", str(file))
    assert "that port speaks no TLS, as https:// needs" in no_tls.stderr
    missing = controller.run("show-fleet", "--controller", address, "--token-file", "/nowhere/token")
    assert "there is no token file /nowhere/token" in missing.stderr
    assert "file system" not in missing.stderr
    log = controller.directory / "state"
    assert not [path for path in log.rglob("*") if b"vgpuctl_" in path.read_bytes()], "no secret is stored"


def test_paths_of_sockets_are_absolute(controller: Controller) -> None:
    wrong = controller.run("show-fleet", VGPUCTL_CONTROLLER="controller.sock")
    assert "write https://HOST[:PORT], or an absolute path of a socket" in wrong.stderr
    assert f"hint: --controller {os.path.abspath('controller.sock')}" in wrong.stderr
    wrong = controller.run("add-host", "gpu01", "agent:gpu.sock")
    assert f"hint: vgpuctl controller add-host gpu01 agent:{os.path.abspath('gpu.sock')}" in wrong.stderr


def test_the_api_is_what_it_says(controller: Controller) -> None:
    admin = secret(controller, "admin")
    request = controller.request
    image = {"path": IMAGE}
    status, document, headers = request("PUT", f"{API}/images/office", image, **admin)
    assert (status, document["changed"], headers["ETag"]) == (200, True, '"1"')
    assert request("PUT", f"{API}/images/office", image, **admin)[1]["changed"] is False
    changed = {**image, "version": "2"}
    assert request("PUT", f"{API}/images/office", changed, **admin, If_Match='"7"')[0] == 412
    assert request("PUT", f"{API}/images/office", changed, **admin, If_Match='"1"')[0] == 200
    status, document, _ = request("PUT", f"{API}/pools/office", {"spec": SPEC}, **admin, Idempotency_Key="one")
    assert (status, document["changed"]) == (200, True)
    assert request("PUT", f"{API}/pools/office", {"spec": SPEC}, **admin, Idempotency_Key="one")[1] == document
    assert request("PUT", f"{API}/pools/other", {"spec": SPEC}, **admin, Idempotency_Key="one")[0] == 409
    assert request("GET", f"{API}/desktops?limit=1&after=a", **admin)[0] == 200
    for path, expected in (
        ("/desktops?limit=0", 400), ("/desktops?limit=x", 400), ("/desktops?colour=red", 422), ("/none", 404),
        ("/pools/none", 404), ("/desktops?pool=a&pool=b", 400), ("/pools?dry_run=true", 422),
    ):  # fmt: skip
        assert request("GET", API + path, **admin)[0] == expected, path
    for body, expected in (
        ({"spec": SPEC, "colour": 1}, 422), ({"spec": "x"}, 400), ({}, 400), (b"{", 400), (b"[]", 400),
        ({"spec": {**SPEC, "spare": 99}}, 400), ({"text": "kind: [" * 500}, 400), ({"spec": SPEC, "name": "x"}, 422),
        (b" " * (2 << 20), 413),
    ):  # fmt: skip
        status, document, _ = request("PUT", f"{API}/pools/lab", body, **admin)
        assert (status, document["ok"]) == (expected, False), document
    assert request("DELETE", f"{API}/pools/office?dry_run=1", **admin)[0] == 400
    assert request("DELETE", f"{API}/pools/office?dry_run=true", **admin)[0] == 200
    assert request("GET", f"{API}/pools/office", **admin)[1]["data"]["state"] == "active"
    assert request("GET", "/healthz")[0] == request("GET", "/readyz")[0] == 200
    assert 'vgpuctl_fleet_pool_active{pool="office"} 1' in request("GET", "/metrics", **admin)[1]["text"]
    assert request("GET", f"{API}/openapi.json")[1] == json.loads(openapi.text())


def test_the_description_of_the_api_is_published() -> None:
    path = DOCS / "controller-openapi.json"
    if os.environ.get("VGPUCTL_REGENERATE"):
        path.write_text(openapi.text())
    assert path.read_text() == openapi.text()


def test_old_events_are_deleted_while_it_runs(tmp_path: Path) -> None:
    state = tmp_path / "controller" / "state"
    state.mkdir(parents=True, mode=0o700)
    url = f"sqlite:///{state}/fleet.db"
    upgrade(url)
    with opened(url) as store:
        add_events(store, [9.0, 9.0])
        store.tokens.add("t2", Role.VIEWER, "2" * 64, None, "root")
    one = Controller(tmp_path / "controller", 0)
    one.start("--event-days", "8", "--events", "200000")
    wait_until(lambda: [event["text"] for event in one.data("list-events")] == ["t2: viewer"], "old events to go")
    assert one.stop() == 0


def test_a_controller_ends_and_goes_on(controller: Controller, agent: RunningAgent) -> None:
    controller.run("add-host", "gpu01", f"agent:{agent.path}")
    again = controller.run("run", "--state", str(controller.directory / "state"), "--socket", "/tmp/none/c.sock")
    assert again.returncode == 75
    assert "another controller runs" in again.stderr
    assert controller.stop(signal.SIGKILL) == -signal.SIGKILL
    lost = controller.run("list-hosts")
    assert (lost.returncode, "systemctl status vgpuctl-controller" in lost.stderr) == (75, True)
    controller.start()
    assert [host["name"] for host in controller.data("list-hosts")] == ["gpu01"]
    holder = controller.data("show-fleet")["holder"]
    wait_until(lambda: controller.data("show-host", "gpu01")["holder"] == holder, "the host's lease", 90)
    held = controller.run("accept-host", "gpu01", "--host-key", "SHA256:" + "A" * 43, "--yes")
    assert held.returncode == 0, held.stderr
    assert controller.stop() == 0
    assert not controller.socket.exists()


def test_starting_with_something_wrong(controller: Controller, tmp_path: Path) -> None:
    run = controller.run
    listen = run(
        "run", "--state", str(tmp_path / "s"), "--socket", str(tmp_path / "c.sock"), "--listen", "0.0.0.0:8443"
    )
    assert (listen.returncode, "in the clear" in listen.stderr) == (2, True)
    alone = run("run", "--listen", "127.0.0.1:1", "--tls-certificate", "/etc/hosts")
    assert (alone.returncode, "belong together" in alone.stderr) == (2, True)
    key = run("run", "--tls-key", "/etc/hosts")
    assert (key.returncode, "need --listen" in key.stderr) == (2, True)
    url = tmp_path / "url"
    url.write_text(f"sqlite:///{tmp_path}/other.db")
    url.chmod(0o644)
    readable = run("upgrade-db", "--database", f"@{url}")
    assert (readable.returncode, f"chmod 600 {url}" in readable.stderr) == (3, True)
    url.chmod(0o600)
    assert run("upgrade-db", "--database", f"@{url}", "--state", str(tmp_path)).returncode == 0
    far = run("list-pools", "--controller", "http://fleet.example.org")
    assert (far.returncode, "in the clear" in far.stderr) == (2, True)
    no_token = run("list-pools", "--controller", "https://fleet.example.org")
    assert (no_token.returncode, "needs a token" in no_token.stderr) == (2, True)
    host = run("list-pools", "--host", "sim:a100-40")
    assert (host.returncode, "--controller" in host.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        "show-pool none", "delete-pool none --yes", "show-host none", "show-desktop none", "release none --yes",
        "start-desktop none", "stop-desktop none", "restart-desktop none", "delete-desktop none --yes",
        "delete-token none", "delete-image none", "assign none ada", "drain-host none",
        "ensure-image x --path relative.qcow2",
        "ensure-image x --path /a/b.qcow2 --sha256 12", "ensure-image x --path /a/b.qcow2 --retired --sha256 zz",
        "ensure-image x", "ensure-image x --path /a/b --url https://h/x", "ensure-image a/b --path /a/b",
        "ensure-image x --url http://h/x --sha256 " + "0" * 64, "ensure-image x --url https://h/x",
        "ensure-image x --url https://ada:secret@h/x --sha256 " + "0" * 64, "show-image none",
        "move-desktop none --fenced power-off-at-its-BMC --yes", "move-desktop none --fenced off --yes",
        "add-host gpu01 agent:gpu.sock", "list-desktops --pool none", "list-desktops --on none",
        "add-host gpu01 gpu01.example.org", "add-host gpu01 ssh://gpu01 --host-key MD5:1 --label a",
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_error_with_a_hint(controller: Controller, words: str) -> None:
    done = controller.run(*words.split())
    assert done.returncode in (2, 75), done.stderr
    assert done.stderr.startswith("vgpuctl: ")
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
