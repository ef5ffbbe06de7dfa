"""Saved models on the Hugging Face Hub, or a compatible server. huggingface_hub is installed with timm."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fewtags.errors import UserError
from fewtags.models.places import WEIGHTS
from fewtags.models.tensor_files import first_line

FILES = ("config.json", "labels.json", WEIGHTS, "README.md")  # nothing else in a repository is downloaded
ONNX = "model.onnx"  # is uploaded too, for those who do not use fewtags
PATIENCE = 2.5  # seconds for a first connection; the hub's own client tries again for 46 s


def upload(
    folder: Path,
    repo: str,
    *,
    private: bool,
    token: str | None,
    revision: str | None,
    endpoint: str | None,
    message: str,
) -> str:
    """Create the repository if needed, upload the model, and return its URL."""
    from huggingface_hub import HfApi

    with hub_errors(repo):
        api = HfApi(endpoint=endpoint, token=token)
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, revision=revision, allow_patterns=[*FILES, ONNX], commit_message=message
        )
    return str(address)


def download(
    repo: str, *, token: str | None, revision: str | None, endpoint: str | None, cache_dir: str | Path | None
) -> Path:
    """The folder in the hub's cache with the model."""
    from huggingface_hub import snapshot_download

    with hub_errors(repo), cache_if_unreachable(endpoint):
        return Path(
            snapshot_download(
                repo, revision=revision, token=token, endpoint=endpoint, cache_dir=cache_dir, allow_patterns=list(FILES)
            )
        )


@contextmanager
def cache_if_unreachable(endpoint: str | None = None) -> Iterator[str]:
    """Inside, nothing waits for a hub that cannot be reached: what is not in its cache is an error at once. Yields why
    it cannot be reached; empty if it can."""
    from huggingface_hub import constants

    reason, before = unreachable(endpoint), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or bool(reason)
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = before


def unreachable(endpoint: str | None = None) -> str:
    """Why the hub, or the proxy in front of it, cannot be reached; empty if it can."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(endpoint or constants.ENDPOINT)
    proxy = getproxies().get(address.scheme)
    if proxy and not proxy_bypass(address.hostname or ""):
        address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    reasons = [f"{host} did not answer within {PATIENCE:g} s"]

    def connect() -> None:
        try:
            socket.create_connection((host, port), PATIENCE).close()
            reasons.append("")
        except OSError as error:
            reasons.append(f"{host} cannot be reached: {error.strerror or error}")

    attempt = threading.Thread(target=connect, daemon=True)  # looking up a name has no limit of its own
    attempt.start()
    attempt.join(PATIENCE)
    return reasons[-1]


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turns errors of the hub into one sentence."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except HFValidationError as error:
        raise UserError(f"'{repo}' is not a repository name such as owner/name ({first_line(error)}).") from error
    except GatedRepoError as error:
        raise UserError(f"{repo} is gated; request access on its page first.") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{repo} has no such revision.") from error
    except RepositoryNotFoundError as error:
        raise UserError(f"{repo} does not exist or is private; log in (`hf auth login`) or pass token=.") from error
    except LocalTokenNotFoundError as error:
        raise UserError("The hub requires authentication; log in (`hf auth login`) or pass token=.") from error
    except HfHubHTTPError as error:
        raise UserError(f"The hub rejected {repo}: {first_line(error)}") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise UserError(f"The hub could not be reached for {repo} ({first_line(error)}).") from error
    except Exception as error:  # the hub's library lets those of its HTTP library through
        raise UserError(f"The connection to the hub broke off at {repo} ({first_line(error)}); try again.") from error
