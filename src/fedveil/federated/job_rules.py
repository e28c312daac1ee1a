"""What must hold between the keys of a job, and what is only advised."""

from __future__ import annotations

from fedveil.federated.blocks import JobFields
from fedveil.settings.allowed import shown
from fedveil.settings.rules import Rules

RULES = Rules[JobFields]()


@RULES.rule("clients.number", "data.split")
def _clients_known(job: JobFields) -> str | None:
    """`clients.number: null` needs `data.split: by_client`: other splits deal to a given number."""
    if job.clients.number is not None or job.data.split == "by_client":
        return None
    return (
        f"clients.number = null is allowed under data.split = by_client only; "
        f"under {job.data.split} it is a whole number in [1, inf)"
    )


@RULES.rule("data.name", "data.split")
def _owners_known(job: JobFields) -> str | None:
    """`data.split: by_client` needs data with owners: femnist, or a function of yours."""
    if job.data.split != "by_client" or job.data.may_have_owners:
        return None
    return (
        f"data.split = by_client needs data that comes with owners; {job.data.name} has none: "
        f"{', '.join(job.data.OWNED)} has, and package.module:function may"
    )


@RULES.rule("training.optimizer", "training.momentum")
def _momentum_is_sgds(job: JobFields) -> str | None:
    """`training.momentum` belongs to `training.optimizer: sgd`; under adam it is 0."""
    if job.training.optimizer == "sgd" or job.training.momentum == 0:
        return None
    return (
        f"training.momentum = {job.training.momentum!r} belongs to sgd; "
        f"under training.optimizer = {job.training.optimizer} only 0 is allowed"
    )


@RULES.rule("protection.name", "server.weighting")
def _weighs_equally(job: JobFields) -> str | None:
    """`server.weighting: by_size` is refused under dp_encrypt, signds, rr and oue: it tells the
    server how much data each client has and breaks the sensitivity of local privacy."""
    explicit = "weighting" in job.server.model_fields_set
    if not (explicit and job.server.weighting == "by_size" and job.must_weigh_equally):
        return None
    return (
        f"server.weighting = by_size tells the server how much data each client has and breaks "
        f"the sensitivity of local privacy; under protection.name = {job.protection.name} only "
        f"equal is allowed"
    )


@RULES.rule("protection.name", "protection.pw_encrypt", "clients")
def _threshold_reachable(job: JobFields) -> str | None:
    """Under pw_encrypt `reconstruct_secrets_threshold` is below the number of clients that share
    secrets, ceil(share_secrets_ratio * clients a round)."""
    if job.protection.name != "pw_encrypt" or job.clients.number is None:
        return None
    threshold = job.protection.pw_encrypt.reconstruct_secrets_threshold
    if threshold < job.sharing_clients:
        return None
    return (
        f"protection.pw_encrypt.reconstruct_secrets_threshold = {threshold} is outside "
        f"[1, {job.sharing_clients}): it is below the number of clients that share secrets, "
        f"ceil({job.protection.pw_encrypt.share_secrets_ratio:g} * {job.clients_per_round} "
        f"clients a round)"
    )


@RULES.rule("protection.name", "protection.pw_encrypt", "clients")
def _graph_fits(job: JobFields) -> str | None:
    """Under pw_encrypt `neighbours: k` is below the number of clients a round and at least
    `reconstruct_secrets_threshold`, which counts within each neighbourhood, and `active_security`
    needs the complete graph."""
    settings = job.protection.pw_encrypt
    if job.protection.name != "pw_encrypt" or not isinstance(settings.neighbours, int):
        return None
    place = f"protection.pw_encrypt.neighbours = {settings.neighbours}"
    if settings.active_security:
        return f"{place} leaves a sparse graph; active_security requires complete, or auto"
    if job.clients.number is not None and not 1 <= settings.neighbours < job.clients_per_round:
        return f"{place} is outside [1, {job.clients_per_round}): below the clients a round"
    threshold = settings.reconstruct_secrets_threshold
    if threshold > settings.neighbours:
        return (
            f"{place} is below reconstruct_secrets_threshold = {threshold}, which counts within "
            f"a client's neighbours"
        )
    return None


@RULES.rule("clients.number", "deployment.start_clients")
def _enough_to_start(job: JobFields) -> str | None:
    """`deployment.start_clients` is at most `clients.number`."""
    wanted, number = job.deployment.start_clients, job.clients.number
    if wanted is None or number is None or wanted <= number:
        return None
    return f"deployment.start_clients = {wanted} is outside [1, {number}], the clients there are"


@RULES.advised
def _threshold_safe(job: JobFields) -> str | None:
    if job.protection.name != "pw_encrypt" or job.clients.number is None:
        return None
    settings = job.protection.pw_encrypt
    threshold, n, who = settings.reconstruct_secrets_threshold, job.sharing_clients, "clients"
    neighbours = settings.graph_degree(n)
    if neighbours is not None and neighbours < n - 1:
        n, who = neighbours + 1, "clients of a neighbourhood"
    place = f"protection.pw_encrypt.reconstruct_secrets_threshold = {threshold}"
    if 2 * threshold <= n:
        return (
            f"{place} is at most half of the {n} {who} that share secrets: a lying server "
            f"acting alone can unmask a client; above {n // 2} it cannot"
        )
    if 3 * threshold <= 2 * n:
        return (
            f"{place} is at most two thirds of the {n} {who} that share secrets: a lying server "
            f"that colludes with clients can unmask others; above {2 * n // 3} it cannot with "
            f"up to a third of them"
        )
    return None


@RULES.advised
def _delta_small(job: JobFields) -> str | None:
    delta, number = job.protection.dp_encrypt.dp_delta, job.clients.number
    if job.protection.name != "dp_encrypt" or number is None or delta * number <= 1:
        return None
    return (
        f"protection.dp_encrypt.dp_delta = {delta!r} is above 1/clients = {1 / number:g}: "
        f"a mechanism that shows one client's data outright is then within the promise"
    )


@RULES.advised
def _step_small(job: JobFields) -> str | None:
    server = job.server
    if server.optimizer not in ("adam", "yogi") or server.lr < 1:
        return None
    return (
        f"server.lr = {server.lr!r} under server.optimizer = {server.optimizer} moves every weight "
        f"by about as much in a round, which is rarely meant"
    )


@RULES.advised
def _promise_made(job: JobFields) -> str | None:
    if job.privacy.max_epsilon is None or job.protection.name != "not_encrypt":
        return None
    return (
        f"privacy.max_epsilon = {job.privacy.max_epsilon!r} ends the run before its first round: "
        f"a report under not_encrypt has no finite epsilon"
    )


#: Keys that only one setting of another key reads: place -> (the other key, those settings).
_READ_UNDER = {
    ("data", "shards_per_client"): ("split", ("shards",)),
    ("data", "alpha"): ("split", ("dirichlet",)),
    ("server", "momentum"): ("optimizer", ("momentum",)),
    ("server", "beta1"): ("optimizer", ("adam", "yogi")),
    ("server", "beta2"): ("optimizer", ("adam", "yogi")),
    ("server", "tau"): ("optimizer", ("adam", "yogi")),
}


@RULES.advised
def _values_read(job: JobFields) -> str | None:
    unread = []
    for (block, key), (other, settings) in _READ_UNDER.items():
        held = getattr(job, block)
        value, default = getattr(held, key), type(held).model_fields[key].default
        if value != default and getattr(held, other) not in settings:
            unread.append(
                f"{block}.{key} = {shown(value)} has no effect under "
                f"{block}.{other} = {getattr(held, other)}"
            )
    return "; ".join(unread) or None
