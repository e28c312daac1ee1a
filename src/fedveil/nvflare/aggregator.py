"""The server's half of a protection on NVFlare, for reports that are no plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants

from fedveil.base.message import decode
from fedveil.errors import FedveilError, MessageInvalid, RoundVoid
from fedveil.flower.app.arrays import ArrayLayout
from fedveil.nvflare.terms import REPORT, Terms, number_of, shaped
from fedveil.protections.base import RoundContext, ServerRound


class ProtectedAggregator(Aggregator):  # type: ignore[misc]
    """Adds up the reports that `SiteResultFilter` lets out with `plain: false`.

    `protection` must equal that of the sites' filters. The result is the mean update (WEIGHT_DIFF).
    A round without any valid report leaves the model as it is.
    """

    def __init__(self, protection: Mapping[str, Any]) -> None:
        super().__init__()
        self._terms = Terms.read(protection)
        self._half: ServerRound | None = None
        self._layout: ArrayLayout | None = None

    def reset(self, fl_ctx: FLContext) -> None:
        """Forget the round."""
        self._half = self._layout = None

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Add a site's report. Returns False, and adds nothing, if it is not valid."""
        site = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, ""))
        try:
            data = from_shareable(shareable).data
            report = data.get(REPORT)
            if set(data) != {REPORT} or not isinstance(report, bytes):
                raise MessageInvalid("it is no report of fedveil's filter")
            half = self._round(fl_ctx)
            half.receive(number_of(site), decode(report, half.longest))
        except (FedveilError, ValueError, AttributeError) as error:
            self.log_error(fl_ctx, f"refused the result of {site}: {error}")
            return False
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Return the mean update of the round's reports."""
        half = self._round(fl_ctx)
        layout = self._layout
        assert layout is not None, "a round has a layout"
        half.advance()
        try:
            update = half.aggregate().update
        except RoundVoid as void:
            self.log_warning(fl_ctx, str(void))
            update = np.zeros(layout.dimension)
        self.reset(fl_ctx)
        return DXO(DataKind.WEIGHT_DIFF, shaped(layout, update)).to_shareable()

    def _round(self, fl_ctx: FLContext) -> ServerRound:
        """Return the server's half of the round, made with the round's first report."""
        if self._half is None:
            model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
            self._layout = self._terms.layout(model)
            protection = self._terms.protection(self._layout.dimension)
            cohort = sorted(number_of(c.name) for c in fl_ctx.get_engine().get_clients())
            number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
            vector = self._layout.vector(model)
            state = protection.initial_state()
            self._half = protection.server_round(RoundContext(cohort, number, vector, state))
        return self._half
