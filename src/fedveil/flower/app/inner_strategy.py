"""Checks that `ProtectedStrategy` can wrap a user's strategy."""

from __future__ import annotations

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from fedveil.errors import InvalidValue

#: These inspect every client's own arrays or losses, which a protection hides.
NEEDS_EVERY_UPDATE = (
    flower.FedMedian,
    flower.FedTrimmedAvg,
    flower.MultiKrum,
    flower.Bulyan,
    flower.QFedAvg,
    flower.FedXgbBagging,
    flower.FedXgbCyclic,
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
)
#: These average their replies and continue from there, so one reply with the average also works.
_AVERAGING = (
    flower.FedAvg,
    flower.FedAvgM,
    flower.FedProx,
    flower.FedAdagrad,
    flower.FedAdam,
    flower.FedYogi,
)


def check_inner(strategy: Strategy, *, takes_averages: bool) -> None:
    """Raise `InvalidValue` if `strategy` cannot work with a single reply, the average over clients.

    A strategy that overrides the aggregation is refused unless `takes_averages` is True.
    """
    kind = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise InvalidValue(f"strategy is a {kind}, not one of flwr.serverapp.strategy")
    if isinstance(strategy, NEEDS_EVERY_UPDATE):
        raise InvalidValue(
            f"strategy = {kind}(...) looks at every client's own reply, which nobody sees under a "
            f"protection: one that averages them is needed (FedAvg, FedAvgM, FedProx, FedAdagrad, "
            f"FedAdam, FedYogi)"
        )
    if type(strategy).start is not Strategy.start:
        raise InvalidValue(
            f"strategy = {kind}(...) has a start() of its own, which would not be called: derive "
            f"that class from ProtectedStrategy, or put it around one"
        )
    own = _own_aggregation(strategy)
    if own is not None and not takes_averages:
        raise InvalidValue(
            f"strategy = {kind}(...) has its own {own}, which is given one reply a round, the "
            f"average of all clients: ProtectedStrategy(..., takes_averages=True) says that it "
            f"can take that"
        )


def _own_aggregation(strategy: Strategy) -> str | None:
    aggregate = getattr(strategy.aggregate_train, "__func__", None)
    if aggregate not in [known.aggregate_train for known in _AVERAGING]:
        return "aggregate_train"
    metrics = getattr(strategy, "train_metrics_aggr_fn", None)
    return None if metrics is FedAvg().train_metrics_aggr_fn else "train_metrics_aggr_fn"
