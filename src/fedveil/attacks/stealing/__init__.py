"""A malicious server that sends a model made to steal examples, and decodes the answers."""
