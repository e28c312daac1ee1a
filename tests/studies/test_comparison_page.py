"""A comparison's page, as a browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_comparison_choice import line

from browser import needs_browser, show
from comparing_parts import compared, small_job
from fedveil.pages.page import Code, Fact, Fold, Page
from fedveil.studies.comparison import Asked, Comparison, Goal
from fedveil.studies.comparison_page import markdown, page
from fedveil.studies.comparison_table import lines


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Page:
    names = ["not_encrypt", "dp_encrypt"]
    results = compared(tmp_path_factory.mktemp("made") / "c", *names, epsilons=[2.0, 8.0])
    asked = Asked(protections=names, epsilons=[2.0, 8.0])
    return page(Comparison(small_job(), asked), lines(results), Goal("accuracy", 0.125))


@needs_browser
def test_every_plot_and_table_is_drawn(made: Page, tmp_path: Path) -> None:
    shown = show(
        made.html(),
        tmp_path,
        "return [document.querySelectorAll('.chart .curve').length > 1,"
        "document.querySelectorAll('table').length, document.body.innerText]",
    )
    drawn, tables, text = shown.found
    assert not shown.console
    assert drawn
    assert tables == 2
    assert "dp_encrypt, epsilon 8" in text
    assert "the same data, partition, initial model and cohorts" in text


def test_the_text_names_the_files_of_its_plots(made: Page) -> None:
    text = markdown(made)
    assert "| not_encrypt |" in text
    assert "| rounds to accuracy 12.5% |" in text
    assert "| epsilon of the whole run |" in text
    assert "](report-accuracy.svg)" in text
    assert "](report-accuracy-epsilon.svg)" in text


def test_the_card_and_a_warning_are_on_the_page_and_in_its_text() -> None:
    """Two of the settings have an epsilon of their own, and the third was asked for one."""
    found = [line("rr", None, 0.5, spent=9.0), line("oue", None, 0.25, spent=3.5),
             line("dp_encrypt", 2.0, 0.75)]  # fmt: skip
    asked = Asked(protections=["rr", "oue", "dp_encrypt"])
    shown = page(Comparison(small_job(), asked), found, None)
    _, warning, card = shown.lead
    assert str(warning).startswith("The promises are unequal")
    assert isinstance(card, Fact)
    assert card.value == "dp_encrypt at epsilon 2"
    text = markdown(shown)
    assert f"\n**Which to take: dp_encrypt at epsilon 2.** {card.text}\n" in text
    assert [section.title for section in shown.sections] == [
        "Plots", "Side by side", "To repeat it",
    ]  # fmt: skip
    empty = page(Comparison(small_job(), asked), [], None)
    assert "Plots" not in [section.title for section in empty.sections]


def test_what_is_not_alike_stands_on_the_page() -> None:
    secret = small_job(
        clients={"number": 8, "fraction": 0.5, "sampling": "poisson"},
        privacy={"randomness": "secure"},
    )
    shown = page(Comparison(secret, Asked(protections=["not_encrypt"])), [], None)
    assert any("no two runs meet the same clients" in str(text) for text in shown.lead)


def test_the_first_sentence_says_what_was_compared() -> None:
    for seeds, said in ((1, "seed 7"), (2, "2 seeds from 7 on")):
        asked = Asked(protections=["not_encrypt"], seeds=seeds)
        first = page(Comparison(small_job(rounds=3), asked), [], None).lead[0]
        assert str(first).startswith(f"parts:plain on parts:data, 8 clients, 3 rounds, {said}. ")
    own = small_job(data={"name": "parts:data", "split": "by_client"}, clients={"fraction": 0.5})
    first = page(Comparison(own, asked), [], None).lead[0]
    assert "the clients that the data has" in str(first)


def test_what_repeats_it_stands_under_its_own_name() -> None:
    shown = page(Comparison(small_job(), Asked(protections=["oue"])), [], None)
    (fold,) = shown.sections[-1].parts
    assert isinstance(fold, Fold)
    said = {code.name: code.text for code in fold.parts if isinstance(code, Code)}
    assert "model: parts:plain" in said["the job"]
    assert "- oue" in said["what was asked"]
