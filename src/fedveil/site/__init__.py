"""The site that owns the data: what may leave it, decided, enforced and accounted for there.

policy.py       the owner's demands, a typed file
order.py        an app from a server, read as data
admission.py    an app against the policy
door.py         the one way out: checks, charges, answers, logs
account.py      everything that left a data set, and its cost
site_folder.py  the files of a site
supernode.py    a SuperNode whose apps are data
"""
