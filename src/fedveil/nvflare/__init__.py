"""A site's policy and account on NVFlare. `components.py` has what its configurations name."""
