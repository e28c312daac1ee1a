"""Generation of text by both parties of a language model, with the protection used in training.

    leader     tokens -> word and position vectors -> (EmbeddingDP) ->
    follower                                          layers with a cache of earlier positions
    leader     the next token, drawn from the word table's scores <-

The leader sends a token's vector when the token is new. The follower caches its layers' keys and
values. When the context is full, the leader sends the later half of the tokens again, at their
new positions, and the follower clears its cache. So a token is sent at most twice. Each new token
of the text takes one step of three messages. In step n, counted from 1, they are:

    {"kind": "extend", "step": n, "start": s, "length": k}    leader -> follower
    k vectors, for the positions from s                       leader -> follower
    one vector, for the last of these positions               follower -> leader

The follower clears its cache if s is 0. When the text is complete, the leader sends the message
{"kind": "enough", "step": n} instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import nn

from fedveil.base.message import Message, only_fields, quoted, take, text_in
from fedveil.base.validate import integer, non_negative
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import ExchangeError, InvalidValue, LimitReached, MessageInvalid
from fedveil.language.text import Tokenizer, join
from fedveil.language.text_account import SentVectors, crossings, epsilon, on_disk
from fedveil.language.transformer import Backbone, TiedHead, WordAndPosition
from fedveil.link.channel import Exchange, Send, drive_together, received
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import exactly
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import reopen
from fedveil.vertical.crossing import (
    check_not_abort,
    check_word,
    fields_of,
    from_wire,
    is_finite,
    tensor_message,
    to_wire,
)
from fedveil.vertical.job import VerticalJob, job_of_run
from fedveil.vertical.job_split import make_split, make_task, report_entropy, threads
from fedveil.vertical.party import Party
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.step_checkpoint import Checkpoint, trained_step, unfinished
from fedveil.vertical.task import Task, assists_of

M = TypeVar("M", bound=nn.Module)
Tell = Callable[[bytes], None]

#: The purpose of a session that continues a text.
GENERATE = "generate"


class TextTask(Task, Protocol):
    """A task whose model continues texts. `tokenizer` converts texts to tokens and back.

    The task's attribute `assists` maps the purpose of a session to the follower's side of it. It
    must map the purpose `GENERATE` to the function `assist`.
    """

    tokenizer: Tokenizer


@dataclass(frozen=True)
class Request:
    """A request to continue `prompt` by at most `tokens` tokens.

    A token is drawn with probability proportional to exp(score / temperature). At temperature 0,
    it is the token with the highest score. The text ends early at an end-of-document token. If
    `entropy` is seeded, a restarted session draws the same tokens from the same scores.
    """

    prompt: bytes
    tokens: int
    temperature: float
    entropy: Entropy

    def __post_init__(self) -> None:
        integer("tokens", self.tokens, 1)
        non_negative("temperature", self.temperature)

    @classmethod
    def seeded(
        cls, prompt: bytes, tokens: int = 100, temperature: float = 0.8, seed: int | None = None
    ) -> Request:
        """Create a request. Its random choices come from `seed`, or from the system by default."""
        entropy = Secure() if seed is None else Seeded(seed, "generate")
        return cls(prompt, tokens, temperature, entropy)


@dataclass(frozen=True)
class Continuation:
    """The text that follows a prompt, in bytes, and a count of the vectors sent to generate it.

    `stopped` is a sentence if `privacy.max_epsilon` ended the text early, else "".
    """

    text: bytes
    sent: SentVectors
    stopped: str = ""


def generate(
    folder: str | Path,
    request: Request,
    tell: Tell = lambda piece: None,
    say: Callable[[str], None] = lambda sentence: None,
    *,
    encoded: bool = False,
) -> tuple[Continuation, SplitModel]:
    """Continue the request's prompt with the model in a run folder, all parties in this process.

    `tell` is called with the bytes of every new token, and `say` with a sentence if training has
    not ended. If `encoded` is True, messages are encoded as between machines. The result is
    reproducible if both the request and the run are seeded. Returns the continuation and the split
    model.
    """
    with ExitStack() as stack:
        root, job = reopen(folder, job_of_run, stack)
        stack.enter_context(threads(job.threads))
        task = _text_task(make_task(job, root.path))
        leader, *followers = _trained(job, task, root, say)
        number = request.entropy.stream("reports").integer(1 << 63)
        noise = report_entropy(job).stream("generate", number)
        exchanges: dict[str, Exchange[Continuation | None]] = {
            leader.name: write(
                leader, noise, task.tokenizer, request, job.privacy.max_epsilon, tell, SentVectors()
            ),
            **{party.name: assist(party, noise) for party in followers},
        }
        found = drive_together(exchanges, encoded=encoded)[leader.name]
    assert found is not None, "the leader has the text"
    return found, leader.split


def leading(request: Request) -> Callable[[PartyRun], Exchange[Continuation | None]]:
    """Return the leader's side of text generation between machines, a function of a `PartyRun`.

    The function continues the prompt of `request`. It shows no token before the text is complete,
    because a restarted session may draw different tokens. Each vector is charged on disk before it
    is sent. At the end of a session, even a failed one, it logs the cost of all sessions so far.
    """
    sent = SentVectors()

    def side(run: PartyRun) -> Exchange[Continuation | None]:
        setting, most = run.setting, run.setting.job.privacy.max_epsilon
        tokenizer = _text_task(setting.task).tokenizer
        with on_disk(sent, run.party.split, setting.folder, run.log.event):
            return (
                yield from write(
                    run.party, setting.entropy, tokenizer, request, most, lambda piece: None, sent
                )
            )

    return side


def _text_task(task: Task) -> TextTask:
    if assists_of(task).get(GENERATE) is not assist:
        raise InvalidValue(
            "only a run of the task pangu can continue a text, and this run has another task"
        )
    return cast(TextTask, task)


def _trained(
    job: VerticalJob, task: Task, root: RunFolder, say: Callable[[str], None]
) -> list[Party]:
    split = make_split(job, task)
    folders = {name: root.within(name) for name in split.parties}
    step = trained_step(root.path, folders)
    for sentence in {unfinished(folder, step) for folder in folders.values()} - {""}:
        say(sentence)
    parties = []
    for name, folder in folders.items():
        loss = task.loss if name == split.leader else None
        parties.append(Party(name, split, loss=loss, device=job.device))
        Checkpoint.read(folder, step).give(folder, parties[-1])
    return parties


def write(
    party: Party,
    noise: Entropy,
    tokenizer: Tokenizer,
    request: Request,
    most: float | None,
    tell: Tell,
    sent: SentVectors,
) -> Exchange[Continuation | None]:
    """Run the leader's side of text generation: continue the prompt of `request`.

    Returns the continuation, never None. The type allows None because the followers' side returns
    it.

    - If EmbeddingDP protects the token vectors, its random choices are drawn from `noise`.
    - `most` is the largest epsilon of the whole text, over all attempts to continue it. None means
      no limit. The text ends early if another vector would exceed `most`.
    - `tell` is called with the bytes of every new token.
    - `sent` counts the sent vectors, including those of earlier attempts.

    Raises `LimitReached` if `most` allows no vector, and no earlier attempt sent one.
    """
    return party.announcing_failure(_write(party, noise, tokenizer, request, most, tell, sent))


def assist(party: Party, noise: Entropy) -> Exchange[None]:
    """Run the follower's side of text generation, until the leader sends the message `enough`.

    If the job protects the vectors that the follower sends, their noise is drawn from `noise`.
    """
    return party.announcing_failure(_assist(party, noise))


def _write(
    party: Party,
    noise: Entropy,
    tokenizer: Tokenizer,
    request: Request,
    most: float | None,
    tell: Tell,
    sent: SentVectors,
) -> Exchange[Continuation]:
    there, _ = crossings(party.split)
    context, follower = there.output[0], there.receiver
    pieces, end = tokenizer.pieces(), tokenizer.vocabulary - 1
    text = tokenizer.encode([request.prompt])[:-1].tolist() or [end]
    pending, start = text[-context:], 0
    step, stopped = 1, ""
    continued: list[int] = []
    sent.begin()
    while len(continued) < request.tokens:
        if full := start == context:
            pending, start = text[-max(1, context // 2) :], 0
        if most is not None and (
            (spent := epsilon(party.split, sent.vectors + len(pending))) > most
        ):
            figure = Line(spent, 0.0, "the whole text")
            limit = f"privacy.max_epsilon = {exactly(most)}"
            stopped = f"another token would bring {figure}, above {limit}"
            break
        sent.charge(len(pending), again=full)
        scores = yield from _scores(party, pending, start, step, noise)
        start, step = start + len(pending), step + 1
        choice = request.entropy.stream("choice", len(continued))
        token = _choose(scores, pieces, request.temperature, choice)
        if token == end:
            break
        pending = [token]
        text.append(token)
        continued.append(token)
        tell(pieces[token] or b"")
    yield Send(follower, {"kind": "enough", "step": step})
    if stopped and not sent.vectors:
        raise LimitReached(f"the text is not continued: {stopped}")
    return Continuation(join(continued, pieces), sent, stopped)


def _scores(
    party: Party, tokens: list[int], start: int, step: int, noise: Entropy
) -> Exchange[torch.Tensor]:
    there, back = crossings(party.split)
    embedding = _module(party, there.part, WordAndPosition)
    head = _module(party, party.split.last.name, TiedHead)
    yield Send(
        there.receiver, {"kind": "extend", "step": step, "start": start, "length": len(tokens)}
    )
    with torch.no_grad():
        vectors = embedding(torch.tensor([tokens], device=party.device), start)
    yield Send(there.receiver, _message(there, vectors, step, noise))
    answer = yield from received(back.sender)
    with torch.no_grad():
        scores: torch.Tensor = head(_tensor(answer, back, step, 1).to(party.device))[0, -1]
    if not is_finite(scores):
        raise ExchangeError(
            f"the scores of step {step} contain NaN or infinity, computed from {back.part} of "
            f"{back.sender}"
        )
    return scores


def _assist(party: Party, noise: Entropy) -> Exchange[None]:
    there, back = crossings(party.split)
    backbone = _module(party, back.part, Backbone)
    context, leader = there.output[0], there.sender
    memory = backbone.new_memory()
    step, seen = 1, 0
    while True:
        asked = _asked((yield from received(leader)), leader, step, seen, context)
        if asked is None:
            return
        start, length = asked
        if start == 0:
            memory = backbone.new_memory()
        vectors = _tensor((yield from received(leader)), there, step, length).to(party.device)
        with torch.no_grad():
            hidden = backbone(vectors, memory)[:, -1:]
        yield Send(leader, _message(back, hidden, step, noise))
        step, seen = step + 1, start + length


def _asked(
    request: Message, leader: str, step: int, seen: int, context: int
) -> tuple[int, int] | None:
    """Return the first position and the number of the vectors that the leader's request announces.

    `step` is the step that the request must state. The cache now has `seen` positions, and can have
    at most `context`. Returns None if the leader ends the text. Raises ExchangeError if the request
    is invalid.
    """
    if text_in(request, "kind") == "enough":
        check_word(request, leader, "enough", step)
        return None
    check_not_abort(request, leader)
    try:
        only_fields(request, "kind", "step", "start", "length")
        number, start = take(request, "step", int), take(request, "start", int)
        length = take(request, "length", int)
    except MessageInvalid as error:
        raise ExchangeError(f"{leader} sent an invalid request: {error}") from None
    if text_in(request, "kind") != "extend" or number != step:
        raise ExchangeError(
            f"{leader} sent {quoted(request['kind'])} of step {number} where 'extend' of step "
            f"{step} was due"
        )
    if start not in (0, seen) or not 1 <= length <= context - start:
        raise ExchangeError(
            f"{leader} asks for {length} positions from {start}, but {seen} of {context} "
            f"positions are cached"
        )
    return start, length


def _choose(
    scores: torch.Tensor, pieces: Sequence[bytes | None], temperature: float, entropy: Entropy
) -> int:
    """Draw the next token, with probability proportional to exp(score / temperature).

    Only the end token and tokens that have bytes are drawn. Temperature 0 takes the highest score.
    """
    known = np.array([piece is not None for piece in pieces])
    known[-1] = True
    values = np.where(known, scores.double().cpu().numpy(), -np.inf)
    if temperature == 0:
        return int(values.argmax())
    weights = np.exp((values - values.max()) / temperature)
    total = np.cumsum(weights)
    place = entropy.generator().random() * total[-1]
    return int(np.searchsorted(total, place, side="right"))


def _module(party: Party, part: str, kind: type[M]) -> M:
    module = party.modules[part]
    if not isinstance(module, kind):
        raise InvalidValue(
            f"continuing a text needs {kind.__name__} as the part {part}, but it is "
            f"{type(module).__name__}"
        )
    return module


def _message(crossing: Crossing, tensor: torch.Tensor, step: int, noise: Entropy) -> Message:
    transfer = Transfer(crossing, 0, gradient=False)
    if crossing.privacy is None:
        fields = fields_of(transfer, tensor)
    else:
        mechanism, entropy = EmbeddingDP(crossing.privacy.eps), noise.stream(crossing.part, step)
        fields = {"data": mechanism.bits(to_wire(tensor), entropy)}
    return tensor_message(transfer, fields, training=False, step=step)


def _tensor(message: Message, crossing: Crossing, step: int, length: int) -> torch.Tensor:
    shorter = replace(crossing, output=(length, crossing.output[-1]))
    transfer = Transfer(shorter, 0, gradient=False)
    return from_wire(message, transfer, training=False, step=step, rows=1)
