"""Attacks on messages between the parties of a split model."""
