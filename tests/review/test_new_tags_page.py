"""The whole way to a tag that nobody had, in a real browser: search, + tag, answers, forecast, rename, merge, undo."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed (extra: dev)")

from made_server import ProcessServer
from playwright.sync_api import Page, expect
from test_page import browser, left_windows, name, open_page, press, server, start_server, tile, wait_saved, wait_shown  # noqa: F401

from fewtags.data.formats import read_annotations
from fewtags.labels import PRESENT, UNKNOWN

TRUTH = np.random.default_rng(0).random((120, 3)) < 0.3  # as `made_data` draws it
NAME = "<b>Hafen</b> נמל 🗼"
DROP = """([content, kind]) => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const moved = new DataTransfer();
    moved.items.add(new File([bytes], "mine.jpg", {type: "image/jpeg"}));
    document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: moved, bubbles: true, cancelable: true}));
}"""


def search(page: Page, phrase: str) -> None:
    press(page, "s")
    page.keyboard.type(phrase)
    press(page, "Enter")


def add_tag(page: Page, name: str) -> None:
    dialog = page.locator("dialog")
    dialog.locator("#new-tag-name").fill(name)
    dialog.get_by_role("button", name="Add tag").click()


def menu(page: Page, item: str) -> None:
    page.locator("#tag-menu").click()
    page.locator("dialog").get_by_role("button", name=item).click()


def picture(page: Page, name: str) -> None:
    """A screenshot to look at, if somebody wants one: FEWTAGS_SCREENSHOTS is a folder."""
    if folder := os.environ.get("FEWTAGS_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def thresholds(page: Page) -> list[str]:
    """All that the page says, once the panel has its details."""
    page.wait_for_selector(".chance-box")
    told = page.locator(".forecast").inner_text() + page.locator(".chance-box").inner_text()
    return re.findall(r"threshold (?:is )?([\d.]+\d)", told)


def answer(page: Page, number: int, truth: np.ndarray = TRUTH[:, 2]) -> None:
    """By keyboard, with the truth about every image; each answer moves on."""
    for _ in range(number):
        image = page.locator(".grid .tile:focus[data-image]").get_attribute("data-image")
        press(page, "a" if truth[int(image)] else "x")
        expect(page.locator(f'.grid .tile:focus[data-image="{image}"]')).to_have_count(0)
    wait_saved(page)


def test_from_a_search_to_a_tag_and_back(tmp_path, open_page):  # noqa: F811
    served = ProcessServer(tmp_path)
    page = open_page(served.url + "&tag=dog&lowest=0&stacks=0", moves_on=True)
    search(page, "flying saucer")
    expect(page.locator("#notice")).to_contain_text("Search by an example instead")
    page.locator("#find").fill("")
    press(page, "Escape")
    search(page, "harbour")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("harbour: 1 class, sea")
    expect(dialog.locator(".hit")).to_have_count(120)
    press(page, "Escape")
    content = base64.b64encode((tmp_path / "photos" / name(7)).read_bytes()).decode()
    page.evaluate(DROP, [content, "drop"])
    expect(page.locator("dialog h2")).to_have_text("Like mine.jpg")
    expect(page.locator("#find")).to_have_value("")  # no longer the phrase of the search before
    expect(dialog.locator(".hit").first).to_have_attribute("data-image", "7")
    examples = [int(row) for row in np.flatnonzero(TRUTH[:, 2])[:2]]
    for row in examples:
        dialog.locator(f'.hit[data-image="{row}"]').click()
    picture(page, "search")
    dialog.get_by_role("button", name="New tag from these").click()
    add_tag(page, "DOG")
    expect(dialog.locator(".problem")).to_contain_text("There is a tag 'dog' already")
    add_tag(page, NAME)
    expect(dialog).to_have_count(0)
    mine = page.locator('.tag[aria-current="true"]')
    expect(mine).to_contain_text(NAME)
    assert page.locator(".tag b").count() == 0  # markup in a name is text
    wait_shown(page, NAME)

    answer(page, 30)
    expect(page.locator(".forecast")).to_contain_text("The next 50 answers find about")
    expect(page.locator("#saved")).to_have_text("✓ 32 saved")
    assert len(thresholds(page)) <= 1  # it moves with every answer, so one place says it
    picture(page, "new-tag")

    menu(page, "Rename")
    dialog.locator("input").fill("harbour")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    expect(mine).to_contain_text("harbour")
    expect(page.locator("#undo")).to_have_attribute("title", f"Undo (z): renaming “{NAME}” to “harbour”")
    press(page, "z")
    expect(mine).to_contain_text(NAME)
    menu(page, "Merge")
    dialog.locator("select").select_option("sea")
    dialog.get_by_role("button", name="Merge", exact=True).click()
    expect(mine).to_contain_text("sea")
    expect(page.locator("#tag-list .tag")).to_have_count(3)
    press(page, "z")
    expect(page.locator("#tag-list .tag")).to_have_count(4)

    page.goto(served.origin + "/?tag=" + "sea")
    page.wait_for_selector("body.ready")
    expect(page.locator("#tag-list .tag", has_text=NAME)).to_contain_text("32 decided")
    other = open_page.in_tab(page.context.new_page(), page.url)
    other.locator("#tag-list .tag", has_text=NAME).click()
    menu(other, "Define in one line")
    other.locator("dialog input").fill("boats at a quay")
    other.locator("dialog").get_by_role("button", name="Save").click()
    expect(other.locator(".definition")).to_contain_text("boats at a quay")
    page.bring_to_front()
    page.locator("#tag-list .tag", has_text=NAME).click()
    expect(page.locator(".definition")).to_contain_text("boats at a quay")

    served.stop()  # kill -9
    assert len(served.store.labels()) == 32
    again = ProcessServer(tmp_path)
    page = open_page(again.url, moves_on=True)
    page.locator("#tag-list .tag", has_text=NAME).click()
    expect(page.locator(".definition")).to_contain_text("boats at a quay")
    page.locator("#reviewed").click()
    expect(page.locator("dialog table")).to_contain_text(NAME)
    picture(page, "changes")
    again.stop()


def test_a_real_run_of_another_method_from_a_dropped_picture_to_other_photos(
    cli,
    trained,
    patches,
    tmp_path,
    open_page,  # noqa: F811
):
    """What the pictures' own labels call "red" is the new tag "crimson"."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    command = [sys.executable, "-m", "fewtags", "review", run, "--no-browser", "--port", "0", "--quiet"]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    page = open_page(process.stdout.readline().strip() + "&lowest=0&stacks=0", moves_on=True)
    images = patches.split("train")
    red = images.labels[:, images.categories.index("red")] == PRESENT
    content = base64.b64encode(images.path(int(np.flatnonzero(red)[0])).read_bytes()).decode()
    page.evaluate(DROP, [content, "drop"])
    dialog = page.locator("dialog")
    for row in np.flatnonzero(red)[:2]:
        dialog.locator(f'.hit[data-image="{row}"]').click()
    dialog.get_by_role("button", name="New tag from these").click()
    add_tag(page, "crimson")
    wait_shown(page, "crimson")
    answer(page, 12, red)
    process.kill()  # -9
    process.wait()

    file = tmp_path / "new.jsonl"  # others are complete, and this tag is not: a CSV cannot say that
    assert cli("apply", run, "--as", "jsonl", "--out", file, "--yes").code == 0
    new = read_annotations(str(patches.root), tags=str(file))
    crimson = new.labels[:, new.categories.index("crimson")]
    assert (crimson != UNKNOWN).sum() == 14
    again = cli("train", "--reviewed", run, "--out", tmp_path / "second", "--quiet")
    assert again.code == 0, again.err
    others = tmp_path / "others"
    others.mkdir()
    for row in range(36, 48):  # pictures that it was not trained on
        shutil.copy(patches.path(row), others)
    told = cli("predict", tmp_path / "second", others, "--out", tmp_path / "told.csv", "-q")
    assert told.code == 0, told.err
    assert "crimson" in (tmp_path / "told.csv").read_text()


