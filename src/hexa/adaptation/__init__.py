"""Implementation of `hexa adapt` and `hexa harden`: inspect images, plan, train, evaluate the result."""
