"""When the CPU wakes for the end of a prompt, by a clock of the test."""

import pytest

from mlxr.runtime.hosts.cuda import prompt_choice
from mlxr.runtime.hosts.cuda.prompt_choice import ExpectedEnds

LATE = 2e-4


class Prompt:
    """One that begins now, on a clock that each look moves by 1 us; who sleeps in the driver wakes up late.

    Attributes:
        late: seconds from its end until that is known.
        awake: seconds in which nobody slept.
        slept: seconds, by the clock.
    """

    now = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, expected: ExpectedEnds, size: int, seconds: float) -> None:
        monkeypatch.setattr(prompt_choice, "_clock", lambda: Prompt.now)
        monkeypatch.setattr(prompt_choice, "_sleep", self._sleep)
        self.awake = self.slept = 0.0
        self._end = Prompt.now + seconds
        expected.wait(self, Prompt.now, size)  # type: ignore[arg-type]  # it has what is used of an event
        self.late = Prompt.now - self._end

    def _sleep(self, seconds: float) -> None:
        Prompt.now += seconds
        self.slept += seconds

    @property
    def has_ended(self) -> bool:
        Prompt.now += 1e-6
        self.awake += 1e-6
        return Prompt.now >= self._end

    def wait(self) -> None:
        if Prompt.now < self._end:
            Prompt.now = self._end + LATE


def test_who_waits_is_awake_when_a_prompt_ends_as_the_last_ones_did(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ExpectedEnds()
    assert Prompt(monkeypatch, expected, 512, 11e-3).late == pytest.approx(LATE), "nothing is known yet"
    for size, seconds in ((512, 11e-3), (512, 12.3e-3), (480, 11e-3), (640, 13e-3), (64, 2e-3)):
        prompt = Prompt(monkeypatch, expected, size, seconds)
        assert prompt.late < 3e-6 and prompt.awake < 3e-3 and prompt.slept > 0.5 * seconds, size


def test_who_waits_for_much_longer_sleeps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ExpectedEnds()
    Prompt(monkeypatch, expected, 512, 11e-3)
    late = Prompt(monkeypatch, expected, 512, 40e-3)
    assert late.late == pytest.approx(LATE) and late.awake < 3.1e-3
    assert Prompt(monkeypatch, expected, 512, 11e-3).late < 3e-6, "one that took longer changes little"


def test_nobody_sleeps_long_when_a_prompt_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ExpectedEnds()
    Prompt(monkeypatch, expected, 16, 8e-3)
    for seconds in (11e-3, 2e-3):
        assert Prompt(monkeypatch, expected, 512, seconds).late < 1.1e-3, "much more was expected"
        Prompt(monkeypatch, expected, 512, seconds)
        assert Prompt(monkeypatch, expected, 512, seconds).late < 3e-6, "and it is known how long they take"


def test_nobody_sleeps_for_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ExpectedEnds()
    Prompt(monkeypatch, expected, 512, 11e-3)
    ended = Prompt(monkeypatch, expected, 512, 0.0)
    assert ended.late < 3e-6 and not ended.slept
    assert expected.seconds(512) > 10e-3, "when it ended is not known"
