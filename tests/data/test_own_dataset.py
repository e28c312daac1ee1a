"""A user's own function: what it may return, and what is wrong with what it returned."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from conftest import ARRAYS
from data_files import new_module, refused, write
from fedveil.base.example_arrays import opened
from fedveil.data import datasets, own_dataset
from fedveil.data.lone_records import Form
from fedveil.errors import DataInvalid, FedveilWarning


def test_four_arrays(own):
    data = own("return x, y, x2, y2")
    assert data.name.endswith(":make")
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int64
    assert data.train.x.tolist() == np.arange(12.0).reshape(4, 3).tolist()
    assert data.classes == 3
    assert data.owners is None


def test_lists_and_whole_floats_are_arrays_too(own):
    data = own("return x.tolist(), y.astype(float), [[1, 2, 3]], [True]")
    assert data.train.y.tolist() == [0, 1, 2, 0]
    assert data.test.y.tolist() == [1]


def test_a_mapping_with_owners_and_classes(own):
    data = own(
        "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, client_ids=['b', 'a', 'b', 'c'],"
        " classes=5)"
    )
    assert data.classes == 5
    assert data.owners.tolist() == [1, 0, 1, 2]
    assert data.owners.dtype == np.int64


def test_labels_that_count_from_one_are_noted(own):
    labels = "dict(x_train=x, y_train=[1, 3, 3, 2], x_test=x2, y_test=[1, 2]"
    with pytest.warns(FedveilWarning, match=r"no example has label 0\. Labels count from 0"):
        assert own(f"return {labels})").classes == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own(f"return {labels}, classes=4)").classes == 4  # stated, and so not noted
        assert own(f"return {labels.replace('y_test=[1', 'y_test=[0')})").classes == 4


def test_labels_with_many_gaps_are_noted(own):
    labels = "dict(x_train=x, y_train=[0, 9, 5, 9], x_test=x2, y_test=[4, 5]"
    said = r"the labels reach 9, but only 4 different ones occur\. `numpy\.unique\(labels, "
    with pytest.warns(FedveilWarning, match=said):
        assert own(f"return {labels})").classes == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own(f"return {labels}, classes=10)").classes == 10  # stated, and so not noted
        assert own(f"return {labels.replace('9', '7')})").classes == 8  # half of them occur


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ("y[:, None]", ": return y[:, 0]. For another shape"),
        ("np.eye(3)[y]", ": return y.argmax(axis=1) in place of a one-hot code. For another"),
        ("np.eye(3)[y] * 2", "but [examples] is needed. For another shape"),
        ("1 - np.eye(3)[y]", "but [examples] is needed. For another shape"),
        ("np.array(['red', 'b', 'c'])[y]", "; `numpy.unique(labels, return_inverse=True)` numbers"),
    ],
)
def test_labels_of_a_common_wrong_form_have_a_hint(own, labels, hint):
    with pytest.raises(DataInvalid, match=re.escape(hint)):
        own(f"return x, {labels}, x2, y2")


def test_clients_may_be_a_tuple_and_an_item_a_list(own):
    data = own("return dict(clients=((x, y), (x2, y2)), test=(x2, y2))")
    assert data.owners.tolist() == [0, 0, 0, 0, 1, 1]
    items = """
    class Items:
        def __len__(self): return 3
        def __getitem__(self, i): return [[float(i), 7.0], i % 2]
    return Items(), Items()
    """
    assert own(items).train.x.tolist() == [[0, 7], [1, 7], [2, 7]]


def test_a_number_beside_rows_is_no_example(own):
    with refused("data own_data_[0-9]+:make: x_train is not an array"):
        own("return [[1.0, 2.0], 3.0], [0, 1], x2, y2")


TORCH = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((2, 2), float(i), requires_grad=True), i % 2
"""


