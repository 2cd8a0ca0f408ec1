"""Keeps one L2 for a test run: builds and starts it, installs this checkout's vgpuctl, resets it before each test.

The source is copied together with .pyc files, which L2's Python compiles here on L1. Under emulation the first
import of all modules takes far longer than the copy.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.lab import build, recipe
from tests.lab.errors import LabDied, LabError
from tests.lab.machine import Lab
from tests.lab.snapshot import snapshot
from tests.lab.tools_tree import compile_python

CHECKOUT = recipe.HERE.parent.parent
PUSHED = ("vgpuctl", "templates", "ansible", "tests", "pyproject.toml", "conftest.py")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", ".git", "module", "*.ko", "*.o")
PLACE = "/opt/vgpuctl/src"
TAG = "session"
START_TRIES = 3


class Keeper:
    """The L2 of one flavour. All keepers of a run share `deaths`; a death during the start counts too."""

    def __init__(self, flavour: str, deaths: list[str]) -> None:
        self.flavour = flavour
        self.awake = False
        self._deaths = deaths
        self._lab: Lab | None = None
        self._usable = False
        self._hopeless: LabError | None = None

    def running(self) -> Lab:
        """Return the Lab, started and set up. L2 has any state."""
        if self._hopeless is not None:
            raise self._hopeless
        if self._lab is None:
            self._lab = self._build()
        if not self._usable or self._lab.dead():
            self._start(self._lab)
        elif not self.awake:
            self._lab.resume()
        self.awake = True
        return self._lab

    def clean(self) -> Lab:
        """Return the Lab in the state "session"; start it again if it dies while it loads that state."""
        lab = self.running()
        try:
            lab.load(TAG)
        except LabDied as exc:
            self._deaths.append(f"between two tests: {exc}")
            self._start(lab)
        return lab

    def rest(self) -> None:
        """Pause L2 while another L2 is in use, so that it takes no CPU."""
        if self._lab is not None and self.awake and not self._lab.dead():
            self._lab.pause()
        self.awake = False

    def stop(self) -> None:
        """Stop the emulator."""
        self._usable = self.awake = False
        if self._lab is not None:
            self._lab.stop()

    def console_text(self) -> str:
        """Return what L2's console printed."""
        return self._lab.console_text() if self._lab is not None else ""

    def _build(self) -> Lab:
        """Build what is missing, only once per run: a failed build would fail again for every test."""
        try:
            built = build.build()
            return Lab(built, flavour=self.flavour, snapshot=snapshot(built, self.flavour))
        except LabError as exc:
            self._hopeless = exc
            raise

    def _start(self, lab: Lab) -> None:
        self._usable = False
        for left in range(START_TRIES - 1, -1, -1):
            try:
                lab.start()
                set_up(lab)
                lab.save(TAG)
                break
            except LabDied as exc:
                self._deaths.append(f"while starting ({self.flavour}): {exc}")
                if not left:
                    raise
        self._usable = True


def set_up(lab: Lab) -> None:
    """Copy this checkout's vgpuctl into L2, where the command `vgpuctl` runs it."""
    push_source(lab)
    # Load Python and the package once, so that no test has to read them from the disk.
    lab.run("vgpuctl --version || true", timeout=120)


def push_source(lab: Lab) -> None:
    """Copy the checkout with new .pyc files. Tests that change the source call this too."""
    with tempfile.TemporaryDirectory(prefix="vgpulab-source-") as name:
        tree = Path(name)
        for path in (CHECKOUT / entry for entry in PUSHED):
            if path.is_dir():
                shutil.copytree(path, tree / path.name, ignore=LEFT_OUT)
            elif path.exists():
                shutil.copy2(path, tree / path.name)
        compile_python(lab.built.tools, tree, PLACE)
        lab.run(["rm", "-rf", PLACE])
        lab.push(tree, PLACE)
