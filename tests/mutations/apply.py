"""Put each bug into a copy of the tree and expect its tests to fail within a minute.

    python tests/mutations/apply.py                        # all of them
    python tests/mutations/apply.py --room secagg          # of one room
    python tests/mutations/apply.py --part 20 --turn 7     # twenty, spread over the rooms

The tests must pass without any bug first. Ends with status 1 where more than one in twenty of the
bugs lives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutation import ROOT, Mutation, read, spread

LIMIT_S = 60
ANYWHERE = shutil.ignore_patterns(".venv*", ".git", ".*_cache")
BUILT = {"runs", "site", "dist"}  # folders of the root


def left_out(folder: str, names: list[str]) -> set[str]:
    built = BUILT if Path(folder) == ROOT else set()
    return built.intersection(names) | ANYWHERE(folder, names)


def tested(tree: Path, tests: Sequence[str], limit_s: float | None, **variables: str) -> str:
    """Run these tests in this tree. Returns "passed", "failed", "hung" or "broke".

    Returns "skipped" if a package is missing that all of them need.
    """
    paths = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | paths | variables
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]  # -q: addopts
    if limit_s is not None:  # a test that hangs has failed
        command += ["--timeout", str(0.75 * limit_s)]
    process = subprocess.Popen(  # a group of its own: what it started ends with it
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "hung"
    if process.returncode == 0:
        return "passed" if " passed" in said.splitlines()[-1] else "skipped"
    if process.returncode == 1 and limit_s is not None:
        return "failed"
    if "found no collectors" in said:
        return "skipped"
    print(said[-3000:], file=sys.stderr)
    return "broke"


def applied(tree: Path, mutation: Mutation) -> str:
    """Return the outcome of the bug's tests. Restores the tree."""
    path = mutation.path(tree)
    stamp, sound = path.stat(), path.read_text("utf-8")
    path.write_text(mutation.of(sound), "utf-8")
    try:
        # Compiled loops are kept by the file that holds them, not by those that they call.
        with tempfile.TemporaryDirectory() as fresh:
            own = {"NUMBA_CACHE_DIR": fresh} if "@compiled(" in sound else {}
            return tested(tree, mutation.tests, LIMIT_S, **own)
    finally:
        path.write_text(sound, "utf-8")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def chosen(arguments: argparse.Namespace) -> list[Mutation]:
    every = [m for m in read() if arguments.room in (None, m.room)]
    if arguments.number:
        return [m for m in every if m.number in arguments.number]
    if arguments.part and arguments.part < len(every):
        return spread(every, arguments.part, arguments.turn)
    return every


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--room", help="the mutations of one file of this folder")
    parser.add_argument("--number", type=int, nargs="+", help="these of them alone")
    parser.add_argument("--part", type=int, help="this number of them, spread over the rooms")
    parser.add_argument("--turn", type=int, default=0, help="which part")
    parser.add_argument("--passed", action="store_true", help="the suite has passed just now")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    mutations = chosen(arguments)
    if not mutations:
        parser.error("there is no such mutation")

    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(arguments.jobs):
            tree = Path(folder) / str(job)
            shutil.copytree(ROOT, tree, ignore=left_out)
            trees.put(tree)

        tests = sorted({test for mutation in mutations for test in mutation.tests})
        first = trees.get()
        if not arguments.passed and tested(first, tests, None) != "passed":
            print("the tests do not pass without any bug", file=sys.stderr)
            return 1
        trees.put(first)

        def outcome_of(mutation: Mutation) -> str:
            tree, begun = trees.get(), time.monotonic()
            try:
                outcome = applied(tree, mutation)
            finally:
                trees.put(tree)
            lives = outcome not in ("failed", "skipped")
            line = f"{mutation.name:24} {outcome:7} {time.monotonic() - begun:5.1f} s"
            print(line + (f"  LIVES: {mutation.why}" if lives else ""), flush=True)
            return outcome

        with ThreadPoolExecutor(arguments.jobs) as pool:
            tried = [each for each in pool.map(outcome_of, mutations) if each != "skipped"]
    dead, share = tried.count("failed"), tried.count("failed") / max(len(tried), 1)
    print(f"{dead} of {len(tried)} bugs were noticed ({share:.1%})")
    return 0 if tried and share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