def test_torch_datasets_are_stacked(own):
    pytest.importorskip("torch")
    data = own("return Numbers(4), Numbers(2)", TORCH)
    assert data.train.x.shape == (4, 2, 2)
    assert data.train.x[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert data.test.y.tolist() == [0, 1]
    assert data.owners is None


def test_torch_datasets_with_owners(own):
    pytest.importorskip("torch")
    data = own("return Numbers(4), Numbers(2), torch.tensor([7, 7, 3, 7])", TORCH)
    assert data.owners.tolist() == [1, 1, 0, 1]


def test_clients_bring_their_own_parts(own):
    data = own("return dict(clients={'b': (x, y), 'a': (x2, y2)}, test=(x2, y2), classes=5)")
    assert data.classes == 5
    assert data.train.x.tolist() == [*np.arange(12.0).reshape(4, 3).tolist(), [1] * 3, [1] * 3]
    assert data.owners.tolist() == [1, 1, 1, 1, 0, 0]
    assert data.train.y.tolist() == [0, 1, 2, 0, 1, 1]


TOKENS = """
import numpy as np
y = np.array([[1, 2, 3], [4, 0, 6], [5, 1, 2]])
"""


@pytest.mark.parametrize("apart", [False, True])
def test_a_client_with_two_texts_has_two_examples(own, monkeypatch, apart):
    """A list of two sequences is not a pair (x, y), whatever one of them is."""
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, "tokens", apart=apart))
    data = own("return dict(clients=[[[1, 2, 3], [4, 0, 6]], [[5, 1, 2]]], test=[[3, 2, 6]] * 3)")
    assert data.train.x.tolist() == [[1, 2], [4, 0], [5, 1]]
    assert (data.train.y.tolist(), data.owners.tolist()) == ([[2, 3], [0, 6], [1, 2]], [0, 0, 1])
    data = own(
        "return dict(clients=[[[[6, 6], [5, 1]], [[6, -100], [1, 1]]]], test=([[6, 0]], [[6, 6]]))"
    )
    assert data.train.y.tolist() == [[6, -100], [1, 1]]
    data = own("return dict(clients=dict(a=y[:2], b=y[2:]), test=y)", TOKENS)
    assert (data.train.x.tolist(), data.owners.tolist()) == ([[1, 2], [4, 0], [5, 1]], [0, 0, 1])
    if apart:
        data = own("return dict(clients=[['gone', [4, 0, 6]]], test=[[3, 2, 6]] * 3)")
        assert (data.train.usable.tolist(), data.train.x[1].tolist()) == ([False, True], [4, 0])


PANDAS = """
import pandas

def frame(missing=2.5):
    return pandas.DataFrame({
        "n": pandas.array([30, 7, 41], dtype="Int64"),
        "h": pandas.array([1.5, missing, 0.5], dtype="Float64"),
        "b": pandas.array([True, False, True], dtype="boolean"),
    })

y = pandas.Series(pandas.array([2, 0, 1], dtype="Int64"))
"""


def test_columns_of_pandas_own_types_are_numbers(own):
    pytest.importorskip("pandas", exc_type=ImportError)  # also if NumPy is too old for it
    data = own("return frame(), y, frame(), y", PANDAS)
    assert data.train.x.dtype == np.float32
    assert data.train.x.tolist() == [[30, 1.5, 1], [7, 2.5, 0], [41, 0.5, 1]]
    assert data.train.y.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("frame(None), y, frame(), y", "x_train holds NaN or infinity .* at example 1"),
        ("frame(), y.mask(y == 1), frame(), y", "y_train holds nan at example 2"),
        ("frame().assign(n='a'), y, frame(), y", "x_train has dtype object, but real numbers are"),
    ],
)
def test_a_missing_value_of_pandas_is_one_sentence(own, result, said):
    pytest.importorskip("pandas", exc_type=ImportError)  # also if NumPy is too old for it
    with pytest.raises(DataInvalid, match=said):
        own(f"return {result}", PANDAS)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("frame(), y, frame()[['n', 'b', 'h']], y", "column 2 is 'h' in x_train and 'b' in x_test"),
        ("frame(), y, frame().rename(columns={'b': 'c'}), y", "column 3 is 'b' in x_train and 'c'"),
        (
            "dict(clients=dict(a=(frame(), y), c=(frame()[['h', 'n', 'b']], y)), "
            "test=(frame(), y))",
            "column 1 is 'h' in x of client c and 'n' in x of test",
        ),
        (
            "dict(clients=[(frame(), y), (frame()[['b', 'h', 'n']], y)], test=(frame(), y))",
            "column 1 is 'b' in x of client 1 and 'n' in x of test",
        ),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_columns_in_another_order_are_refused(own, result, said, apart):
    """Arrays have no column names, so the model would confuse two columns."""
    pytest.importorskip("pandas", exc_type=ImportError)  # also if NumPy is too old for it
    with pytest.raises(DataInvalid, match=said):
        own(f"return {result}", PANDAS, apart=apart)


