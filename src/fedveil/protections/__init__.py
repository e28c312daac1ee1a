"""The protections, one file each, and the contract between a protection and its engine."""
