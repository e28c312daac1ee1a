"""Conditions under which a run stops early, and the round whose model it saves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedveil.settings.settings import Block, text

MetricName = Annotated[str, text("the name of a figure in the rounds' records", r"[a-z][a-z0-9_]*")]


class StoppingSettings(Block):
    """The conditions under which a run stops early, and the choice of the model that it saves.

    Choosing a model by its results on the test examples makes these results too good. Use other
    examples to judge the chosen model.
    """

    metric: MetricName | None = Field(
        None,
        description="the metric of the rounds' records that decides. null: the first of "
        "`evaluation.metrics`",
    )
    target: float | None = Field(
        None, description="the run stops when the metric reaches this value. null: never"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="the run stops after this number of tests without a better value. null: never",
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="the model to save. last: the model of the last round. best: the best tested "
        "model",
    )

    @property
    def may_end(self) -> bool:
        """True if a run may end before its last round."""
        return self.target is not None or self.patience is not None
