"""The program: `fedveil`, or `python -m fedveil`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line.

    Garbage collection is off during the imports, which saves a tenth of the start-up time. No
    imported object is ever garbage.
    """
    gc.disable()
    try:
        from fedveil.cli import main as cli
    except KeyboardInterrupt:  # Ctrl-C before `fedveil.cli.exits` is imported
        sys.stderr.write("interrupted\n")
        exec("")  # noqa: S102 - as in `fedveil.cli.exits`
        raise SystemExit(130) from None

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
