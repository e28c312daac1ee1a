"""The policy file that `fedveil site init` writes: the defaults, with an explanation of each."""

from __future__ import annotations

START = """\
# The policy of this site. `fedveil site show --keys` explains every key. A key behind a # is
# an example: to use it, remove the #, and the {} of its block if there is one.

name: site

# A report may leave only under one of these protections.
protections: [distributed_dp, pw_encrypt]

strength:
  unit: example           # each epsilon covers at least one example
  active_security: true   # sums need signatures, checked with the site's roster
  survivors: 3            # a sum has updates of at least three sites
  honest: 1.0             # a job may trust all sites to add their noise

# The largest epsilon of a data set: of one job, of all jobs in a month, of all jobs for all time.
epsilon:
  run: 2.0
  month: 2.0
  ever: 10.0
  delta: 1.0e-5
  exact_sums: 20          # sums without noise in a month, which have no epsilon

# Values that may leave unprotected.
clear:
  counts: false           # the number of examples
  answer_after_s: 60.0    # seconds from a request until its report leaves

# A job may run if its digest is in `digests` (`fedveil site check SITE JOB` prints it), if it
# equals the template, or if a person in `signed_by` has signed it.
jobs:
  digests: []
  # template: study.yaml
  # may_differ: [name, seed, rounds]    # keys in which a job may differ from the template
  # signed_by: [ada]
# people:
#   ada: "64 hexadecimal digits, printed by `fedveil identity`"
# starters: [ada]         # only these people may start a run, each with a signature

# Modules of a study in the folder `code`, with their digests. Their code trains in isolation.
# code:
#   modules: {heart_net: "64 hexadecimal digits"}

# The data sets on which jobs may train. Each one has its own privacy account.
data: {}
#  heart:
#    named: digits           # jobs with this data.name may train on it
#    reader: readers:heart   # a function in readers.py in this folder

# The servers from which this site takes jobs.
servers: {}
#  study:
#    superlink: study.example.org:9092
#    client: 0
#    roster: roster.yaml
#    root_certificates: ca.crt
#    supernode_key: node-key

# A file on another disk. It detects that this folder was replaced by an older copy.
# counter: /mnt/other/site-counter
"""
