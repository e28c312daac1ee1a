"""A site's policy and account on NVFlare: filters of a privacy scope, and an aggregator.

site_filters.py   on a site, in `privacy.json`: what a task's result becomes before it leaves
aggregator.py     on the server: adds up reports that are no plain arrays
"""
