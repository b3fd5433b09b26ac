"""Figures of the paper: view space, what a backbone finds similar, and charts of studies."""
