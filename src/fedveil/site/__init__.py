"""The site: an organisation that owns data, decides which jobs train on it, and accounts for them.

policy.py       the owner's demands, a typed file
order.py        a job that a server sends, read as data
admission.py    checks a job against the policy
door.py         the only way out: checks, charges, answers and logs every message
account.py      everything that left a data set, and its privacy cost
site_folder.py  the files of a site
supernode.py    a Flower SuperNode that reads uploaded apps as data and never runs them
"""
