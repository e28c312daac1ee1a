"""Every error a user can meet.

Each one is a sentence that names the thing, its value and what is allowed. The command line
prints the sentence and nothing else; a traceback means a defect in fedveil.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class FedveilError(Exception):
    """The base of every error that a user can meet; survives the way out of a worker process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__


class FedveilWarning(UserWarning):
    """Something that works, and is likely not what its user wants."""


def did_you_mean(candidates: Sequence[str]) -> str:
    """A suggestion to append to a sentence; nothing where there is no candidate."""
    return f" (did you mean {' or '.join(candidates)}?)" if candidates else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """The suggestion of that of some names which is most like another one."""
    return did_you_mean(get_close_matches(name, list(names), 1))


def with_notes(text: str, error: BaseException) -> str:
    """A sentence, and what was added to the error on its way, such as how to resume."""
    return "; ".join([text, *getattr(error, "__notes__", [])])


class InvalidValue(FedveilError, ValueError):
    """An argument is outside its domain."""


class JobError(FedveilError, ValueError):
    """A job file or setting is wrong; holds every problem that was found, not the first one."""

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
    """The experiments of the sources, which only a checkout has, are not here."""


class DataUnavailable(FedveilError):
    """A data set is not on this machine and could not be brought here."""


class DataInvalid(FedveilError, ValueError):
    """A data set's files or a user's data function hold something that cannot be used."""


class ModelInvalid(FedveilError, ValueError):
    """A model cannot be built, or holds a tensor that cannot be trained in a federation."""


class TaskInvalid(FedveilError, ValueError):
    """A job's task cannot be found, or cannot learn what the data has."""


class MessageInvalid(FedveilError, ValueError):
    """Bytes that are not the one encoding of a message."""


class MessageTooLong(FedveilError, ValueError):
    """A job whose machines would send each other what no connection carries."""


class ReportRejected(FedveilError):
    """A report that was refused; nothing that was folded before has changed."""

    def __init__(self, client: int, reason: str) -> None:
        self.client = client
        self.reason = reason
        super().__init__(f"the report of client {client} was refused: {reason}")


class ClientWithheld(FedveilError):
    """A client's own half refuses to report, for example because its update is not finite."""


class AnsweredBefore(ClientWithheld):
    """A client's update of a round, or of a later one, has left it already."""

    def __init__(self, round: int) -> None:
        super().__init__(
            f"this client's update of round {round} has left it, and it answers no round up to "
            f"that again: a run from the start needs another job, in its name at least"
        )


class RoundVoid(FedveilError):
    """A round ended without an aggregate; the global model stays as it was."""

    def __init__(self, phase: str, got: int, needed: int, reason: str | None = None) -> None:
        self.phase = phase
        self.got = got
        self.needed = needed
        what = reason or f"{got} clients answered in phase {phase}, {needed} are needed"
        super().__init__(f"the round is void: {what}")


class RunStopped(FedveilError):
    """A run ended before its last round, for the reason it states."""


class LimitReached(RunStopped):
    """A run ended in good order because going on would pass a privacy limit it was given."""


class RunFailed(FedveilError):
    """A run ended in which no report was ever usable: it has no result."""


class ClaimRefuted(FedveilError):
    """An audit found more than is claimed."""


class WorkerDied(RunStopped):
    """A worker process of the simulator ended unexpectedly."""


class RunFolderError(FedveilError):
    """A run folder cannot be written, read or resumed."""


class FolderInUse(RunFolderError):
    """Another process writes in a run folder."""


class SplitInvalid(FedveilError, ValueError):
    """A split model that cannot be trained by its parties."""


class ExchangeError(FedveilError):
    """A step between parties ended without being applied on either side.

    `told` is what the other parties hear: less, where the reason may speak of a party's data.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        self.told = reason if told is None else told
        super().__init__(reason)


class PartFailed(ExchangeError, ModelInvalid):
    """A module of this party's own raised; the step that failed would fail again."""


class PeerAborted(ExchangeError):
    """The other side ended the step, and knows that it did."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer = peer
        super().__init__(f"{peer} ended the step: {reason}")


class PeerAtLimit(PeerAborted):
    """The other side sends no more: its own privacy limit is reached."""


class Unfit(FedveilError):
    """A follower that cannot take part, for the reason that it is told too."""

    def __init__(self, follower: str, reason: str) -> None:
        self.follower = follower
        super().__init__(reason)


class LinkLost(FedveilError):
    """The other party cannot be reached, or went away; a checkpoint is where to go on from."""


class PeerRestarted(LinkLost):
    """The other party is a new process: both go back to the last step that both hold."""


class PeerRefused(FedveilError):
    """The other party refuses to work with this one, for the reason it states."""


class CertificateError(FedveilError):
    """A party's certificate, key or authority cannot be made, read or used."""


class DeploymentError(FedveilError):
    """A deployment's folder, client or server is not set up as it must be."""


class AttackImpossible(FedveilError, ValueError):
    """An attack cannot be mounted on such a job or model, and why."""
