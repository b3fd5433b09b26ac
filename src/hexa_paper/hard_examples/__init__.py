"""Hard examples of other papers."""
