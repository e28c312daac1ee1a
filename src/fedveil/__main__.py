"""The program: `fedveil`, or `python -m fedveil`."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line.

    What is imported lives to the end: looking for garbage among it is a tenth of the start.
    """
    gc.disable()
    from fedveil import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
