"""Tags that nobody had: added, learned, renamed, merged, deleted, described, all of it undone, in any window."""

from __future__ import annotations

import numpy as np
import pytest
from made_review import made_data

from fewtags.data.agreement import Agreement, krippendorff
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.review.session import Answer, View
from fewtags.review.store import Conflict

TRUTH = np.random.default_rng(0).random((400, 3)) < 0.3  # as `made_data` draws it


def say(session, rows, label, tag, **options):
    return session.decide([Answer(int(row), tag, label) for row in np.atleast_1d(rows)], queue="missing", **options)


def names(session) -> list[str]:
    return [summary.name for summary in session.summaries()]


# --- a new tag ---


def test_a_tag_from_one_example_is_ranked_and_learned(session):
    """The new tag is what the run calls "sea", under another name."""
    example = int(np.flatnonzero(TRUTH[:, 2])[0])
    session.add_tag("harbour", examples=[example])
    found = 0
    for _ in range(8):
        rows = session.queue(View("harbour", stacks=False)).order[:5]
        found += TRUTH[rows, 2].sum()
        for row in rows:
            say(session, row, PRESENT if TRUTH[row, 2] else ABSENT, "harbour")
    assert found >= 24  # of 40; by chance 12
    assert session.summary("harbour").known == found + 1
    assert session.summary("harbour").decided.decided == 41
    told = session.forecast("harbour")
    assert told.threshold.promised >= 0.9
    assert 10 <= told.next_found <= 50


def test_the_forecast_says_the_threshold_of_a_new_tag_if_there_is_one(session):
    session.add_tag("harbour", examples=[int(np.flatnonzero(TRUTH[:, 2])[0])])
    for row in session.queue(View("harbour", stacks=False)).order[:60]:
        say(session, row, PRESENT if TRUTH[row, 2] else ABSENT, "harbour")
    assert 0 < session.forecast("harbour").threshold.probability < 1
    assert session.threshold("harbour") is None  # it moves with every answer: no second place says it
    assert session.threshold("sea") == 0.5
    assert session.summary("harbour").expected == session.forecast("harbour").missing.value  # one number on the page
    session.add_tag("noise", examples=[0])
    say(session, np.arange(1, 40), ABSENT, "noise")
    assert session.forecast("noise").threshold.probability > 1  # nowhere are nine of ten expected to be right


def test_it_is_there_when_the_review_is_opened_again(open_session):
    first = open_session()
    first.add_tag("harbour", examples=[3, 4])
    say(first, 7, ABSENT, "harbour")
    again = open_session()
    assert names(again) == ["cat", "dog", "sea", "harbour"]
    np.testing.assert_array_equal(again.queue(View("harbour")).order, first.queue(View("harbour")).order)
    assert [tag.label for tag in again.tags(3)][3] == PRESENT


def test_another_window_sees_it_and_old_names_are_understood(open_session):
    mine, theirs = open_session(), open_session()
    mine.add_tag("harbour", examples=[3])
    say(theirs, 5, PRESENT, "harbour")
    mine.change_tag("harbour", "rename", "port")
    (row,) = say(theirs, 6, PRESENT, "harbour")  # its page has not heard of it yet
    assert row.category == "port"
    mine.refresh()
    assert mine.labels[[3, 5, 6], 3].tolist() == [1, 1, 1]


def test_without_any_start_a_random_screen_is_shown(session):
    session.add_tag("harbour")
    order = session.queue(View("harbour", stacks=False)).order
    assert sorted(order) == list(range(400))
    assert order[:20].tolist() != list(range(20))


@pytest.mark.parametrize("name", ['<b>bold</b> & "co"', "מגדלור", "🗼 tower", "  two   spaces "])
def test_names_are_text(open_session, name):
    session = open_session()
    session.add_tag(name, examples=[1])
    kept = " ".join(name.split())
    assert names(session)[-1] == names(open_session())[-1] == kept
    assert session.summary(kept).known == 1


def test_a_name_that_exists_in_other_case_is_refused(session):
    with pytest.raises(UserError, match="There is a tag 'dog' already, in other case"):
        session.add_tag("DOG")
    with pytest.raises(UserError, match="needs a name"):
        session.add_tag(" \n ")
    with pytest.raises(UserError, match="at most 100"):
        session.add_tag("a" * 101)
    session.change_tag("dog", "rename", "Dog")  # its own name may change its case
    assert "Dog" in names(session)


# --- changes, each undone ---


def test_undo_of_each_change_leaves_nothing_behind(open_session):
    session = open_session()
    before = session.labels.copy()
    session.add_tag("harbour", examples=[3, 4])
    say(session, 7, ABSENT, "harbour")
    assert [row.queue for row in session.tag("harbour").history] == ["tag:add"]
    changes = {"rename": "port", "describe": "boats", "pin": ["0003.jpg"], "merge": "sea", "delete": ""}

    def state() -> list[tuple[object, ...]]:
        tags = [session.tag(name) for name in names(session)]
        return [(t.name, t.description, t.pinned, t.history, session.summary(t.name).known) for t in tags]

    for change, value in changes.items():
        there = state()
        session.change_tag("harbour", change, value)
        assert state() != there, change
        session.undo()
        assert state() == there, change
    session.undo()
    session.undo()
    assert names(session) == ["cat", "dog", "sea"]
    np.testing.assert_array_equal(session.labels, before)


