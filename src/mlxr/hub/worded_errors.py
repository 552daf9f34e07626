"""Words huggingface_hub's errors: what went wrong, and what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from mlxr.hub import HubError
from mlxr.hub.download import has_begun


@contextmanager
def worded(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turns what huggingface_hub raises into HubErrors.

    Raises:
        HubError: the repository or its revision is missing, gated or private, the hub cannot be reached, or the disk is
            full.
    """
    from huggingface_hub import constants  # noqa: PLC0415 (slow to import)
    from huggingface_hub.errors import (  # noqa: PLC0415
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    # The base of all errors of the HTTP library, whichever one this version of huggingface_hub uses.
    network = next(
        base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError" and issubclass(base, Exception)
    )
    try:
        yield
    except GatedRepoError as error:
        raise HubError(
            f"{repo} is gated: accept its terms at {hub}/{repo}, and log in with `hf auth login`, or put a token into "
            "HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{hub} has no model {repo}, or does not show it to you: check the name; for a private model log in with "
            "`hf auth login`, or put a token into HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise HubError(
            f"{repo} has no revision {revision!r}: after @ stands a branch, a tag or a commit; see {hub}/{repo}/commits"
        ) from error
    except EntryNotFoundError as error:
        raise HubError(f"{repo}: a file was removed from {hub} meanwhile; try again") from error
    except HFValidationError as error:
        raise HubError(f"{repo} cannot be the name of a model on the hub: {_line(error)}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise HubError(
                f"{hub} refuses {repo} ({status}): the token that it got is not valid, or does not allow this; log in "
                "with `hf auth login`, or put another token into HF_TOKEN"
            ) from error
        raise HubError(f"{repo}: {hub} answers with an error ({status}): {_line(error)}; try again later") from error
    except (network, ConnectionError) as error:
        remedy = (
            "What was fetched is kept, and the same command goes on from there"
            if has_begun(repo)
            else "Is this machine online? HF_ENDPOINT names another hub"
        )
        raise HubError(f"{repo}: {hub} cannot be reached: {_line(error)}. {remedy}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubError(
                f"{repo}: no space is left in {constants.HF_HUB_CACHE}: make room, and give the same command again: it "
                "goes on from there. HF_HUB_CACHE names another folder"
            ) from error
        raise HubError(
            f"{repo}: {error.filename or constants.HF_HUB_CACHE}: {error.strerror or _line(error)}"
        ) from error


def _line(error: BaseException) -> str:
    """The first line of an error's text."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(". ")
