"""A question file: typed settings, fully checked before any row is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from fedveil.errors import JobError
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.privacy.loss import exactly
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.settings import allowed
from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.settings import RunName
from fedveil.statistics.filters import Filter
from fedveil.statistics.question_rules import problems_of
from fedveil.statistics.question_settings import QuestionSettings

Unit: TypeAlias = Literal["client", "row"]
#: Protections whose reports are perturbed one-hot codes.
LOCAL = ("rr", "oue")
#: Protections that sum vectors.
SUMS = ("not_encrypt", "dp_encrypt", "pw_encrypt", "distributed_dp", "central_gaussian")
#: The settings of a protection that the question determines.
_COMPUTED = {
    "not_encrypt": ("max_examples",),
    "dp_encrypt": ("dp_eps", "dp_delta", "dp_norm_clip", "noise"),
    "pw_encrypt": ("clip", "max_examples", "central_eps", "central_delta", "central_norm_clip"),
    "distributed_dp": ("clip", "noise_multiplier", "target_epsilon", "clip_quantile", "bits"),
    "central_gaussian": ("clip", "noise_multiplier", "target_epsilon", "clip_quantile"),
    "unary": ("eps", "cells", "report", "target", "clip", "adaptive", "total_eps", "fidelity"),
}


class QuestionFile(CheckedJob):
    """A file of questions about the rows of clients. One epsilon covers all answers together."""

    name: RunName = Field("question", description="name of the folder for the answers")
    data: str = Field(
        "",
        description="a CSV or Parquet file, a data set of fedveil, or a function "
        "(package.module:function) that returns columns by name",
    )
    client: str | None = Field(
        None, description="column with the client of each row. null: each row is its own client"
    )
    unit: Unit = Field(
        "client", description="the data that the epsilon covers: all rows of a client, or one row"
    )
    rows: int | None = Field(
        None,
        ge=1,
        le=1 << 24,
        description="largest number of rows that a client contributes. They are drawn at random. "
        "null: 1 under `unit: client`; as many as a report can carry under `unit: row`. rr and oue "
        "under `unit: row` need a number, because they pad every report to it",
    )
    where: str | None = Field(None, description="condition: all questions count only these rows")
    protection: ProtectionSettings = Field(
        default_factory=ProtectionSettings, description="the protection of every report"
    )
    epsilon: float | None = Field(
        None, ge=1e-3, le=700, description="epsilon of all answers together. null: no noise"
    )
    delta: float = Field(1e-6, gt=0, lt=1, description="the delta of `epsilon`")
    max_epsilon: float | None = Field(
        None, gt=0, description="a round that would bring the account above this epsilon is refused"
    )
    account: str | None = Field(
        None,
        description="file of the data set's privacy account. Trainings (`privacy.account`) and "
        "other questions charge the same file",
    )
    confidence: float = Field(
        0.95,
        gt=0.5,
        le=0.999999,
        description="probability that an interval contains the true value",
    )
    randomness: Literal["secure", "seeded"] = Field(
        "secure", description="source of the noise. seeded: computed from `seed`, only to simulate"
    )
    seed: int = Field(1, ge=0, description="seed of all randomness that need not be secret")
    fidelity: Literal["per_client", "aggregate"] = Field(
        "per_client",
        description="per_client: every client makes its report. aggregate: the sum of all reports "
        "is drawn from its exact distribution (rr and oue, simulation only)",
    )
    masks: bool = Field(
        True,
        description="if false, secure aggregation omits the masks. The sums are equal (simulation "
        "only)",
    )
    answer_s: float = Field(
        600.0, gt=0, description="seconds for which a deployed server waits for a report"
    )
    clients: int | None = Field(
        None, ge=1, description="number of clients in a deployment. null: as many as in `data`"
    )
    questions: dict[str, QuestionSettings] = Field(
        default_factory=dict, description="the questions, each under the name of its answer"
    )

    @property
    def local(self) -> bool:
        """True under rr and oue, whose reports are perturbed one-hot codes."""
        return self.protection.name in LOCAL

    @property
    def position(self) -> type[Protection]:
        """The Python class that implements the chosen protection."""
        return POSITIONS[self.protection.name]

    @property
    def rests_on_server(self) -> bool:
        """True if the server adds the noise: the epsilon then holds against everyone else."""
        settings, noise_key = self.protection.settings, self.position.noise_key
        if self.epsilon is not None and noise_key is not None:  # `epsilon` turns this noise on
            settings = settings.model_copy(update={noise_key: self.epsilon})
        return self.position.rests_on_server(settings)

    @property
    def codes(self) -> int:
        """The number of codes in a report under rr and oue: `rows` under `unit: row`, else 1."""
        return self.rows or 1 if self.unit == "row" else 1

    @property
    def rows_of_a_client(self) -> int | None:
        """The largest number of rows that a client contributes. None means all its rows."""
        return 1 if self.rows is None and self.unit == "client" else self.rows

    def conditions(self, question: QuestionSettings) -> list[Filter]:
        """Return the conditions that a row must meet to count for `question`.

        They are the condition `where` of the whole file and that of the question, if they are
        given.
        """
        return [Filter(text) for text in (self.where, question.where) if text is not None]

    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]:
        if wrong:
            return []
        problems = [*self._protection_problems(), *self._value_problems()]
        for name, question in self.questions.items():
            problems += problems_of(f"questions.{name}", question)
        return problems

    def _value_problems(self) -> Iterator[str]:
        if not self.questions:
            yield "questions is empty: write at least one, such as `questions: {all: {ask: count}}`"
        conditions = {f"questions.{name}.where": q.where for name, q in self.questions.items()}
        for place, text in {"where": self.where, **conditions}.items():
            if text is not None:
                try:
                    Filter(text, place)
                except JobError as error:
                    yield from error.problems
        if self.local and self.unit == "row" and self.rows is None:
            yield (
                f"rows is missing: under {self.protection.name} and unit = 'row', every report has "
                "the same number of codes, such as `rows: 100`"
            )
        elif self.local and self.unit == "client" and (self.rows or 1) > 1:
            yield (
                f"rows = {self.rows} needs unit = 'row' or a protection that sums vectors: under "
                f"{self.protection.name} and unit = 'client' a client reports one of its rows"
            )
        elif (self.rows or 1) > 1 and self.client is None and self.clients is None:
            yield (
                f"rows = {self.rows} needs client, the column that names each row's client: "
                "without it, every row is a client"
            )
        if self.fidelity == "aggregate" and not self.local:
            yield (
                f"fidelity = 'aggregate' is for rr and oue: {self.protection.name} needs "
                "fidelity = 'per_client'"
            )

    def _protection_problems(self) -> Iterator[str]:
        name = self.protection.name
        if "name" not in self.protection.model_fields_set:
            yield f"protection is missing: name one of {', '.join((*SUMS, *LOCAL))}"
            return
        if name not in (*SUMS, *LOCAL):
            yield (
                f"protection.name = {name!r} carries no statistics: use one of "
                f"{', '.join((*SUMS, *LOCAL))}"
            )
            return
        block = self.position.block or name
        held = getattr(self.protection, block)
        for key in _COMPUTED[block]:
            if getattr(held, key) != type(held).model_fields[key].default:
                yield (
                    f"protection.{block}.{key} follows from epsilon, delta and the questions: "
                    "remove the line"
                )
        always = self.position.noised(self.protection.settings)
        if self.epsilon is None and always:
            yield f"epsilon is missing: {name} adds the noise of an epsilon, such as `epsilon: 1`"
        if self.epsilon is not None and not always and self.position.noise_key is None:
            promised = f"epsilon = {exactly(self.epsilon)}"
            yield f"{promised} promises what {name} does not keep: remove it"
        if self.unit == "row" and name == "pw_encrypt":
            yield (
                "unit = 'row' is not possible under pw_encrypt, which has no noise for a row: use "
                "unit = 'client', or distributed_dp or central_gaussian"
            )
