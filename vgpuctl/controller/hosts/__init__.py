# SPDX-License-Identifier: Apache-2.0
"""How the controller reaches hosts: a connection to each agent, a loop for each host, and what carries actions out."""
