# SPDX-License-Identifier: Apache-2.0
"""The controller: pools of desktops on many hosts. It is a client of the host agents.

The database holds what is wanted and who may; hosts hold what is. `model` has the values that all modules here share,
`planning` decides (pure functions), `database` keeps, `hosts` reaches the agents, `api` answers people and programs.
"""
