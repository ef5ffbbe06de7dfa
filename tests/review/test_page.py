"""The page in a real browser, used as a person uses it. Skipped, with a word why, where there is no browser."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed (extra: browser)")

from made_server import ProcessServer, Served, ThreadServer
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

PATIENCE = 60  # seconds for a fact to come true: no test is about speed, and a busy machine is slow
expect.set_options(timeout=1000 * PATIENCE)

# The first is the same engine without windows, which takes three quarters of the time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("FEWTAGS_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is installed, so the review page is not tried in one: `make browser` installs it")
    with sync_playwright() as driver:
        with driver.chromium.launch(executable_path=found, args=list(FLAGS)) as chromium:
            yield chromium


@pytest.fixture(scope="module")
def left_windows(browser: Browser) -> dict[str, list[Page]]:
    """Empty pages of the windows that earlier tests have left, by what is special about the window. A new one starts
    processes that compile our page's scripts anew: three times the work of opening the page in a window that is there.
    """
    return defaultdict(list)


def emptied(context: BrowserContext, url: str) -> Page:
    """A new page in this window, which has forgotten the others, their cookies and what they have stored."""
    empty = context.new_page()
    for page in context.pages[:-1]:
        page.close()
    context.clear_cookies()
    devtools = context.new_cdp_session(empty)
    devtools.send("Storage.clearDataForOrigin", {"origin": url.partition("/?")[0], "storageTypes": "all"})
    devtools.detach()
    return empty


@pytest.fixture
def open_page(browser: Browser, left_windows: dict[str, list[Page]]) -> Iterator:
    """Open an address in a window with cookies of its own; what goes wrong in the page fails the test."""
    opened, problems = [], []

    def open_(url: str, *, moves_on: bool = False, **options) -> Page:
        kind = repr((moves_on, options))
        page = left_windows[kind].pop() if left_windows[kind] else new_window(moves_on, options)
        opened.append((kind, page.context, url))
        return in_tab(page, url)

    def new_window(moves_on: bool, options: dict) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 720}, **options)
        if not moves_on:
            context.add_init_script("localStorage.setItem('move-on', '0')")
        return context.new_page()

    def in_tab(page: Page, url: str) -> Page:
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if "Security Policy" in message.text else None)
        page.goto(url)
        page.wait_for_selector("body.ready")
        return page

    open_.in_tab = in_tab
    yield open_
    for kind, context, url in opened:
        left_windows[kind].append(emptied(context, url))
    assert problems == []


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ThreadServer]]:
    started: list[ThreadServer] = []

    def start(*arguments, **options) -> ThreadServer:
        started.append(ThreadServer(tmp_path, *arguments, **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(start_server) -> ThreadServer:
    return start_server()


@pytest.fixture
def page(server, open_page) -> Page:
    """At the whole queue of "dog", likely or not."""
    return open_page(server.url + "&tag=dog&lowest=0")


def tile(page: Page, place: int) -> Locator:
    return page.locator(f'.grid .tile[data-place="{place}"]')


def image_of(page: Page, place: int) -> int:
    return int(tile(page, place).get_attribute("data-image"))


def name(image: int) -> str:
    return f"{image:04d}.jpg"


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def wait_until(page: Page, expression: str) -> None:
    """Until it is true in the page. Playwright's own way needs `eval`, which the page's policy forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def wait_shown(page: Page, tag: str) -> None:
    """Until its images are there: its name is marked in the list before."""
    expect(page.locator(".count-line")).to_contain_text(tag)


def wait_saved(page: Page) -> None:
    expect(page.locator("#saved")).to_contain_text("aved")
    expect(page.locator("#saved")).not_to_contain_text("Saving")


