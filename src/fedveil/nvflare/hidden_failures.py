"""Turns an exception of a job's executor into a result, which the site's filters replace.

NVFlare answers an exception of an executor at once, with a return code that passes no filter. The
server would learn that the training failed, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.base.own_code import interrupts
from fedveil.errors import SiteRefused


def hide_failures(fl_ctx: FLContext, task: str) -> None:
    """Make the executor of the task named `task` return an error instead of raising it.

    `fl_ctx` is the context of the task. Raises `SiteRefused` if the executor cannot be found.
    """
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    executor = None if runner is None else runner.find_executor(task)
    if executor is None:
        raise SiteRefused(
            f"the executor of the task {task} cannot be found, so its errors would leave the site"
        )
    if not isinstance(executor.execute, _Executing):
        executor.execute = _Executing(executor)


class _Executing:
    """Calls an executor, and always returns a `Shareable`.

    If the executor raises an exception or returns something else, the `Shareable` has the return
    code of an error. An interrupt (`interrupts`) is raised again.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._execute: Callable[..., Any] = executor.execute

    def __call__(self, task: str, data: Shareable, fl_ctx: FLContext, abort: Any) -> Shareable:
        try:
            result = self._execute(task, data, fl_ctx, abort)
        except BaseException as error:
            if interrupts(error):
                raise
            self._executor.log_exception(fl_ctx, f"the executor of the task {task} failed")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        right = isinstance(result, Shareable)
        return result if right else make_reply(ReturnCode.EXECUTION_RESULT_ERROR)
