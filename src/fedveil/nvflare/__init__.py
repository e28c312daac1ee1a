"""Applies a site's policy and privacy account to NVFlare jobs.

The configuration files of NVFlare refer to the classes in `components.py` by name.
"""
