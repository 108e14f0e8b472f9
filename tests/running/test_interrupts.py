from __future__ import annotations

import os
import signal
import threading

import pytest

from loaderbench.interrupts import interrupts_held


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        press_ctrl_c()
        done.append("the rest of the block")
    assert done == ["the rest of the block"]


def test_a_held_interrupt_calls_back_at_once() -> None:
    calls = []
    with pytest.raises(KeyboardInterrupt), interrupts_held(lambda: calls.append(1)):
        press_ctrl_c()
        press_ctrl_c()
        assert len(calls) == 2


def test_a_dropped_interrupt_never_comes() -> None:
    with interrupts_held(drop=True):
        press_ctrl_c()
    with pytest.raises(KeyboardInterrupt):  # and the usual handler is back
        press_ctrl_c()


def test_an_interrupt_goes_before_the_error_of_the_block() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        press_ctrl_c()
        raise ValueError


def test_ignored_signals_stay_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with interrupts_held():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_outside_the_main_thread_the_block_just_runs() -> None:
    ran = []

    def work() -> None:
        with interrupts_held():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]