def wait_stored(server: Served, number: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(server.store.labels()) < number and time.monotonic() < end:
        time.sleep(0.05)
    assert len(server.store.labels()) == number


# --- opening ---


def test_it_opens_with_tags_and_pictures_and_hides_the_token(server, open_page):
    page = open_page(server.url)
    assert "token" not in page.url
    expect(page.locator("#tag-list .tag")).to_have_count(3)
    expect(page.locator("#tag-list .tag").first).to_contain_text("missing")
    expect(tile(page, 0).locator("img")).to_be_visible()
    wait_until(page, "[...document.querySelectorAll('.grid img')].every((image) => image.naturalWidth > 0)")
    expect(page.locator("#evidence .nearest li")).to_have_count(3)


def test_a_wrong_token_opens_nothing(server, browser):
    page = browser.new_page()
    reply = page.goto(server.origin + "/?token=wrong&tag=dog")
    assert reply.status == 401
    expect(page.locator("body")).to_contain_text("Open the address")
    page.close()


def test_another_page_can_neither_read_nor_write(server, browser):
    """A page of another origin in the same browser, which has the cookie."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.ready")
    evil = context.new_page()
    evil.route("http://evil.example/", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
    evil.goto("http://evil.example/")
    write = """async (origin) => {
        const body = JSON.stringify({queue: "missing", answers: [{image: 1, tag: "dog", label: 1}]});
        const tries = [{}, {credentials: "include"}, {credentials: "include", mode: "no-cors"}];
        const write = (more) => fetch(origin + "/api/decisions", {method: "POST", body, ...more}).catch(() => 0);
        for (const more of tries) await write(more);
        const refused = () => "refused";
        const read = await fetch(origin + "/api/session", {credentials: "include"}).then((r) => r.text(), refused);
        const picture = new Image();
        picture.src = origin + "/api/images/1/thumbnail";
        return [read, await picture.decode().then(() => "shown", refused)];
    }"""
    assert evil.evaluate(write, server.origin) == ["refused", "refused"]
    assert list(server.store) == []
    context.close()


# --- deciding ---


def test_accept_reject_and_unsure_by_keys(page, server):
    images = [image_of(page, place) for place in range(3)]
    press(page, "a", "ArrowRight", "x", "ArrowRight", "u")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    expect(tile(page, 1).locator(".state")).to_have_text("✗ No")
    expect(tile(page, 2).locator(".state")).to_have_text("? Unsure")
    labels = server.store.labels()
    assert [labels[name(image), "dog"] for image in images] == [1, -1, 0]
    assert [image_of(page, place) for place in range(3)] == images  # what was seen stays where it is
    assert all(row.reviewer == "ann" and row.queue == "missing" for row in server.store)


def test_an_answer_moves_on_so_that_keys_in_a_row_are_about_one_image_each(server, open_page):
    page = open_page(server.url + "&tag=dog&lowest=0", moves_on=True)
    images = [image_of(page, place) for place in range(4)]
    press(page, "a", "x", "u")
    expect(tile(page, 3)).to_be_focused()
    expect(page.locator("#saved")).to_have_text("✓ 3 saved")
    labels = server.store.labels()
    assert [labels.get((name(image), "dog")) for image in images] == [1, -1, 0, None]
    expect(page.locator("#undo")).to_have_attribute("title", f"Undo (z): dog, {name(images[2])}")
    press(page, "z")
    expect(tile(page, 2)).to_be_focused()  # where it was
    expect(page.locator("#saved")).to_have_text("✓ 2 saved")


def test_of_two_tags_chosen_quickly_the_last_one_is_shown(page, server):
    """Its answer comes first here: the other tag's is held until then."""
    held: list[Route] = []
    page.route(re.compile(r"/api/queues\?.*tag=cat"), lambda route: held.append(route))
    page.locator("#tag-list .tag", has_text="cat").click()
    page.locator("#tag-list .tag", has_text="sea").click()
    wait_shown(page, "sea")
    with page.expect_response(re.compile(r"/api/queues/")):
        held[0].continue_()
    page.wait_for_timeout(100)  # for what the page does with it
    wait_shown(page, "sea")
    press(page, "x")
    wait_stored(server, 1)
    assert [tag for _, tag in server.store.labels()] == ["sea"]


def test_undo_goes_to_the_tag_it_was_about(server, open_page):
    page = open_page(server.url + "&tag=dog&lowest=0")
    press(page, "a")
    wait_saved(page)
    page.locator("#tag-list .tag", has_text="sea").click()
    wait_shown(page, "sea")
    press(page, "z")
    wait_shown(page, "dog")


def test_without_moving_on_answers_stay_and_arrows_do_not_answer(page, server):
    press(page, "a")
    expect(tile(page, 0)).to_be_focused()
    press(page, "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft")
    wait_saved(page)
    assert len(list(server.store)) == 1


def test_undo_goes_back_to_the_first_decision_and_survives_a_reload(page, server):
    for _ in range(3):
        press(page, "a", "ArrowRight")
    wait_saved(page)
    expect(page.locator("#saved")).to_contain_text("3 saved")
    press(page, "z")
    expect(tile(page, 2).locator(".state")).to_have_text("")
    page.reload()
    page.wait_for_selector("body.ready")
    press(page, "z", "z", "z")
    expect(page.locator("#toasts")).to_contain_text("Nothing to undo")
    assert server.store.labels() == {}


def test_answers_by_mouse(page, server):
    image = image_of(page, 4)
    tile(page, 4).hover()
    tile(page, 4).locator(".answer.no").click()
    expect(tile(page, 4).locator(".state")).to_have_text("✗ No")
    page.locator("#evidence .answer.yes").click()
    expect(tile(page, 4).locator(".state")).to_have_text("✓ Yes")
    assert server.store.labels() == {(name(image), "dog"): 1}


def test_a_selection_is_one_step(page, server):
    press(page, "Shift+ArrowRight", "Shift+ArrowRight", "x")
    for place in range(3):
        expect(tile(page, place).locator(".state")).to_have_text("✗ No")
    assert len({row.step for row in server.store}) == 1
    page.locator("#toasts button").click()  # "Undo"
    expect(tile(page, 1).locator(".state")).to_have_text("")
    assert server.store.labels() == {}


def test_selecting_by_shift_click_control_click_and_a_box(page):
    tile(page, 1).click()
    tile(page, 4).click(modifiers=["Shift"])
    expect(page.locator(".tile.selected")).to_have_count(4)
    tile(page, 6).click(modifiers=["Control"])
    expect(page.locator(".tile.selected")).to_have_count(5)
    press(page, "Escape")
    expect(page.locator(".tile.selected")).to_have_count(0)
    first, last = tile(page, 0).bounding_box(), tile(page, 5).bounding_box()
    page.mouse.move(first["x"] + 20, first["y"] + 20)
    page.mouse.down()
    page.mouse.move(last["x"] + 40, last["y"] + 40, steps=4)
    page.mouse.up()
    expect(page.locator(".tile.selected")).to_have_count(4)  # two by two


def test_a_whole_screen(page, server):
    press(page, "x", "ArrowRight", "Shift+A")
    wait_saved(page)
    expect(page.locator("#toasts")).to_contain_text("Yes for")
    visible = page.evaluate("document.querySelectorAll('.tile.yes, .tile.no').length")
    assert visible >= 8
    labels = list(server.store.labels().values())
    assert labels.count(-1) >= 1  # what was decided before is left alone
    assert labels.count(1) >= 7
    assert len({row.step for row in server.store}) == 2


def test_accept_all_above_shows_a_sample_first_and_is_one_undo_step(page, server):
    page.locator("#bulk").click()
    dialog = page.locator("dialog")
    dialog.locator("input").fill("0.5")
    expect(dialog.locator("p").nth(1)).to_contain_text("would be wrong")
    expect(dialog.locator(".sample img").first).to_be_visible()
    accept = dialog.locator("button.yes")
    expect(accept).to_be_enabled()
    number = int(re.search(r"Accept (\d+) image", accept.inner_text()).group(1))
    assert number > 1
    assert server.store.labels() == {}
    accept.click()
    expect(dialog).to_have_count(0)
    assert list(server.store.labels().values()) == [1] * number
    assert {row.queue for row in server.store} == {"bulk"}
    press(page, "z")
    expect(page.locator("#toasts")).to_contain_text("Undone")
    assert server.store.labels() == {}


def test_a_stack_is_decided_together_and_can_be_taken_apart(page, server):
    stack = page.locator(".tile.burst").first
    for _ in range(40):
        wait_until(page, "!document.querySelector('.tile.empty')")
        if stack.count():
            break
        press(page, "PageDown")
        expect(page.locator(".grid .tile:focus[data-image]")).to_be_visible()
    expect(stack.locator(".count")).to_have_text("▤ 3")
    stack.click()
    press(page, "a")
    expect(stack.locator(".state")).to_have_text("✓ Yes")
    members = {name(image) for image in (3, 50, 51)}
    assert {image for image, _ in server.store.labels()} == members
    assert len({row.step for row in server.store}) == 1
    press(page, "e")
    dialog = page.locator("dialog")
    expect(dialog.locator(".tile")).to_have_count(3)
    press(page, "ArrowRight", "x")
    expect(dialog.locator(".tile").nth(1).locator(".state")).to_have_text("✗ No")
    press(page, "Escape")
    expect(stack.locator(".state")).to_have_text("◐ Partly")
    assert sorted(server.store.labels().values()) == [-1, 1, 1]


# --- learning, reloading, other windows ---


def test_what_comes_next_is_ranked_by_what_was_learned(page):
    def order() -> dict[int, int]:
        """Place -> image, of the tiles in the page."""
        tiles = "[...document.querySelectorAll('.grid .tile')]"
        return dict(page.evaluate(tiles + ".map((t) => [Number(t.dataset.place), Number(t.dataset.image)])"))

    before = order()
    for _ in range(6):
        press(page, "a", "ArrowRight")
    wait_saved(page)
    press(page, "r")  # sort everything anew
    wait_until(page, f"Number(document.querySelector('.tile[data-place=\"0\"]').dataset.image) !== {before[0]}")
    assert not {before[place] for place in range(6)} & set(order().values())


def test_a_reload_shows_what_is_left_and_the_address_has_the_filters(page):
    image = image_of(page, 0)
    press(page, "a")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    page.reload()
    page.wait_for_selector("body.ready")
    assert image_of(page, 0) != image
    page.get_by_role("button", name=re.compile(r"^Filters")).click()
    page.get_by_label("Show").select_option("present")
    expect(page.locator(".count-line")).to_contain_text("1 shown")
    assert "status=present" in page.url
    page.reload()
    page.wait_for_selector("body.ready")
    assert image_of(page, 0) == image
    page.get_by_role("button", name="Filters (2)").click()
    page.get_by_role("button", name="Clear filters").click()
    assert "status" not in page.url


def test_a_second_tab_never_overwrites_silently(page, server, open_page):
    page.route("**/api/changes*", lambda route: route.fulfill(json={"last_id": 0, "labels": []}))  # it hears no news
    other = open_page.in_tab(page.context.new_page(), page.url)
    assert image_of(other, 0) == image_of(page, 0)
    other.bring_to_front()
    press(other, "a")
    expect(tile(other, 0).locator(".state")).to_have_text("✓ Yes")
    page.bring_to_front()
    press(page, "x")
    expect(page.locator("#notice")).to_contain_text("changed in another window")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    assert list(server.store.labels().values()) == [1]
    page.get_by_role("button", name="Save mine anyway").click()
    expect(tile(page, 0).locator(".state")).to_have_text("✗ No")
    assert list(server.store.labels().values()) == [-1]


def test_news_from_another_window_arrive_by_themselves(page, server, open_page):
    other = open_page(server.url + "&tag=dog&lowest=0")
    press(other, "x")
    expect(tile(other, 0).locator(".state")).to_have_text("✗ No")
    expect(tile(page, 0).locator(".state")).to_have_text("✗ No")
    expect(page.locator("#toasts")).to_contain_text("in another window")


TRY_AGAIN = "[...document.querySelectorAll('#notice button')].find(b => b.textContent === 'Try again')?.click()"


def test_a_server_that_is_gone_is_said_and_nothing_is_shown_as_saved(tmp_path, open_page):
    server = ProcessServer(tmp_path)
    page = open_page(server.url + "&tag=dog&lowest=0")
    press(page, "a")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    server.stop()
    press(page, "ArrowRight", "a")
    expect(page.locator("#notice")).to_contain_text("does not respond")
    expect(tile(page, 1).locator(".state")).to_have_text("")
    again = ProcessServer(tmp_path, port=int(server.port))
    page.evaluate(TRY_AGAIN)  # unless the page did so by itself meanwhile
    expect(page.locator("#notice")).to_contain_text("was restarted")
    assert len(again.store.labels()) == 1
    again.stop()


# --- the other ways to look ---


def test_one_image_with_all_its_tags(page, server):
    image = image_of(page, 0)
    press(page, "g")
    panel = page.locator(".image-tags")
    expect(panel.locator(".image-tag")).to_have_count(3)
    assert f"image={image}" in page.url
    expect(panel.locator('[data-tag="dog"]')).to_be_focused()
    press(page, "x")
    expect(panel.locator('[data-tag="dog"]')).to_contain_text("✗ No")
    panel.get_by_role("searchbox").fill("se")
    expect(panel.locator(".image-tag")).to_have_count(1)
    panel.get_by_role("searchbox").fill("")
    panel.locator('[data-tag="dog"]').focus()
    press(page, "ArrowRight")
    expect(page.locator(".image-title")).to_contain_text("2 of")
    page.reload()
    page.wait_for_selector("body.ready")
    expect(page.locator(".image-mode img")).to_be_visible()
    assert server.store.labels() == {(name(image), "dog"): -1}


def test_number_keys_accept_suggestions(server, open_page):
    page = open_page(server.url + "&tag=dog&mode=image")
    first = page.locator(".image-tag").first
    expect(first.locator("kbd")).to_have_text("1")
    press(page, "1")
    expect(first).to_contain_text("✓ Yes")
    press(page, "1")
    expect(first).to_contain_text("? Unsure")


def test_the_random_sample_estimates_precision(server, open_page):
    page = open_page(server.url + "&tag=dog&queue=random")
    expect(page.locator(".banner")).to_contain_text("in random order")
    for key in ("a", "x", "a"):
        press(page, key, "ArrowRight")
    expect(page.locator(".banner")).to_contain_text("About 67 %")
    expect(page.locator(".banner")).to_contain_text("2 of 3 seen")
    expect(page.locator(".banner")).to_contain_text("more for ± 5 points")


def test_doubtful_tags_are_kept_or_removed(server, open_page):
    page = open_page(server.url + "&tag=dog&queue=doubtful&lowest=0")
    image = image_of(page, 0)
    page.locator("#evidence").get_by_role("button", name="Remove").click()
    expect(tile(page, 0).locator(".state")).to_have_text("✗ No")
    (row,) = server.store
    assert (row.image, row.old, row.new, row.queue) == (name(image), 1, -1, "doubtful")


def test_a_missing_file_is_a_tile_that_says_so(server, open_page):
    for file in (server.folder / "photos").iterdir():
        file.unlink()
    page = open_page(server.url + "&tag=dog&lowest=0")
    expect(tile(page, 1).locator(".no-picture")).to_contain_text("missing")
    press(page, "ArrowRight", "u")
    expect(tile(page, 1).locator(".state")).to_have_text("? Unsure")


def test_read_only_decides_nothing(start_server, open_page):
    server = start_server(read_only=True)
    page = open_page(server.url + "&tag=dog&lowest=0")
    expect(page.locator("#saved")).to_have_text("Read-only")
    expect(page.locator(".tile .answers").first).to_be_hidden()
    asked = []
    page.on("request", lambda request: asked.append(request.method))
    press(page, "a", "x", "Shift+A", "z")
    page.reload()  # what was asked for before has been answered
    page.wait_for_selector("body.ready")
    assert set(asked) == {"GET"}
    assert list(server.store) == []


def test_thousands_of_images_are_not_all_in_the_page(start_server, open_page):
    server = start_server(1500)
    page = open_page(server.url + "&tag=dog&lowest=0")
    expect(page.locator(".count-line")).to_contain_text("shown")
    press(page, "End")
    expect(page.locator(".grid .tile:focus img")).to_be_visible()
    assert page.locator(".grid .tile").count() < 60
    last = int(page.locator(".grid .tile:focus").get_attribute("data-place"))
    assert last > 1000
    press(page, "x")
    expect(tile(page, last).locator(".state")).to_have_text("✗ No")


# --- for everybody ---


def test_everything_by_keyboard_alone(server, open_page):
    page = open_page(server.url)
    press(page, "/")
    page.keyboard.type("sea")
    press(page, "Enter")
    expect(page.locator('.tag[aria-current="true"]')).to_contain_text("sea")
    wait_shown(page, "sea")
    press(page, "a")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    press(page, "/")
    page.keyboard.type("ax")  # letters in a field are text
    press(page, "Escape")
    wait_saved(page)
    assert len(list(server.store)) == 1
    press(page, "?")
    expect(page.locator("dialog")).to_contain_text("Undo")
    press(page, "a", "Escape")
    expect(page.locator("dialog")).to_have_count(0)
    reached = set()
    for _ in range(60):
        press(page, "Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]"))
    press(page, "z")
    expect(tile(page, 0).locator(".state")).to_have_text("")
    assert {"undo", "settings", "help", "tag-search", "tag-sort", "tag", "tile", "answer", "bulk"} <= reached


