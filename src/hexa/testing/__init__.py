"""The laws that every method and hard example keeps, to be tried on those of other packages: `hexa check`."""

from hexa.testing.cases import Case as Case
from hexa.testing.laws import LAWS as LAWS
