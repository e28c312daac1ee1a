"""A user's own code, which a job names as `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedveil.errors import FedveilError, nearest

T = TypeVar("T")
#: The form package.module:function.
FUNCTION = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"

#: The module of a script, or of a notebook's cells.
_SCRIPT = "__main__"
_INSTALLED = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]


def is_function(name: str) -> bool:
    return re.fullmatch(FUNCTION, name) is not None


def load(
    name: str, *, key: str, error: type[FedveilError], built_in: Iterable[str] = ()
) -> Callable[..., Any]:
    """Return the user's function or class called `name`, such as `package.module:function`.

    Raises `error` if there is no such function or class. The error's message begins with `key`, the
    job's line (such as `model = 'm:f'`), and lists the `built_in` values.
    """
    if not is_function(name):
        names = list(built_in)
        words = ", ".join(names)
        raise error(
            f"{key} is neither one of {words} nor package.module:function{nearest(name, names)}"
            if words
            else f"{key}: package.module:function is needed"
        )
    module_name, _, attribute = name.partition(":")
    with own_code_errors(key, error, f"importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
                raise
            hint = ""
            if module_name.endswith(".py"):
                hint = (
                    ": write the file without .py, as "
                    f"{module_name.removesuffix('.py')}:{attribute}"
                )
            raise error(
                f"{key}: there is no module {missing.name}, neither in the current folder nor "
                f"installed{hint}"
            ) from None
    found: object = getattr(module, attribute, None)
    if found is None:
        hint = nearest(attribute, [n for n in vars(module) if callable(getattr(module, n, None))])
        raise error(f"{key}: the module {module_name} has no {attribute}{hint}")
    if not callable(found):
        raise error(f"{key}: {attribute} is not a function")
    return found


def called(function: Callable[..., T], **offered: object) -> T:
    """Call `function` with those `offered` arguments that its signature names. Returns the result.

    The other arguments are dropped, even if the signature has a parameter such as `**more`.
    """
    wanted = inspect.signature(function).parameters
    return function(**{key: value for key, value in offered.items() if key in wanted})


def packed(names: Iterable[str]) -> bytes:
    """Pickle those functions in `names` that the running script or notebook defines.

    Another process can then restore them with `unpack`. `names` are the functions that a job names.
    Those of the script, such as `__main__:data`, are pickled by value, with everything that they
    use from the script. Returns b"" if there are none.
    """
    mine = [name.partition(":")[2] for name in names if name.startswith(f"{_SCRIPT}:")]
    if not mine:
        return b""
    import cloudpickle

    script = sys.modules[_SCRIPT]
    data: bytes = cloudpickle.dumps({n: getattr(script, n) for n in mine if hasattr(script, n)})
    return data


def unpack(data: bytes) -> None:
    """Restore, in this process, the objects that `packed` pickled in another process.

    `data` is the result of `packed`. `load` then finds the objects.
    """
    if data:
        script = sys.modules[_SCRIPT] = ModuleType(_SCRIPT)
        vars(script).update(pickle.loads(data))  # noqa: S301 - from the process that started this


@contextmanager
def own_code_errors(
    key: str, error: type[FedveilError], what: str = "the function"
) -> Iterator[None]:
    """Convert an exception of the user's code in a `with` block into `error`.

    The message begins with `key`, the job's line that names the code (such as `model = 'm:f'`), and
    says that `what` raised the exception. SystemExit is converted too: without it, a script that
    reads its own command line when it is imported would end fedveil without a reason. fedveil's own
    errors and interrupts pass unchanged.
    """
    try:
        yield
    except FedveilError:
        raise
    except BaseException as raised:
        if interrupts(raised):
            raise
        place = place_of(raised)
        where = "" if place is None else f" ({place})"
        raise error(f"{key}: {what} raised {described(raised)}{where}") from raised


def interrupts(error: BaseException) -> bool:
    """Return True for an error that must be raised again: it ends the process or a generator.

    It is a KeyboardInterrupt, a GeneratorExit, or the SystemExit with which Flower ends its process
    on a signal, such as Ctrl-C. Any other exception may come from a user's code, even if it is not
    an `Exception`. Examples are the SystemExit that `sys.exit` raises, and a panic of a library
    written in Rust.
    """
    if isinstance(error, SystemExit):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("flwr.")
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Convert an error in a `with` block that is not an `Exception`, such as SystemExit.

    It becomes a RuntimeError that has the type and text of the error. Instances of `Exception` pass
    unchanged, and so do a KeyboardInterrupt and a GeneratorExit.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if interrupts(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def described(error: BaseException) -> str:
    """Return an exception of the user's code as one line, such as "ValueError: bad shape"."""
    # The text of a syntax error already contains its place.
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(error: BaseException) -> str | None:
    """Return the file and line of the user's code that raised `error`, or None.

    None means that the user's code did not raise the error.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and _is_own(error.filename):
        return _place(error.filename, error.lineno or 1)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    return _place(own[-1].filename, own[-1].lineno or 1) if own else None


def defined_at(function: Callable[..., Any]) -> str:
    """Return the file and line at which a function or class begins."""
    try:
        return _place(inspect.getsourcefile(function) or "", inspect.getsourcelines(function)[1])
    except (OSError, TypeError):  # typed interactively, or not written in Python
        return f"{function.__module__}:{function.__qualname__}"


def _is_own(file: str) -> bool:
    path = Path(file)
    installed = (*map(Path, _INSTALLED), Path(__file__).parents[1])
    outside = not any(path.is_relative_to(folder) for folder in installed)
    return outside and "site-packages" not in path.parts and path.is_file()


def _place(file: str, line: int) -> str:
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}, line {line}"
