"""Attacks on what crosses between the parties of a split model."""