def test_columns_are_compared_only_if_all_have_names(own):
    pytest.importorskip("pandas", exc_type=ImportError)  # also if NumPy is too old for it
    data = own("return frame(), y, frame()[['h', 'n', 'b']].to_numpy(float), y", PANDAS)
    assert data.test.x[0].tolist() == [1.5, 30, 1]


MASKED = ARRAYS + "x = np.ma.array(x.astype({type}), mask=[[0, 0, 0], [0, 1, 0]] + 2 * [[0, 0, 0]])"


@pytest.mark.parametrize("type", ["np.int64", "np.float32", "np.uint8"])
def test_a_hidden_cell_of_a_masked_array_is_missing(own, type):
    """The value under the mask is often a code for a missing value, such as 999."""
    with pytest.raises(DataInvalid, match=r"x_train holds NaN or infinity .* at example 1,"):
        own("return x, y, x2, y2", MASKED.format(type=type))
    parts = "x_train=x, y_train=y, x_test=x2, y_test=y2, classes=3"
    data = own(f"return dict({parts})", MASKED.format(type=type), apart=True)
    assert data.train.usable.tolist() == [True, False, True, True]
    assert data.train.x.tolist() == [[0, 1, 2], [0, 0, 0], [6, 7, 8], [9, 10, 11]]


def test_alone_a_hidden_cell_of_one_record_is_missing(own):
    data = own(
        "return dict(x_train=[*x], y_train=y, x_test=x2, y_test=y2, classes=3)",
        MASKED.format(type="np.int64"),
        apart=True,
    )
    assert data.train.usable.tolist() == [True, False, True, True]


def test_a_hidden_label_or_client_of_a_masked_array_is_missing(own):
    hidden = "np.ma.array([0, 1, 2, 0], mask=[0, 0, 1, 0])"
    with pytest.raises(DataInvalid, match="y_train holds nan at example 2"):
        own(f"return x, {hidden}, x2, y2")
    with pytest.raises(DataInvalid, match="client_ids must be only whole numbers or only strings"):
        own(f"return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, client_ids={hidden})")
    words = "np.ma.array(['a', 'b', '', 'a'], mask=[0, 0, 1, 0])"
    with pytest.raises(DataInvalid, match="client_ids must be only whole numbers or only strings"):
        own(f"return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, client_ids={words})")
    assert own("return np.ma.array(x), y, x2, y2").train.x[3].tolist() == [9, 10, 11]


def test_whole_numbers_stay_whole(own):
    data = own("return x.astype(np.uint8), y, x2.astype(np.uint8), y2")
    assert data.train.x.dtype == np.uint8


def test_several_inputs_of_any_type_and_length(own):
    data = own(
        "def inputs(n): return dict(image=np.ones((n, 2, 2)), word=[[1], [2, 3], [4]][:n])\n"
        "return inputs(3), y[:3], inputs(2), y2"
    )
    assert data.example_shape == {"image": (2, 2), "word": (-1,)}
    parts = opened(data.train.x[[1, 0]])
    assert parts["image"].dtype == np.float32
    assert [word.tolist() for word in parts["word"]] == [[2, 3], [1]]


def test_whole_numbers_of_several_inputs_can_be_looked_up(own):
    """An embedding takes 64-bit integers. A mask stays one."""
    kinds = ("np.uint8", "np.int16", "bool")
    inputs = ", ".join(f"a{i}=x.astype({kind})" for i, kind in enumerate(kinds))
    data = own(f"return dict({inputs}), y, dict({inputs}), y")
    assert [opened(data.train.x)[f"a{i}"].dtype for i in range(3)] == [np.int64, np.int64, bool]


def test_items_of_several_inputs_and_of_different_lengths(own):
    head = ITEMS + "few = Items(({'a': [1, 2], 'b': 3.0}, 0), ({'a': [4, 5], 'b': 6.0}, 1))\n"
    assert own("return few, few", head).example_shape == {"a": (2,), "b": ()}
    for kind in ("int", "np.uint8", "bool", "np.float32"):
        items = f"*[(np.array(item, {kind}), n) for n, item in enumerate(([1], [2, 3]))]"
        head = f"import numpy as np\n{ITEMS}"
        assert own(f"return Items({items}), good", head).example_shape == (-1,), kind


