"""`fedveil vertical predict --data`: scores new rows with a model bundle."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.base.plain_text import remark, say
from fedveil.base.quantity import quantity
from fedveil.cli.vertical.job_file import of_accounts, say_accounts
from fedveil.errors import InvalidValue

if TYPE_CHECKING:
    from fedveil.vertical.remote.sessions import Meeting
    from fedveil.vertical.scoring.scorer import Scorer
    from fedveil.vertical.scoring.sources import Source


def opened(
    path: Path,
    data: list[str],
    stack: ExitStack,
    tls: Path | None = None,
    most_ids: int | None = None,
) -> dict[str, Scorer]:
    """Return a `Scorer` for each party that has a model bundle in `path`.

    `data` has the path of each party's file of new rows, as PARTY=FILE or, if there is only one
    party, as FILE. A party accepts at most `most_ids` ids from another party, because each id may
    be a guess at the ids in its file. None means the job's limit. The folder `tls` has the
    certificates with which the bundles' signatures are checked. Closing `stack` closes all files.
    """
    from fedveil.link.tls import Credentials
    from fedveil.vertical.bundle import Bundle
    from fedveil.vertical.scoring.scorer import Scorer
    from fedveil.vertical.scoring.sources import bundles_in, files_of

    bundles = {Bundle.read(bundle).contents.party: bundle for bundle in bundles_in(path)}
    files = files_of(data, list(bundles))
    scorers = {}
    for party, bundle in bundles.items():
        own = None
        if tls is not None:
            own = Credentials.read(tls, party, Bundle.read(bundle).manifest.contents)
        scorers[party] = Scorer(bundle, files[party], stack, own, remark, most_ids)
    return scorers


def only(scorers: dict[str, Scorer], leads: bool) -> Scorer:
    """Return the scorer of this process's only party. `leads` is True if `--listen` was given.

    Raises `InvalidValue` if there are several parties, if a leader lacks `--listen`, or if a
    follower has it.
    """
    if len(scorers) > 1:
        raise InvalidValue(
            "--listen and --connect are for one party: name its own bundle, RUN/PARTY/bundle"
        )
    scorer = next(iter(scorers.values()))
    if leads != (scorer.name == scorer.split.leader):
        right = "--listen" if not leads else "--connect"
        raise InvalidValue(f"the bundle is of {scorer.name}, which needs {right} HOST:PORT")
    return scorer


def meeting_of(
    option: str, address: str, scorer: Scorer, tls: Path | None, insecure: bool, patience: float
) -> Meeting:
    from fedveil.cli.vertical.machines import meeting

    return meeting(option, address, scorer.name, scorer.split, tls, insecure, patience)


def source_of(
    scorers: dict[str, Scorer],
    listen: str | None,
    tls: Path | None,
    insecure: bool,
    patience: float,
    stack: ExitStack,
) -> Source:
    """Return the `Source` from which the leader gets the scores of new rows.

    Without `listen`, all parties are in this process. Otherwise the leader waits at this address
    for the followers.
    """
    from fedveil.vertical.scoring.sources import Apart, Together

    if listen is None:
        return Together(list(scorers.values()))
    scorer = only(scorers, leads=True)
    return Apart(scorer, meeting_of("--listen", listen, scorer, tls, insecure, patience), stack)


def predict_new(
    path: Path,
    data: list[str],
    out: Path,
    listen: str | None,
    connect: str | None,
    tls: Path | None,
    insecure: bool,
    patience: float,
    most_ids: int | None,
) -> object:
    """Score the new rows in the files `data` with the model bundles in `path`.

    Given the address `listen`, this process is the leader, and given `connect`, a follower of the
    leader there. Given neither, all parties are in this process. All but a follower write the
    scores to the file `out`. Prints the results, and returns them for `--json`: the numbers of
    rows, and each party's privacy costs and drift (how much its new rows differ from its training
    rows).
    """
    from fedveil.vertical.scoring.predicted import ScoreFile
    from fedveil.vertical.scoring.sources import follow

    if listen is not None and connect is not None:
        raise InvalidValue("--listen is for the leader and --connect for a follower: remove one")
    file = None if connect is not None else ScoreFile(out)
    with ExitStack() as stack:
        scorers = opened(path, data, stack, tls, most_ids)
        counts = None
        if connect is not None:
            scorer = only(scorers, leads=False)
            follow(scorer, meeting_of("--connect", connect, scorer, tls, insecure, patience))
        else:
            assert file is not None, "the leader writes"
            source = source_of(scorers, listen, tls, insecure, patience, stack)
            counts = file.write(source, remark)
        accounts = {name: scorer.keep_account() for name, scorer in scorers.items()}
        drift = {name: list(scorer.new.drift) for name, scorer in scorers.items()}
    if counts is not None:
        say(
            f"wrote {out}: {quantity(counts['scored'], 'prediction')}; {counts['alone']:,} rows "
            "are not at "
            f"all parties, {counts['refused']:,} are refused by a party's privacy.max_epsilon"
        )
    say_accounts(accounts)
    rows = {} if counts is None else {"file": out, "rows": counts}
    return {**rows, "accounts": of_accounts(accounts), "drift": drift}
