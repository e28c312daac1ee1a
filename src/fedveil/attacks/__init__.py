"""Attacks on the data that leaves a client.

The target is a job, a finished run, or any own system.
"""
