# SPDX-License-Identifier: Apache-2.0
"""What the controller decides: pure functions of what is wanted, what hosts report, and the time that is handed in.

`pool_spec` reads what an admin writes, `schedules` says how many desktops are kept ready at a time, `pool_plan` which
desktops a pool has, `host_choice` where a new one goes, `host_plan` what a host does next, and `phase` what people see.
"""
