"""Ctrl-C ends what listens, waits for what does not, and is not lost between the two."""

import signal
import sys
import threading
import time
from functools import partial
from typing import NamedTuple

import pytest

from collsyn.errors import forget_interrupt, interrupt, was_interrupted
from collsyn.keyboard import Keyboard


def press():
    signal.raise_signal(signal.SIGINT)


def test_only_what_listens_is_ended():
    with Keyboard() as keyboard:
        with pytest.raises(KeyboardInterrupt), keyboard.listening():
            press()
        assert keyboard.pressed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_does_not_listen_goes_on_and_what_listens_next_is_ended():
    with Keyboard() as keyboard:
        press()
        assert keyboard.pressed
        with pytest.raises(KeyboardInterrupt), keyboard.listening():
            raise AssertionError("must not begin")


def test_inner_and_outer_tell_each_other():
    with Keyboard() as outer:
        press()
        with Keyboard() as inner:
            assert inner.pressed
    with Keyboard() as outer:
        with Keyboard() as inner:
            press()
            assert inner.pressed
        assert outer.pressed


def test_a_program_that_handles_the_signal_keeps_it():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with Keyboard() as keyboard, keyboard.listening():
            press()
        assert heard == [signal.SIGINT] and not keyboard.pressed
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_it_alone():
    handlers = []

    def work():
        with Keyboard():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


class Result(NamedTuple):
    value: int


def test_nothing_is_raised_where_kernels_make_their_results():
    # A kernel makes the tuple by a call like this one, and does not look after exceptions.
    code = "def make(press):\n    press()\n    made.append(1)\n"
    made: list[int] = []
    names = {"__name__": "namedtuple_Result", "made": made}
    exec(code, names)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            names["make"](partial(signal.raise_signal, signal.SIGINT))
            time.sleep(10)
        assert made == [1]
        with pytest.raises(KeyboardInterrupt):
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    # Python names the modules of named tuples so.
    assert Result.__new__.__globals__["__name__"] == "namedtuple_Result"


class Finalized:
    def __init__(self, done):
        self.done = done

    def __del__(self):
        press()
        self.done.append(True)


def test_a_finalizer_is_not_cut_off(monkeypatch):
    # What is raised in one is printed and dropped, and Ctrl-C would be lost.
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    before = signal.signal(signal.SIGINT, interrupt)
    done: list[bool] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            Finalized(done)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True] and not dropped


def test_an_interrupt_is_remembered_until_it_is_to_be_forgotten():
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        forget_interrupt()
        assert not was_interrupted()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert was_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
        forget_interrupt()
