"""The policy file that `fedveil site init` writes: the defaults, with an explanation of each."""

from __future__ import annotations

START = """\
# The policy of this site. `fedveil site show --keys` explains every key.

name: site

# A report leaves under one of these protections alone.
protections: [distributed_dp, pw_encrypt]

strength:
  unit: example           # an epsilon protects at least each record
  active_security: true   # signed keys, from the site's own roster
  survivors: 3            # updates of at least three sites in a sum
  honest: 1.0             # how many sites may be trusted to add their noise

# The largest epsilon of all reports on a data set together.
epsilon:
  run: 2.0
  month: 2.0
  ever: 10.0
  delta: 1.0e-5
  exact_sums: 20          # sums without noise a month: they have no epsilon

# Nothing leaves without protection.
clear:
  counts: false
  answer_after_s: 60.0    # every report leaves this long after its request

# A job runs if its digest is here (`fedveil site check SITE JOB` prints it), if it equals a
# template, or if one of `people` has signed it.
jobs:
  digests: []
  # template: study.yaml
  # may_differ: [name, seed, rounds]
  # signed_by: [ada]
# people:
#   ada: "64 hexadecimal digits, printed by `fedveil identity`"
# starters: [ada]

# A study's own modules in the folder `code`, with their digests. They train in isolation.
# code:
#   modules: {heart_net: "64 hexadecimal digits"}

# The data sets on which jobs may train. Each has an account of its own.
data: {}
#  heart:
#    named: digits           # the jobs' data.name
#    reader: readers:heart   # a function in readers.py in this folder

# The servers that this site takes jobs from.
servers: {}
#  study:
#    superlink: study.example.org:9092
#    client: 0
#    roster: roster.yaml
#    root_certificates: ca.crt
#    supernode_key: node-key

# A file on another disk, so that a folder that was set back as a whole is refused.
# counter: /mnt/other/site-counter
"""
