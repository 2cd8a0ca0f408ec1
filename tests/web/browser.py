# SPDX-License-Identifier: Apache-2.0
"""Debian's chromium as an ordinary user, with its sandbox.

Root cannot have the sandbox, so a small script in front of chromium changes to nobody first.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"


def _program(directory: Path) -> Path:
    """Return the program to run: chromium, as nobody if this is root."""
    home = directory / "home"
    home.mkdir()
    words = [CHROMIUM]
    if os.geteuid() == 0:
        for folder in (directory, *directory.parents[:-2]):
            folder.chmod(folder.stat().st_mode | 0o011)
        subprocess.run(["chown", "nobody:nogroup", home], check=True)
        words = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", CHROMIUM]
    variables = [f"{name}={shlex.quote(str(home))}" for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")]
    path = directory / "chromium"
    profile = f"--user-data-dir={shlex.quote(str(home))}/profile"
    path.write_text(f'#!/bin/sh\nexec env {" ".join(variables)} {shlex.join(words)} "$@" {profile}\n')
    path.chmod(0o755)
    return path


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    """Yield a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(_program(directory)), chromium_sandbox=True)
        try:
            yield browser
        finally:
            browser.close()


def sign_in(page: Page, name: str, password: str) -> None:
    """Fill in the page of signing in, and send it."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