def test_keys_can_be_changed(page, server):
    press(page, "?")
    page.get_by_role("button", name=re.compile("Key for: Yes: the image")).click()
    press(page, "j", "Escape")
    press(page, "j")
    expect(tile(page, 0).locator(".state")).to_have_text("✓ Yes")
    press(page, "ArrowRight", "a")
    wait_saved(page)
    assert len(list(server.store)) == 1


def test_pictures_have_text_buttons_have_names_and_focus_is_seen(page):
    page.wait_for_selector("#evidence .nearest img")
    assert page.evaluate("[...document.images].every((image) => image.alt)")
    unnamed = "[...document.querySelectorAll('button')].filter((b) => !(b.ariaLabel || b.textContent.trim())).length"
    assert page.evaluate(unnamed) == 0
    assert tile(page, 0).get_attribute("aria-label").endswith("not decided")
    press(page, "ArrowRight")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def contrast(page: Page, selector: str) -> float:
    """WCAG contrast of an element's text with the nearest background behind it."""
    return page.evaluate(
        """(selector) => {
        const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        let element = document.querySelector(selector);
        const text = light(numbers(getComputedStyle(element).color));
        let back = numbers(getComputedStyle(element).backgroundColor);
        while (back.length === 4 && back[3] === 0) {
            element = element.parentElement;
            back = numbers(getComputedStyle(element).backgroundColor);
        }
        const [a, b] = [text, light(back)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    }""",
        selector,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(server, open_page, scheme):
    page = open_page(server.url + "&tag=dog&lowest=0", color_scheme=scheme)
    press(page, "a", "ArrowRight", "x", "ArrowRight", "u", "ArrowRight")
    wait_saved(page)
    wait_until(page, "document.getAnimations().length === 0")  # colours change gradually
    parts = (
        ".tag-counts", ".count-line", ".tile .chance", ".tile .answer.yes", ".tile .answer.no", ".tile .answer.unsure",
        ".tile.yes .state", ".tile.no .state", ".tile.unsure .state", '#modes [aria-pressed="true"]', "#saved",
    )  # fmt: skip
    assert {part: round(contrast(page, part), 1) for part in parts if contrast(page, part) < 4.5} == {}


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1024, 768), (768, 1024)])
def test_nothing_sticks_out_of_the_screen(server, open_page, width, height):
    page = open_page(server.url + "&tag=dog&lowest=0", has_touch=width < 1200)
    page.set_viewport_size({"width": width, "height": height})
    wait_until(page, f"innerWidth === {width} && document.documentElement.scrollWidth <= innerWidth")
    inside = """[...document.querySelectorAll('#top button, .toolbar button, .tile .answer')].every((b) => {
        const box = b.getBoundingClientRect();
        return !box.width || (box.right <= innerWidth && box.left >= 0);
    })"""
    wait_until(page, inside)