def test_each_of_several_inputs_may_differ_in_length_from_item_to_item(own):
    head = ITEMS + "few = Items(({'a': [1, 2], 'b': 3.0}, 0), ({'b': 6.0, 'a': [4]}, 1))\n"
    for body in ("return few, few", "return {'clients': {'k': few}, 'test': few}"):
        data = own(body, head)
        assert data.example_shape == {"a": (-1,), "b": ()}
        assert [a.tolist() for a in opened(data.train.x)["a"]] == [[1, 2], [4]]
        assert opened(data.train.x)["b"].tolist() == [3, 6]


def test_torch_tensors_are_arrays(own):
    pytest.importorskip("torch")
    data = own(
        "t = torch.arange(6.).reshape(3, 2)\nreturn t, torch.tensor([0, 1, 1]), t, torch.ones(3)",
        TORCH,
    )
    assert data.train.x.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_package_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "package_of_data" / "__init__.py", b"")
    write(tmp_path / "package_of_data" / "parts.py", b"SIZE = 3\n")
    write(
        tmp_path / "package_of_data" / "data.py",
        b"def make():\n"
        b"    from package_of_data.parts import SIZE\n"  # at the call, not at the import
        b"    return [[0.0]] * SIZE, [0, 1, 0], [[0.0]], [0]\n",
    )
    assert len(datasets.load("package_of_data.data:make").train) == 3


