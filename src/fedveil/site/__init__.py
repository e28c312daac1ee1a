"""A site that takes part in federated training: its owner decides what may leave, and this enforces it.

    policy.py       the owner's demands, a typed file
    order.py        an app from a server, read as data
    admission.py    an app against the policy
    door.py         the one way out: checks, charges, answers, logs
    site_folder.py  the files of a site
    supernode.py    a SuperNode whose apps run as data
"""
