"""What the server allows, and for how long it waits."""

from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import RequestError


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server.

    Attributes:
        address: where it listens.
        port: the TCP port; 0: any free one.
        api_keys: keys of which a request must have one; empty: everybody may ask.
        allow_open: whether an address that other machines reach is allowed without a key.
        origins: web pages from which browsers may ask, besides the server's own page.
        hosts: names under which clients may reach it, besides its address and the loopback names.
        most_body_bytes: most bytes of a request's body.
        most_answers: most answers to one request (`n` x prompts).
        most_inputs: most texts of one request for embeddings.
        most_connections: most connections at a time.
        header_seconds: how long a client may take to send its headers.
        body_seconds: how long it may take to send a body, and a second more for each 16 KiB of it.
        most_unfinished_bytes: of all bodies that are being read, but at least four of the longest: beyond it, the one
            that began first is given up.
        alive_seconds: a stream that has nothing to say gets a comment so often.
        load_seconds: how long a request waits for a model that is being loaded.
        grace_seconds: how long streams may go on after the server was told to stop.
        log_text: whether the log has what users write and get.
        allow_pull: whether clients may have models fetched from the hub.
        allow_adapters: whether clients may have adapters loaded from this machine's disk.
        traces_endpoint: URL of a collector that gets OpenTelemetry's spans; empty: there is none.
        responses_bytes: most bytes of responses that are kept for requests that go on from them; 0: none is.
        responses_file: where they are kept; None: in memory.
    """

    address: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    allow_open: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    most_body_bytes: int = 8 << 20
    most_answers: int = 128
    most_inputs: int = 2048
    most_connections: int = 4096
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    most_unfinished_bytes: int = 256 << 20
    alive_seconds: float = 5.0
    load_seconds: float = 600.0
    grace_seconds: float = 30.0
    log_text: bool = False
    allow_pull: bool = False
    allow_adapters: bool = False
    traces_endpoint: str = ""
    responses_bytes: int = 64 << 20
    responses_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuses an address that other machines reach, if nobody needs a key there."""
        if not self.is_loopback and not self.api_keys and not self.allow_open:
            raise RequestError(
                f"{self.address} can be reached from other machines, and anybody there could use the models: give a "
                "key (--api-key-file FILE), or allow it all the same (--allow-open)"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.address in {"localhost", "::1"} or self.address.startswith("127.")

    def check_answers(self, count: int) -> None:
        """Refuses a request for too many answers.

        Raises:
            RequestError: there are more than `most_answers`.
        """
        if count > self.most_answers:
            raise RequestError(f"{count} answers are asked for, and this server gives {self.most_answers} to a request")
