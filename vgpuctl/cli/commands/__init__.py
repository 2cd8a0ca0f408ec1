# SPDX-License-Identifier: Apache-2.0
"""One module per command; each defines `command`. The library imports what a call needs when it runs."""
