# SPDX-License-Identifier: Apache-2.0
"""Build all packages twice, check them, and with --try install them in bare roots of Debian 12 and 13."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.packaging import bare_roots, build

OUT = build.ROOT / "dist"
CHECKERS = build.ROOT / ".venv-packages/bin"


def main() -> int:
    """Return the exit status."""
    OUT.mkdir(exist_ok=True)
    for path in OUT.iterdir():
        path.unlink()
    packages = build.build(OUT)
    with tempfile.TemporaryDirectory() as second:
        build.build(Path(second))
        differences = build.list_differences(OUT, Path(second))
    if differences:
        sys.exit(f"packages: two builds differ in {', '.join(differences)}")
    build.check_contents(packages)
    wheel = next(path for path in packages if path.suffix == ".whl")
    deb = next(path for path in packages if path.suffix == ".deb")
    for command in (
        [CHECKERS / "twine", "check", "--strict", *packages[:2]],
        [CHECKERS / "check-wheel-contents", wheel],
        ["lintian", "--fail-on", "error,warning", "--info", deb],
    ):
        print(f"== {' '.join(str(word) for word in command)}", flush=True)
        subprocess.run([str(word) for word in command], check=True)
    if "--try" in sys.argv[1:]:
        bare_roots.try_all(wheel, deb)
    for path in packages:
        print(f"{path.stat().st_size:>9,} bytes  {path.relative_to(build.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
