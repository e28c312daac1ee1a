"""Turns an exception of a job's executor into a result, which the site's filters replace.

NVFlare answers an exception of an executor at once, with a return code that passes no filter. The
server would learn that the training failed, and when. NVFlare also answers at once if the server
has ended the job meanwhile. So an executor then returns only when a report would leave.
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


def hide_failures(fl_ctx: FLContext, task: str, wait: Callable[[FLContext], None]) -> None:
    """Make the executor of the task named `task` return an error instead of raising it.

    `fl_ctx` is the context of the task. If the task is aborted, `wait` is called with its context
    before the executor returns. Raises `SiteRefused` if the executor cannot be found.
    """
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    executor = None if runner is None else runner.find_executor(task)
    if executor is None:
        raise SiteRefused(
            f"the executor of the task {task} cannot be found, so its errors would leave the site"
        )
    if not isinstance(executor.execute, _Executing):
        executor.execute = _Executing(executor, wait)


class _Executing:
    """Calls an executor, and always returns a `Shareable`.

    If the executor raises an exception or returns something else, the `Shareable` has the return
    code of an error. An interrupt (`interrupts`) is raised again. If the task is aborted, `wait` is
    called first.
    """

    def __init__(self, executor: Executor, wait: Callable[[FLContext], None]) -> None:
        self._executor, self._wait = executor, wait
        self._execute: Callable[..., Any] = executor.execute

    def __call__(self, task: str, data: Shareable, fl_ctx: FLContext, abort: Any) -> Shareable:
        result = self._result(task, data, fl_ctx, abort)
        if abort.triggered:  # no filter will see the result
            self._wait(fl_ctx)
        return result

    def _result(self, task: str, data: Shareable, fl_ctx: FLContext, abort: Any) -> Shareable:
        try:
            result = self._execute(task, data, fl_ctx, abort)
        except BaseException as error:
            if interrupts(error):
                raise
            self._executor.log_exception(fl_ctx, f"the executor of the task {task} failed")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        right = isinstance(result, Shareable)
        return result if right else make_reply(ReturnCode.EXECUTION_RESULT_ERROR)
