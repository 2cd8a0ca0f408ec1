# SPDX-License-Identifier: Apache-2.0
"""The real Alertmanager with the inhibition rules: one cause is one message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitoring.conftest import Printed
from tests.monitoring.servers import ask, free_port, running, wait_for

ROUTE = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"
Labels = dict[str, str]


@pytest.fixture(scope="module")
def alertmanager(printed: Printed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("alertmanager")
    (directory / "alertmanager.yml").write_text(printed("alertmanager") + ROUTE)
    url = f"http://127.0.0.1:{free_port()}"
    argv = (
        "prometheus-alertmanager",
        "--config.file=alertmanager.yml",
        "--storage.path=data",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    )
    with running(directory, argv, f"{url}/-/ready"):
        yield url


def alert(name: str, host: str = "", gpu: str = "", app: str = "vgpuctl", **labels: str) -> Labels:
    given = {"alertname": name, "app": app, "job": "vgpuctl", "instance": host, "gpu": gpu, **labels}
    return {key: value for key, value in given.items() if value}


ALERTS = {
    "down": alert("AgentDown", "a"),
    "same host": alert("StuckWrite", "a"),
    "other host": alert("StuckWrite", "b"),
    "other program": alert("DiskFull", "a", app="node"),
    "other program's AgentDown": alert("AgentDown", "c", app="node"),
    "beside it": alert("Leak", "c", kind="vgpu"),
    "lost": alert("GpuLost", "d", "1"),
    "crash on it": alert("VmCrashed", "d", "1", vm="x"),
    "crashes on it": alert("VmsCrashedTogether", "d", "1"),
    "licence on it": alert("Unlicensed", "d", "1", vm="x", vgpu="0"),
    "crash elsewhere": alert("VmCrashed", "d", "2", vm="y"),
    "hot": alert("GpuHot", "d", "1"),
    "licence server": alert("LicenceServerDown", job="second"),
    "licence": alert("Unlicensed", "e", "1", vm="z", vgpu="0", job="second"),
    "licence of another job": alert("Unlicensed", "f", "1", vm="z", vgpu="0"),
    "no room": alert("NoRoom", profile="A40-8Q"),
}
MUTED = {"same host", "crash on it", "crashes on it", "licence on it", "licence"}


def test_what_follows_from_a_cause_is_muted(alertmanager: str) -> None:
    ask(f"{alertmanager}/api/v2/alerts", [{"labels": labels} for labels in ALERTS.values()])

    def states() -> dict[str, str] | None:
        alerts = ask(f"{alertmanager}/api/v2/alerts")
        names = {frozenset(labels.items()): name for name, labels in ALERTS.items()}
        known = {names[frozenset(a["labels"].items())]: a["status"]["state"] for a in alerts}
        are_muted = all(known.get(name) == "suppressed" for name in MUTED)
        return known if len(known) == len(ALERTS) and are_muted else None

    state = wait_for("the state of all alerts", states)
    assert {name for name, word in state.items() if word == "suppressed"} == MUTED
    assert {word for name, word in state.items() if name not in MUTED} == {"active"}
