# SPDX-License-Identifier: Apache-2.0
"""The program `vgpuctl`, also as `python -m vgpuctl`.

Until `vgpuctl.cli.entry` is loaded, Ctrl-C just ends what has done nothing yet: a traceback would help nobody.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the stubs know only `signal`, which takes long to import
import sys


def main() -> int:
    """Run the process's own command line and return its exit status."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from vgpuctl.cli import entry

    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
