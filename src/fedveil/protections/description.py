"""A protection's description: its names, rules and advice, and what its settings imply.

Everything here belongs to the class. Commands, rules of a job, MindSpore's names, Flower apps and
pages read it without creating a protection.
"""

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
    """A protection as known from its class alone: its name, settings and rules.

    Every member has a default.
    """

    #: The name by which a job chooses it; a class of your own is named by its module and class.
    name: ClassVar[str] = ""
    #: The block of a job that holds the parameters (None if it has none), and their type.
    block: ClassVar[str | None] = "own"
    settings_type: ClassVar[type[Settings]] = Settings
    #: True if reports are perturbed. Clients then count equally, since neither the guarantee nor
    #: BatchNorm's statistics survive weights and noise.
    perturbs: ClassVar[bool] = True
    #: The parameter that decides what a report costs (`cost_key`), or None.
    cost_parameter: ClassVar[str | CostKey | None] = None
    #: Rules between its parameters and other keys: enforced (`rules`), or only advised (`advice`).
    rules: ClassVar[tuple[Rule, ...]] = ()
    advice: ClassVar[tuple[Rule, ...]] = ()
    dialect: ClassVar[Dialect] = Dialect(theirs=False)
    #: True if secret cohorts (`JobContext.poisson`) amplify its loss. A round's result is then a
    #: noised sum over a constant, whoever is in the cohort and even if nobody is.
    amplified: ClassVar[bool] = False
    #: True if clients draw secret cohorts themselves: all of them answer, most with noise alone.
    secret_turns: ClassVar[bool] = False
    #: Combinations of reports that its server allows; True if reports may hold control variates.
    combinations: ClassVar[tuple[Combination, ...]] = ("mean",)
    takes_variates: ClassVar[bool] = False
    #: Where it adds its Gaussian noise. None if its noise is of another kind, or if it has none.
    gaussian_noise: ClassVar[Literal["report", "sum"] | None] = None
    #: True if a user's own Flower app may use it.
    for_apps: ClassVar[bool] = True
    #: The key that turns its noise on; None if it always or never has noise.
    noise_key: ClassVar[str | None] = None
    #: A compiled loop that its clients call: once it is in the cache, so are its other loops.
    loop: ClassVar[Callable[..., object] | None] = None
    #: What it hides even from those against whom it guarantees nothing.
    hides: ClassVar[str] = ""
    #: What to try next if a run with it guarantees nothing.
    stronger: ClassVar[Stronger] = Stronger(
        "dp_encrypt", "choose a protection", "with noise in every report"
    )

    @classmethod
    def window(cls, settings: Any) -> tuple[str, float] | None:
        """Return the settings key of the protection's own phase deadline, and its value in seconds.

        Returns None if the protection has no deadline of its own.
        """
        return None

    @classmethod
    def adapts(cls, settings: Any) -> bool:
        """Return True if a protection with these settings is adaptive (`Protection.adaptive`)."""
        return False

    @classmethod
    def for_rounds(cls, settings: Any) -> str | None:
        """Return the job key that makes a round's noise depend on the number of rounds, or None."""
        return None

    @classmethod
    def cost_key(cls, settings: Any) -> CostKey | None:
        """Return the key that `fedveil budget --target-epsilon` solves for.

        By default, a smaller value costs less.
        """
        named = cls.cost_parameter
        return CostKey(named) if isinstance(named, str) else named

    @classmethod
    def units(cls, settings: Any) -> Sequence[Whose]:
        """Return the units, client or example, for which the protection can state its losses."""
        return ("client",)

    @classmethod
    def rests_on_server(cls, settings: Any) -> bool:
        """Return True if the protection's guarantee relies on noise that the server adds."""
        return False

    @classmethod
    def against(cls, settings: Any) -> str:
        """Name the attackers against whom the guarantee holds."""
        trusted = cls.rests_on_server(settings)
        return "everyone except the server" if trusted else "everyone, including the server"

    @classmethod
    def noised(cls, settings: Any) -> bool:
        """Return True if clients or server add noise to the aggregate.

        Clients then count equally.
        """
        return cls.perturbs or cls.rests_on_server(settings)

    @classmethod
    def needs_roster(cls, settings: Any) -> bool:
        """Return True if clients sign messages, and so need each other's public keys."""
        return False

    @classmethod
    def unfit_for_apps(cls, settings: Any) -> str | None:
        """Return why a user's own Flower app cannot use these parameters, or None."""
        return None

    @classmethod
    def weaker(
        cls, asked: Any, demanded: Any, clients: int, expected: int | None = None
    ) -> str | None:
        """Return why the settings `asked` protect less than the settings `demanded`, or None.

        The losses of a report are compared elsewhere. `asked` is a server's offer for `clients`
        clients. `demanded` is a client's own demand, which may be stated for another number of
        clients, `expected`.
        """
        return None

    @staticmethod
    def audit_cases(eps: float) -> Iterable[Case]:
        """Yield audit cases for the protection's mechanisms, each with a loss of about `eps`."""
        return ()
