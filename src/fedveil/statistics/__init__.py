"""Statistics about the clients' rows, under the protections and privacy accounts of training."""
