"""Renders a page in headless Chromium, without a network."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PROGRAM = next(filter(None, map(shutil.which, _NAMES)), None)
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
)  # fmt: skip

needs_browser = pytest.mark.skipif(_PROGRAM is None, reason=f"none of {', '.join(_NAMES)} is here")


@dataclass(frozen=True)
class Shown:
    """A rendered page, its console messages, and the result of the test's own script."""

    dom: str
    console: list[str]
    found: Any


def show(page: str, folder: Path, script: str = "", *, width: int = 1280) -> Shown:
    """Open a page from a file. `script` is the body of a function that the test runs in it.

    The page's policy allows that script and nothing else.
    """
    if script:
        body = f"document.body.dataset.found = JSON.stringify((() => {{{script}}})())"
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
        page = page.replace("</body></html>", f"<script>{body}</script></body></html>")
    file = folder / "shown.html"
    file.write_text(page, "utf-8")
    assert _PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        where = (f"--user-data-dir={own}", f"--window-size={width},900", file.as_uri())
        ended = subprocess.run(
            [_PROGRAM, *_OPTIONS, *where], capture_output=True, text=True, timeout=120, check=True
        )
    found = re.search(r'<body[^>]* data-found="([^"]*)"', ended.stdout)
    return Shown(
        ended.stdout,
        [line for line in ended.stderr.splitlines() if ":CONSOLE" in line],
        json.loads(html.unescape(found[1])) if found else None,
    )
