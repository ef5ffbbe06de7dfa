"""The page /docs, where every address of the server can be read about and tried out in a browser.

FastAPI's own page loads Swagger UI from the network. fastapi-offline brings the same files, so the page works on a
machine without one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

PAGE, FILES = "/docs", "/docs-files"


def add_api_page(app: FastAPI) -> None:
    """Does nothing where fastapi-offline is not installed: it is part of the extra, but not needed to serve."""
    found = importlib.util.find_spec("fastapi_offline")
    if found is None or found.origin is None:
        return
    app.mount(FILES, StaticFiles(directory=Path(found.origin).parent / "static"), name="docs-files")

    @app.get(PAGE, include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")  # behind a proxy the server may be in a folder
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} API",
            swagger_js_url=f"{root}{FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{FILES}/swagger-ui.css",
            swagger_favicon_url=f"{root}{FILES}/favicon.png",
        )
