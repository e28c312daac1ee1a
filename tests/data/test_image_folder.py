"""A folder of a user's images: what is read, what is refused, and what has no effect."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from data_files import refused, write
from fedveil.data import image_folder
from fedveil.data.datasets import load
from fedveil.engine.assembly import load_data, make_partition
from fedveil.errors import DataInvalid, DataUnavailable, FedveilWarning, MissingExtra
from fedveil.federated.job import Job
from hostile_files import bounded

HEIGHT, WIDTH = 5, 7


def pixels(seed, channels=3):
    shape = (HEIGHT, WIDTH, channels) if channels == 3 else (HEIGHT, WIDTH)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def encoded(array, kind="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def images(tmp_path):
    """Three classes: 3, 2 and 1 training images, and one test image of each."""
    for count, name in ((3, "ant"), (2, "bee"), (1, "wasp")):
        for i in range(count):
            write(tmp_path / "train" / name / f"{i}.png", encoded(pixels(10 * count + i)))
        write(tmp_path / "test" / name / "0.PNG", encoded(pixels(count)))
    write(tmp_path / "train" / "ant" / "notes.txt", b"no image")
    for part in ("train", "test"):
        write(tmp_path / part / "Thumbs.db", b"no folder")
    return tmp_path


def test_images_are_read_class_by_class(images):
    data = load("image_folder", folder=str(images))
    assert data.train.x.shape == (6, 3, HEIGHT, WIDTH)
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 2]
    assert (data.test.y.tolist(), data.classes) == ([0, 1, 2], 3)
    expected = pixels(31).transpose(2, 0, 1).astype(np.float32) / 255 * 2 - 1
    np.testing.assert_allclose(data.train.x[1], expected, atol=1e-6)


def test_a_class_without_an_image_is_told(images):
    """Its images may have another suffix, such as .webp, or lie one folder deeper."""
    (images / "test" / "yak").mkdir()  # the test part has no image of it, but clients may
    (images / "test" / "zebra").mkdir()
    (images / "train" / "wasp" / "0.png").rename(images / "train" / "wasp" / "0.webp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FedveilWarning)
        assert load("image_folder", folder=str(images)).classes == 5
    kinds = ".png, .jpg, .jpeg"
    assert [str(warning.message) for warning in caught] == [
        f"{images}/test has no image {kinds} of the class 'yak' and of 1 more",
        f"{images}/train has no image {kinds} of the class 'wasp' and of 2 more",
    ]


def test_under_unit_example_no_warning_tells_of_a_training_image(images):
    (images / "train" / "wasp" / "0.png").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("image_folder", folder=str(images), apart=True)


def test_what_jupyter_and_macos_leave_in_a_folder_is_neither_a_class_nor_an_image(images):
    before = load("image_folder", folder=str(images))
    (images / "test" / ".ipynb_checkpoints").mkdir()
    write(images / "train" / ".ipynb_checkpoints" / "0-checkpoint.png", encoded(pixels(1)))
    for part in ("train", "test"):
        write(images / part / "ant" / "._0.png", b"\x00\x05\x16\x07, no image")
    after = load("image_folder", folder=str(images))
    assert after.classes == before.classes
    np.testing.assert_array_equal(after.train.y, before.train.y)
    np.testing.assert_array_equal(after.test.y, before.test.y)


def test_jpeg_and_grey_files_are_images_too(images):
    whole = np.full((HEIGHT, WIDTH), 77, np.uint8)
    write(images / "train" / "ant" / "0.png", encoded(np.dstack([whole] * 3), "JPEG"))
    write(images / "train" / "ant" / "1.png", encoded(whole))  # grey among colours: no loss
    data = load("image_folder", folder=str(images))
    for row in (0, 1):
        np.testing.assert_allclose(data.train.x[row], 77 / 255 * 2 - 1, atol=0.02)


GREY = np.full((HEIGHT, WIDTH), 77, np.uint8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_an_image_of_any_usual_kind_has_its_colours(images, mode):
    """One half is white and the other black. A palette, ink and transparency are converted."""
    whole = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    whole[:, 3:] = 255
    stream = io.BytesIO()
    Image.fromarray(whole).convert(mode).save(stream, "JPEG" if mode == "CMYK" else "PNG")
    write(images / "train" / "ant" / "0.png", stream.getvalue())
    data = load("image_folder", folder=str(images))
    expected = np.where(np.arange(WIDTH) < 3, -1, 1)
    assert np.abs(data.train.x[0] - expected).max() < 0.7  # a JPEG blurs the border
    assert np.sign(data.train.x[0]).tolist() == [[expected.tolist()] * HEIGHT] * 3


def test_an_image_in_colour_among_grey_ones_is_refused(images):
    """Its colours would be lost."""
    for path in images.rglob("*.[pP][nN][gG]"):
        write(path, encoded(GREY))
    assert load("image_folder", folder=str(images)).example_shape == (1, HEIGHT, WIDTH)
    write(images / "train" / "bee" / "0.png", GOOD)
    with refused("it is 7 x 5 pixels in colour, but 7 x 5 pixels grey is needed"):
        load("image_folder", folder=str(images))


def test_a_job_reads_its_folder(images):
    data = {"name": "image_folder", "folder": str(images)}
    job = Job.read({"data": data, "clients": {"number": 2}}, [])
    data = load_data(job)
    assert data.example_shape == (3, HEIGHT, WIDTH)
    assert make_partition(job, data).sizes.tolist() == [3, 3]
    with refused("data.name = image_folder needs data.folder"):
        load("image_folder")


def bomb():
    """Return a PNG whose header announces 60,000 x 60,000 pixels, in 100 bytes."""

    def chunk(kind, body):
        made = kind + body
        return struct.pack(">I", len(body)) + made + struct.pack(">I", zlib.crc32(made))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


GOOD = encoded(pixels(1))
BROKEN = {
    "truncated": (GOOD[:-30], "is not usable as an image"),
    "no image": (b"GIF89a" + bytes(40), "is not usable as an image: it is neither JPEG nor PNG"),
    "empty": (b"", "is not usable as an image: it is empty"),
    "another size": (encoded(pixels(1)[:4]), "it is 7 x 4 pixels in colour, but 7 x 5"),
    "larger": (bomb(), "is not usable as an image"),
    "a changed byte": (GOOD[:50] + b"\x00\xff" + GOOD[52:], "is not usable as an image"),
    "deep": (
        encoded(np.full((HEIGHT, WIDTH), 9_000, np.uint16)),
        "its pixels are of the kind I;16",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_image_is_one_sentence(images, kind):
    content, sentence = BROKEN[kind]
    write(images / "train" / "bee" / "1.png", content)
    with bounded(), refused(sentence) as _:
        load("image_folder", folder=str(images))


@pytest.mark.parametrize("kind", BROKEN)
def test_under_unit_example_a_damaged_image_has_no_effect(images, kind):
    """Its place stays, so that no other image moves to another client."""
    whole = load("image_folder", folder=str(images), apart=True).train
    write(images / "train" / "bee" / "1.png", BROKEN[kind][0])
    train = load("image_folder", folder=str(images), apart=True).train
    assert train.usable.tolist() == [True] * 4 + [False, True]
    others = np.arange(6) != 4
    np.testing.assert_array_equal(train.x[others], whole.x[others])
    np.testing.assert_array_equal(train.y[others], whole.y[others])
    assert not train.x[4].any()


def test_under_unit_example_a_file_that_cannot_be_read_has_no_effect(images):
    (images / "train" / "bee" / "1.png").unlink()
    (images / "train" / "bee" / "1.png").symlink_to("missing.png")
    train = load("image_folder", folder=str(images), apart=True).train
    assert train.usable.tolist() == [True] * 4 + [False, True]


def test_under_unit_example_an_image_of_another_class_leaves_every_other_in_its_place(tmp_path):
    """Otherwise the class of one image would decide which clients hold the others."""
    for name in ("ant", "bee", "wasp"):
        write(tmp_path / "test" / name / "0.png", encoded(pixels(0)))
    for i in range(9):
        name = ("ant", "bee", "wasp")[i % 3]
        write(tmp_path / "train" / name / f"{i}.png", encoded(pixels(i)))
    before = load("image_folder", folder=str(tmp_path), apart=True).train
    assert before.y.tolist() == [0, 1, 2] * 3
    moved = tmp_path / "train" / "wasp" / "3.png"
    (tmp_path / "train" / "ant" / "3.png").rename(moved)
    after = load("image_folder", folder=str(tmp_path), apart=True).train
    assert after.y.tolist() == [0, 1, 2, 2, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(after.x, before.x)


def test_the_job_decides_whether_an_image_is_read_alone(images):
    write(images / "train" / "bee" / "1.png", b"")
    keys = ["data.name=image_folder", f"data.folder={images}", "clients.number=2"]
    with refused("is not usable as an image"):
        load_data(Job.load(None, keys))
    alone = Job.load(
        None, [*keys, "privacy.unit=example", "protection=dp_encrypt", "training.sampling_rate=0.5"]
    )
    assert load_data(alone).train.usable.sum() == 5


def test_a_training_image_changes_neither_size_nor_colours_nor_classes(images):
    write(images / "train" / "ant" / "0.png", encoded(np.zeros((90, 90, 3), np.uint8)))
    write(images / "train" / "aphid" / "0.png", encoded(pixels(3)))
    data = load("image_folder", folder=str(images), apart=True)
    assert data.example_shape == (3, HEIGHT, WIDTH)
    assert data.classes == 3
    assert data.train.usable.tolist() == [False, False, *[True] * 5]
    with refused("train/ant/0.png is not usable"):
        load("image_folder", folder=str(images))
    write(images / "train" / "ant" / "0.png", GOOD)
    with refused("train/aphid is a class that the test part does not have"):
        load("image_folder", folder=str(images))


def test_folders_that_are_missing_or_empty_are_told(tmp_path):
    with refused("test cannot be read: No such file", DataUnavailable):
        load("image_folder", folder=str(tmp_path))
    (tmp_path / "test").mkdir()
    with refused("test holds no folders, but one for each class"):
        load("image_folder", folder=str(tmp_path))
    (tmp_path / "test" / "ant").mkdir()
    with refused("test holds no image, but files .png"):
        load("image_folder", folder=str(tmp_path))


def test_more_pixels_than_memory_are_refused_before_they_are_read(images, monkeypatch):
    monkeypatch.setattr(image_folder, "MOST_DATA_BYTES", 4 * 3 * HEIGHT * WIDTH * 5)
    with refused(re.escape("train holds 6 images of 5 x 7 pixels, which need 2,520 bytes")):
        load("image_folder", folder=str(images))


def test_without_pillow_the_extra_is_named(images, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with refused(r"needs the package Pillow: pip install 'fedveil\[torch\]'", MissingExtra):
        load("image_folder", folder=str(images))


def test_any_changed_byte_is_an_image_or_one_sentence(images):
    """Damage a JPEG at each of many places."""
    whole = encoded(pixels(4), "JPEG")
    for place in range(0, len(whole), 11):
        path = write(images / "x.jpg", whole[:place] + b"\x00" + whole[place + 1 :])
        said = ""
        try:
            found = image_folder._decoded(path, (3, HEIGHT, WIDTH))
        except DataInvalid as error:
            said = str(error)
        assert said or found.shape == (3, HEIGHT, WIDTH)
        assert "\n" not in said


def test_an_image_of_more_pixels_than_allowed_is_not_decoded(images, monkeypatch):
    monkeypatch.setattr(image_folder, "MOST_PIXELS", HEIGHT * WIDTH)
    assert len(load("image_folder", folder=str(images)).train) == 6
    monkeypatch.setattr(image_folder, "MOST_PIXELS", HEIGHT * WIDTH - 1)
    with refused("it has 35 pixels of 34 allowed"):
        load("image_folder", folder=str(images))
