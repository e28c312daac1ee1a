"""Attacks on what leaves a client, to aim at a job, a run, or a system of one's own."""
