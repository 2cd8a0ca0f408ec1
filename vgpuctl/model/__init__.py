# SPDX-License-Identifier: Apache-2.0
"""The program's data types, as immutable values; the ports (`vgpuctl.ports`) use them."""
