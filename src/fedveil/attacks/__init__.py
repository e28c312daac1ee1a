"""Attacks on the data that leaves a client, aimed at a job, a finished run, or your own system."""
