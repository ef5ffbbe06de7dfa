"""`fewtags review`: serve the review page of a run until Ctrl-C."""

from __future__ import annotations

import gc
import getpass
import secrets
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from fewtags.errors import MissingExtra, UserError
from fewtags.progress import working
from fewtags.wording import plural

FIRST_PORT = 8321  # then the next free one


def review(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    reviewer: str | None = None,
    read_only: bool = False,
    browser: bool = True,
    quiet: bool = False,
    at: str = "",
) -> None:
    """`at` is where on the page to begin, as the rest of its address."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise MissingExtra("The review page", "review")
    if not quiet:
        print(f"Opening {run} for review.", file=sys.stderr, flush=True)
    with nothing_to_collect(), working("Opening the review", quiet=quiet):
        import uvicorn

        from fewtags.review.guard import Address
        from fewtags.review.opening import open_review
        from fewtags.review.server import make_app

        listening = listen(host, port)
        address = Address(host, listening.getsockname()[1])
        opened = open_review(run, reviewer=reviewer or user_name(), read_only=read_only, quiet=quiet)
    token = secrets.token_urlsafe(24)
    app = make_app(
        opened.session,
        opened.pictures,
        opened.heat_maps,
        about=opened.about,
        address=address,
        token=token,
        read_only=read_only,
        search=opened.search,
    )
    if opened.changed:
        print(
            "fewtags: Warning: the images or labels have changed since this run was trained. The page shows the "
            "current ones.",
            file=sys.stderr,
        )
    if restored := opened.session.store.restored:
        print(
            f"fewtags: Warning: {plural(len(restored), 'decision')} had been lost from the file of decisions, and "
            "were put back from its second copy.",
            file=sys.stderr,
        )
    if not address.loopback:
        can = "see the images" if read_only else "see and review the images"
        print(
            f"fewtags: Warning: {host} can be reached from other machines, and anyone with this address can {can}. "
            "The connection is not encrypted.",
            file=sys.stderr,
        )
    link = f"{address.origin}/?token={token}{at}"
    opened.pictures.start()
    listening.listen(128)
    print(link, flush=True)
    if not quiet:
        print("Press Ctrl-C to stop; every decision is saved immediately.", file=sys.stderr)
    if browser:
        webbrowser.open(link)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False, timeout_graceful_shutdown=3)
    with suppress(KeyboardInterrupt):  # the normal way to stop
        uvicorn.Server(config).run(sockets=[listening])
    opened.pictures.stop()
    opened.session.store.close()


@contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Of all that is imported and read here, nothing becomes garbage; to look for some takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def listen(host: str, port: int | None) -> socket.socket:
    """A bound socket: at `port`, or at the first free port starting at FIRST_PORT."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last_error: OSError | None = None
    for candidate in [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + 20), 0]:
        # With the protocol named, asyncio sets TCP_NODELAY on the connections: without it the body of a response waits
        # 40 ms for the client's acknowledgement of its headers.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
        except OSError as error:
            listening.close()
            last_error = error
        else:
            return listening
    assert last_error is not None
    where = host if port is None else f"{host}, port {port},"
    raise UserError(f"Cannot listen on {where}: {last_error.strerror}.") from last_error


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no user name
        return ""
