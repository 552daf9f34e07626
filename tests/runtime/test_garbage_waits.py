"""Python looks for garbage again whatever happened, and meanwhile where something runs for long."""

import gc

import pytest

from mlxr.runtime.garbage_waits import garbage_waits, garbage_waits_no_longer


def test_the_search_goes_on_after_an_error_too() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), garbage_waits():
        with garbage_waits():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_what_runs_for_long_is_searched() -> None:
    with garbage_waits():
        with pytest.raises(KeyError), garbage_waits_no_longer():
            assert gc.isenabled()
            raise KeyError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_has_ended_the_search_keeps_it_ended() -> None:
    gc.disable()
    try:
        with garbage_waits(), garbage_waits_no_longer():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_others_have_frozen_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is counted once: that takes a tenth of a second where it is a million objects."""
    assert gc.get_freeze_count(), "tests/conftest.py has frozen what the collection of tests made"
    counts, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    for _ in range(3):
        with garbage_waits():
            pass
    assert len(counts) <= 1 and count()
