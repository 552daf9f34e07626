"""The format of models of no known family: text, and no tool calls."""

from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob


class Plain:
    """Answers are text."""

    def read(self, reader: AnswerReader, job: ChatJob) -> Reading:
        """Reads an answer."""
        del job
        yield from reader.rest()
