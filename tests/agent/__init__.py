# SPDX-License-Identifier: Apache-2.0
"""The agent's parts, without its server."""
