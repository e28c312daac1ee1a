"""One round of training: the loop that runs it, and the interfaces of server and clients."""
