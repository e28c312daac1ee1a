"""Every error that a user can cause.

Each error is a sentence that names the key, its value and the allowed values. The command line
prints only the sentence. A traceback means a bug in fedveil.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class FedveilError(Exception):
    """The base of every error that a user can cause. Worker processes can pickle it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__


class FedveilWarning(UserWarning):
    """A warning about something that works but is probably not intended."""


def did_you_mean(candidates: Sequence[str]) -> str:
    """Return " (did you mean X or Y?)" with all `candidates`, to append to a sentence.

    Returns "" if there are no candidates.
    """
    return f" (did you mean {' or '.join(candidates)}?)" if candidates else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the X in `names` closest to `name`, or "" without one."""
    return did_you_mean(get_close_matches(name, list(names), 1))


def with_notes(text: str, error: BaseException) -> str:
    """Return `text`, followed by the notes of `error`, such as how to resume."""
    return "; ".join([text, *getattr(error, "__notes__", [])])


class InvalidValue(FedveilError, ValueError):
    """An argument has a value outside the allowed range."""


class JobError(FedveilError, ValueError):
    """A job file or a setting is wrong. Lists all problems, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class MissingExtra(FedveilError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}: pip install 'fedveil[{extra}]' installs it"
        )


class ExperimentsMissing(FedveilError, ImportError):
    """The package `experiments` is missing: fedveil does not run from a clone of its repository."""


class DataUnavailable(FedveilError):
    """A data set is not on this machine and could not be downloaded."""


class DataInvalid(FedveilError, ValueError):
    """A data set's files, or the result of a user's data function, cannot be used."""


class FewCommon(DataInvalid):
    """Parties of a vertical run have too few ids in common, or none."""


class ModelInvalid(FedveilError, ValueError):
    """A model cannot be built, or holds a tensor that cannot be trained in a federation."""


class TaskInvalid(FedveilError, ValueError):
    """A job's task cannot be found, or does not fit the data."""


class MessageInvalid(FedveilError, ValueError):
    """A received message is not in canonical encoding, or its content is invalid."""


class MessageTooLong(FedveilError, ValueError):
    """The machines of a job would send messages longer than a connection can carry."""


class ReportRejected(FedveilError):
    """The server refused a client's report. The running sums are unchanged."""

    def __init__(self, client: int, reason: str) -> None:
        self.client = client
        self.reason = reason
        super().__init__(f"the report of client {client} was refused: {reason}")


class ClientWithheld(FedveilError):
    """A client refuses to report, for example because its update is not finite."""


class AnsweredBefore(ClientWithheld):
    """A client has already sent its update for this round or a later one, or failed to make it."""

    def __init__(self, round: int) -> None:
        super().__init__(
            f"this client has already sent its update for round {round}, or its training failed, "
            "and it answers no round up to that one again: to start from the beginning, give the "
            "job another name"
        )


class RoundVoid(FedveilError):
    """A round ended without an aggregate. The global model does not change."""

    def __init__(self, phase: str, got: int, needed: int, reason: str | None = None) -> None:
        self.phase = phase
        self.got = got
        self.needed = needed
        what = reason or (
            f"{got} client{'' if got == 1 else 's'} answered in phase {phase}, but {needed} are "
            "needed"
        )
        super().__init__(f"the round is void: {what}")


class RunStopped(FedveilError):
    """A run ended before its last round. The message says why."""


class ProtectionFailed(RunStopped):
    """A user's own protection raised an exception. The message names its file and line."""


class LimitReached(RunStopped):
    """A run ended normally because continuing it would exceed one of its privacy limits."""


class RunFailed(FedveilError):
    """A run ended without a single usable report, so it has no result."""


class ClaimRefuted(FedveilError):
    """An audit measured more leakage than the claim allows."""


class WorkerDied(RunStopped):
    """A worker process of the simulator ended unexpectedly."""


class ClusterUnavailable(RunStopped):
    """A cluster cannot be reached, or none of its machines can train the job's clients."""


class MachineDiffers(RunStopped):
    """A machine of a cluster differs in versions or source files, or computes different updates."""


class StatesUnreachable(RunStopped):
    """A machine of a cluster cannot read the run's folder, where clients' states are stored."""

    def __init__(self, machine: str, folder: str) -> None:
        super().__init__(
            f"machine {machine} cannot read {folder}, where this job's clients keep their states. "
            "Use a run folder on a file system that all machines share"
        )


class RunFolderError(FedveilError):
    """A run folder cannot be written, read or resumed."""


class FolderInUse(RunFolderError):
    """Another process is writing to the run folder."""


class OutputLost(FedveilError):
    """Standard output is closed or cannot be written, or its encoding lacks a character."""


class ReaderGone(OutputLost):
    """The program that reads standard output, such as `head`, has ended."""


class SplitInvalid(FedveilError, ValueError):
    """The parts or parties of a split model do not fit together, or a name is invalid."""


class ExchangeError(FedveilError):
    """An exchange of messages between the parties of a vertical run failed.

    If this happens in a training step, this party does not update its weights in that step.
    `told` is the reason that the other parties receive. It is shorter if the full reason may reveal
    this party's data.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        self.told = reason if told is None else told
        super().__init__(reason)


class PartFailed(ExchangeError, ModelInvalid):
    """This party's part of a split model raised an error. A repetition would raise it again."""


class PeerAborted(ExchangeError):
    """The other party ended the exchange with a message that states its reason."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer = peer
        super().__init__(f"{peer} ended the step: {reason}")


class PeerAtLimit(PeerAborted):
    """The other party sends nothing more, because its own privacy limit is reached."""


class Unfit(FedveilError):
    """A follower, a party other than the leader, cannot take part in a vertical job.

    The follower receives the reason too.
    """

    def __init__(self, follower: str, reason: str) -> None:
        self.follower = follower
        super().__init__(reason)


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP ends the program. The program treats it like Ctrl-C, with one exception.

    A supervisor often restarts what it has ended. So the other parties of a vertical run wait for
    this party, as for one that was killed.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(f"interrupted by {number.name}")


class LinkLost(FedveilError):
    """The other party is unreachable or has left. The run can be resumed from a checkpoint."""


class PeerRestarted(LinkLost):
    """The other party has restarted. Both parties resume from the last step that both saved."""


class PeerRefused(FedveilError):
    """The other party refuses to work with this one. The message says why."""


class RightMissing(PeerRefused):
    """The roles in this party's `tls.yaml` do not permit what another party asks for.

    `told` is the sentence that the other party receives. It does not name the file.
    """

    def __init__(self, reason: str, told: str) -> None:
        self.told = told
        super().__init__(reason)


class CertificateError(FedveilError):
    """A party's certificate, key or certificate authority cannot be created, read or used."""


class DeploymentError(FedveilError):
    """A deployment's folder, client or server is not set up correctly."""


class SiteError(FedveilError):
    """A site's folder is not set up correctly."""


class SiteRefused(ClientWithheld):
    """A site's policy does not permit an app, a job or a message, so nothing is sent."""


class AccountInvalid(FedveilError):
    """A site's privacy account was edited, rolled back or deleted, or its key was replaced."""


class OverSpent(FedveilError):
    """A release would cost more than the owner of the data allows. Nothing was charged or read."""


class AttackImpossible(FedveilError, ValueError):
    """An attack is impossible on this job or model. The message says why."""


class BundleInvalid(FedveilError):
    """A model bundle was edited, has a wrong signature, or belongs to another model."""
