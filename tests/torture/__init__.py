"""Hostile inputs and faults, and a count of what survived them.

Each test tells `tally` what it tried and whether that survived. With HEXA_TORTURE_REPORT=FILE.json the counts are
written there at the end; benchmarks/fuzz.py adds to them what it draws.
"""
