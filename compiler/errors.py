"""The errors that MLXR raises on purpose. Those that one package alone raises are defined there, as the tree says.

    MlxrError                 a user can act on it: it says what is wrong, what was expected, where, and the fix
      SpecError               a spec that does not parse or contradicts itself (path:line:column)
        ContextError          a model whose own context is shorter than what is asked for
      GraphError              an op graph that breaks a rule (node, stage, passes already run)
      PlanError               a plan that cannot be made or breaks a rule
        BudgetError           weights + arena + activations exceed the memory budget
      ArtifactError           an artifact that is missing, tampered with, or of another version
      WeightsError            a weight file that is missing, corrupt, or does not match the artifact
      TokenizerError          a tokenizer that is missing or corrupt
        NoTokenizerError      a model without a tokenizer, where text needs one
      ChatTemplateError       a chat template that is missing, is faulty, or took too long or too much memory
      HostError               a host that cannot run here, or a kernel that cannot be built
        KernelFault           a kernel that did something illegal (sim: out of bounds, divergence, race, ...)
        RankError             what went wrong on one rank of several: it cannot reach another one, or has lost it
        RankLostError         a rank of a model that runs on several was lost: its processes end
      ArenaError              a wrong use of the KV arena
        ArenaFullError        no free block is left
      RequestError            a request that cannot be served (too many sequences)
        OptionError           a sampling option that is out of its range

    mlxr.runtime.engine.errors
      EngineError             an engine that was closed, or that can no longer run
      RequestError
        PromptTooLongError    a prompt that leaves no token of the context for the answer
        QueueFullError        too many requests wait already
        ConstraintError       a constraint on the answer that cannot be used
        ModelClosedError      a model that was closed
    mlxr.registry
      RegistryError           a registry that cannot be read or written, or a name that it lacks
        NameTakenError        a name that it has already, for another model
    mlxr.hub
      HubError                a model that cannot be fetched from the hub

The commands print the message and exit with 1. They show the traceback only if MLXR_DEBUG is set.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class MlxrError(Exception):
    """Base of all errors that a user can act on.

    Attributes:
        rank: of a model that runs on several, the rank with whose name the text begins; None: with none.
        of_head: whether the head that guesses is at fault, without which a model may be loaded.
    """

    rank: int | None = None
    of_head: bool = False


@contextmanager
def blaming_head() -> Iterator[None]:
    """Whatever error leaves it, the head that guesses is at fault."""
    try:
        yield
    except MlxrError as error:
        error.of_head = True
        raise


class SpecError(MlxrError):
    """A spec that does not parse or contradicts itself."""


class ContextError(SpecError):
    """A model whose own context is shorter than what is asked for."""


class GraphError(MlxrError):
    """An op graph that breaks a rule of its stage."""


class PlanError(MlxrError):
    """A plan that cannot be made, or that breaks a rule."""


class BudgetError(PlanError):
    """Weights + arena + activations exceed the memory budget."""


class ArtifactError(MlxrError):
    """An artifact that is missing, tampered with, or of another version."""


class WeightsError(MlxrError):
    """A weight file that is missing, corrupt, or does not match the artifact."""


class TokenizerError(MlxrError):
    """A tokenizer that is missing or corrupt."""


class NoTokenizerError(TokenizerError):
    """A model without a tokenizer, where text needs one."""


class ChatTemplateError(MlxrError):
    """A chat template that is missing, is faulty, refuses a conversation, or took too long or too much memory."""


class HostError(MlxrError):
    """A host that cannot run on this machine, or a kernel that cannot be built."""


class KernelFault(HostError):  # noqa: N818 (what Metal and CUDA call it)
    """A kernel that did something illegal while it ran."""


class RankError(HostError):
    """What went wrong on a rank, with whose name the text begins."""

    def __init__(self, rank: int, what: str) -> None:
        """Puts the rank before the text.

        Args:
            rank: which one.
            what: is wrong there; it goes on from the name.
        """
        super().__init__(f"rank {rank} {what}")
        self.rank = rank


class RankLostError(HostError):
    """A rank of a model that runs on several machines was lost, or failed: nothing can be computed any more."""


class ArenaError(MlxrError):
    """A wrong use of the KV arena."""


class ArenaFullError(ArenaError):
    """No free block is left in the KV arena."""


class RequestError(MlxrError):
    """A request that cannot be served."""


class OptionError(RequestError):
    """An option whose value is out of its range.

    Attributes:
        option: its name, with which the text begins.
        what: is wrong with it.
    """

    def __init__(self, option: str, what: str) -> None:
        """Puts the name before the text."""
        super().__init__(f"{option} {what}")
        self.option, self.what = option, what