def test_the_current_folder_comes_first(tmp_path, monkeypatch):
    name = new_module()
    for folder, size in (("installed", 2), ("current", 3)):
        code = f"def make(): return [[0.0]] * {size}, list(range({size})), [[0.0]], [0]\n"
        write(tmp_path / folder / f"{name}.py", code.encode())
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path / "current")
    assert len(datasets.load(f"{name}:make").train) == 3


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return x, y, x2", "returned an object of type ndarray for train, not a map-"),
        ("return x, y, x2, y2, y", "the function returned a tuple of 5, not four arrays"),
        ("return None", "the function returned an object of type NoneType, not four arrays"),
        (
            "return (x, y), (x2, y2)",
            "the function returned a tuple of 2 for train, not a map-style",
        ),
        (
            "return iter([]), iter([])",
            "returned an object of type list_iterator for train, not a map-style",
        ),
        ("return {'x_train': x}", "the function returned lacks y_train; the keys are x_train, "),
        (
            "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, owner=y)",
            "holds owner; the keys are",
        ),
        (
            "raise RuntimeError('no\\n disk')",
            "the function raised RuntimeError: no disk \\(own_data_",
        ),
        ("raise ValueError", "the function raised ValueError \\(own_data_"),
        (
            "return x * float('nan'), y, x2, y2",
            "x_train holds NaN or infinity .* at example 0 and 3 more, but finite",
        ),
        ("return x, y - 2 * (y > 0), x2, y2", "y_train holds -1 at example 1, but a label"),
        ("x2[1, 1] = 1e39; return x, y, x2, y2", "x_test holds NaN or infinity .* at example 1"),
        ("return x[:3], y, x2, y2", "x_train has 3 examples and y_train has 4 labels"),
        ("return x, y, x2, y2[:1]", "x_test has 2 examples and y_test has 1 labels"),
        ("return x, y, x2[:0], y2[:0]", r"x_test has shape \(0, 3\)"),
        ("return x, y, x2, y2[:0]", r"y_test has shape \(0,\)"),
        ("return y, y, x2, y2", r"x_train has shape \(4,\), but \[examples, ...\] without a zero"),
        ("return x, y, x2[:, :2], y2", r"x_train has shape \(3,\) and one of x_test \(2,\)"),
        ("return x.astype(str), y, x2, y2", "x_train has dtype <U.*, but real numbers are needed"),
        ("return x.astype(complex), y, x2, y2", "x_train has dtype complex128"),
        ("return x.astype(object), y, x2, y2", "x_train has dtype object"),
        ("return [[1], [1, 2]], y, x2, y2", "x_train has 2 examples and y_train has 4 labels"),
        ("return [[1], [[1, 2]]], y, x2, y2", "x_train is not an array: ValueError"),
        ("return [[[1, 2]], [[1, 2, 3]]], y[:2], x2, y2", "x_train is not an array: ValueError"),
        ("return {}, y, x2, y2", "x_train has none, but each input needs the same number of exa"),
        ("return dict(a=x, b=x2), y, x2, y2", "x_train has 4 of a, 2 of b, but each input needs"),
        ("return {'a b': x}, y, x2, y2", "x_train has an input called 'a b', which cannot"),
        ("return dict(clients={}, test=(x2, y2))", "clients is an object of type dict, but a part"),
        ("return dict(clients=[(x, y)])", "lacks test; the keys are clients, test and opt"),
        (
            "return dict(clients=[(x, y), (x[:0], y[:0]), (x, y)], test=(x2, y2))",
            "client 1 has no examples: leave it out",
        ),
        ("return dict(clients=[(3, 4)], test=(x2, y2))", "client 0 has no examples"),
        (
            "return dict(clients=[(x, y), (x2[:, :2], y2)], test=(x2, y2))",
            "clients' parts do not fit together: ",
        ),
        ("return x, y - 1, x2, y2", "y_train holds -1 at example 0 and 1 more, but a label is a"),
        (
            "return x, y + 0.5, x2, y2",
            "y_train holds 0.5 at example 0 and 3 more, but a label is a whole number",
        ),
        ("return x, y * float('nan'), x2, y2", "y_train holds nan at example 0"),
        ("return x, y + float('inf'), x2, y2", "y_train holds inf at example 0"),
        ("return x, y.astype(str), x2, y2", "y_train has dtype <U"),
        (
            "return x, y[:, None], x2, y2",
            r"y_train has shape \(4, 1\), but \[examples\] is needed.*own with targets = \"own\"",
        ),
        (
            "return dict(x_train=x, y_train={'a': y, 'b': y}, x_test=x2, "
            "y_test={'a': y2, 'b': y2})",
            r"y_train is not a plain array, but \[examples\].*own with targets = \"own\"",
        ),
        ("return x, y * 0, x2, y2 * 0", "classes = 1, but at least 2 are needed"),
        ("return x, y, x2, y2 + 2**31 - 1", "y_test holds 2147483648 at example 0"),
    ],
)
def test_what_a_function_returns_wrongly_is_told(own, body, sentence):
    with refused(f"data own_data_[0-9]+:make: .*({sentence})"):
        own(body)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ("classes=2", r"the label 2 is outside \[0, 2\): there are 2 classes"),
        ("classes='3'", "classes = '3' is not a whole number"),
        ("classes=True", "classes = True is not a whole number"),
        ("classes=3.0", "classes = 3.0 is not a whole number"),
        ("client_ids=[1, 2, 3]", "client_ids has 3 entries and x_train has 4 examples"),
        ("client_ids=[1, 2, 3, 1, 2]", "client_ids has 5 entries and x_train has 4 examples"),
        ("client_ids=[1, 'a', 2, 3]", "client_ids must be only whole numbers or only strings"),
        ("client_ids=[.5, 1, 2, 3]", "client_ids must be only whole numbers or only strings"),
        ("client_ids=x", r"client_ids has shape \(4, 3\), but \[examples\] is needed"),
        ("client_ids=3", "client_ids is of type int, but a list is needed"),
    ],
)
def test_what_a_mapping_adds_wrongly_is_told(own, extra, sentence):
    with refused(f"data own_data_[0-9]+:make: {sentence}"):
        own(f"return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, {extra})")


ITEMS = """
class Items:
    def __init__(self, *items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, i):
        if isinstance(self.items[i], Exception): raise self.items[i]
        return self.items[i]
good = Items(([1.0], 0), ([2.0], 1))
"""


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "return good, Items(([1.0], 0), 7)",
            "item 1 of the test Dataset is an object of type int, but a pair",
        ),
        (
            "return good, Items(([1.0], 0, 1))",
            r"item 0 of the test Dataset is a tuple of 3, but a pa",
        ),
        ("return Items(([1.0], 0), ([[1.0]], 0)), good", r"item 1 .* an x of shape \(1, 1\)"),
        ("return Items(([1.0], 0), (1.0, 0)), good", r"item 1 .* an x of shape \(\) and"),
        ("return Items(([1.0], [0])), good", r"item 0 .* and a y of shape \(1,\)"),
        ("return Items(OSError('gone')), good", "item 0 of the train Dataset raised OSError: gone"),
        ("return Items(), good", r"x_train has shape \(0,\)"),
        ("return Items(([], 0), ([], 1)), good", r"x_train has shape \(2, 0\)"),
        ("return Items((['a'], 0)), good", "x_train has dtype <U1"),
        (
            "return Items(({'a': 1}, 0), ({'b': 1}, 1)), good",
            "item 1 of the train Dataset has b, but a as in item 0 is needed",
        ),
        (
            "return Items(([1.0], 0), ({'b': 1}, 1)), good",
            "item 1 of the train Dataset has b, but one array as in item 0 is needed",
        ),
        (
            "return Items(({'a': 2**63}, 0)), good",
            r"x of item 0 of the train Dataset\['a'\] holds 9223372036854775808, but whole numb",
        ),
        ("return Items(([[1], [1, 2]], 0)), good", "x of item 0 of the train Dataset is not an ar"),
        ("return good, good, [1]", "client_ids has 1 entries and x_train has 2 examples"),
    ],
)
def test_what_a_dataset_holds_wrongly_is_told(own, body, sentence):
    with refused(f"data own_data_[0-9]+:make: {sentence}"):
        own(body, ITEMS)


