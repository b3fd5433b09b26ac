"""The laws for all methods and hard examples, also those of other packages: `hexa check`."""

from hexa.testing.cases import Case as Case
from hexa.testing.laws import LAWS as LAWS
