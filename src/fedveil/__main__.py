"""The program: `fedveil`, or `python -m fedveil`."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    """Run the command line.

    Garbage collection is off during the imports, which saves a tenth of the start-up time. No
    imported object is ever garbage. After the command, Ctrl-C ends the process by the signal,
    because Python prints a traceback for an interrupt while it exits.
    """
    gc.disable()
    try:
        from fedveil.cli import main as cli

        gc.freeze()
        gc.enable()
        cli.main()
    except KeyboardInterrupt:  # Ctrl-C before `fedveil.cli.exits` is imported, or once more after
        sys.stderr.write("interrupted\n")
        exec("")  # noqa: S102 - as in `fedveil.cli.exits`
        raise SystemExit(130) from None
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