@pytest.mark.parametrize(
    "items",
    [
        "([1.0], 0), ([2.0, float('nan')], 1)",
        "({'a': [1.0], 'b': 3.0}, 0), ({'a': [float('nan')], 'b': 6.0}, 1)",
        "({'a': [1.0], 'b': 3.0}, 0), ({'a': [4.0], 'b': float('inf')}, 1)",
    ],
)
def test_a_number_that_is_not_finite_is_refused_in_any_input(own, items):
    fine = items.replace("nan", "7").replace("inf", "7")
    assert own(f"return Items({fine}), Items({fine})", ITEMS).classes == 2
    with refused("holds NaN or infinity"):
        own(f"return Items({fine}), Items({items})", ITEMS)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine", "data.name = 'mine' is not one of digits, mnist, .* package.module:function"),
        ("", "data.name = '' is not one of"),
        (":", "data :: package.module:function is needed"),
        ("mine:", "data mine:: package.module:function is needed"),
        (":load", "data :load: package.module:function is needed"),
        ("a.:load", "package.module:function is needed"),
        ("a b:load", "package.module:function is needed"),
        ("a:b:c", "package.module:function is needed"),
        ("no_such:load", "there is no module no_such, neither in the current folder nor install"),
        ("json.no_such:load", "there is no module json.no_such"),
        ("json:no_such", "data json:no_such: the module json has no no_such"),
        ("string:digits", "data string:digits: digits is not a function"),
        ("os:remove", r"data os:remove: the function raised TypeError: .*argument"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(name, sentence):
    with refused(sentence):
        datasets.load(name)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import no_such_dependency", "raised ModuleNotFoundError: No module named 'no_such_dep"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def make(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(tmp_path, monkeypatch, content, sentence):
    monkeypatch.chdir(tmp_path)
    name = new_module()
    (tmp_path / f"{name}.py").write_text(content)
    with refused(f"data {name}:make: importing {name} {sentence}"):
        datasets.load(f"{name}:make")


def test_declared_classes_of_clients_parts_hold_record_by_record(own, monkeypatch):
    """Under unit: example the labels of the test data do not replace the declaration."""
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, apart=True))
    data = own("return dict(clients={'b': (x, y), 'a': (x2, y2)}, test=(x2, y2), classes=7)")
    assert data.classes == 7
    assert data.owners.tolist() == [1, 1, 1, 1, 0, 0]


def test_lone_records_have_the_owners_beside_two_datasets(own, monkeypatch):
    """And a mapping's own number of classes."""
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, apart=True))
    three = "Items(([1.0], 0), ([2.0], 1), ([5.0], 1))"
    two = own(f"import numpy\nreturn {three}, good, numpy.array(['b', 'a', 'b'])", ITEMS)
    assert two.owners.tolist() == [1, 0, 1]
    assert two.train.x.tolist() == [[1.0], [2.0], [5.0]]
    assert two.test.x.tolist() == [[1.0], [2.0]]
    named = own("return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, classes=9)")
    assert (named.classes, named.owners) == (9, None)


def test_a_damaged_lone_item_takes_nothing_of_another(own, monkeypatch):
    """A copy of the record before it would let this record influence training twice."""
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, apart=True))
    bad = "OSError('gone'), 7, ([1.0],), ([9.0], 'text')"
    train = own(f"return Items(([5.5], 1), {bad}, ([2.25], 0)), good", ITEMS).train
    assert train.usable.tolist() == [True, *[False] * 4, True]
    assert train.x.tolist() == [[5.5], *[[0.0]] * 4, [2.25]]
    assert train.y.tolist() == [1, *[0] * 4, 0]


