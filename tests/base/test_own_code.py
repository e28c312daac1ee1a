"""One sentence for each way in which a user's own code fails."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedveil.base import own_code
from fedveil.errors import DataUnavailable, InvalidValue


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_works.py").write_text("three = 3\ndef f(seed, size=1): return seed, size\n")
    (tmp_path / "own_raises.py").write_text("raise KeyError('no\\n key')\n")
    (tmp_path / "own_wrong.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "own_lacks.py").write_text("import no_such_dependency\n")
    (tmp_path / "own_needs.py").write_text("import own_need\n")
    (tmp_path / "own_tells.py").write_text(
        "from fedveil.errors import DataUnavailable\nraise DataUnavailable('fetch it first')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_works", "key: package.module:function is needed"),
        ("own_works:f.g", "key: package.module:function is needed"),
        ("a.b:f", "key: there is no module a, neither in the current folder nor installed"),
        (
            "own_works.b:f",
            "key: there is no module own_works.b, neither in the current folder nor installed",
        ),
        (
            "own_works.py:f",
            "key: there is no module own_works.py, neither in the current folder nor installed: "
            "write the file without .py, as own_works:f",
        ),
        (
            "own_raises:f",
            "key: importing own_raises raised KeyError: 'no\\n key' (own_raises.py, line 1)",
        ),
        (
            "own_lacks:f",
            "key: importing own_lacks raised ModuleNotFoundError: No module named "
            "'no_such_dependency' (own_lacks.py, line 1)",
        ),
        (
            "own_needs:f",
            "key: importing own_needs raised ModuleNotFoundError: No module named 'own_need' "
            "(own_needs.py, line 1)",
        ),
        (
            "own_wrong:f",
            "key: importing own_wrong raised SyntaxError: invalid syntax (own_wrong.py, line 2)",
        ),
        ("own_works:g", "key: the module own_works has no g"),
        ("own_works:ff", "key: the module own_works has no ff (did you mean f?)"),
        ("own_works:thre", "key: the module own_works has no thre"),  # three is no function
        ("own_works:three", "key: three is not a function"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        own_code.load(name, key="key", error=InvalidValue)
    assert str(caught.value) == sentence
    assert "\n" not in sentence


def test_built_in_names_are_told() -> None:
    with pytest.raises(InvalidValue) as caught:
        own_code.load("c", key="key = 'c'", error=InvalidValue, built_in=("a", "b"))
    assert str(caught.value) == "key = 'c' is neither one of a, b nor package.module:function"
    with pytest.raises(InvalidValue, match=r"function \(did you mean table\?\)$"):
        own_code.load("tabel", key="key = 'tabel'", error=InvalidValue, built_in=("table", "other"))


def test_what_a_function_raises_is_one_sentence() -> None:
    with pytest.raises(InvalidValue) as caught, own_code.own_code_errors("key", InvalidValue):
        raise ValueError("two\nlines")
    sentence, _, line = str(caught.value).rpartition(", line ")
    assert sentence == f"key: the function raised ValueError: two lines ({__file__}"
    assert line == f"{sys._getframe().f_code.co_firstlineno + 2})"
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_place_of_an_error_is_the_line_that_raised_it() -> None:
    def inner() -> None:
        raise ValueError("two")

    with pytest.raises(InvalidValue) as caught, own_code.own_code_errors("key", InvalidValue):
        inner()
    line = inner.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f"({__file__}, line {line})")


def test_the_place_of_a_syntax_error_in_executed_text_is_the_line_that_executes_it() -> None:
    def inner() -> None:
        compile("x =", "<string>", "exec")

    with pytest.raises(InvalidValue) as caught, own_code.own_code_errors("key", InvalidValue):
        inner()
    line = inner.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f"({__file__}, line {line})")


@pytest.mark.parametrize("end", [KeyboardInterrupt, GeneratorExit])
def test_the_end_of_a_program_or_of_a_generator_is_no_error_of_its_code(
    end: type[BaseException],
) -> None:
    with pytest.raises(end), own_code.as_exceptions():
        raise end
    with pytest.raises(RuntimeError, match=r"^SystemExit: 3$"), own_code.as_exceptions():
        sys.exit(3)


def test_a_script_that_ends_the_program_when_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise parse fedveil's command line and end fedveil without a reason."""
    (tmp_path / "own_script.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\ndef f(): pass\n"
    )
    monkeypatch.setattr(sys, "argv", ["fedveil", "run", "job.yaml"])
    said = r"^key: importing own_script raised SystemExit: 2 \(.*own_script.py, line 2\)$"
    with pytest.raises(InvalidValue, match=said):
        own_code.load("own_script:f", key="key", error=InvalidValue)
    with pytest.raises(KeyboardInterrupt), own_code.own_code_errors("key", InvalidValue):
        raise KeyboardInterrupt


def test_an_error_is_described_and_code_is_named_by_its_place() -> None:
    assert own_code.described(ValueError()) == "ValueError"
    assert own_code.described(KeyError("a")) == "KeyError: 'a'"
    f = own_code.load("own_works:f", key="key", error=InvalidValue)
    assert own_code.defined_at(f) == "own_works.py, line 2"
    assert own_code.defined_at(len) == "builtins:len"
    assert own_code.place_of(ValueError()) is None


def test_an_error_of_fedveil_is_a_sentence_already() -> None:
    with pytest.raises(DataUnavailable, match=r"^fetch it first$"):
        own_code.load("own_tells:f", key="key", error=InvalidValue)


def test_each_object_of_a_script_reaches_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    script = ModuleType("__main__")
    exec("def one(): return 1\ndef two(): return one() + 1\ndef three(): pass", vars(script))
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert own_code.packed(["own_works:f", "table"]) == b""
    data = own_code.packed(["__main__:one", "own_works:f", "__main__:two", "__main__:gone"])
    own_code.unpack(data)
    assert sys.modules["__main__"] is not script
    for name, value in (("one", 1), ("two", 2)):
        assert own_code.load(f"__main__:{name}", key="key", error=InvalidValue)() == value
    assert not hasattr(sys.modules["__main__"], "three")
    left = sys.modules["__main__"]
    own_code.unpack(b"")
    assert sys.modules["__main__"] is left


def test_only_arguments_that_a_function_has_are_given() -> None:
    f = own_code.load("own_works:f", key="key", error=InvalidValue)
    assert own_code.called(f, seed=3, folder=None) == (3, 1)
    assert own_code.called(f, seed=3, size=4) == (3, 4)
    assert own_code.called(f, seed=None, folder=5) == (None, 1)


@pytest.mark.parametrize(("place", "where"), [(None, ""), ("own.py, line 7", " (own.py, line 7)")])
def test_an_error_has_a_place_only_if_own_code_raised_it(
    place: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_code, "place_of", lambda raised: place)
    with (
        pytest.raises(InvalidValue) as refused,
        own_code.own_code_errors("model = 'm:f'", InvalidValue, "the net"),
    ):
        raise KeyError("no key")
    assert str(refused.value) == f"model = 'm:f': the net raised KeyError: 'no key'{where}"
