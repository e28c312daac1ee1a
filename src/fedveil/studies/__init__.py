"""Studies: several runs in one folder, compared with each other or with a source."""
