"""Saved models on the Hugging Face Hub, or on a server that speaks like it. huggingface_hub comes with timm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtags.errors import UserError
from fewtags.models.tensor_files import WEIGHTS, first_line

FILES = ("config.json", "labels.json", WEIGHTS, "README.md")  # nothing else of a folder goes up or comes down


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
    """Make the repository if it is not there, put the model into it, and return its address."""
    from huggingface_hub import HfApi

    with said_plainly(repo):
        api = HfApi(endpoint=endpoint, token=token)
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, revision=revision, allow_patterns=list(FILES), commit_message=message
        )
    return str(address)


def download(
    repo: str, *, token: str | None, revision: str | None, endpoint: str | None, cache_dir: str | Path | None
) -> Path:
    """The folder of the hub's cache that holds the model."""
    from huggingface_hub import snapshot_download

    with said_plainly(repo):
        return Path(
            snapshot_download(
                repo, revision=revision, token=token, endpoint=endpoint, cache_dir=cache_dir, allow_patterns=list(FILES)
            )
        )


@contextmanager
def said_plainly(repo: str) -> Iterator[None]:
    """What can go wrong with a hub, in one sentence."""
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
        raise UserError(f"'{repo}' is no name of a repository, such as owner/name ({first_line(error)}).") from error
    except GatedRepoError as error:
        raise UserError(f"Access to {repo} has to be asked for on its page first.") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{repo} has no such revision.") from error
    except RepositoryNotFoundError as error:
        raise UserError(f"{repo} does not exist, or is private: log in (`hf auth login`) or give token=.") from error
    except LocalTokenNotFoundError as error:
        raise UserError("The hub asks who you are: log in (`hf auth login`) or give token=.") from error
    except HfHubHTTPError as error:
        raise UserError(f"The hub refused {repo}: {first_line(error)}") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise UserError(f"The hub could not be reached for {repo} ({first_line(error)}).") from error
