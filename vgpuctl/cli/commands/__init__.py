# SPDX-License-Identifier: Apache-2.0
"""One module per area, each with its commands. The library imports what a call needs when it runs."""
