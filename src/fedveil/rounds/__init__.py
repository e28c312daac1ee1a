"""One round of training: the loop that drives it, and the interface of its server's side."""
