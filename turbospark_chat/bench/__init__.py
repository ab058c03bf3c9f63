"""Measures this program, and another one beside it: `ts bench`."""
