import threading

import pytest

from amp_course.loop.workqueue import WorkQueue


def test_launch_returns_before_the_work_is_done_and_synchronize_waits():
    queue, gate, done = WorkQueue("cpu"), threading.Event(), []
    queue.launch(lambda: (gate.wait(5), done.append(1)))
    assert not done
    gate.set()
    queue.synchronize()
    assert done == [1]


def test_an_error_in_the_work_comes_out_of_synchronize():
    queue = WorkQueue("cpu")
    queue.launch(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        queue.synchronize()


def test_closing_does_what_is_queued_and_ends_the_thread():
    queue, done = WorkQueue("cpu"), []
    queue.launch(lambda: done.append(threading.current_thread()))
    queue.close()
    assert not done[0].is_alive()
    with pytest.raises(RuntimeError):
        queue.launch(lambda: None)
