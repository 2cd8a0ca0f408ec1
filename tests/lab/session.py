"""Keeps one L2 for a test run: built, started, given this checkout's vgpuctl, put back before each test.

The source goes in as files with .pyc beside them, compiled here by L2's Python: under emulation the first
import of everything costs far more than all the copying.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.lab import build, recipe
from tests.lab.errors import LabDied, LabError
from tests.lab.foreign import compile_python
from tests.lab.machine import Lab
from tests.lab.snapshot import snapshot

CHECKOUT = recipe.HERE.parent.parent
PUSHED = ("vgpuctl", "templates", "ansible", "tests", "pyproject.toml", "conftest.py")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", ".git", "module", "*.ko", "*.o")
PLACE = "/opt/vgpuctl/src"
TAG = "session"
START_TRIES = 3


class Keeper:
    """One flavour's L2. `deaths` is shared by all of a run: a death while starting is counted too."""

    def __init__(self, flavour: str, deaths: list[str]) -> None:
        self.flavour = flavour
        self.awake = False
        self._deaths = deaths
        self._lab: Lab | None = None
        self._usable = False
        self._hopeless: LabError | None = None

    def running(self) -> Lab:
        """The Lab, started and set up; the state of L2 is whatever it is."""
        if self._hopeless is not None:
            raise self._hopeless
        if self._lab is None:
            self._lab = self._made()
        if not self._usable or self._lab.dead():
            self._start(self._lab)
        elif not self.awake:
            self._lab.resume()
        self.awake = True
        return self._lab

    def clean(self) -> Lab:
        """The Lab in the state "session"; a Lab that does not load it is started again."""
        lab = self.running()
        try:
            lab.load(TAG)
        except LabDied as exc:
            self._deaths.append(f"between two tests: {exc}")
            self._start(lab)
        return lab

    def rest(self) -> None:
        """Takes no CPU while another L2 is used."""
        if self._lab is not None and self.awake and not self._lab.dead():
            self._lab.pause()
        self.awake = False

    def stop(self) -> None:
        """Ends the emulator."""
        self._usable = self.awake = False
        if self._lab is not None:
            self._lab.stop()

    def console_text(self) -> str:
        """What L2 printed."""
        return self._lab.console_text() if self._lab is not None else ""

    def _made(self) -> Lab:
        """Builds what is missing. A build that failed would fail again for every test: it is tried once."""
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
    """Puts this checkout's vgpuctl into L2, where the command `vgpuctl` runs it."""
    push_source(lab)
    # Loads Python and the package once, so that no test pays for reading them from the disk.
    lab.run("vgpuctl --version || true", timeout=120)


def push_source(lab: Lab) -> None:
    """Copies the checkout with fresh .pyc files; also for a test that changes the source."""
    with tempfile.TemporaryDirectory(prefix="vgpulab-source-") as name:
        tree = Path(name)
        for path in (CHECKOUT / wanted for wanted in PUSHED):
            if path.is_dir():
                shutil.copytree(path, tree / path.name, ignore=LEFT_OUT)
            elif path.exists():
                shutil.copy2(path, tree / path.name)
        compile_python(lab.built.tools, tree, PLACE)
        lab.run(["rm", "-rf", PLACE])
        lab.push(tree, PLACE)
