"""The data sets, and the split of their examples among clients."""
