"""Two filters for a privacy scope of an NVFlare site, and an aggregator for the server.

List `SiteTaskFilter` in `task_data_filters`. It admits a training task, and charges the data set's
account before the data are read. List `SiteResultFilter` in `task_result_filters`. It lets only the
report of an admitted task leave. All other results of an executor stay: metrics, numbers of
examples, headers, errors.

Both filters run in the job's process. A job that uses only classes that the site allows cannot
evade them. Code that the job brings (BYOC) can.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants

from fedveil.errors import (
    FedveilError,
    InvalidValue,
    MessageInvalid,
    ModelInvalid,
    RoundVoid,
    SiteRefused,
)
from fedveil.flower.app.arrays import Arrays
from fedveil.nvflare.hidden_failures import hide_failures
from fedveil.site.nvflare_resources import open_ways
from fedveil.site.one_report import Admitted, SiteReports
from fedveil.site.task_terms import ReportSum, Terms

#: The name of the context property that holds the admitted task.
_ADMITTED = "fedveil.admitted"
#: The field of a result that holds an encoded report.
REPORT = "fedveil.report"
#: The task field with the server side's message, the header with the number of weights, and the
#: name of tasks that need no training.
MESSAGE, DIMENSION, PHASE_TASK = "fedveil.message", "fedveil.dimension", "fedveil_phase"
#: The only text about a refusal that the server receives.
_WORD = "withheld"


class _Task(NamedTuple):
    admitted: Admitted
    plain: bool


class _Message(NamedTuple):
    encoded: bytes


class SiteTaskFilter(Filter):  # type: ignore[misc]
    """Admits training tasks. Charges each task to the site's account before its executor runs.

    `site` is the site's folder, and `data` the name of a data set in the policy. `protection` has
    the keys of a protection that the policy allows. The tasks named in `train_tasks` are training
    tasks (default: "train"). For a protection with secure aggregation, `server` must name a block
    of the policy's `servers`, and tasks named `fedveil_phase` are admitted too. These carry the
    messages of secure aggregation and do not train. All other tasks are refused.

    If `plain` is True, a report leaves as arrays (WEIGHT_DIFF), which NVFlare's own aggregators can
    average. Otherwise, a report leaves as a message for `ProtectedAggregator` or
    `ProtectedController`. If a protection's reports are not arrays, they always leave as messages.
    """

    def __init__(
        self,
        site: str,
        data: str,
        protection: Mapping[str, Any],
        plain: bool = True,
        train_tasks: list[str] | None = None,
        server: str | None = None,
    ) -> None:
        super().__init__()
        self._reports = SiteReports(Path(site), data, protection, "NVFlare", server)
        self._plain = plain and self._reports.terms.plain
        self._tasks = train_tasks or [AppConstants.TASK_TRAIN]

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Admit a task, and return its data. A training task is charged first.

        The server may add a message of the protection to the data. The filter reads this message
        and removes it, so the executor does not receive it. Raises `ContentBlockedException` if the
        task is refused.
        """
        earlier = fl_ctx.get_prop(_ADMITTED)
        _keep(fl_ctx, None)
        name, job = str(fl_ctx.get_prop(FLContextKey.TASK_NAME)), str(fl_ctx.get_job_id())
        try:
            if earlier is not None:
                raise SiteRefused("another filter of a site has admitted this task")
            _keep(fl_ctx, self._admitted(shareable, fl_ctx, name, job))
        except Exception as error:
            self._reports.refused(f"task {name} of job {job}", error)
            raise ContentBlockedException(_WORD) from None
        return shareable

    def _admitted(
        self, shareable: Shareable, fl_ctx: FLContext, name: str, job: str
    ) -> _Task | _Message:
        reports = self._reports
        if name not in (*self._tasks, PHASE_TASK):
            raise SiteRefused(f"reports leave only for the tasks {', '.join(self._tasks)}")
        reports.check_job(_checked_workspace(fl_ctx, job))
        round = shareable.get_header(AppConstants.CURRENT_ROUND, 0)
        site, words = str(fl_ctx.get_identity_name()), shareable.pop(MESSAGE, None)
        if words is not None and not isinstance(words, bytes):
            raise SiteRefused("the task's message is not bytes")
        if name == PHASE_TASK:
            dimension = shareable.get_header(DIMENSION)
            return _Message(
                reports.answer(words or b"", dimension, job=job, site=site, round=round)
            )
        before = _arrays(shareable, DataKind.WEIGHTS)[0]
        hide_failures(fl_ctx, name, _wait)
        admitted = reports.admit(before, job=job, task=name, site=site, round=round, words=words)
        return _Task(admitted, self._plain)


class SiteResultFilter(Filter):  # type: ignore[misc]
    """Lets only the report of an admitted training task leave the site."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return what leaves the site instead of the executor's result, `shareable`.

        After a training task, the protected report leaves. After a task that only carries a message
        of secure aggregation, the site's answer to this message leaves. Raises
        `ContentBlockedException` if no task was admitted, if the executor failed, or if the report
        has already left.
        """
        task = fl_ctx.get_prop(_ADMITTED)
        _keep(fl_ctx, None)
        if isinstance(task, _Message):
            return DXO(DataKind.APP_DEFINED, {REPORT: task.encoded}).to_shareable()
        if not isinstance(task, _Task):
            raise ContentBlockedException(_WORD)

        def after() -> tuple[Arrays, bool]:
            if (code := shareable.get_return_code()) != ReturnCode.OK:
                raise ModelInvalid(f"the task ended with {code}")
            return _arrays(shareable, DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)

        try:
            report = task.admitted.report(after)
            if task.plain:
                return DXO(DataKind.WEIGHT_DIFF, report.arrays()).to_shareable()
            return DXO(DataKind.APP_DEFINED, {REPORT: report.encoded()}).to_shareable()
        except Exception as error:
            task.admitted.reports.refused(f"a report of job {fl_ctx.get_job_id()}", error)
            raise ContentBlockedException(_WORD) from None


