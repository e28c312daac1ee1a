"""Statistics about the clients' rows, with the same protections and accounts as training."""
