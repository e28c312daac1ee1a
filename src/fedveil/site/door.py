"""The only way out of a site: checks every message against the policy, and answers or refuses it.

A report is charged before the data are read. An answer contains only one encoded message of the
protection, such as a report. The server cannot tell why the site refuses a message: only the site's
log has the reason.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from flwr.app import Context, Error, Message

from fedveil.base.message import Message as Words
from fedveil.base.own_code import interrupts
from fedveil.engine.job_protection import in_clear
from fedveil.errors import SiteRefused
from fedveil.federated.job import Job
from fedveil.flower.job import job_client
from fedveil.flower.job.member import Member
from fedveil.flower.records import encoded_records
from fedveil.protections.always_answers import reason
from fedveil.protections.base import TIMING, Protection
from fedveil.protections.secure_sum_settings import SecureSumSettings
from fedveil.site import isolation
from fedveil.site.account import Release, SiteAccount
from fedveil.site.code_process import CodeSandbox, CodeTraining
from fedveil.site.one_report import LATE, cost
from fedveil.site.order import Order, read_app
from fedveil.site.policy import Policy
from fedveil.site.site_folder import Site, SiteLog

#: The largest number of cached orders.
_MOST_ORDERS = 64


class Door:
    """Answers the messages of the server `server` for `site`. `log` is the log for this server."""

    def __init__(self, site: Site, server: str, log: SiteLog) -> None:
        self._site, self._server, self._log = site, server, log
        self._accounts: dict[str, SiteAccount] = {}
        self._orders: dict[bytes, Order | SiteRefused] = {}

    def answer(self, read: Callable[[], bytes], message: Message, context: Context) -> Message:
        """Return the reply to a server's message: an answer, or an error without a reason.

        `read` returns the archive of the message's app. `context` is Flower's context of the run.
        """
        what = f"run {message.metadata.run_id} {message.metadata.message_type}"
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answer = self._answer(read(), message, context)
            for warning in caught:
                self._log.line(f"noted {what}: {warning.message}")
        except BaseException as error:
            if interrupts(error):
                raise
            self._log.line(f"refused {what}: {reason(error)}")
            word = Error(job_client.ERROR_CODE, job_client.WITHHELD)
            return Message(word, reply_to=message)
        self._log.line(f"sent {what}: {len(answer):,} bytes")
        return Message(encoded_records(answer), reply_to=message)

    def _answer(self, archive: bytes, message: Message, context: Context) -> bytes:
        job, member = self.member(archive)
        return job_client.answer(job, member, message, context)

    def member(self, archive: bytes) -> tuple[Job, Member]:
        """Return the job in an app's archive, and this site as a client of the job.

        Raises `SiteRefused` if the policy does not permit the job.
        """
        order = self.order(archive)
        named = self._site.admission.data_set(order.job)
        if reasons := list(self._site.admission.reasons(order)):
            raise SiteRefused("; ".join(reasons))
        assert named is not None, "an order without a data set is refused"
        name, data_set = named
        owner = Charges(self._account(name), self._site.policy, order, self._server)
        member = self._site.member(self._server, order.job, data_set, owner)
        if reason := self._site.no_client(self._server, order.job):
            raise SiteRefused(reason)
        return order.job, replace(member, training=self._training(order) if order.code else None)

    def _training(self, order: Order) -> Callable[[Job, Words], CodeTraining]:
        """Return a function that creates the training of one round with the code in `order`.

        The function takes the job and the fields of the server's message that all clients get, such
        as the weights. The training itself runs in another process.
        """
        code, limit_s = self._site.policy.code, self._site.policy.clear.answer_after_s
        assert limit_s is not None, "a rule of the policy"
        modules = self._site.admission.modules(order)
        means = isolation.working()[0] if code.isolation == "strong" else None
        sandbox = CodeSandbox(modules, means, int(code.memory_gb * 1e9), limit_s)
        return partial(CodeTraining, sandbox)

    def order(self, archive: bytes) -> Order:
        """Return the server's job in an app's archive, or raise `SiteRefused`."""
        digest = hashlib.sha256(archive).digest()
        if digest not in self._orders:
            if len(self._orders) >= _MOST_ORDERS:
                self._orders.clear()
            try:
                self._orders[digest] = read_app(archive)
            except SiteRefused as refused:
                self._orders[digest] = refused
        order = self._orders[digest]
        if isinstance(order, SiteRefused):
            raise SiteRefused(str(order))
        return order

    def _account(self, name: str) -> SiteAccount:
        if name not in self._accounts:
            self._accounts[name] = self._site.account(name)
        return self._accounts[name]


@dataclass(frozen=True)
class Charges:
    """Charges the reports of one job to the data set's account, within the policy's limits."""

    account: SiteAccount
    policy: Policy
    order: Order
    server: str

    @property
    def answer_after_s(self) -> float | None:
        return self.policy.clear.answer_after_s

    def charge(self, protection: Protection, asked: Words) -> None:
        job = self.order.job
        released = Release(
            job=self.order.digest.hex(),
            what=f"a report of {job.name}",
            mechanism=job.protection.name,
            spending=cost(protection, asked),
            unit=job.privacy.unit,
            through=f"Flower, {self.server}",
            in_clear=tuple(self._in_clear(protection)),
            summed=isinstance(protection.settings, SecureSumSettings),
        )
        self.account.charge(released, limit=self.policy.limits)

    def disclose(self, value: str) -> None:
        self._disclose(f"the introduction to {self.order.job.name}", value)

    def left_late(self) -> None:
        self._disclose(f"the time of a report of {self.order.job.name}", LATE)

    def _disclose(self, what: str, value: str) -> None:
        job = self.order.job
        self.account.disclose(
            Release(
                job=self.order.digest.hex(),
                what=what,
                mechanism=job.protection.name,
                spending=(),
                through=f"Flower, {self.server}",
                in_clear=(value,),
            )
        )

    def _in_clear(self, protection: Protection) -> list[str]:
        said = in_clear(self.order.job, protection, leaves=True)
        return said if self.answer_after_s is None else [one for one in said if one != TIMING]
