# SPDX-License-Identifier: Apache-2.0
"""What was learned is kept whole over losses of power at every byte, damage, and worn memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from device import OK, STORAGE, STORED, Device, Flash
from fuzz_values import change_bytes
from onnx_models import Net

from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import aligned

HEAD = 32
IMAGES = 2000
"""Damaged ones that are loaded."""


def device_of(folder: Path, optimizer: str = "sgd") -> Device:
    rng, net = np.random.default_rng(1), Net()
    net.input("x", 1, 4)
    net.output(net.op("Gemm", "x", net.const(rng.normal(size=(4, 3))), net.const(rng.normal(size=3))))
    folder.mkdir(exist_ok=True)
    return Device(
        compile_model(net.model(), "host", CompileOptions(training=Training("last:1", "mse", optimizer))), folder
    )


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return device_of(tmp_path)


def filled(device: Device, value: float) -> np.ndarray:
    """A state that is known again; behind it stays the mark of a state that was begun."""
    device.reset()
    *others, last = device.model.program.states
    end = sum(aligned(e.buffer.nbytes) for e in others) + last.buffer.nbytes
    device.state[:end] = np.full(end // 4, value, np.float32).view(np.uint8)
    return device.state.copy()


def flash_of(device: Device, *, erases: bool = True) -> Flash:
    return Flash(len(device.state) + HEAD + 16, erases=erases)


def found(device: Device, flash: Flash) -> np.ndarray:
    """What is there after the next start."""
    flash.power = 10**9
    device.state[:] = 0xEE
    assert device.load(flash) == OK
    return device.state.copy()


def test_nothing_is_found_where_nothing_was_stored(device: Device) -> None:
    flash, first = flash_of(device), device.state.copy()
    filled(device, 9)
    assert device.load(flash) == STORED
    np.testing.assert_array_equal(device.state, first)


def test_the_newest_is_found_for_ever(device: Device) -> None:
    flash = flash_of(device)
    for value in range(7):
        wanted = filled(device, value)
        assert device.store(flash) == OK
        np.testing.assert_array_equal(found(device, flash), wanted)


def test_sequence_numbers_wrap(device: Device) -> None:
    import ctypes
    import zlib

    flash = flash_of(device)
    filled(device, 1)
    assert device.store(flash) == OK
    head = np.frombuffer(flash.cells[:HEAD].tobytes(), "<u4").copy()
    head[4] = 0xFFFFFFFF
    head[7] = zlib.crc32(head[:7].tobytes() + device.state.tobytes())
    flash.cells[:HEAD] = head.view(np.uint8)
    wanted = filled(device, 2)
    assert device.store(flash) == OK
    assert ctypes.c_uint32.from_buffer_copy(flash.cells.tobytes(), flash.storage.slot_bytes + 16).value == 0
    np.testing.assert_array_equal(found(device, flash), wanted)


@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.parametrize("stored", [1, 2])
def test_power_may_be_lost_at_every_byte(device: Device, erases: bool, stored: int) -> None:
    """Before which so many states were stored."""
    flash = flash_of(device, erases=erases)
    for value in range(stored):
        old = filled(device, value + 1)
        assert device.store(flash) == OK
    before, most = flash.cells.copy(), len(flash.cells) // 2 * erases + len(device.state) + HEAD
    ends = set()
    for power in range(most + 1):
        flash.cells[:], flash.power = before, power
        new = filled(device, 99)
        device.store(flash)
        state = found(device, flash)
        is_old, is_new = np.array_equal(state, old), np.array_equal(state, new)
        assert is_old or is_new, f"after {power} bytes neither the old state nor the new one is whole"
        ends.add("new" if is_new else "old")
        again = filled(device, 100)
        assert device.store(flash) == OK
        np.testing.assert_array_equal(found(device, flash), again)
    assert ends == {"old", "new"}


def test_damage_of_the_newest_leads_to_the_one_before(device: Device) -> None:
    flash = flash_of(device)
    old = filled(device, 1)
    assert device.store(flash) == OK
    filled(device, 2)
    assert device.store(flash) == OK
    whole, second = flash.cells.copy(), flash.storage.slot_bytes
    for at in range(HEAD + len(device.state)):
        flash.cells[:] = whole
        flash.cells[second + at] ^= 1 << at % 8
        np.testing.assert_array_equal(found(device, flash), old)


def test_worn_memory_is_told_and_keeps_the_state_before(device: Device) -> None:
    flash = flash_of(device)
    old = filled(device, 1)
    assert device.store(flash) == OK
    filled(device, 2)
    flash.changes = lambda count: count - 1 if count == len(device.state) else count  # type: ignore[method-assign]
    assert device.store(flash) == STORAGE
    np.testing.assert_array_equal(found(device, flash), old)


class StuckFlash(Flash):
    """One bit of the byte at `stuck` is always 0."""

    stuck = 0

    def _write(self, _context: None, offset: int, source: int, nbytes: int) -> int:
        status = super()._write(_context, offset, source, nbytes)
        self.cells[self.stuck] &= 0xFD
        return status


def test_memory_may_be_worn_at_any_byte(device: Device) -> None:
    """Either all is kept nevertheless, or that is told and the state before is still there."""
    flash, outcomes = StuckFlash(len(device.state) + HEAD + 16), Counter[int]()
    old = filled(device, 1)
    assert device.store(flash) == OK
    before, second = flash.cells.copy(), flash.storage.slot_bytes
    for at in range(HEAD + len(device.state)):
        flash.cells[:], flash.stuck = before, second + at
        new = filled(device, 2.1)
        outcomes[status := device.store(flash)] += 1
        assert status in (OK, STORAGE)
        np.testing.assert_array_equal(found(device, flash), new if status == OK else old)
    assert set(outcomes) == {OK, STORAGE}


def test_memory_that_is_too_small_stays_untouched(device: Device) -> None:
    flash = Flash(len(device.state) + HEAD - 1)
    before = flash.cells.copy()
    assert device.store(flash) == STORAGE
    np.testing.assert_array_equal(flash.cells, before)


def test_another_models_state_is_none(device: Device, tmp_path: Path) -> None:
    other = device_of(tmp_path / "other", "momentum")
    flash = flash_of(other)
    assert other.store(flash) == OK
    assert device.load(flash) == STORED


def test_images_of_any_bytes_give_a_state_that_was_stored_or_none(device: Device) -> None:
    """Damaged in both slots, of another slot, or noise: nothing beyond the slots is read, nothing new is believed."""
    first, stored = device.state.copy(), [filled(device, 1)]
    flash, random = flash_of(device), Random(0)
    assert device.store(flash) == OK
    stored.append(filled(device, 2))
    assert device.store(flash) == OK
    images, outcomes = flash.cells.copy(), Counter[int]()
    for _ in range(IMAGES):
        flash.cells[:] = damaged(images, random)
        device.state[:] = 0xEE
        outcomes[status := device.load(flash)] += 1
        believed = stored if status == OK else [first]
        assert any(np.array_equal(device.state, state) for state in believed)
    assert flash.outside == 0
    assert set(outcomes) == {OK, STORED}


def damaged(images: np.ndarray, random: Random) -> np.ndarray:
    """Bytes of both slots changed, one slot copied over the other, or none of it left."""
    kind, half = random.randrange(8), len(images) // 2
    if kind == 0:
        return np.frombuffer(random.randbytes(len(images)), np.uint8)
    if kind == 1:
        return np.roll(images, random.choice((half, 4, 1)))
    changed = images.copy()
    for slot in (changed[:half], changed[half:]):
        for _ in range(random.choice((0, 1, 3))):
            data = bytearray(slot.tobytes())
            change_bytes(data, random)
            slot[: len(data)] = np.frombuffer(bytes(data[:half]), np.uint8)
    return changed
