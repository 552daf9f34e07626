"""/metrics."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.server.state import ServerState

router = APIRouter()


@router.get("/metrics", tags=["Server"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def scrape(request: Request) -> Response:
    """What Prometheus collects."""
    text, content_type = await ServerState.of(request).metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})
