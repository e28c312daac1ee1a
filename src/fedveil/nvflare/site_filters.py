"""A site's policy and account as filters of a privacy scope (`privacy.json`) of NVFlare.

`SiteTaskFilter` stands in `task_data_filters`. It admits a training task, and charges the account
of the data set before the data are read. `SiteResultFilter` stands in `task_result_filters`. It
lets one thing out of the site: the report of the update of an admitted task. Everything else that
an executor returned stays: metrics, numbers of examples, headers, errors.

Both run in the process of the job. They bind a job that consists of classes which the site allows.
They do not bind code of the job's own (BYOC), which runs in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from fedveil.base.message import encode
from fedveil.entropy import Secure
from fedveil.errors import ClientWithheld, FedveilError, SiteError, SiteRefused, nearest
from fedveil.flower.app.arrays import ArrayLayout, Arrays
from fedveil.nvflare.terms import REPORT, Terms, arrays_of, number_of, round_of, shaped
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import TIMING, ClientContext, ClientRound, Protection, Update
from fedveil.site.account import Release, SiteAccount
from fedveil.site.site_folder import Site

#: The property of a task's context that holds an admitted task.
_ADMITTED = "fedveil.admitted"
#: What the server learns of a refusal.
_WORD = "withheld"
_LOG = "nvflare"


@dataclass(frozen=True)
class _Admitted:
    """A training task that was charged."""

    folder: Site
    layout: ArrayLayout
    before: Arrays
    protection: Protection
    site: int
    round: int
    plain: bool
    leaves_at: float | None

    @property
    def model(self) -> Update:
        return self.layout.vector(self.before)


class SiteTaskFilter(Filter):  # type: ignore[misc]
    """Admits training tasks, and charges each before its executor runs.

    `site` is the site's folder, `data` one of `data` in its policy, and `protection` the keys of a
    protection that the policy allows, with its parameters: a job cannot choose another. With
    `plain`, a report leaves as arrays (WEIGHT_DIFF), which the usual aggregators average. Without
    it, a report leaves as a message, for `ProtectedAggregator`. Tasks with other names than
    `train_tasks` are refused.
    """

    def __init__(
        self,
        site: str,
        data: str,
        protection: Mapping[str, Any],
        plain: bool = True,
        train_tasks: list[str] | None = None,
    ) -> None:
        super().__init__()
        self._site, self._data, self._plain = Site.open(Path(site)), data, plain
        self._terms = Terms.read(protection)
        self._tasks = train_tasks or [AppConstants.TASK_TRAIN]
        self._account: SiteAccount | None = None
        policy, name = self._site.policy, self._terms.options.protection
        if name not in policy.protections:
            raise SiteError(f"{name} is not one of protections in the policy of {site}")
        if data not in policy.data:
            raise SiteError(f"{data} is not one of data in the policy{nearest(data, policy.data)}")

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the task's data, or raise `ContentBlockedException`."""
        started = time.monotonic()
        fl_ctx.set_prop(_ADMITTED, None, private=True, sticky=False)
        task = f"task {fl_ctx.get_prop(FLContextKey.TASK_NAME)} of job {fl_ctx.get_job_id()}"
        try:
            admitted = self._admit(shareable, fl_ctx, started)
        except Exception as error:
            _log(self._site, f"refused {task}: {_told(error)}")
            raise ContentBlockedException(_WORD) from None
        fl_ctx.set_prop(_ADMITTED, admitted, private=True, sticky=False)
        return shareable

    def _admit(self, shareable: Shareable, fl_ctx: FLContext, started: float) -> _Admitted:
        name, job = fl_ctx.get_prop(FLContextKey.TASK_NAME), str(fl_ctx.get_job_id())
        if name not in self._tasks:
            raise SiteRefused(f"a report leaves for the tasks {', '.join(self._tasks)} alone")
        if has_own_code(fl_ctx, job):
            raise SiteRefused("the job brings code of its own, which no filter can bind")
        _, before = arrays_of(shareable, DataKind.WEIGHTS)
        layout = self._terms.layout(before)
        protection = self._terms.protection(layout.dimension)
        after_s = self._site.policy.clear.answer_after_s
        number = shareable.get_header(AppConstants.CURRENT_ROUND, 0)
        if type(number) is not int or number < 0:
            raise SiteRefused(f"{AppConstants.CURRENT_ROUND} is not the number of a round")
        self._open().charge(
            Release(
                job=job,
                what=f"a report of task {name}",
                mechanism=str(self._terms.options.protection),
                spending=protection.spending(protection.initial_state()),
                through="NVFlare",
                in_clear=() if after_s is not None else (TIMING,),
            ),
            limit=self._site.policy.limits,
        )
        return _Admitted(
            self._site, layout, before, protection, number_of(str(fl_ctx.get_identity_name())),
            number, self._plain, None if after_s is None else started + after_s,
        )  # fmt: skip

    def _open(self) -> SiteAccount:
        if self._account is None:
            self._account = self._site.account(self._data)
        return self._account


class SiteResultFilter(Filter):  # type: ignore[misc]
    """Lets out the report of an admitted task, and nothing else."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the report, or raise `ContentBlockedException`. A task has one report."""
        admitted = fl_ctx.get_prop(_ADMITTED)
        fl_ctx.set_prop(_ADMITTED, None, private=True, sticky=False)
        if not isinstance(admitted, _Admitted):
            raise ContentBlockedException(_WORD)
        try:
            return _report(admitted, shareable)
        except Exception as error:
            _log(admitted.folder, f"withheld a report of job {fl_ctx.get_job_id()}: {_told(error)}")
            raise ContentBlockedException(_WORD) from None


def _report(task: _Admitted, result: Shareable) -> Shareable:
    """Return the report of a result. An unusable result is reported as an update of zero."""
    protection, model = task.protection, task.model
    context = round_of(protection, task.site, task.round, model)
    opening = protection.server_round(context).opening()

    def half(examples: int = 1) -> ClientRound:
        return protection.client_round(
            ClientContext(task.site, task.round, model, examples, Secure())
        )

    answered = answer_trained(
        protection, half, half, opening, lambda: (_update(task, result), 1), always=True
    )
    if answered.unusable is not None:
        _log(task.folder, f"reported an update of zero: {reason(answered.unusable)}")
    if task.leaves_at is not None:
        time.sleep(max(0.0, task.leaves_at - time.monotonic()))
    if task.plain:
        estimate = protection.reading(context, answered.message).estimate
        return DXO(DataKind.WEIGHT_DIFF, shaped(task.layout, estimate)).to_shareable()
    return DXO(DataKind.APP_DEFINED, {REPORT: encode(answered.message)}).to_shareable()


def _update(task: _Admitted, result: Shareable) -> Update:
    if (code := result.get_return_code()) != ReturnCode.OK:
        raise ClientWithheld(f"the task ended with {code}")
    kind, after = arrays_of(result, DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
    if kind == DataKind.WEIGHTS:
        return task.layout.update(task.before, after)
    zero = {name: np.zeros_like(array) for name, array in after.items()}
    return task.layout.update(zero, after)


def has_own_code(fl_ctx: FLContext, job: str) -> bool:
    """Return True if the job's folder at this site has code."""
    workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    folder = None if workspace is None else Path(workspace.get_app_custom_dir(job))
    return folder is not None and folder.is_dir() and any(folder.iterdir())


def _log(site: Site, text: str) -> None:
    with site.log(_LOG) as log:
        log.line(text)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, FedveilError) else f"{type(error).__name__}: {error}"
