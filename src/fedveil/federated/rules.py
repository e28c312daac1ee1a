"""The rules between the keys of a job, and the advice about them."""

from __future__ import annotations

from fedveil.errors import nearest
from fedveil.federated.blocks import IMAGE_FOLDER, JobFields
from fedveil.federated.language_rules import add_language_rules
from fedveil.federated.protection_rules import add_rules_of_protections
from fedveil.federated.training_rules import add_training_rules
from fedveil.protections.catalog import POSITIONS, fault_phases
from fedveil.settings.allowed import plain, shown
from fedveil.settings.rules import Rules

RULES = Rules[JobFields]()

#: The values of training's keys with which a round is one step of plain SGD.
ONE_STEP = {
    "epochs": 1, "optimizer": "sgd", "momentum": 0, "weight_decay": 0, "engine": "auto",
    "proximal": 0, "gradient_norm": None,
}  # fmt: skip


@RULES.rule("clients.number", "data.split")
def _clients_known(job: JobFields) -> str | None:
    """`clients.number: null` is allowed only with `data.split: by_client` or `writers`. With other
    splits, `clients.number` must be a number.

    Returns an error message, or None if the job follows this rule.
    """
    if job.clients.number is not None or job.data.by_owner:
        return None
    return (
        "clients.number = null is allowed only under data.split = by_client or writers; under "
        f"{job.data.split} use a whole number in [1, inf)"
    )


@RULES.rule("data.name", "data.split")
def _owners_known(job: JobFields) -> str | None:
    """`data.split: by_client` needs data with owners: femnist, shakespeare, or your own data.

    Returns an error message, or None if the job follows this rule.
    """
    if job.data.split != "by_client" or job.data.may_have_owners:
        return None
    return (
        f"data.split = by_client needs data with owners, and {job.data.name} has none: use "
        f"{', '.join(job.data.OWNED)}, or package.module:function"
    )


@RULES.rule("data.name", "data.split")
def _writers_known(job: JobFields) -> str | None:
    """`data.split: writers` needs `data.name: mnist`, whose images have known writers.

    Returns an error message, or None if the job follows this rule.
    """
    if job.data.split != "writers" or job.data.name == "mnist":
        return None
    return (
        f"data.split = writers needs data.name = mnist, and {job.data.name} names no writers: use "
        f"mnist, or by_client for data with owners"
    )


@RULES.rule("data.name", "data.folder")
def _folder_named(job: JobFields) -> str | None:
    """`data.name: image_folder` needs `data.folder`, the folder of your images.

    Returns an error message, or None if the job follows this rule.
    """
    if job.data.name != IMAGE_FOLDER or job.data.folder is not None:
        return None
    return (
        "data.name = image_folder needs data.folder: name the folder that holds train/CLASS/ and "
        "test/CLASS/"
    )


@RULES.rule("training.optimizer", "training.momentum", "training.nesterov")
def _momentum_is_sgds(job: JobFields) -> str | None:
    """`training.momentum` needs `training.optimizer: sgd`, and must be 0 under other optimisers.
    `training.nesterov` needs a momentum above 0.

    Returns an error message, or None if the job follows this rule.
    """
    if job.training.nesterov and job.training.momentum == 0:
        return "training.nesterov = true needs a training.momentum above 0"
    if job.training.optimizer == "sgd" or job.training.momentum == 0:
        return None
    return (
        f"training.momentum = {job.training.momentum!r} needs training.optimizer = sgd; under "
        f"{job.training.optimizer} only 0 is allowed"
    )


@RULES.rule("rounds", "training")
def _rate_lasts(job: JobFields) -> str | None:
    """The learning rate of the last round must be at least 1e-30, unless `training.lr_schedule`
    names a function of yours.

    Returns an error message, or None if the job follows this rule.
    """
    rate = job.training.planned_rate(job.rounds)
    if rate is None or rate >= 1e-30:
        return None
    return (
        f"training.lr_schedule = {job.training.lr_schedule} gives the rate {rate!r} in round "
        f"{job.rounds:,}, but at least 1e-30 is needed: use a larger lr, lr_factor or lr_rounds"
    )


@RULES.rule("protection", "privacy.unit")
def _unit_kept(job: JobFields) -> str | None:
    """`privacy.unit: example` needs a protection that can state its privacy loss for one example.

    Returns an error message, or None if the job follows this rule.
    """
    if job.privacy.unit in job.protection.position.units(job.protection.settings):
        return None
    able = [n for n, p in POSITIONS.items() if job.privacy.unit in p.units(p.settings_type())]
    first, *others = reversed(able)  # the strongest first
    return (
        f"privacy.unit = {job.privacy.unit} is not offered by protection.name = "
        f"{job.protection.name} with these parameters, which protects a client's update as a "
        f"whole. Write `protection: {first}` (or {' or '.join(others)}), or leave privacy.unit "
        f"and training.sampling_rate out"
    )


