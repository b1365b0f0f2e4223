"""A limit to the address space: what counts, and what does not. In a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def in_a_process(text: str) -> None:
    head = """
        import mmap, threading
        from legroom.backends import address_space
        MB = 2**20
        address_space.cap(256 * MB, lambda: None)
    """
    script = textwrap.dedent(head) + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_taken_counts() -> None:
    in_a_process("""
        before = address_space.in_use_bytes()
        held = mmap.mmap(-1, 100 * MB)
        assert 100 * MB <= address_space.in_use_bytes() - before < 110 * MB
        assert address_space.limit_bytes() == 256 * MB
        assert address_space.has_room(100 * MB)
        assert not address_space.has_room(200 * MB)
        try:
            mmap.mmap(-1, 200 * MB)
        except OSError:
            pass
        else:
            raise AssertionError("there is no limit")
    """)


def test_what_a_framework_takes_for_itself_does_not_count() -> None:
    in_a_process("""
        before = address_space.in_use_bytes()
        with address_space.uncounted():
            held = mmap.mmap(-1, 500 * MB)
            assert address_space.in_use_bytes() == before
            with address_space.uncounted():
                more = mmap.mmap(-1, 50 * MB)
            assert address_space.is_limited()
        assert abs(address_space.in_use_bytes() - before) < 8 * MB
        assert address_space.limit_bytes() == 256 * MB
        assert not address_space.has_room(300 * MB)
    """)


def test_a_limit_is_back_after_an_error() -> None:
    in_a_process("""
        try:
            with address_space.uncounted():
                raise ValueError
        except ValueError:
            pass
        assert address_space.limit_bytes() == 256 * MB
        assert not address_space.has_room(300 * MB)
    """)


def test_without_a_limit_nothing_is_counted() -> None:
    from legroom.backends import address_space

    assert not address_space.is_limited()
    with address_space.uncounted():
        assert address_space.in_use_bytes() is None
    assert address_space.limit_bytes() is None
    assert address_space.has_room(2**50)
