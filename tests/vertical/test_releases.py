"""The counts of what was sent, on disk before anything is sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedveil.errors import RunFolderError
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import sealed
from fedveil.vertical import account
from fedveil.vertical.account import Releases, figures, ledger_of, opening
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.rows import Order
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from synced_disk import SyncedDisk

ORDER = Order(4, 50, 9, aside=7)


def opened(folder: Path, step: int = 0, *, new: bool = False) -> Releases:
    """Open the counts of a folder, and restore them at `step`. A `new` folder has none yet."""
    found = Releases(RunFolder(folder, None), ORDER, fresh=True, epochs=4)  # type: ignore[arg-type]
    if new:
        found.begin()
    found.restore(step, 0)
    return found


def test_what_was_begun_before_a_crash_is_counted(tmp_path: Path) -> None:
    first = opened(tmp_path, new=True)
    first.begin_step(1, ORDER.of_step(1))
    first.begin_calibration()
    first.begin_step(2, ORDER.of_step(2))
    first.begin_look()
    again = opened(tmp_path, 1)
    assert again.train.tolist() == first.train.tolist()
    assert first.train[ORDER.set_aside].tolist() == [1] * 7
    assert again.looks == first.looks == 1
    first.restore(1, 0)
    for releases in (first, again):  # the same process goes back, or a new one
        releases.settle(1)
        assert opened(tmp_path, 1).train.tolist() == again.train.tolist()
    # Step 2 is sent a second time.
    again.begin_step(2, ORDER.of_step(2))
    assert opened(tmp_path, 1).train[ORDER.of_step(2)].tolist() == [2] * len(ORDER.of_step(2))
    for releases in (first, again):
        releases.close()


@pytest.mark.parametrize("step", [1, 3])
def test_an_evaluation_forgets_no_step_that_was_begun(step: int, tmp_path: Path) -> None:
    """It may be of an older step than the last one, whose checkpoint may be used later."""
    first = opened(tmp_path, new=True)
    for number in (1, 2, 3):
        first.begin_step(number, ORDER.of_step(number))
    first.close()
    looking = opened(tmp_path, step)
    looking.begin_look()
    looking.close()
    for later in (1, 3):
        again = opened(tmp_path, later)
        assert again.train.tolist() == first.train.tolist()
        assert again.looks == 1


def test_counts_survive_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "begun"
    disk, first = SyncedDisk(path, monkeypatch), opened(tmp_path, new=True)
    for step in (1, 2, 3):
        first.begin_step(step, ORDER.of_step(step))
        assert disk.content == path.read_bytes()
    first.begin_look()
    assert disk.content == path.read_bytes()
    first.close()
    assert len(set(disk.contents)) == 6  # nothing, and then five different contents


def test_counts_are_never_below_those_of_the_checkpoint(tmp_path: Path) -> None:
    """An older copy of the file with the last begun step lies beside a newer checkpoint."""
    first = opened(tmp_path, new=True)
    older = (tmp_path / "begun").read_bytes()
    for step in (1, 2, 3):
        first.begin_step(step, ORDER.of_step(step))
    first.begin_look()
    first.close()
    (tmp_path / "begun").write_bytes(older)
    again = Releases(RunFolder(tmp_path, None), ORDER, fresh=True, epochs=4)  # type: ignore[arg-type]
    again.restore(3, 1)
    assert again.train.tolist() == first.train.tolist()
    assert again.looks == 1


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("name", ["releases", "begun"])
def test_a_folder_without_its_counts_is_refused(tmp_path: Path, name: str, step: int) -> None:
    first = opened(tmp_path, new=True)
    first.settle(step)
    first.begin_step(step + 1, ORDER.of_step(step + 1))
    first.close()
    (tmp_path / name).unlink()
    with pytest.raises(RunFolderError, match=rf"{name} is missing: it records what was sent"):
        opened(tmp_path, step)


def test_counts_that_were_saved_before_a_checkpoint_are_not_begun_anew(tmp_path: Path) -> None:
    first = opened(tmp_path, new=True)
    first.begin_step(1, ORDER.of_step(1))
    first.close()
    again = opened(tmp_path, new=True)
    assert again.train.tolist() == first.train.tolist()
    assert again.train.sum() == 9


def test_all_steps_that_were_sent_to_their_end_have_saved_reports(tmp_path: Path) -> None:
    first = opened(tmp_path, new=True)
    for step in (1, 2, 3):
        first.begin_step(step, ORDER.of_step(step))
    assert opened(tmp_path).examples == 18  # the last step may have been cut off
    first.close()
    seeded = Releases(None, ORDER, fresh=False, epochs=4)
    seeded.restore(3, 0)
    assert seeded.examples == 27


def test_no_saved_count_is_beyond_the_bound(tmp_path: Path) -> None:
    first = opened(tmp_path, new=True)
    first.close()
    for count, holds in ((1 << 20, True), ((1 << 20) + 1, False), (-1, False)):
        train = np.append(np.zeros(49, np.int64), count)
        (tmp_path / "releases").write_bytes(sealed({"step": 0, "train": train}))
        if holds:
            assert opened(tmp_path).train.max() == count
            continue
        with pytest.raises(RunFolderError, match="releases is damaged: train = "):
            opened(tmp_path)


def test_a_party_without_ids_has_a_row_for_each_position() -> None:
    releases = Releases(None, Order(0, 3, 2), fresh=False, epochs=1)
    releases.train[1], releases.looks = 5, 2
    ids = {"train": np.array([], np.int64), "test": np.array(["a"])}
    rows = releases.table(ids).decode().split("\r\n")  # type: ignore[arg-type]
    assert rows[1:-1] == ["train,0,0", "train,1,5", "train,2,0", "test,a,2"]


def test_an_output_of_several_dimensions_costs_all_of_its_values() -> None:
    private = Part("left", "bank", ("data.x",), (3, 5), privacy=EmbeddingPrivacy(0.5))
    split = SplitModel([private, Part("top", "lead", ("left",), (2,))], leader="lead")
    releases = Releases(None, Order(0, 4, 3), fresh=False, epochs=2)
    releases.train[1] = 2
    ledger = ledger_of(split, "bank", releases, None)
    assert ledger.epsilon("run") == pytest.approx(2 * 15 * 0.25)
    lines = figures(split, "bank", releases, 0.0, None)
    assert lines[2].what == "an example's 15 bits of left, sent once"
    assert lines[2].epsilon == pytest.approx(15 * 0.25)
    assert lines[-1].epsilon == pytest.approx(2 * 15 * 0.25)


def test_the_cost_of_an_example_includes_its_label() -> None:
    parts = [
        Part("embedding", "lead", ("data.x",), (3,), privacy=EmbeddingPrivacy(1.0)),
        Part("middle", "bank", ("embedding",), (2,)),
        Part("head", "lead", ("middle",), (2,)),
    ]
    split, label = SplitModel(parts, leader="lead"), LabelDP(2.0).loss
    sent = Releases(None, Order(0, 11, 4), fresh=False, epochs=3)
    sent.train[:] = 1
    sent.train[6], sent.looks = 3, 2
    last = figures(split, "lead", sent, 0.0, label)[-1]
    assert last.epsilon == 3 * (3 * 0.5) + 2.0
    assert last.epsilon == Limit(split, "lead", 9.0, 0.0, label).figure(3, labelled=True).epsilon


def test_an_epsilon_of_many_reports_states_its_delta() -> None:
    private = Part("left", "bank", ("data.x",), (3,), privacy=EmbeddingPrivacy(0.05))
    split = SplitModel([private, Part("top", "lead", ("left",), (2,))], leader="lead")
    releases = Releases(None, Order(0, 4, 3), fresh=False, epochs=900)
    releases.train[1] = 900
    for delta, stated in ((0.0, 0.0), (3e-4, 3e-4)):
        last = figures(split, "bank", releases, delta, None)[-1]
        assert last.delta == stated
        assert (last.epsilon < 900 * 3 * 0.025 * 0.9) == (delta > 0)


def test_a_held_out_example_pays_for_its_evaluations_and_for_no_label() -> None:
    """It was sent more often than any training example, which pays for a label too."""
    parts = [
        Part("embedding", "lead", ("data.x",), (3,), privacy=EmbeddingPrivacy(1.0)),
        Part("middle", "bank", ("embedding",), (2,)),
        Part("head", "lead", ("middle",), (2,)),
    ]
    split = SplitModel(parts, leader="lead")
    for label, looks, most in ((2.0, 5, 5 * 1.5), (2.0, 4, 3 * 1.5 + 2.0), (6.0, 5, 10.5)):
        sent = Releases(None, Order(0, 11, 4), fresh=False, epochs=3)
        sent.train[:] = 1
        sent.train[6], sent.looks = 3, looks
        last = figures(split, "lead", sent, 0.0, LabelDP(label).loss)[-1]
        assert last.epsilon == most
        assert last.what.endswith(f"sent {looks} times")


def test_a_new_file_of_counts_is_in_its_folder_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(account, "sync_to_disk", synced.append)
    first = opened(tmp_path, new=True)
    assert synced == [tmp_path]
    first.close()
    first.close()  # a run that ends twice
    first.begin_step(1, ORDER.of_step(1))
    assert opened(tmp_path).train.sum() == 9
    assert synced == [tmp_path] * 2
    first.close()


def test_the_log_names_each_bare_output_beside_a_protected_one() -> None:
    parts = [
        Part("left", "bank", ("data.x",), (3,), privacy=EmbeddingPrivacy(0.5)),
        Part("right", "bank", ("data.y",), (5,)),
        Part("top", "lead", ("left", "right"), (2,)),
    ]
    split = SplitModel(parts, leader="lead")
    assert opening(split, "bank") == [
        "The embedding of left is protected by EmbeddingDP with eps 0.5.",
        "The output of right leaves bank without protection.",
    ]
    assert Limit(split, "bank", 99.0, 0.0, None).allows(1, labelled=False, scored=0) is False
