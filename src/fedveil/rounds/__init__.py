"""One round of training: the interface of its server half, and the loop that drives it."""
