"""The executor for tasks that carry a message of secure aggregation and need no training.

The executor does nothing. The site's filters read the message and send the answer.
"""

from __future__ import annotations

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal


class PhaseExecutor(Executor):  # type: ignore[misc]
    """Runs the NVFlare task `fedveil_phase`, for which no client trains.

    The task carries a message of secure aggregation. List this class in a job's `executors`.
    """

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Return an empty result, which the site's filter replaces by the site's answer."""
        return Shareable()
