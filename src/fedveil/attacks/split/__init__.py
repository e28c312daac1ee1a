"""Attacks on the messages that the parties of a split model exchange."""
