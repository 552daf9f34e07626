"""The base class of every record that is read from a file or written to one: specs, families, chips, plans."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable, without unknown keys and infinities. A docstring below a field describes it in the JSON schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
