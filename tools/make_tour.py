"""Make docs/images/tour.gif: the loop of the README, filmed on the example archive.

    python tools/make_tour.py [--out docs/images/tour.gif]

Needs a browser and Playwright (extra: browser). Every frame is what the commands really print and show.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = (960, 560)
COLOURS = 96
READING, QUICK = 3200, 900  # milliseconds of a frame
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TERMINAL = """<body style="margin:0;background:#16181d;color:#d7dae0;font:16px/1.45 monospace;padding:28px 32px;
box-sizing:border-box;height:100vh;overflow:hidden"><pre style="margin:0;white-space:pre-wrap">{text}</pre>"""


class Tour:
    def __init__(self, page: Page, folder: Path):
        self.page, self.folder = page, folder
        self.frames: list[Image.Image] = []
        self.times: list[int] = []

    def film(self, milliseconds: int) -> None:
        picture = Image.open(io.BytesIO(self.page.screenshot()))
        self.frames.append(picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE))
        self.times.append(milliseconds)

    def command(self, *arguments: str, lines: int, first: int = 0) -> None:
        """Run it, and show the command and some lines of what it prints."""
        out = subprocess.run(
            [sys.executable, "-m", "fewtags", *arguments], cwd=self.folder, text=True, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        ).stdout  # fmt: skip
        shown = "\n".join(out.rstrip().splitlines()[first:][:lines])
        text = f'<b style="color:#8fd18f">$ fewtags {html.escape(" ".join(arguments))}</b>\n\n{html.escape(shown)}'
        self.page.goto("about:blank")  # the review page allows no styles of ours
        self.page.set_content(TERMINAL.format(text=text))
        self.film(READING)

    def review(self, run: str) -> None:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "fewtags", "review", run, "--no-browser", "--port", "0"], cwd=self.folder,
            text=True, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.findall(r"http://\S+", line)))
            self.page.goto(address)
            self.page.wait_for_timeout(2500)
            self.film(READING)
            for _ in range(6):
                self.page.keyboard.press("a")
                self.page.wait_for_timeout(700)
                self.film(QUICK)
        finally:
            server.terminate()
            server.wait()

    def save(self, file: Path) -> None:
        first, *others = self.frames
        first.save(file, save_all=True, append_images=others, duration=self.times, loop=0, optimize=True)


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/images/tour.gif")
    out = parser.parse_args().out.absolute()
    browser = next(path for name in BROWSERS if (path := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        with driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium:
            page = chromium.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
            tour = Tour(page, Path(folder))
            subprocess.run(
                [sys.executable, "-m", "fewtags", "example", "-q"], cwd=folder, check=True, capture_output=True
            )
            tour.command("check", "example/photos", lines=16)
            tour.command("train", "example/example.yaml", "--out", "example/first", lines=6)
            tour.review("example/first")
            write = ("--write", "xmp", "--precision", "0.8", "--dry-run")
            tour.command("predict", "example/first", "example/photos", *write, lines=14)
            tour.save(out)
    print(f"{out}: {len(tour.frames)} frames, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
