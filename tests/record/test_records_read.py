"""A record that is read back is the one that was written, whatever its figures are."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedveil.errors import ClaimRefuted, MessageInvalid, RunFolderError
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import keep_accounts, read_accounts
from fedveil.record.before_after import BeforeAfter, keep_before_after, read_before_after
from fedveil.record.finding_lines import (
    FINDINGS,
    add_finding,
    as_data,
    raise_if_refuted,
    read_findings,
)
from fedveil.record.metric_names import as_asked, best, deciding, digits, in_words, is_share
from fedveil.record.recorder import read_whole_lines, revived, strict
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import sealed
from fedveil.record.vouched_metrics import Vouched


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, 1.5, 3, True, None, "text"])
@pytest.mark.parametrize(
    "where", [lambda f: f, lambda f: [1.0, f], lambda f: {"c": f}, lambda f: {"c": {"d": [f]}}]
)
def test_every_figure_survives_at_every_depth(figure: Any, where: Any) -> None:
    text = json.dumps(strict(where(figure)), allow_nan=False)
    assert repr(revived(json.loads(text))) == repr(where(figure))


def test_figures_in_a_tuple_are_written_as_in_a_list() -> None:
    record = {"loss": (math.nan, -math.inf, 0.5), "deep": {"at": [(math.inf, 2)]}}
    assert strict(record) == {"loss": ["nan", "-inf", 0.5], "deep": {"at": [["inf", 2]]}}


def test_a_broken_line_is_named_and_an_incomplete_last_one_is_ignored() -> None:
    path, resume = Path("metrics.jsonl"), "fedveil run --resume r"
    assert read_whole_lines('{"a": 1}\n{"a": 2}\n{"a"', path, resume, ["a"]) == [{"a": 1}, {"a": 2}]
    first = '{"a": 1, "b": 1}'
    for third, why in (('{"a": 3', "it breaks off"), ('{"b": 3}', "no a"), ('{"a": 3}', "no b"),
                       ("[]", "no record")):  # fmt: skip
        text = f"{first}\n{first}\n{third}\n"
        with pytest.raises(RunFolderError, match=rf"^metrics\.jsonl, line 3: .*{why}.*--resume r$"):
            read_whole_lines(text, path, resume, ["a", "b"])
        why = why.replace("it breaks off", "it is no JSON")
        edited = rf"line 3: invalid record \(.*{why}.*\)\. The file was edited or damaged"
        with pytest.raises(RunFolderError, match=edited):
            read_whole_lines(f"{text}{first}\n", path, resume, ["a", "b"])


def test_metrics_are_compared_with_the_last_checkpoint(tmp_path: Path) -> None:
    folder, whole = RunFolder.create(tmp_path / "run"), b'{"round": 1}\n{"round": 2}\n'
    assert Vouched.by_checkpoint(folder.path) is None
    for name, size in (("000000005", 13), ("000000012", 26)):
        digest = hashlib.sha256(whole[:size]).hexdigest()
        held = {"layout": "", "metrics_bytes": size, "metrics_digest": digest, "weights": b"w" * 99}
        folder.write_atomically(f"checkpoint/{name}", sealed(held))
    folder.write_atomically("checkpoint/begun", b"no message")
    vouched = Vouched.by_checkpoint(folder.path)
    assert vouched == Vouched(26, digest)
    vouched.check(whole)
    vouched.check(whole + b'{"round": 3}\n')
    vouched.check(whole[:13], growing=True)
    with pytest.raises(MessageInvalid, match="shorter than its checkpoint says"):
        vouched.check(whole[:13])
    for growing in (True, False):
        with pytest.raises(MessageInvalid, match="not what its checkpoint vouches for"):
            vouched.check(whole.replace(b"2", b"3"), growing=growing)


@pytest.mark.parametrize("data", [b"", b"no message", sealed({"metrics_bytes": 3})])
def test_a_checkpoint_without_a_checksum_is_refused(data: bytes, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_atomically("checkpoint/latest", data)
    with pytest.raises(RunFolderError, match="latest is damaged: "):
        Vouched.by_checkpoint(folder.path)


def test_accounts_are_replaced_by_those_of_the_last_session(tmp_path: Path) -> None:
    folder, events = RunFolder.create(tmp_path / "run"), list[str]()
    lines = [Line(2.5, 1e-7, "a row"), Line(math.inf, 0.25, "a label")]
    keep_accounts(folder, lines, events.append)
    assert read_accounts(folder.path) == lines
    assert events == [str(line) for line in lines]
    for _ in range(2):
        keep_accounts(folder, [], events.append)
        assert read_accounts(folder.path) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"epsilon": -1.0, "delta": 0.0, "what": "a row"}',
        '{"epsilon": "nan", "delta": 0.0, "what": "a row"}',
        '{"epsilon": 1.0, "delta": 7, "what": "a row"}',
        '{"epsilon": "much", "delta": 0.0, "what": "a row"}',
        '{"epsilon": 1.0, "delta": 0.0}',
        "[]",
        "typo",
    ],
)
def test_a_line_that_is_no_privacy_cost_is_named_by_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "accounts.jsonl"
    sound = '{"epsilon": "inf", "delta": 0.0, "what": "a row"}\n'
    path.write_text(sound)
    assert read_accounts(tmp_path) == [Line(math.inf, 0.0, "a row")]
    path.write_text(f"{sound}{line}\n")
    with pytest.raises(MessageInvalid, match=r"^line 2 is no privacy cost: it was edited or cut"):
        read_accounts(tmp_path)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"value": 0.5', '"value": [0.5]'),
        ('"value": 0.5', '"value": "0.5"'),
        ('"name": "epsilon at least by 0"', '"name": 3'),
        ('"cases": 1', '"cases": "many"'),
        ('"pictures": []', '"pictures": 4'),
        ('"attack": "guesses"', '"attack": 3'),
        ('"saw": "sums"', '"saw": null'),
        ('"settings": {}', '"settings": []'),
    ],
)
def test_a_finding_with_a_value_of_another_type_is_refused(
    was: str, now: str, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    add_finding(folder, finding(0.5, 1.25))
    path = folder.path / FINDINGS
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, now, 1))
    with pytest.raises(RunFolderError, match=r"attacks\.jsonl is damaged: line 1 is no finding"):
        read_findings(folder.path)


def test_comparisons_are_read_back_each_in_its_place(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert read_before_after(folder.path) == []
    lines = [
        BeforeAfter("figure", "perplexity", "9.5", "3.25"),
        BeforeAfter("prompt", "ü", "", "b"),
    ]
    keep_before_after(folder, lines)
    assert read_before_after(folder.path) == lines


def finding(*lows: float) -> Finding:
    figures = [Measured(f"epsilon at least by {n}", low, low=low) for n, low in enumerate(lows)]
    saw: dict[str, Any] = {"saw": "sums", "seconds": 1.5, "pictures": []}
    return Finding("guesses", "quick", "rr", figures, epsilon=1.5, **saw)


def test_long_texts_of_many_prompts_are_read_back(tmp_path: Path) -> None:
    """A job may have many prompts, and each is continued by up to 1,024 tokens."""
    folder, text = RunFolder.create(tmp_path / "run"), "日本語" * 700
    keep_before_after(folder, lines := [BeforeAfter("prompt", "p", text, text)] * 50)
    assert read_before_after(tmp_path / "run") == lines


def test_findings_are_kept_once_and_those_that_refute_are_counted(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    sound, refuting = finding(0.5, 1.25), finding(0.75, 2.25, 3.5)
    for one in (sound, refuting, sound):
        add_finding(folder, one)
    path = folder.path / FINDINGS
    path.write_text(path.read_text() + '{"attack": "gu')
    add_finding(folder, finding(0.125))
    assert repr(read_findings(folder.path)) == repr([sound, refuting, finding(0.125)])
    assert as_data(refuting)["excesses"] == ["epsilon at least by 1", "epsilon at least by 2"]
    with pytest.raises(ClaimRefuted, match=r"^1 of 3 findings refute"):
        raise_if_refuted([sound, refuting, sound])


@pytest.mark.parametrize("line", ["{}", "[]", "typo", '{"figures": [{"of": 1}]}'])
def test_a_line_that_is_no_finding_is_named_by_its_number(line: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    add_finding(folder, finding(0.5, 1.25))
    path = folder.path / FINDINGS
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(RunFolderError) as refused:
        read_findings(folder.path)
    assert str(refused.value) == (
        f"{path} is damaged: line 2 is no finding: it was edited or cut off"
    )


def test_a_finding_without_a_guarantee_is_read_back_as_numbers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    figures = [Measured("auc", math.nan, unseen=math.inf, cases=7)]
    settings = {"eps": math.inf, "steps": [0.5, -math.inf], "name": "sums"}
    kept = Finding("guesses", "full", "none", figures, settings, delta=1e-5, pictures=[])
    add_finding(folder, kept)
    (found,) = read_findings(folder.path)
    assert repr(found) == repr(kept)
    assert (found.epsilon, found.refutes) == (math.inf, False)


def test_metrics_are_compared_and_shown_by_their_kind() -> None:
    figures = [math.nan, 0.5, 0.7, 0.6]
    assert (best(figures, "higher"), best(figures, "lower")) == (0.7, 0.5)
    assert math.isnan(best([math.nan], "lower"))
    shown = {("rmse", -250.0): "-250.0", ("mae", 99.5): "99.5", ("loss", 3e9): "3e+09",
             ("balanced_accuracy", 0.125): "12.5%", ("accuracy", 55.0): "55.0",
             ("accuracy", -0.25): "-0.250", ("r2", -3e9): "-3e+09", ("loss", 1e9): "1e+09",
             ("accuracy", 1.0): "100.0%", ("auc", 0.5): "0.500"}  # fmt: skip
    assert {key: digits(*key) for key in shown} == shown
    assert [is_share(name) for name in ("top accuracy", "accuracy_loss")] == [True, False]
    asked = {("top_accuracy", 0.8125): "81.25%", ("loss", 0.0625): "0.0625", ("mae", 40.0): "40"}
    assert {key: as_asked(*key) for key in asked} == asked
    assert deciding({"measures": {}}) == ("loss", "lower")
    assert in_words({"accuracy": 0.0, "steps": 7, "auc": 0.93}) == "accuracy 0.0%, auc 0.930"
