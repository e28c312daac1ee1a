"""Studies: several runs in one folder, which are compared with each other or with a paper."""