def test_a_finger_selects_by_touching(server, open_page):
    page = open_page(server.url + "&tag=dog&lowest=0", has_touch=True)
    tile(page, 0).locator(".picture").tap()
    tile(page, 2).locator(".picture").tap()
    expect(page.locator(".tile.selected")).to_have_count(2)
    tile(page, 0).locator(".picture").tap()
    expect(page.locator(".tile.selected")).to_have_count(1)
    tile(page, 2).locator(".answer.yes").tap()
    expect(tile(page, 2).locator(".state")).to_have_text("✓ Yes")
    assert len(server.store.labels()) == 1


# --- an audit ---


def test_an_audit_of_50_questions_by_keyboard_killed_in_the_middle_and_continued(tmp_path, open_page):
    server = ProcessServer(tmp_path)
    page = open_page(server.url)
    buttons = page.locator("#queues button")
    expect(buttons.first).to_have_text("Audit")
    buttons.first.click()
    expect(page.locator(".audit-progress")).to_have_text("1 of 50")
    expect(page.locator(".audit-estimate")).to_contain_text("Not audited yet")
    tags = set()
    for place in range(20):
        expect(page.locator(".audit-progress")).to_have_text(f"{place + 1} of 50")
        tags.add(page.locator(".audit-tag").inner_text())
        press(page, "axxu"[place % 4])
    wait_saved(page)
    assert len(tags) > 1  # across all tags
    press(page, "z")
    expect(page.locator(".audit-progress")).to_have_text("20 of 50")
    press(page, "u")
    expect(page.locator(".audit-estimate")).to_contain_text("15 audited labels")
    expect(page.locator(".audit-progress")).to_have_text("21 of 50")
    wait_stored(server, 20)  # the page goes on before the server has answered
    question = page.locator(".audit-tag").inner_text(), page.locator(".big-picture").get_attribute("data-image")
    server.stop()

    again = ProcessServer(tmp_path)
    page = open_page(again.url + "&queue=audit")
    expect(page.locator(".audit-progress")).to_have_text("21 of 50")
    assert question == (
        page.locator(".audit-tag").inner_text(),
        page.locator(".big-picture").get_attribute("data-image"),
    )
    for _ in range(30):
        press(page, "x")  # as fast as one can
    expect(page.locator(".audit-question")).to_contain_text("All questions of this wave are answered")
    expect(page.locator(".audit-estimate")).to_contain_text("45 audited labels")
    expect(page.locator(".audit-estimate")).to_contain_text("By the answers alone")
    labels = again.store.labels()
    assert len(labels) == 50
    assert {row.queue for row in again.store} == {"audit"}
    assert {question.label for question in again.store.questions()} == set(labels)
    page.get_by_role("button", name="Ask another wave").click()
    expect(page.locator(".audit-progress")).to_have_text("1 of 50")
    page.locator("#tag-list button, #tag-list li").first.click()
    expect(page.locator(".count-line")).to_contain_text("shown")  # a tag of the list leaves the audit
    again.stop()