class ProtectedAggregator(Aggregator):  # type: ignore[misc]
    """Adds up the sites' reports, if these leave as messages (`plain: false` in `SiteTaskFilter`).

    `protection` must equal that of the sites' filters. The result is the mean update (WEIGHT_DIFF).
    A round without a valid report does not change the model.
    """

    def __init__(self, protection: Mapping[str, Any]) -> None:
        super().__init__()
        self._terms = Terms.read(protection)
        if self._terms.needs_controller:
            raise InvalidValue(f"{self._terms.options.protection} needs ProtectedController")
        self._sum: ReportSum | None = None

    def reset(self, fl_ctx: FLContext) -> None:
        """Discard the reports of the current round."""
        self._sum = None

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Add a site's report to the round. Returns False, and adds nothing, if it is not valid."""
        site = None
        try:
            site = _sender(shareable)
            self._round(fl_ctx).add(site, report_of(shareable))
        except (FedveilError, ValueError) as error:
            self.log_error(fl_ctx, f"refused the result of {site or 'a site'}: {error}")
            return False
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Return the round's mean update, or zeros if the round is void. Begins a new round."""
        reports = self._round(fl_ctx)
        self.reset(fl_ctx)
        try:
            update = reports.mean()
        except RoundVoid as void:
            self.log_warning(fl_ctx, str(void))
            update = reports.zero()
        return DXO(DataKind.WEIGHT_DIFF, update).to_shareable()

    def _round(self, fl_ctx: FLContext) -> ReportSum:
        if self._sum is None:
            model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
            sites = [client.name for client in fl_ctx.get_engine().get_clients()]
            number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
            self._sum = ReportSum(self._terms, model, number, sites)
        return self._sum


def _sender(result: Shareable) -> str:
    """Return the name of the site whose token came with `result`.

    NVFlare's server sets this header. A result's other properties, such as its peer's name, are
    what the site itself wrote. Raises `MessageInvalid` if the header is missing, for example
    because a filter of the server has replaced the result.
    """
    client = result.get_header(ServerCommandKey.FL_CLIENT)
    if not isinstance(client, Client):
        raise MessageInvalid("it does not have the name of the client that NVFlare authenticated")
    return str(client.name)


def report_of(result: Shareable) -> bytes:
    """Return the encoded report in a result. Raises `MessageInvalid` if there is none."""
    try:
        data = from_shareable(result).data
    except Exception as error:  # NVFlare raises many kinds of errors here
        raise MessageInvalid(f"it holds no DXO: {type(error).__name__}") from None
    if not isinstance(data, dict) or set(data) != {REPORT} or not isinstance(data[REPORT], bytes):
        raise MessageInvalid("it is not a report of fedveil's filter")
    report: bytes = data[REPORT]
    return report


def _keep(fl_ctx: FLContext, task: _Task | _Message | None) -> None:
    fl_ctx.set_prop(_ADMITTED, task, private=True, sticky=False)


def _wait(fl_ctx: FLContext) -> None:
    task = fl_ctx.get_prop(_ADMITTED)
    if isinstance(task, _Task):
        task.admitted.wait()


def _arrays(shareable: Shareable, *kinds: DataKind) -> tuple[Arrays, bool]:
    """Return a task's or a result's arrays by name, and True if they are weight differences.

    Raises `ModelInvalid` unless the data kind is one of `kinds` and all values are NumPy arrays.
    """
    try:
        dxo: DXO = from_shareable(shareable)
    except Exception as error:  # NVFlare raises many kinds of errors here
        raise ModelInvalid(f"it holds no DXO: {type(error).__name__}") from None
    if dxo.data_kind not in kinds:
        needed = " or ".join(kind.value for kind in kinds)
        raise ModelInvalid(f"it holds {dxo.data_kind}, but {needed} is needed")
    wrong = [name for name, array in dxo.data.items() if not isinstance(array, np.ndarray)]
    if wrong:
        raise ModelInvalid(f"it holds {wrong[0]}, which is not a NumPy array")
    return {str(n): a for n, a in dxo.data.items()}, dxo.data_kind == DataKind.WEIGHT_DIFF


def _checked_workspace(fl_ctx: FLContext, job: str) -> Path:
    """Return the job's configuration folder.

    Raises SiteRefused if the job brings code, or if data can leave without passing the filters.
    """
    workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    custom = Path(workspace.get_app_custom_dir(job))
    if custom.is_dir() and any(custom.iterdir()):
        raise SiteRefused("the job brings its own code, against which filters cannot protect")
    resources = Path(workspace.get_resources_file_path() or "resources.json")
    if ways := open_ways(resources):
        raise SiteRefused(f"{resources} lets out more than task results: {'; '.join(ways)}")
    return Path(workspace.get_app_config_dir(job))
