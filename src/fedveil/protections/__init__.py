"""The switch positions, a file each, and the contract between them and whoever drives a round."""
