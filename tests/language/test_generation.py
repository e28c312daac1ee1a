"""A text continued through both parties."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedveil.base.message import Message
from fedveil.cli.vertical.commands import app
from fedveil.entropy import Seeded
from fedveil.entry.vertical import train
from fedveil.errors import ExchangeError, InvalidValue, LimitReached, RunFolderError
from fedveil.language import generation, text_account
from fedveil.language.generation import Continuation, Request, generate
from fedveil.language.text import ByteTokenizer
from fedveil.language.text_account import SentVectors, figures
from fedveil.link.channel import Receive, Send, drive_together
from fedveil.link.streams import Address
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.record import saved_job
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.party import Party
from fedveil.vertical.remote import sessions
from fedveil.vertical.remote.sessions import Machine, Meeting
from small_pangu import parties, small_job

VERSE = b"abcdefghijklmnopqrstuvwxyz\n" * 120


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that knows the alphabet by heart, and one that learnt it under EmbeddingDP."""
    folder = tmp_path_factory.mktemp("generation")
    chosen = {"plain": ("epochs=12",), "private": ("epochs=2", "privacy={embedding_dp: {eps: 5}}")}
    for name, own in chosen.items():
        common = ("batch_size=16", "evaluation.every_epochs=null", *own)
        verse = folder / "text" / "verse.txt"
        train(small_job(verse, VERSE, "tokenizer: bytes", *common), folder / name)
    return {name: folder / name for name in chosen}


def test_the_likeliest_continuation_is_the_text_s_own(runs: dict[str, Path]) -> None:
    found, split = generate(runs["plain"], Request.seeded(b"abcdef", 60, 0))
    assert b"abcdef" + found.text == VERSE[:66]
    (line,) = figures(split, found.sent)
    said = f"the whole text, {found.sent.vectors} vectors of embedding, sent unprotected"
    assert str(line) == f"epsilon inf at delta 0 (none) for {said}"
    assert found.sent.vectors >= 6 + 60 - 1  # nobody sends the last token


@pytest.mark.parametrize("name", ["plain", "private"])
def test_a_seed_gives_the_same_text_every_time(runs: dict[str, Path], name: str) -> None:
    def text(seed: int | None, **more: Any) -> bytes:
        return generate(runs[name], Request.seeded(b"abc", 30, 1.5, seed), **more)[0].text

    assert text(0) == text(0) == text(0, encoded=True)
    assert len({text(seed) for seed in range(4)}) > 1
    assert len({text(None) for _ in range(8)}) > 1  # one text in fifteen is the text by heart


def test_pieces_come_as_they_are_found(runs: dict[str, Path]) -> None:
    pieces: list[bytes] = []
    found, _ = generate(runs["plain"], Request.seeded(b"", 20, seed=0), pieces.append)
    assert b"".join(pieces) == found.text
    assert len(pieces) == len(found.text) == 20


def test_what_a_text_costs_is_said(runs: dict[str, Path]) -> None:
    found, split = generate(runs["private"], Request.seeded(b"abcd", 30, seed=0))
    # 16 vectors fill the context and give 13 tokens; 8 again and 8 new ones give 9; 8 and 7, 8.
    assert found.sent.times == 2
    assert found.sent.vectors == 16 + (8 + 8) + (8 + 7)
    lines = figures(split, found.sent)
    assert [line.epsilon for line in lines] == [2.5, 2.5 * 32 * 2, 2.5 * 32 * found.sent.vectors]
    assert str(lines[1]).endswith(" for a token's 32 bits of embedding, sent 2 times")
    assert str(lines[2]).endswith(f" for the whole text, {found.sent.vectors} vectors of embedding")
    short, split = generate(runs["private"], Request.seeded(b"abcd", 3, seed=0))
    assert (short.sent.vectors, short.sent.times) == (6, 1)
    assert figures(split, short.sent)[1].epsilon == 2.5 * 32
    assert str(figures(split, short.sent)[1]).endswith("bits of embedding, sent once")


def limited(run: Path, folder: Path, most: float) -> Path:
    """Return a copy of the run whose job has the limit."""
    copied = Path(shutil.copytree(run, folder))
    for job in (copied / saved_job.JOB, copied / saved_job.BEGAN):
        told = job.read_text()
        assert told.count("max_epsilon: null") == 1
        job.write_text(told.replace("max_epsilon: null", f"max_epsilon: {most}"))
    return copied


