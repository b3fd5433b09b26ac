"""Hostile inputs and faults, and a count of what survived them.

Each test tells `tally` how much it tried before it asserts that all of it survived. With HEXA_TORTURE_REPORT=FILE.json
the counts are written there at the end; docs/what-it-survives.md is made from such a file.
"""
