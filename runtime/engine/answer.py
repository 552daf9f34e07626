"""One answer that is being generated: its sequence in the arena, its sampler, and the tokens and text so far."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.sampling import Sampler
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder


@dataclass(eq=False)
class Answer:
    """An answer and the sequence that it is computed in.

    Attributes:
        index: prompt number x num_samples + sample number.
        seq_id: the pager's id of the sequence.
        pending: tokens that are known, but not yet in the arena or in a launched step.
        sampler: chooses its tokens.
        decoder: turns tokens into text; None without a tokenizer.
        num_decodable: ids below this are the tokenizer's; a model's vocabulary may be larger.
        completion: what the user sees of it.
        max_length: tokens of prompt and answer at which it ends.
        undecoded: tokens of the prompt that the decoder has not been given yet.
        length: tokens that are in the arena or in a launched step.
        is_released: whether the sequence has been given back.
    """

    index: int
    seq_id: int
    pending: list[int]
    sampler: Sampler
    decoder: StreamDecoder | None
    num_decodable: int
    completion: Completion
    max_length: int
    undecoded: Sequence[int]
    length: int = 0
    is_released: bool = False

    @property
    def is_last_step(self) -> bool:
        """Whether the answer ends with the token that is sampled when `length` tokens are in the arena."""
        return self.length + 1 >= self.max_length

    def decode_prompt(self) -> None:
        """Gives the prompt to the decoder, so that the text of the answer continues that of the prompt.

        This is done after the first step has been launched, which need not wait for it.
        """
        if self.decoder:
            for token in self.undecoded:
                self._text_of(token)
        self.undecoded = ()

    def accept(self, token: int, stop_ids: Collection[int], max_tokens: int) -> Event:
        """Adds a sampled token. If it ends the answer, `completion.finish_reason` says why.

        Args:
            token: its id.
            stop_ids: ids that end an answer, and have no text.
            max_tokens: most tokens of an answer; beyond them `max_length` is the end of the context.
        """
        completion = self.completion
        completion.token_ids.append(token)
        num_tokens = completion.prompt_tokens + len(completion.token_ids)
        is_stop = token in stop_ids
        text = "" if is_stop else self._text_of(token)
        if is_stop:
            completion.finish_reason = "stop"
        elif num_tokens >= self.max_length:
            completion.finish_reason = "length" if len(completion.token_ids) >= max_tokens else "context"
        if completion.finish_reason:
            text += self.decoder.flush() if self.decoder else ""
        elif self.length < num_tokens:
            self.pending.append(token)  # else the step that takes it has been launched
        completion.text += text
        return Event(self.index, token, text, completion.finish_reason)

    def _text_of(self, token: int) -> str:
        """The text that becomes complete with a token; empty for ids that the tokenizer does not have."""
        return self.decoder.push(token) if self.decoder and token < self.num_decodable else ""
