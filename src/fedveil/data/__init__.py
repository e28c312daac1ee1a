"""The data sets, and the partition of their examples among clients."""