@RULES.rule("privacy.unit", "training")
def _one_step_of_examples(job: JobFields) -> str | None:
    """`privacy.unit: example` trains by one step of plain SGD per round, on a batch that is drawn
    with `training.sampling_rate`: `training.epochs` is 1, `optimizer` is sgd, `momentum`,
    `weight_decay` and `proximal` are 0, `gradient_norm` is null and `engine` is auto.
    `sampling_rate` needs `privacy.unit: example`.

    Returns an error message, or None if the job follows this rule.
    """
    training = job.training
    if job.privacy.unit != "example":
        if training.sampling_rate is None:
            return None
        return (
            f"training.sampling_rate = {training.sampling_rate!r} needs privacy.unit = example; "
            f"under {job.privacy.unit} every example is in every epoch"
        )
    if training.sampling_rate is None:
        return (
            "training.sampling_rate = null: privacy.unit = example needs the probability, in "
            "(0, 1], of an example to be in a round's batch"
        )
    wrong = [
        f"training.{key} = {shown(getattr(training, key))} is not {shown(value)}"
        for key, value in ONE_STEP.items()
        if getattr(training, key) != value
    ]
    if not wrong:
        return None
    return f"{', '.join(wrong)}: under privacy.unit = example a round is one step of plain SGD"


@RULES.rule("privacy.unit", "audit.canaries")
def _canaries_are_clients(job: JobFields) -> str | None:
    """`audit.canaries` needs `privacy.unit: client`: a canary is a whole client.

    Returns an error message, or None if the job follows this rule.
    """
    if not job.audit.canaries or job.privacy.unit == "client":
        return None
    return (
        f"audit.canaries = {job.audit.canaries} needs privacy.unit = client: a canary is a whole "
        "client in every round, not an example that is rarely in a batch"
    )


@RULES.rule("protection.name", "server.weighting")
def _weighs_equally(job: JobFields) -> str | None:
    """`server.weighting: by_size` reveals to the server how much data each client has, and lets a
    client change the sum by more than the sensitivity. It is refused under a protection that
    perturbs reports, and under central_gaussian and pw_encrypt's `central_eps`.

    Returns an error message, or None if the job follows this rule.
    """
    explicit = "weighting" in job.server.model_fields_set
    if not (explicit and job.server.weighting == "by_size" and job.protection.noised):
        return None
    what = job.protection.name
    why = (
        "reveals to the server how much data each client has and breaks the sensitivity of "
        "local privacy"
    )
    if not job.protection.position.perturbs:
        why = "breaks the sensitivity of central noise"
        key = job.protection.position.noise_key
        what += f" with {key}" if key else ""
    return f"server.weighting = by_size {why}; under protection.name = {what} only equal is allowed"


add_training_rules(RULES)


@RULES.rule("protection.name", "server.aggregation")
def _reports_seen(job: JobFields) -> str | None:
    """`server.aggregation: median` and `trimmed_mean` need a protection under which the server sees
    single reports: not_encrypt or dp_encrypt. `norm_bound` needs not_encrypt.

    Returns an error message, or None if the job follows this rule.
    """
    chosen = job.server.aggregation
    if chosen in job.protection.position.combinations:
        return None
    able = [name for name, p in POSITIONS.items() if chosen in p.combinations]
    return (
        f"server.aggregation = {chosen} is refused under protection.name = "
        f"{job.protection.name}, whose server sees only the sum of reports, or reports that are "
        f"already clipped: use {' or '.join(able)}, or mean"
    )


@RULES.rule("server.aggregation", "server.weighting")
def _middle_of_equals(job: JobFields) -> str | None:
    """`server.aggregation: median` and `trimmed_mean` need `server.weighting: equal`.

    Returns an error message, or None if the job follows this rule.
    """
    explicit = "weighting" in job.server.model_fields_set
    if not (explicit and job.server.weighting == "by_size" and job.server.holds_reports):
        return None
    return (
        "server.weighting = by_size is not defined under server.aggregation = "
        f"{job.server.aggregation}: only equal is allowed"
    )


