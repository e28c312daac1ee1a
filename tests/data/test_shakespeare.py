"""Shakespeare's plays by speaker."""

from __future__ import annotations

import numpy as np
import pytest

from data_files import GENUINE, refused, write
from fedveil.data import datasets, shakespeare
from fedveil.engine import trainer_choice
from fedveil.engine.assembly import ModelShape, load_data, make_partition
from fedveil.errors import DataUnavailable
from fedveil.federated.job import Job

ANNE, BOB = "A" * 300 + "\n" + "a" * 250, "b" * 640
PLAY = f"First Lord:\nshort\n\nANNE:\n{ANNE}\n\nBOB:\n{BOB}\n\nANNE:\n{'c' * 30}\n\nno colon\n"


@pytest.fixture
def play(folder):
    return write(folder / "text" / "tinyshakespeare.txt", PLAY.encode())


def test_each_speaker_with_enough_text_is_a_client(play):
    """Anne's two speeches are one text of 582 letters: seven pieces, one for testing."""
    data = datasets.load("shakespeare", "tokens")
    assert np.bincount(data.owners).tolist() == [6, 6]
    assert data.train.x.shape == (12, 80)
    assert (len(data.test), data.classes) == (2, 128)
    whole = np.frombuffer(f"{ANNE}\n{'c' * 30}".encode(), np.uint8)
    np.testing.assert_array_equal(data.train.x[:6].reshape(-1), whole[:480])
    np.testing.assert_array_equal(data.train.y[:6].reshape(-1), whole[1:481])
    np.testing.assert_array_equal(data.test.x[0], whole[480:560])


def test_a_job_has_a_client_for_each_speaker(play):
    keys = ["data.name=shakespeare", "data.split=by_client", "task=next_token", "model=transformer"]
    job = Job.load(None, keys)
    assert job.clients.number is None
    assert make_partition(job, load_data(job)).sizes.tolist() == [6, 6]
    told, found = trainer_choice._shape(job), ModelShape.of(load_data(job))
    assert (told.example_shape, told.classes) == (found.example_shape, found.classes)
    assert told.whole_examples is found.whole_examples is True
    with refused("shakespeare has tokens, which only task = next_token can learn"):
        datasets.load("shakespeare")
    with refused("digits has classes, which only task = classification can learn"):
        datasets.load("digits", "tokens")


def test_text_that_is_none_is_one_sentence(play):
    play.write_bytes("ANNE:\né".encode())
    with refused("tinyshakespeare.txt is not ASCII text"):
        datasets.load("shakespeare", "tokens")
    play.write_bytes(b"ANNE:\nshort\n\n\n\n:\n")
    with refused("has no speaker with 5 pieces of 80 letters"):
        datasets.load("shakespeare", "tokens")
    play.unlink()
    with refused("tinyshakespeare.txt is not on this machine: place", DataUnavailable):
        datasets.load("shakespeare", "tokens")


def test_a_speaker_is_named_on_one_line():
    told = shakespeare.speeches("Enter two,\nand a third:\nall sing\n\nANNE:\nlast words:\nnone\n")
    assert told == {"ANNE": "last words:\nnone"}


def test_lines_that_end_as_on_windows_are_the_same_speeches():
    assert shakespeare.speeches(PLAY.replace("\n", "\r\n")) == shakespeare.speeches(PLAY)


@pytest.mark.skipif(not (GENUINE / "text").exists(), reason="FEDVEIL_DATA has no text")
def test_the_genuine_plays():
    data = datasets.load("shakespeare", "tokens")
    assert (len(data.train), len(data.test), data.owners.max() + 1) == (10_108, 2_437, 193)
