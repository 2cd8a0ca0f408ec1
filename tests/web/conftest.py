# SPDX-License-Identifier: Apache-2.0
"""A controller with four hosts and three pools; and a browser."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.controller.conftest import Server
from tests.web.browser import running_browser
from tests.web.site import Site, running_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A fleet that is as it is: nothing happens by itself once it is filled."""
    with running_site(tmp_path_factory.mktemp("site"), hosts=4, maximum=12, spare=4) as result:
        result.wait_until(lambda: result.ready() == 12, "twelve desktops")
        yield result


@pytest.fixture
def postgresql() -> Iterator[Server]:
    """A PostgreSQL of its own, which a test may stop."""
    with tempfile.TemporaryDirectory(prefix="vgpuctl-pg-") as directory:
        Path(directory).chmod(0o755)
        server = Server(Path(directory))
        server.start()
        server.run("CREATE DATABASE fleet")
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=20_000)
    with (
        tempfile.TemporaryDirectory(prefix="vgpuctl-browser-", ignore_cleanup_errors=True) as directory,
        running_browser(Path(directory)) as result,
    ):
        yield result
