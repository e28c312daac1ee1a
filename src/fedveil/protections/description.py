"""A protection's properties that depend only on its class, such as name, rules and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from fedveil.privacy.audit import Case
from fedveil.protections.advice import Rule, Stronger
from fedveil.protections.audited import Audited
from fedveil.protections.cost_key import CostKey
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.robust_combining import Combination
from fedveil.settings.settings import Settings

#: The unit that a loss protects: all data of a client, or one of its examples.
Whose: TypeAlias = Literal["client", "example"]


class Description(Audited):
    """Properties of a protection's Python class, such as its name. Every member has a default."""

    #: The name by which a job chooses the protection. A user's own is named by module and class.
    name: ClassVar[str] = ""
    #: The block of a job that holds the parameters (None if it has none), and their type.
    block: ClassVar[str | None] = "own"
    settings_type: ClassVar[type[Settings]] = Settings
    #: True if reports are perturbed. The guarantee then needs equal weights of clients, and models
    #: without BatchNorm's statistics, because noise may make a variance negative.
    perturbs: ClassVar[bool] = True
    #: True if a report is the update itself, so that making it takes no time.
    plain_reports: ClassVar[bool] = False
    #: The parameter that decides what a report costs (`cost_key`), or None.
    cost_parameter: ClassVar[str | CostKey | None] = None
    #: Rules between its parameters and other keys: enforced (`rules`), or only advised (`advice`).
    rules: ClassVar[tuple[Rule, ...]] = ()
    advice: ClassVar[tuple[Rule, ...]] = ()
    dialect: ClassVar[Dialect] = Dialect(theirs=False)
    #: True if secret cohorts (`JobContext.poisson`) amplify the guarantee. A round then releases a
    #: noised sum divided by a constant, even if the cohort is empty.
    amplified: ClassVar[bool] = False
    #: True if clients decide in secret whether to add their updates. All of them send noise.
    secret_turns: ClassVar[bool] = False
    #: The possible ways to combine reports, and True if reports may have control variates.
    combinations: ClassVar[tuple[Combination, ...]] = ("mean",)
    takes_variates: ClassVar[bool] = False
    #: Where Gaussian noise is added: to each report or to the sum. None without Gaussian noise.
    gaussian_noise: ClassVar[Literal["report", "sum"] | None] = None
    #: True if a user's own Flower app may use the protection.
    for_apps: ClassVar[bool] = True
    #: The key that turns the noise on. None if there is always or never noise.
    noise_key: ClassVar[str | None] = None
    #: A compiled function that clients call. If it is in the cache, so are all others.
    loop: ClassVar[Callable[..., object] | None] = None
    #: A phrase for what is hidden even from attackers against whom nothing is guaranteed.
    hides: ClassVar[str] = ""
    #: What to try next if a run guarantees nothing.
    stronger: ClassVar[Stronger] = Stronger(
        "dp_encrypt", "choose a protection", "with noise in every report"
    )

    @classmethod
    def window(cls, settings: Any) -> tuple[str, float] | None:
        """Return the setting that limits the duration of each phase of a round: (key, seconds).

        Returns None if the protection has no such setting.
        """
        return None

    @classmethod
    def adapts(cls, settings: Any) -> bool:
        """Return True if a round's cost depends on earlier rounds under these settings."""
        return False

    @classmethod
    def for_rounds(cls, settings: Any) -> str | None:
        """Return the setting that makes the noise depend on the job's number of rounds, or None.

        The result is a text such as "target_epsilon = 3". A run under such a setting cannot be
        extended to more rounds, because its noise is computed for the original number.
        """
        return None

    @classmethod
    def cost_key(cls, settings: Any) -> CostKey | None:
        """Return the parameter that decides what a report costs, or None if there is none.

        By default, it is the one in the class attribute `cost_parameter`. If the attribute is only
        a name, smaller values cost less.
        """
        named = cls.cost_parameter
        return CostKey(named) if isinstance(named, str) else named

    @classmethod
    def units(cls, settings: Any) -> Sequence[Whose]:
        """Return the units ("client", "example") for which the protection can state its loss."""
        return ("client",)

    @classmethod
    def rests_on_server(cls, settings: Any) -> bool:
        """Return True if the guarantee relies on noise that the server adds."""
        return False

    @classmethod
    def against(cls, settings: Any) -> str:
        """Return a phrase that names the attackers against whom the guarantee holds."""
        trusted = cls.rests_on_server(settings)
        return "everyone except the server" if trusted else "everyone, including the server"

    @classmethod
    def noised(cls, settings: Any) -> bool:
        """Return True if clients or the server add noise. Clients then have equal weights."""
        return cls.perturbs or cls.rests_on_server(settings)

    @classmethod
    def needs_roster(cls, settings: Any) -> bool:
        """Return True if clients sign messages, so that they need each other's public keys."""
        return False

    @classmethod
    def most_per_operator(cls, settings: Any, clients: int) -> int | None:
        """Return how many of a round's `clients` one organisation may run, or None for any number.

        With more clients, this organisation and the server together could unmask the reports of
        other clients.
        """
        return None

    @classmethod
    def unfit_for_apps(cls, settings: Any) -> str | None:
        """Return why a user's own Flower app cannot use these settings, or None if an app can."""
        return None

    @classmethod
    def weaker(
        cls, asked: Any, demanded: Any, clients: int, expected: int | None = None
    ) -> str | None:
        """Return the reason why `asked` protects less than `demanded`, or None if it does not.

        `asked` are the settings of a server, for rounds of `clients` clients. `demanded` are the
        settings on which a client insists, for rounds of `expected` clients. If `expected` is None,
        the client did not say how many. This method does not compare the privacy losses of a
        report.
        """
        return None

    @staticmethod
    def audit_cases(eps: float) -> Iterable[Case]:
        """Yield audit cases: a mechanism, two inputs, and a claimed epsilon of about `eps`."""
        return ()
