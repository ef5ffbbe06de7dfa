"""Saved models on the Hugging Face Hub, or a compatible server. huggingface_hub is installed with timm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtags.errors import UserError
from fewtags.models.tensor_files import WEIGHTS, first_line

FILES = ("config.json", "labels.json", WEIGHTS, "README.md")  # nothing else in a folder is uploaded or downloaded


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
            repo_id=repo, folder_path=folder, revision=revision, allow_patterns=list(FILES), commit_message=message
        )
    return str(address)


def download(
    repo: str, *, token: str | None, revision: str | None, endpoint: str | None, cache_dir: str | Path | None
) -> Path:
    """The folder in the hub's cache with the model."""
    from huggingface_hub import snapshot_download

    with hub_errors(repo):
        return Path(
            snapshot_download(
                repo, revision=revision, token=token, endpoint=endpoint, cache_dir=cache_dir, allow_patterns=list(FILES)
            )
        )


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