@RULES.rule("protection", "simulation.dropouts")
def _phases_known(job: JobFields) -> str | None:
    """The keys of `simulation.dropouts` must be phases of the chosen protection, or of a built-in
    protection.

    Returns an error message, or None if the job follows this rule.
    """
    known = fault_phases(job.protection.position)
    strangers = [
        f"simulation.dropouts.{plain(name)} is not a known key"
        f"{nearest(name, known)}; the keys are "
        f"{', '.join(known)}"
        for name in job.simulation.dropouts
        if name not in known
    ]
    return "; ".join(strangers) or None


add_rules_of_protections(RULES)
add_language_rules(RULES)


@RULES.rule("clients.number", "deployment.start_clients")
def _enough_to_start(job: JobFields) -> str | None:
    """`deployment.start_clients` must be at most `clients.number`.

    Returns an error message, or None if the job follows this rule.
    """
    wanted, number = job.deployment.start_clients, job.clients.number
    if wanted is None or number is None or wanted <= number:
        return None
    return f"deployment.start_clients = {wanted} is outside [1, {number}], the number of clients"


@RULES.rule("protection", "deployment")
def _answers_in_time(job: JobFields) -> str | None:
    """`deployment.answer_after_s` must be below `deployment.answer_s`, or below
    `cipher_time_window` if the protection has that parameter.

    Returns an error message, or None if the job follows this rule.
    """
    after, protection = job.deployment.answer_after_s, job.protection
    own = protection.position.window(protection.settings)
    key, window = own or ("answer_s", job.deployment.answer_s)
    if after is None or after < window:
        return None
    return (
        f"deployment.answer_after_s = {after!r} is outside (0, {window:g}): the server waits "
        f"{window:g} seconds ({key})"
    )


@RULES.rule("protection", "clients.sampling", "privacy.unit")
def _cohorts_may_differ(job: JobFields) -> str | None:
    """`clients.sampling: poisson` needs a protection with a single phase, or distributed_dp with
    `privacy.unit: client`. It is refused under pw_encrypt, whose rounds need a cohort of known
    size.

    Returns an error message, or None if the job follows this rule.
    """
    position = job.protection.position
    if job.secret_turns and job.privacy.unit == "example":
        return (
            "clients.sampling = poisson is refused under privacy.unit = example: it would draw "
            "all of a client's examples together, but each counts separately"
        )
    if job.clients.sampling == "fixed" or position.secret_turns or len(position.phases) == 1:
        return None
    return (
        f"clients.sampling = poisson is refused under protection.name = {job.protection.name}: "
        "its rounds need a cohort of known size, so only fixed is allowed"
    )


@RULES.rule("clients", "protection.name", "audit.canaries")
def _canaries_few(job: JobFields) -> str | None:
    """`audit.canaries` must be at most the number of clients that a round draws.

    Returns an error message, or None if the job follows this rule.
    """
    if job.clients.number is None or job.audit.canaries <= job.clients_per_round:
        return None
    return (
        f"audit.canaries = {job.audit.canaries} is outside [0, {job.clients_per_round}]: more "
        "canaries than clients in a round would drown what the clients have learnt"
    )


@RULES.rule("protection", "audit.canaries")
def _reports_auditable(job: JobFields) -> str | None:
    """`audit.canaries` needs reports of single clients: under rr and oue, `fidelity: per_client`.

    Returns an error message, or None if the job follows this rule.
    """
    if not job.audit.canaries:
        return None
    needed = job.protection.position.unauditable(job.protection.settings)
    return needed and f"audit.canaries = {job.audit.canaries} needs {needed}"


@RULES.advised
def _step_small(job: JobFields) -> str | None:
    server = job.server
    if server.optimizer not in ("adagrad", "adam", "yogi") or server.lr < 1:
        return None
    return (
        f"server.lr = {server.lr!r} under server.optimizer = {server.optimizer} moves every "
        "weight by about that much in a round, which is rarely intended"
    )


@RULES.advised
def _promise_made(job: JobFields) -> str | None:
    if job.privacy.max_epsilon is None or job.protection.name != "not_encrypt":
        return None
    return (
        f"privacy.max_epsilon = {job.privacy.max_epsilon!r} ends the run before its first round: "
        f"a report under not_encrypt has no finite epsilon"
    )


@RULES.advised
def _values_read(job: JobFields) -> str | None:
    unread = list(job.protection.unread())
    for name in ("data", "adapter", "training", "server"):
        block = getattr(job, name)
        unread += [
            f"{name}.{key} = {shown(getattr(block, key))} has no effect under "
            f"{name}.{other} = {getattr(block, other)}"
            for key, other in block.without_effect()
        ]
    return "; ".join(unread) or None
