"""The protections, one file each, and the interface between a protection and an engine."""