def test_a_text_of_an_unfinished_run_is_told_to_be_one(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    wanted = Request.seeded(b"abc", 2, 0)
    said: list[str] = []
    generate(run, wanted, say=said.append)
    assert said == []
    next(run.glob("*/model.safetensors")).unlink()
    generate(run, wanted, say=said.append)
    (told,) = said
    assert re.fullmatch(r"the run is unfinished: using the state after step [1-9]\d*", told)


def test_a_text_ends_before_it_costs_more_than_the_limit(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    wanted = Request.seeded(b"abcd", 30, seed=0)
    whole, _ = generate(runs["private"], wanted)
    run = limited(runs["private"], tmp_path / "seven", 2.5 * 32 * 7)
    found, split = generate(run, wanted, encoded=True)
    assert (found.sent.vectors, len(found.text)) == (7, 4)
    assert whole.text.startswith(found.text)
    assert figures(split, found.sent)[2].epsilon == 2.5 * 32 * 7
    assert "above privacy.max_epsilon = 560" in found.stopped
    assert not whole.stopped
    # 16 vectors fill the context: the next needs 8 of them again.
    run = limited(runs["private"], tmp_path / "context", 2.5 * 32 * 23)
    found, _ = generate(run, wanted)
    assert (found.sent.vectors, found.sent.times) == (16, 1)
    for kind, most in (("private", 2.5 * 32 * 4 - 1), ("plain", 1e9)):
        with pytest.raises(LimitReached, match="the text is not continued"):
            generate(limited(runs[kind], tmp_path / kind, most), wanted)


def test_every_vector_and_every_choice_of_every_text_is_drawn_apart(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str | int, ...]] = []
    bits, choose = EmbeddingDP.bits, generation._choose

    def noted(self: EmbeddingDP, values: Any, entropy: Any = None) -> Any:
        drawn.append(entropy.path)
        return bits(self, values, entropy)

    def chosen(scores: Any, pieces: Any, temperature: float, entropy: Any) -> int:
        drawn.append((*entropy.path, entropy.seed))
        return choose(scores, pieces, temperature, entropy)

    monkeypatch.setattr(EmbeddingDP, "bits", noted)
    monkeypatch.setattr(generation, "_choose", chosen)
    for seed in (1, 2):
        generate(runs["private"], Request.seeded(b"abc", 5, 1.5, seed))
    assert len(drawn) == len(set(drawn)) == 2 * 2 * 5


def test_a_text_takes_the_threads_of_its_job_and_messages_as_its_caller_says(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    for job in (run / saved_job.JOB, run / saved_job.BEGAN):
        told = job.read_text()
        assert told.count("threads: 1\n") == 1
        job.write_text(told.replace("threads: 1\n", "threads: 3\n"))
    driven: list[tuple[bool, int]] = []

    def drive(sides: Any, *, encoded: bool) -> Any:
        driven.append((encoded, torch.get_num_threads()))
        return drive_together(sides, encoded=encoded)

    monkeypatch.setattr(generation, "drive_together", drive)
    before = torch.get_num_threads()
    for encoded in (True, False):
        generate(run, Request.seeded(b"abc", 2, 0), encoded=encoded)
    assert driven == [(True, 3), (False, 3)]
    assert torch.get_num_threads() == before != 3


def together_continue(leader: Party, cloud: Party, prompt: bytes, tokens: int) -> Continuation:
    request = Request(prompt, tokens, 0, Seeded(0))
    sides = {
        "leader": generation.write(
            leader, Seeded(1), ByteTokenizer(), request, None, lambda p: None, SentVectors()
        ),
        "cloud": generation.assist(cloud, Seeded(1)),
    }
    found = drive_together(sides)["leader"]
    assert found is not None
    return found


def continued(context: int, prompt: bytes, tokens: int) -> Continuation:
    return together_continue(*parties(context), prompt, tokens)


def by_whole_windows(context: int, prompt: bytes, count: int) -> bytes:
    """Return the continuation with the whole window computed anew for every token."""
    leader, cloud = parties(context)
    embedding, head = leader.modules["embedding"], leader.modules["head"]
    text, begin = list(prompt), max(0, len(prompt) - context)
    for _ in range(count):
        if len(text) - begin > context:
            begin = len(text) - max(1, context // 2)
        window = torch.tensor([text[begin:]])
        scores = head(cloud.modules["backbone"](embedding(window)))[0, -1]
        text.append(int(scores[:256].argmax()))
    return bytes(text[len(prompt) :])


@pytest.mark.parametrize("context", [1, 2, 3, 16])
@pytest.mark.parametrize("prompt", [b"a", b"some words", b"a prompt that is longer than a window"])
def test_remembering_changes_nothing(context: int, prompt: bytes) -> None:
    """Through the follower's memory or with every window computed anew: the same tokens."""
    leader, _ = parties(context)
    with torch.no_grad():  # the end of a document would end the comparison
        leader.modules["embedding"].word.weight[256] = 0
    found = continued(context, prompt, 2 * context + 5)
    expected = by_whole_windows(context, prompt, 2 * context + 5)
    assert expected.startswith(found.text)
    assert len(found.text) > 0


def test_tokens_are_drawn_as_their_scores_say() -> None:
    """Chi-square at error rate 1e-6, at two temperatures; unused tokens never come."""
    from scipy.stats import chi2

    pieces: list[bytes | None] = [b"a", None, b"b", b"c", None]
    scores = torch.tensor([0.0, 9.0, 1.0, -0.5, 0.3])
    for temperature in (1.0, 0.5):
        entropy = Seeded(3, f"{temperature}")
        draws = [generation._choose(scores, pieces, temperature, entropy) for _ in range(1500)]
        weights = np.exp(scores.double().numpy()[[0, 2, 3, 4]] / temperature)
        expected = 1500 * weights / weights.sum()
        seen = np.bincount(draws, minlength=5)
        assert seen[1] == 0
        statistic = float(((seen[[0, 2, 3, 4]] - expected) ** 2 / expected).sum())
        assert statistic < chi2.isf(1e-6, df=3)


def test_the_end_of_a_document_ends_the_text() -> None:
    leader, cloud = parties()
    with torch.no_grad():
        leader.modules["embedding"].word.weight.zero_()  # every score is 0
        leader.modules["embedding"].word.weight[256, 0] = 100.0
        cloud.modules["backbone"].final.bias.fill_(1.0)
    found = together_continue(leader, cloud, b"abc", 10)
    assert found.text == b""
    assert found.sent.vectors == 3


# --- what a follower refuses


def follow(messages: list[Message], sent: list[Message]) -> None:
    """Give a follower the messages of a leader, one for each that it waits for."""
    _, cloud = parties()
    exchange = generation.assist(cloud, Seeded(1))
    waiting = iter(messages)
    answer: Message | None = None
    while True:
        request = exchange.send(answer)
        if isinstance(request, Send):
            sent.append(request.message)
        answer = next(waiting) if isinstance(request, Receive) else None


def extend(**changes: Any) -> Message:
    return {"kind": "extend", "step": 1, "start": 0, "length": 2} | changes


def vectors(length: int = 2, value: float = 0.5, step: int = 1) -> Message:
    data = np.full((1, length, 32), value, np.float32)
    return {"kind": "tensor", "name": "embedding.test", "step": step, "micro": 0, "data": data}


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([extend(step=2)], "sent 'extend' of step 2 where 'extend' of step 1 was due"),
        ([extend(start=3)], "asks for 2 positions from 3, but 0 of 16 positions are cached"),
        ([extend(length=17)], "asks for 17 positions from 0, but"),
        ([extend(length=0)], "asks for 0 positions"),
        ([extend(length=True)], "sent an invalid request"),
        ([extend(more=1)], "sent an invalid request"),
        ([extend(kind=np.arange(2))], "where 'extend' of step 1 was due"),
        ([{"kind": "tensor"}], "sent an invalid request"),
        ([{"kind": "enough", "step": 3}], "sent a enough of step 3 where step 1 was due"),
        ([extend(), vectors(3)], "of shape (1, 3, 32) where (1, 2, 32) was due"),
        ([extend(), vectors(value=math.nan)], "with NaN or infinity"),
        ([extend(), vectors(step=2)], "of step 2 where step 1 was due"),
        ([extend(), vectors(), extend(start=2)], "'extend' of step 1 where 'extend' of step 2"),
        ([extend(), vectors(), extend(step=2, start=2, length=15)], "asks for 15 positions from 2"),
        ([extend(), vectors(), extend(step=2, start=1)], "from 1, but 2 of 16"),
    ],
)
def test_a_follower_refuses_what_is_not_due(messages: list[Message], sentence: str) -> None:
    sent: list[Message] = []
    with pytest.raises(ExchangeError, match=re.escape(sentence)) as refusal:
        follow(messages, sent)
    assert sent[-1] == {"kind": "abort", "reason": str(refusal.value)}


def test_a_leader_that_refuses_an_answer_tells_the_follower() -> None:
    leader, _ = parties()
    request = Request(b"ab", 4, 0, Seeded(2))
    exchange = generation.write(
        leader, Seeded(1), ByteTokenizer(), request, None, lambda piece: None, SentVectors()
    )
    sent, answer = list[Message](), None
    with pytest.raises(ExchangeError, match="where step 1 was due") as refusal:  # noqa: PT012
        while True:
            asked = exchange.send(answer)
            sent += [asked.message] if isinstance(asked, Send) else []
            answer = vectors(1, step=7) | {"name": "backbone.test"}
    assert sent[-1] == {"kind": "abort", "reason": str(refusal.value)}


@pytest.mark.parametrize(("parts", "crossings"), [(2, 2), (4, 2), (3, 1), (3, 3)])
def test_a_text_is_continued_by_three_parts_with_two_crossings(parts: int, crossings: int) -> None:
    names = [SimpleNamespace(name=f"part{number}") for number in range(parts)]
    split: Any = SimpleNamespace(parts=names, crossings=[object()] * crossings)
    with pytest.raises(InvalidValue, match="but the parts are part0, part1"):
        text_account.crossings(split)


def test_only_pangu_s_own_parts_continue_a_text() -> None:
    leader, cloud = parties()
    leader.modules["embedding"] = torch.nn.Embedding(257, 32)
    with pytest.raises(InvalidValue, match="WordAndPosition as the part embedding"):
        together_continue(leader, cloud, b"a", 1)


def test_bad_wishes_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=re.escape("tokens = 0 is outside [1, inf)")):
        generate(runs["plain"], Request.seeded(b"a", 0))
    with pytest.raises(InvalidValue, match=re.escape("temperature = -1 is outside [0, inf)")):
        generate(runs["plain"], Request.seeded(b"a", temperature=-1))
    with pytest.raises(RunFolderError, match="is not a run's folder"):
        generate(tmp_path, Request.seeded(b"a"))
    run = RunFolder.create(tmp_path)
    saved_job.keep_job(run, VerticalJob.load(None, ["task=tabular"]), [])
    run.close()
    with pytest.raises(InvalidValue, match="only a run of the task pangu can continue a text"):
        generate(tmp_path, Request.seeded(b"a"))
    run = RunFolder.reopen(tmp_path)
    saved_job.keep_job(run, VerticalJob.load(None, ["task=pangu"]), [])
    run.close()
    with pytest.raises(RunFolderError, match="it contains nothing of leader, cloud"):
        generate(tmp_path, Request.seeded(b"a"))