def test_lone_records_have_targets_of_any_kind(own, monkeypatch):
    """Numbers need not be whole, but tokens are."""
    load, kind = datasets.load, ["numbers"]
    monkeypatch.setattr(datasets, "load", lambda name: load(name, kind[0], apart=True))
    data = own("return x + 0.5, y / 4, x2, y2")
    assert (data.targets, data.classes, data.train.x[1].tolist()) == ("numbers", 1, [3.5, 4.5, 5.5])
    assert data.train.y.tolist() == [[0], [0.25], [0.5], [0]]
    data = own("return Items(([1.5], [0.5, 1.0])), Items(([2.5], [3.0, 4.0]))", ITEMS)
    assert (data.classes, data.train.y.tolist()) == (2, [[0.5, 1.0]])
    kind[0] = "tokens"
    rows = "x_train=[[1, 2, 3], [4, 1.5, 6], [0, 3, 1], [1, 2, -100]], x_test=[[6, 0, 2]]"
    data = own(f"return dict({rows})")
    assert (data.targets, data.train.usable.tolist()) == ("tokens", [True, False, True, False])
    assert (data.train.x[2].tolist(), data.train.y[2].tolist()) == ([0, 3], [3, 1])
    rows = "x_train=[[1, 2], [3, 4]], y_train=[[-100, 2], [4, 5]], x_test=[[1, 2]], y_test=[[2, 7]]"
    assert own(f"return dict({rows})").train.y.tolist() == [[-100, 2], [4, 5]]
    kind[0] = "own"
    assert own("return x, np.ones((4, 2)), x2, np.ones((2, 3))").train.y.shape == (4, 2)


TORN = """
import numpy as np
x, y, x2, y2 = np.ones((4, 3), int), np.arange(4) % 3, np.ones((2, 3), int), [0, 1]
class Unmeasured:
    def __len__(self): raise OSError("gone")
    def __getitem__(self, i): return [1.0], 0
class Torn:
    def __array__(self, *given, **named): raise RuntimeError("torn")
"""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        ("class", "return Unmeasured(), Unmeasured()", "the length of the t[a-z]+ Dataset raised"),
        ("class", "return dict(clients=dict(a=(5, [0, 1])), test=(x2, y2), classes=3)",
         "x of client a is an object of type int, but a list|client a has no examples"),
        ("class", "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, client_ids=Torn())",
         "client_ids is not an array: RuntimeError: torn"),
        ("class", "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, classes=x)",
         "classes = array.*is not a whole number"),
        ("numbers", "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, classes=y)",
         "classes = array.*is not a whole number"),
        ("tokens", "return dict(x_train=x, y_train=y, x_test=x2, y_test=5)",
         "y_test is one token, but"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_one_sentence(own, monkeypatch, apart, kind, body, sentence):
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, kind, apart=apart))
    with refused(sentence):
        own(body, TORN)


@pytest.mark.parametrize(
    "result",
    [
        "return x, [[1], [2, 3], [4], [5]], x2, [[6], [7, 8]]",
        "return x, dict(a=y, b=y), x2, dict(a=y2, b=y2)",
        "return x, np.ones(4), x2, dict(a=y2)",
    ],
)
def test_lone_records_have_targets_of_one_array(own, monkeypatch, result):
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name: load(name, "own", apart=True))
    said = "y_test has several arrays or lengths, but privacy.unit = example needs targets of one "
    with pytest.raises(DataInvalid, match=said):
        own(result)


def test_a_client_reads_no_test_part(own, monkeypatch):
    monkeypatch.setattr(
        datasets, "load", lambda n: own_dataset.read_records(n, Form((1,), "class", 2))
    )
    assert own("return good, Items(OSError('gone'))", ITEMS).y.tolist() == [0, 1]


def test_records_are_counted_in_all_parts_without_being_read(own, monkeypatch):
    monkeypatch.setattr(datasets, "load", lambda name: own_dataset.count_records(name, "class"))
    assert own("return dict(clients={'b': (x, y), 'a': (x2, y2)}, test=(x2, y2))") == 6
    assert own("return Items(([1.0], 0), OSError('gone'), 7), good", ITEMS) == 3
    assert own("return ['no number', None], y[:2], x2, y2") == 2
