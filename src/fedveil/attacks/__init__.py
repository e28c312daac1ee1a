"""Attacks on data that leaves a client, aimed at a job, a run, or a system of one's own."""
