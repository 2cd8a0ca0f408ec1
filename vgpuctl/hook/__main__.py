# SPDX-License-Identifier: Apache-2.0
"""`python -I -m vgpuctl.hook HEAD NAME OPERATION ...`, with the rest of the domain's XML on stdin."""

from __future__ import annotations

import sys

from vgpuctl.hook.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
