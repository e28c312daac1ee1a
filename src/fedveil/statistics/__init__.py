"""Statistics of the clients' rows, under the same protections and accounts as training."""
