"""Work beside the steps: when it stops, when it goes on, and how much of the time it works."""

import sys
import threading

from radixgen.runtime.pace import QUIET, Duty, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_paced_work_stops_while_the_interpreter_is_wanted_and_goes_on_after() -> None:
    pace, done = Pace(), threading.Event()
    stopped = threading.Semaphore(0)

    class Free(threading.Event):
        """As if a step went on for as long as the test wants."""

        def wait(self, timeout: float | None = None) -> bool:
            stopped.release()
            return super().wait(60)

    pace._free = Free()

    def step() -> None:
        """A call, at which work is stopped."""

    def work() -> None:
        with pace.beside():
            step()
        done.set()

    pace.hold()
    thread = threading.Thread(target=work)
    thread.start()
    assert stopped.acquire(timeout=60)
    assert not done.is_set()
    pace.release()
    assert done.wait(timeout=60)
    thread.join()


def test_work_is_done_even_if_the_interpreter_is_never_free() -> None:
    pace, done = Pace(), threading.Event()
    pace.hold()
    with pace.beside():
        done.set()
    assert done.is_set()


def test_paced_work_leaves_the_profiler_as_it_was() -> None:
    before = sys.getprofile()
    with Pace().beside():
        assert sys.getprofile() is not before
    assert sys.getprofile() is before


def test_nobody_is_disturbed_when_there_has_been_no_step_of_late() -> None:
    clock = Clock()
    pace, found = Pace(clock), list[bool]()
    found.append(pace.is_quiet)
    pace.hold()
    found.append(pace.is_quiet)
    pace.release()
    found.append(pace.is_quiet)
    clock.now += 1.5 * QUIET
    found.append(pace.is_quiet)
    assert found == [True, False, False, True]


def test_work_rests_until_it_has_had_no_more_than_its_share() -> None:
    clock = Clock()
    duty = Duty(share=0.25, credit=1.0, clock=clock)
    duty.add(1.0)
    assert duty.rest() == 0
    duty.add(0.5)
    assert duty.rest() == 2
    clock.now += 1.5
    assert duty.rest() == 0.5
    clock.now += 100
    assert duty.rest() == 0
    duty.add(1.5)  # what was rested for long ago is no credit
    assert duty.rest() == 2
