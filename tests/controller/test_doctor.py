# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller doctor` with a real controller, both databases, files, a certificate."""

from __future__ import annotations

import datetime
import json
import os
import stat
from pathlib import Path
from typing import Any

import jsonschema
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import Server, wait_until
from tests.controller.test_process import Controller, controller
from vgpuctl.cli import schemas
from vgpuctl.controller.database.store import open_store, upgrade
from vgpuctl.controller.doctor import examine, select
from vgpuctl.controller.installation import Options, read_installation

__all__ = ["controller"]


def checked(one: Controller, *words: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status and the checks by their ids."""
    places = ["--state", str(one.directory / "state"), "--socket", str(one.socket)]
    done = one.run("doctor", *places, *words, "--json", **env)
    document = json.loads(done.stdout)
    jsonschema.validate(document, schemas.document_schema("controller-doctor"))
    return done.returncode, {check["id"]: check for check in document["data"]["checks"]}


def make_certificate(path: Path, days: float) -> None:
    key, now = ed25519.Ed25519PrivateKey.generate(), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleet.example.org")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(1))
    certificate = builder.not_valid_after(now + datetime.timedelta(days)).sign(key, None)
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def test_a_running_controller(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    assert controller.run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
    wait_until(lambda: controller.data("show-host", "gpu01")["holder"] is not None, "the host's lease")
    make_certificate(tmp_path / "cert.pem", 90.5)
    home = tmp_path / "home"
    status, checks = checked(controller, "--tls-certificate", str(tmp_path / "cert.pem"), HOME=str(home))
    verdicts = {name: check["verdict"] for name, check in checks.items()}
    assert (status, set(verdicts.values())) == (0, {"ok", "not-applicable"}), checks
    process = controller.process
    assert process is not None
    assert f"process {process.pid} answers" in checks["controller"]["evidence"][0]
    assert f"process {process.pid} alone has" in checks["one-controller"]["evidence"][0]
    assert "in 90 days" in checks["certificate"]["evidence"][0]
    assert "0008" in checks["database"]["evidence"][0]
    page = controller.run(
        "doctor", "leases", "--state", str(controller.directory / "state"), "--socket", str(controller.socket)
    )
    assert page.stdout.splitlines()[1].split()[:2] == ["ok", "leases"]


def test_what_is_wrong_with_a_running_controller(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    controller.run("add-host", "gpu01", f"agent:{agent.path}")
    state = controller.directory / "state"
    state.chmod(0o755)
    token = tmp_path / "token"
    token.write_text("vgpuctl_x")
    token.chmod(0o604)
    make_certificate(tmp_path / "cert.pem", -0.5)
    words = ("secrets", "certificate", "--tls-certificate", str(tmp_path / "cert.pem"))
    status, checks = checked(controller, *words, VGPUCTL_TOKEN_FILE=str(token))
    assert (status, sorted(checks)) == (6, ["certificate", "secrets"])
    assert checks["secrets"]["fix"] == f"chmod 700 {state}; chmod 600 {token}"
    assert "ended on" in checks["certificate"]["evidence"][0]
    for command in checks["secrets"]["fix"].split("; "):
        assert os.system(command) == 0
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert checked(controller, "secrets", VGPUCTL_TOKEN_FILE=str(token))[0] == 0


def test_a_controller_that_has_ended(controller: Controller, agent: RunningAgent) -> None:
    controller.run("add-host", "gpu01", f"agent:{agent.path}")
    assert controller.stop() == 0
    before = sorted(path.name for path in (controller.directory / "state").iterdir())
    status, checks = checked(controller)
    assert status == 6
    assert checks["controller"]["verdict"] == "fail"
    assert checks["one-controller"]["verdict"] == "warn"
    assert checks["leases"]["evidence"] == ["gpu01: no controller has it"]
    assert sorted(path.name for path in (controller.directory / "state").iterdir()) == before, "nothing is made"
    with open_store(f"sqlite:///{controller.directory}/state/fleet.db").database.write() as connection:
        connection.exec_driver_sql("UPDATE host SET seen_at = seen_at - 100")
    (line,) = checked(controller, "hosts")[1]["hosts"]["evidence"]
    assert "from here: it answers" in line


def test_what_is_not_there(controller: Controller, tmp_path: Path) -> None:
    done = controller.run("doctor", "--state", str(tmp_path / "none"), "--socket", str(tmp_path / "none.sock"))
    assert done.returncode == 6
    assert f"there is no {tmp_path}/none/fleet.db" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "none").exists()
    assert controller.run("doctor", "leeses").returncode == 2
    assert "hidden" not in controller.run("doctor", "--database", "postgresql://u:hidden@127.0.0.1:1/x").stdout


def test_a_database_of_postgresql(postgresql: Server, tmp_path: Path) -> None:
    postgresql.run("CREATE DATABASE checked")
    file = tmp_path / "url"
    file.write_text(postgresql.url("checked"))
    file.chmod(0o600)
    options = Options(f"@{file}", str(tmp_path), str(tmp_path / "c.sock"))
    (older,) = examine(read_installation(options), select(("database",))).checks
    assert (older.verdict, older.fix) == ("fail", "vgpuctl controller upgrade-db")
    upgrade(postgresql.url("checked"))
    checks = examine(read_installation(options), select(("database", "database-clock", "one-controller"))).checks
    assert [check.verdict for check in checks] == ["ok", "ok", "ok"]
    file.chmod(0o644)
    (secrets,) = examine(read_installation(options), select(("secrets",))).checks
    assert f"chmod 600 {file}" in (secrets.fix or "")
