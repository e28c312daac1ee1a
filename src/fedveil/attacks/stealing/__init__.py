"""A server that sends a model made to steal, and what comes back to it."""
