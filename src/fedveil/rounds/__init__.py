"""One round of training: its loop, and the interface of the server's side that it drives."""