def test_the_text_itself_is_not_needed(runs: dict[str, Path], tmp_path: Path) -> None:
    verse = runs["plain"].parent / "text" / "verse.txt"
    verse.rename(tmp_path / "verse.txt")
    try:
        found, _ = generate(runs["plain"], Request.seeded(b"abc", 3, 0))
    finally:
        (tmp_path / "verse.txt").rename(verse)
    assert found.text == b"def"


Opening = Callable[[Path, Callable[[Any], str], ExitStack], Machine]


def session(folder: Path, opened: Opening, **more: Any) -> Any:
    """Leader and follower over gRPC, each in a thread: the leader's result.

    Both are opened here first: initial weights are drawn from torch's one generator in a process.
    """
    where: Queue[Address] = Queue()
    notes: list[str] = []
    with ExitStack() as stack:
        here = opened(folder / "here", lambda task: task.leader, stack)
        there = opened(folder / "there", lambda task: task.followers[0], stack)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        anywhere = Meeting(Address("127.0.0.1", 0), None, 60, notes.append, None, where.put)
        ours = pool.submit(sessions.lead, here, anywhere, **more)
        meeting = Meeting(where.get(timeout=60), None, 60, notes.append)
        pool.submit(sessions.follow, there, meeting, looks=bool(more)).result(timeout=120)
        return ours.result(timeout=120).result


