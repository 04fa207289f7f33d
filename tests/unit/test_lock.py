"""One deployment at a time; a lock that its dead holder keeps would be worse than none."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import lock

ONE = lock.Holder("ctl1 boot ns", 100, "7", "ann@ctl1")
TWO = lock.Holder("ctl2 boot ns", 100, "7", "bob@ctl2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "deploy.lock"


def take(holder: lock.Holder, path: Path, seconds: float = 60.0, **more: object) -> None:
    with lock.taken(holder, seconds, path=path, **more):  # type: ignore[arg-type]
        pass


def test_a_second_controller_is_refused_with_the_name_of_the_first(path: Path) -> None:
    take(ONE, path)
    with pytest.raises(lock.Held, match=r"ann@ctl1 deploys to this host since .*process 100.*Run this again") as caught:
        take(TWO, path)
    assert caught.value.lease.holder == ONE
    assert 50 < caught.value.left <= 60
    assert not caught.value.busy


def test_the_holder_goes_on_and_each_step_renews(path: Path) -> None:
    take(ONE, path, 60)
    first = lock.read(path)
    time.sleep(0.02)
    take(ONE, path, 10)
    second = lock.read(path)
    assert first and second and second.until > first.until
    assert second.since == first.since
    assert second.seconds == 60, "a later step with a shorter one does not shorten the lease"


def test_a_lease_that_ran_out_is_anybodys(path: Path) -> None:
    take(ONE, path, 0.05)
    time.sleep(0.1)
    take(TWO, path)
    found = lock.read(path)
    assert found and found.holder == TWO
    with pytest.raises(lock.Held, match="bob@ctl2"):
        take(ONE, path)


def test_waiting_ends_when_the_lease_runs_out(path: Path) -> None:
    take(ONE, path, 0.5)
    started = time.monotonic()
    take(TWO, path, wait=5)
    assert 0.3 < time.monotonic() - started < 2


def test_waiting_ends_at_once_when_the_other_one_works(path: Path) -> None:
    take(ONE, path, 60)

    def renew() -> None:
        time.sleep(0.4)
        take(ONE, path, 60)

    worker = multiprocessing.get_context("fork").Process(target=renew)
    worker.start()
    started = time.monotonic()
    with pytest.raises(lock.Held):
        take(TWO, path, wait=30)
    worker.join()
    assert time.monotonic() - started < 10


def test_a_step_that_runs_holds_the_lock_longer_than_its_lease(path: Path) -> None:
    with lock.taken(ONE, 0.05, path=path):
        time.sleep(0.1)
        with pytest.raises(lock.Held, match="when the step that runs on the host has ended") as caught:
            take(TWO, path)
        assert caught.value.busy
        with pytest.raises(lock.Held):  # even where its controller is known to be dead
            take(TWO, path, dead={**ONE.__dict__})
    time.sleep(0.1)
    take(TWO, path)


def test_a_step_that_is_killed_lets_go(path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from sglang_deploy import lock\n"
        f"with lock.taken(lock.Holder('c', 1, '', 'x'), 0.01, path=Path({str(path)!r})):\n"
        "    print('in', flush=True); time.sleep(60)"
    )
    root = str(Path(lock.__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={"PYTHONPATH": root}) as step:
        assert step.stdout and step.stdout.readline() == b"in\n"
        with pytest.raises(lock.Held):
            take(TWO, path)
        step.kill()
    time.sleep(0.02)
    take(TWO, path)


def test_a_holder_that_is_known_to_be_dead_does_not_count(path: Path) -> None:
    take(ONE, path)
    with pytest.raises(lock.Held):
        take(TWO, path, dead={**TWO.__dict__})  # another one is dead
    take(TWO, path, dead={**ONE.__dict__})


def test_letting_go(path: Path) -> None:
    assert not lock.release(ONE.__dict__, path)
    take(ONE, path)
    assert not lock.release(TWO.__dict__, path)
    assert not lock.release(None, path)
    assert lock.release(ONE.__dict__, path)
    take(TWO, path)


def test_a_step_may_let_go_by_itself(path: Path) -> None:
    with lock.taken(ONE, path=path):
        assert lock.release(ONE.__dict__, path)
    take(TWO, path)


def test_a_check_keeps_a_lock_and_takes_none(path: Path) -> None:
    with lock.kept(ONE.__dict__, path):
        assert not path.exists()
    take(ONE, path)
    before = lock.read(path)
    with lock.kept(TWO.__dict__, path):
        pass
    assert lock.read(path) == before
    time.sleep(0.02)
    with lock.kept(ONE.__dict__, path), pytest.raises(lock.Held):
        take(TWO, path)
    after = lock.read(path)
    assert before and after and after.until > before.until


def test_a_lease_of_another_boot_does_not_count(path: Path) -> None:
    take(ONE, path)
    lease = json.loads(path.read_text())
    path.write_text(json.dumps({**lease, "until": lease["until"] + 1e6}))
    take(TWO, path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"holder": 1}', '{"holder": {}, "until": "x"}', "\0\0"])
def test_a_damaged_lock_is_free(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    take(ONE, path)


@given(st.binary(max_size=200))
def test_no_content_stops_a_deployment(content: bytes) -> None:
    assert lock._parse(content) is None


def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    (tmp_path / "victim").write_text("kept")
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(lock.LockError, match="cannot be opened"):
        take(ONE, path)
    assert (tmp_path / "victim").read_text() == "kept"


def test_only_root_can_hold_it_up(path: Path) -> None:
    take(ONE, path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_process_of_this_machine_is_seen_to_live_and_to_be_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        holder = lock.me(other.pid)
        mine = lock.me(os.getpid()).controller
        assert lock.alive(holder, mine)
        assert lock.alive(holder, "another") is None
        assert not lock.alive(lock.Holder(mine, other.pid, "1", ""), mine), "the number was given to another process"
        other.kill()
    assert lock.alive(holder, mine) is False


def test_what_is_no_holder_is_an_error() -> None:
    for wrong in ({}, {"controller": "c", "pid": "x", "start": "", "by": ""}):
        with pytest.raises(lock.LockError, match="does not name a controller's process"):
            lock.Holder.of(wrong)


def test_two_at_the_same_moment(path: Path) -> None:
    """Of many that try at once exactly one has it."""

    def attempt(number: int, start: float, results: object) -> None:
        time.sleep(max(0.0, start - time.time()))
        try:
            with lock.taken(lock.Holder("c", number, "", "x"), path=path):
                results.put(number)  # type: ignore[attr-defined]
        except lock.Held:
            pass

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    start = time.time() + 0.3
    workers = [context.Process(target=attempt, args=(number, start, results)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    won = results.get(timeout=5)
    found = lock.read(path)
    assert results.empty()
    assert found and found.holder.pid == won
