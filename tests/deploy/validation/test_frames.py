# SPDX-License-Identifier: Apache-2.0
"""Frames: whatever comes between them, whole ones are found, and no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcugen.deploy.validation.frames import Decoder, Frame, Kind

FRAMES = st.builds(
    Frame,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.sampled_from([int(kind) for kind in Kind]),
    st.one_of(st.binary(max_size=40), st.integers(250, 260).map(lambda n: bytes([7]) * n), st.just(bytes(600))),
)


@given(st.lists(FRAMES, max_size=4), st.integers(1, 50))
def test_frames_come_as_they_were_sent_however_they_are_cut(frames: list[Frame], step: int):
    wire = b"".join(frame.encoded() for frame in frames)
    decoder = Decoder()
    found = [frame for at in range(0, len(wire), step) for frame in decoder.feed(wire[at : at + step])]
    assert found == frames
    assert decoder.damaged == 0


@given(FRAMES, FRAMES, st.integers(0), st.integers(1, 255))
def test_a_damaged_frame_is_dropped_and_the_next_one_found(damaged: Frame, whole: Frame, at: int, bits: int):
    wire = bytearray(damaged.encoded())
    wire[at % len(wire)] ^= bits
    found = list(Decoder().feed(bytes(wire) + whole.encoded()))
    assert found[-1] == whole
    assert all(frame in (damaged, whole) for frame in found)  # the zeros around it may be the damage


def test_noise_without_end_takes_no_memory():
    decoder = Decoder()
    for _ in range(100):
        assert not list(decoder.feed(b"\xff" * 10_000))
    assert decoder.damaged > 0
    assert list(decoder.feed(Frame(1, 2, 3).encoded())) == [Frame(1, 2, 3)]
