"""The routes of the page and its files.

What the page shows comes from models, whose text may be anything. The policy below lets nothing run but the page's own
files: no script and no handler inside HTML, no `eval`, no other server, and no HTML from text but what DOMPurify gives.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.server.errors import ApiError
from mlxr.server.page.page_files import PageFile, page_files

router = APIRouter()

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""The page's Content-Security-Policy."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASK_FIRST = {"Cache-Control": "no-cache"}
_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The page. Browsers ask each time whether it is still the same."""
    files = page_files()
    tag = f'"{files.digest}"'
    headers = HEADERS | _ASK_FIRST | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return _sent(files.index, headers)


@router.get("/page/{digest}/{path:path}", include_in_schema=False)
async def file(digest: str, path: str) -> Response:
    """A file of the page, which never changes: its folder's name is a hash of the content.

    Raises:
        ApiError: there is none, or not in this version.
    """
    files = page_files()
    if digest != files.digest or path not in files.files:
        raise ApiError(404, f"there is no /page/{digest}/{path} here: reload the page", code="not_found")
    return _sent(files.files[path], HEADERS | _FOR_GOOD)


def _sent(file: PageFile, headers: dict[str, str]) -> Response:
    return Response(file.body, media_type=file.media_type, headers=headers)
