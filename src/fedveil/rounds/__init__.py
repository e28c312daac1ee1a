"""One round of training: its loop, and the interface of the server half that it drives."""
