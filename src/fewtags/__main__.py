"""`fewtags` as a process of its own: `fewtags.cli.main`, quick to start and to end."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from fewtags.cli import main

# New objects between two searches for garbage. Imports make many and leave hardly any of them unused: at Python's 700 a
# fifth of the time until the first tag goes into such searches.
COLLECT_AFTER = 5000

# Rounds for which a thread of torch that waits for another keeps its core (GNU OpenMP, whose own number is 300,000): on
# a machine that is busy with other things it would keep it from the one that it waits for.
SPIN = 10_000


def start() -> None:
    """Run a command and end the process at once: Python would free what torch has made one by one, for half a second,
    though the system takes all of it back. What was registered to be done at the end is done."""
    gc.set_threshold(COLLECT_AFTER)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN))  # read when torch is imported, which nothing has done yet
    code = 1  # of an error that is not the user's

    def end_at_once() -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # disk full, reader gone: Python says so when it ends in its own way
            return
        os._exit(code)

    atexit.register(end_at_once)  # the first to be registered is called last
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else code
        raise


if __name__ == "__main__":
    start()
