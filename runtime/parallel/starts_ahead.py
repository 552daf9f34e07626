"""Whether the ranks of a model start a step before the tokens of the last one are known."""

from mlxr.runtime.hosts.collectives import EXACT_IDS
from mlxr.runtime.hosts.host import Host


def starts_ahead(host: Host) -> bool:
    """Whether they do, which all ranks answer in the same way: with one stage, on a host that pipelines.

    Ids reach the others by a sum over the ranks of a stage, so rank 0's reach no other stage.

    Args:
        host: of this rank.
    """
    if not host.pipelines or host.plan.rank is None:
        return False
    return host.plan.rank.pipeline == 1 and host.plan.vocab_size <= EXACT_IDS
