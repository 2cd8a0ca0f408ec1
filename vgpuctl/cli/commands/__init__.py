# SPDX-License-Identifier: Apache-2.0
"""One module per command; each defines `command`. The engine is imported only when a command runs."""
