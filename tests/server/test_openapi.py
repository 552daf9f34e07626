"""The OpenAPI document is true: what requests get that it allows, and that it does not, is as it describes.

schemathesis makes the requests. Most name a model that there is, and ask for few tokens: else they would test little.
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from mlxr_tests.few import few
from mlxr_tests.running_server import RunningServer

CHECKS: list[Any] = [content_type_conformance, response_schema_conformance, status_code_conformance]
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
REFUSALS = [400, 401, 403, 404, 406, 413, 422, 428]
"""What refuses a wrong request. schemathesis itself lacks 413, which a body gets that has more items than it may."""


def shaped(case: Case) -> Case:
    """The case, with a model that there is, and a short answer."""
    if isinstance(case.query, dict) and "model" in case.query:
        case.query["model"] = "tiny"
    if not isinstance(case.body, dict):
        return case
    body: dict[str, Any] = case.body
    if "model" in body and len(str(body["model"])) % 4:
        body["model"] = "tiny"
    body.pop("keep_alive", None)  # a model that is loaded anew each time takes long
    if case.path.startswith("/api/") and case.path != "/api/show":
        body["options"] = (body.get("options") or {}) | {"num_predict": 2}
    for name in LENGTHS:
        if isinstance(length := body.get(name), int) and length > 4:
            body[name] = 4
    if "completions" in case.path and not isinstance(body.get("max_completion_tokens"), int):
        body["max_tokens"] = 2
    if "responses" in case.path:
        body["max_output_tokens"] = 2
    if isinstance(n := body.get("n"), int) and n > 2:
        body["n"] = 2
    return case


def ask(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, examples: int) -> set[int]:
    """Sends requests to a path; returns the statuses that came back."""
    seen: set[int] = set()
    checks = CHECKS if mode is GenerationMode.POSITIVE else [*CHECKS, negative_data_rejection]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode))
    def check(case: Case) -> None:
        response = (shaped(case) if mode is GenerationMode.POSITIVE else case).call(timeout=60)
        assert response.status_code not in {500, 502, 503}, response.text  # 501 is documented where it may come
        seen.add(response.status_code)
        case.validate_response(response, checks=checks)

    check()
    return seen


@pytest.mark.parametrize("examples", few([2, 300], [2]))
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_as_documented(server: RunningServer, mode: GenerationMode, examples: int) -> None:
    rejection = {"negative_data_rejection": {"expected-statuses": REFUSALS}}
    config = schemathesis.Config.from_dict({"checks": rejection})
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    statuses, errors = {}, []
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # nothing that can be sent is wrong
        try:
            statuses[operation.label] = ask(operation, mode, examples)
        except (Exception, BaseExceptionGroup) as error:
            errors.append(f"{operation.label}: {type(error).__name__} {error}")
    assert not errors, "\n".join(errors)
    print(statuses)
    if mode is GenerationMode.POSITIVE:
        assert sum(200 in told for told in statuses.values()) > 20, statuses
