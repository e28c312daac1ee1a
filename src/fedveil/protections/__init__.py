"""The protections of clients' updates, one file each, and their interface to an engine."""