def test_more_like_this_and_a_tag_without_any_start(server, open_page):  # noqa: F811
    page = open_page(server.url + "&tag=dog&lowest=0")
    press(page, "m")
    expect(page.locator("dialog h2")).to_have_text("More like 1 image")
    expect(page.locator("dialog .hit").first).to_be_visible()
    press(page, "Escape", "t")
    page.locator("dialog #new-tag-phrase").uncheck()
    add_tag(page, "anything")
    expect(page.locator('.tag[aria-current="true"]')).to_contain_text("anything")
    expect(tile(page, 0).locator("img")).to_be_visible()
    press(page, "z")
    expect(page.locator("#tag-list .tag")).to_have_count(3)


def test_what_this_window_did_is_no_news_to_it(server, open_page):  # noqa: F811
    """Its queue is not opened again in the middle of answers."""
    page = open_page(server.url + "&tag=dog&lowest=0")
    press(page, "t")
    page.locator("dialog #new-tag-phrase").uncheck()
    add_tag(page, "anything")
    wait_shown(page, "anything")
    opened: list[str] = []
    page.on("request", lambda request: opened.append(request.url) if "/api/queues?" in request.url else None)
    with page.expect_response(lambda response: "/api/changes" in response.url) as told:
        pass
    assert [tag["name"] for tag in told.value.json()["tags"]] == ["cat", "dog", "sea", "anything"]
    with page.expect_response(lambda response: "/api/changes" in response.url):
        pass
    assert opened == []


def test_a_tag_stays_in_view_whoever_renames_it_and_examples_are_unpinned(server, open_page):  # noqa: F811
    page = open_page(server.url + "&tag=dog&lowest=0&stacks=0")
    mine, dialog = page.locator('.tag[aria-current="true"]'), page.locator("dialog")
    menu(page, "Rename")
    dialog.locator("input").fill("hot  dog")  # the server leaves one space
    dialog.get_by_role("button", name="Rename", exact=True).click()
    expect(mine).to_contain_text("hot dog")
    press(page, "z")
    expect(mine).to_contain_text("dog")
    expect(mine).not_to_contain_text("hot")
    other = open_page.in_tab(page.context.new_page(), page.url)
    menu(other, "Rename")
    other.locator("dialog input").fill("zebra")
    other.locator("dialog").get_by_role("button", name="Rename", exact=True).click()
    expect(other.locator('.tag[aria-current="true"]')).to_contain_text("zebra")
    page.bring_to_front()
    page.evaluate("dispatchEvent(new Event('focus'))")
    expect(mine).to_contain_text("zebra")
    wait_shown(page, "zebra")

    press(page, "Shift+ArrowRight")
    menu(page, "Pin the selected")
    dialog.get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator(".pinned")).to_have_count(2)
    page.locator("#tag-menu").click()
    expect(dialog).to_contain_text(re.compile("ann, [0-9-]{10}: renaming “dog” to “zebra”"))
    picture(page, "tag-menu")
    expect(page.locator("#notice")).to_be_hidden()  # nothing was asked by a name that undo took away
    dialog.get_by_role("button", name="Unpin").click()
    expect(page.locator(".pinned")).to_have_count(0)
    menu(page, "Delete")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#tag-list .tag")).to_have_count(2)
    press(page, "z")
    expect(mine).to_contain_text("zebra")
