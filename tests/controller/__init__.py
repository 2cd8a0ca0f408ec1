"""Tests of the controller: its database, its loops and its API, with agents of simulated hosts."""
