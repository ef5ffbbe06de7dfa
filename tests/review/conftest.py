"""A review of made images, opened as often as a test likes."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_review import made_data

from fewtags.review.session import ReviewSession
from fewtags.review.store import DecisionStore, decisions_file


@pytest.fixture
def open_session(tmp_path: Path):
    """Open a session on the same store, as often as one likes."""

    def opened(num_images: int = 400, **options) -> ReviewSession:
        annotations, features = made_data(num_images)
        store = DecisionStore(decisions_file(tmp_path))
        return ReviewSession(annotations, features, store, run="made", reviewer="ann", **options)

    return opened


@pytest.fixture
def session(open_session) -> ReviewSession:
    return open_session()
