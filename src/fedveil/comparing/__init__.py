"""Comparison of protections on equal data from an equal start."""