def test_merging_counts_the_images_of_both(session):
    session.add_tag("harbour", examples=[3])
    say(session, 9, PRESENT, "harbour")
    known = (session.given[:, 2] == PRESENT).sum()
    before = session.labels[[3, 9], 2].tolist()
    session.change_tag("harbour", "merge", "sea")
    assert session.labels[[3, 9], 2].tolist() == [1, 1]
    assert session.summary("sea").known == known + before.count(UNKNOWN)
    assert "harbour" not in names(session)


def test_a_given_tag_is_merged_with_its_labels(session):
    cats, dogs = (session.given[:, column] == PRESENT for column in (0, 1))
    session.change_tag("cat", "merge", "dog")
    assert session.summary("dog").known == (cats | dogs).sum()


def test_a_tag_that_is_in_use_cannot_be_undone_under_it(session):
    (added, *_) = session.add_tag("harbour", examples=[3])
    say(session, 7, ABSENT, "harbour")
    with pytest.raises(Conflict):
        session.undo(added.step)
    assert "harbour" in names(session)


def test_two_windows_do_not_rename_over_each_other(open_session):
    mine, theirs = open_session(), open_session()
    theirs.change_tag("dog", "rename", "hound", seen=0)
    with pytest.raises(Conflict, match="the tag 'dog'"):
        mine.change_tag("dog", "rename", "puppy", seen=0)
    assert "hound" in names(mine)


def test_a_definition_and_examples_help_the_next_reviewer(open_session):
    session = open_session()
    session.change_tag("dog", "describe", "  any dog,\nnot wolves ")
    session.change_tag("dog", "pin", ["0003.jpg", "0004.jpg"])
    tag = open_session().tag("dog")
    assert (tag.description, tag.pinned) == ("any dog, not wolves", ("0003.jpg", "0004.jpg"))
    with pytest.raises(UserError, match="At most 5"):
        session.change_tag("dog", "pin", [f"{row:04d}.jpg" for row in range(6)])


# --- doubtful, and is it enough? ---


def test_doubtful_tags_are_those_the_picture_speaks_against(session):
    """Whether a tag is rare does not matter: the picture is compared with a random one."""
    queue = session.queue(View("sea", "doubtful"))
    evidence = session.ranker.chances(2).evidence
    assert (evidence[queue.order] <= 0.5).all()
    assert session.summary("sea").doubtful == len(queue.order)
    odds = session.ranker.chances(2).present
    usual = odds.mean()
    assert (odds[queue.order] <= usual + 1e-6).all()


def test_every_tag_says_what_the_next_answers_find(session):
    told = session.forecast("dog")
    open_ones = session.given[:, 1] == UNKNOWN
    best = np.sort(session.ranker.chances(1).missing[open_ones])[::-1][:50]
    assert told.next_found == pytest.approx(best.sum(), rel=1e-4)
    assert told.missing.low <= told.missing.value <= told.missing.high
    assert not told.enough


# --- several reviewers ---


def test_where_two_disagree_a_third_decides(session):
    say(session, [3, 4, 5], PRESENT, "dog", reviewer="ann")
    say(session, [4, 5], ABSENT, "dog", reviewer="bob")
    assert sorted(session.queue(View("dog", "disputed")).order) == [4, 5]
    assert session.summary("dog").disputed == 2
    assert session.state.said(4, 1) == ["ann: yes", "bob: no"]
    say(session, 4, ABSENT, "dog", reviewer="cia")
    assert session.queue(View("dog", "disputed")).order.tolist() == [5]
    assert session.labels[4, 1] == ABSENT


def test_agreement_is_counted_on_labels_that_two_decided(session):
    assert session.agreement().words == ""
    say(session, [3, 4, 5, 6], PRESENT, "dog", reviewer="ann")
    say(session, [3, 4, 5], PRESENT, "dog", reviewer="bob")
    say(session, 6, ABSENT, "dog", reviewer="bob")
    agreement = session.agreement()
    assert (agreement.labels, agreement.disputed, agreement.raw) == (4, 1, 0.75)
    assert "75 % agreement" in agreement.words


def test_alpha_of_krippendorffs_own_example():
    """Krippendorff (2011), "Computing Krippendorff's alpha-reliability", B: nominal data, two observers: 0.692; C: any
    number of observers, missing data: 0.743."""
    pairs = zip("aabbdcccedda", "babbbccceddd", strict=True)
    assert krippendorff([[ord(meg), ord(owen)] for meg, owen in pairs])[1] == pytest.approx(0.692, abs=5e-4)
    observers = (
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    )
    units = [[int(v) for v in unit if v != "."] for unit in zip(*(each.split() for each in observers), strict=True)]
    assert krippendorff(units)[1] == pytest.approx(0.743, abs=5e-4)
    assert krippendorff([[1, 1], [1, 1]]) == (1.0, None)
    assert Agreement.of([]).words == ""


def test_the_made_truth_is_what_the_images_were_made_from():
    labels = made_data()[0].labels
    assert not (labels == PRESENT)[~TRUTH].any()
