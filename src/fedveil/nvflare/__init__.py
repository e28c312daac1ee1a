"""A site's policy and account on NVFlare. Configurations name the classes of `components.py`."""
