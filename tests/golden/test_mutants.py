"""The list of faults fits the sources."""

from __future__ import annotations

import ast

import pytest

from tests.golden.mutants import MUTANTS, with_fault


@pytest.mark.parametrize("mutant", MUTANTS, ids=[file for file, *_ in MUTANTS])
def test_faults_fit_sources(mutant: tuple[str, str, str]) -> None:
    ast.parse(with_fault(mutant))