def test_two_machines_continue_a_text_as_one_process_does(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    job = VerticalJob.load(runs["plain"] / "job.yaml")
    session(tmp_path, lambda path, who, stack: Machine.new(job, who, path, "train", stack, 0))
    own = generation.leading(Request.seeded(b"abc", 40, 2.5, seed=1))
    found = session(tmp_path, Machine.reopened, purpose="generate", own=own)
    expected, _ = generate(runs["plain"], Request.seeded(b"abc", 40, 2.5, seed=1))
    assert found == expected


def test_the_command_prints_prompt_and_continuation(runs: dict[str, Path]) -> None:
    arguments = ["generate", str(runs["plain"]), "--prompt", "abc", "--tokens", "5"]
    result = CliRunner().invoke(app, [*arguments, "--temperature", "0"])
    assert result.exit_code == 0
    text, cost = result.stdout.splitlines()
    assert text == "abcdefgh"
    assert cost.startswith("epsilon inf at delta 0 (none) for the whole text, ")
    private = ["generate", str(runs["private"]), "--prompt", "ü", "--tokens", "2", "--seed", "1"]
    lines = CliRunner().invoke(app, private).stdout.splitlines()
    assert lines[0].startswith("ü")
    assert "epsilon 2.5 at delta 0 (meaningful) for a bit of embedding" in lines
