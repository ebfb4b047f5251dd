# SPDX-License-Identifier: Apache-2.0
"""Updates in two slots: atomic, rolled back unless confirmed, and whole over a loss of power at every byte."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from command_line import mcugen
from compilers import command
from device import OK, STORAGE, Flash
from test_update import compiled, network

from mcugen.codegen.update import slot_image

DATA = 128
"""Bytes of a slot before its file."""
SLOT = DATA + 96
"""Bytes of a slot."""
NONE = -1

WRAPPERS = """#include "mcugen_slots.h"
int32_t select_slot(const mcugen_storage *storage) { return mcugen_slots_select(storage); }
int confirm(const mcugen_storage *storage, int32_t slot) { return mcugen_slots_confirm(storage, slot); }
int update(const mcugen_storage *storage, const unsigned char *file, uint32_t nbytes, uint32_t step, int ends)
{
    mcugen_update update;
    uint32_t at;
    int status = mcugen_update_begin(&update, storage);
    for (at = 0; status == MCUGEN_OK && at < nbytes; at += step) {
        status = mcugen_update_write(&update, &file[at], nbytes - at < step ? nbytes - at : step);
    }
    return status == MCUGEN_OK && ends ? mcugen_update_end(&update) : status;
}
"""


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the functions of mcugen_slots.h as a shared library."""
    folder = tmp_path_factory.mktemp("slots")
    bundle = compiled(network(1)).bundle
    for name in ("mcugen.h", "mcugen_store.h", "mcugen_slots.h"):
        (folder / name).write_text(bundle.files[name])
    (folder / "slots.c").write_text(WRAPPERS)
    build = [*command("gcc"), "-Wno-missing-prototypes", "-shared", "-fPIC", "slots.c", "-o", "slots.so"]
    subprocess.run(build, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "slots.so"))


class Board:
    """A device that keeps files in two slots of a simulated flash."""

    def __init__(self, slots: ctypes.CDLL, *, erases: bool = True) -> None:
        self.slots, self.flash = slots, Flash(SLOT, erases=erases)

    @property
    def storage(self) -> object:
        return ctypes.byref(self.flash.storage)

    def update(self, file: bytes, *, step: int = 32, ends: bool = True) -> int:
        return self.slots.update(self.storage, file, len(file), step, int(ends))

    def select(self) -> int:
        return self.slots.select_slot(self.storage)

    def confirm(self, slot: int) -> int:
        return self.slots.confirm(self.storage, slot)

    def file(self, slot: int) -> int:
        """Return the first byte of the file in a slot, by which the tests tell files apart."""
        return int(self.flash.cells[slot * SLOT + DATA]) if slot != NONE else NONE

    def start(self, *, passes: bool = True) -> int:
        """Return the file that is in use after a start with power, whose self-test passes or fails."""
        self.flash.power = 10**9
        slot = self.select()
        if slot != NONE and self.is_on_trial(slot):
            if passes:
                assert self.confirm(slot) == OK
            else:
                slot = self.select()
        return self.file(slot)

    def is_on_trial(self, slot: int) -> bool:
        row = self.flash.cells[slot * SLOT + 64 : slot * SLOT + 96]
        return bool((row == 0xFF).all())

    def copy(self) -> Board:
        """Return a device with the same flash."""
        other = Board(self.slots, erases=self.flash.erases)
        other.flash.cells[:] = self.flash.cells
        return other


def content(number: int) -> bytes:
    return bytes([number]) * 90


@pytest.mark.parametrize("erases", [True, False])
def test_updates_take_turns_and_failed_ones_are_rolled_back(slots: ctypes.CDLL, erases: bool):
    board = Board(slots, erases=erases)
    assert board.start() == NONE
    assert board.update(content(1)) == OK and board.start() == 1
    assert board.update(content(2)) == OK and board.start() == 2
    assert board.update(content(3)) == OK and board.start(passes=False) == 2
    assert board.start() == 2, "a file that failed its test is not tried again"
    assert board.update(content(4), ends=False) == OK and board.start() == 2, "without a head it is no update"
    assert board.update(content(5)) == OK and board.start() == 5
    assert board.start() == 5


def test_a_trial_that_a_reset_ends_is_a_failed_one(slots: ctypes.CDLL):
    board = Board(slots)
    assert board.update(content(1)) == OK and board.start() == 1
    assert board.update(content(2)) == OK
    assert board.file(board.select()) == 2, "the trial begins; a watchdog ends it"
    assert board.start() == 1


def test_an_update_during_a_trial_keeps_the_confirmed_file(slots: ctypes.CDLL):
    board = Board(slots)
    assert board.update(content(1)) == OK and board.start() == 1
    assert board.update(content(2)) == OK and board.file(board.select()) == 2
    assert board.update(content(3)) == OK and board.start(passes=False) == 1


def test_what_does_not_fit_is_refused(slots: ctypes.CDLL):
    board = Board(slots)
    assert board.update(bytes(97), step=97) == STORAGE
    assert board.update(b"") != OK
    board.flash.storage.slot_bytes = DATA - 1
    assert board.update(content(1)) != OK and board.select() == NONE and board.confirm(0) != OK


@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.parametrize("step", [32, 90])
def test_power_may_fail_at_every_byte_of_an_update(slots: ctypes.CDLL, erases: bool, step: int):
    """The old file or the whole new one is in use afterwards, and the next update works."""
    before = Board(slots, erases=erases)
    assert before.update(content(1)) == OK and before.start() == 1
    assert before.update(content(2)) == OK and before.start() == 2
    most = SLOT * erases + DATA * (not erases) + 90 + 32
    seen = set()
    for power in range(most + 1):
        board = before.copy()
        board.flash.power = power
        status = board.update(content(3), step=step)
        seen.add(found := board.start())
        assert found in ((2, 3) if power >= most - 32 else (2,)), power
        assert (status == OK) <= (found == 3), power
        assert board.update(content(4)) == OK and board.start() == 4, power
        assert board.flash.outside == 0
    assert seen == {2, 3}


@pytest.mark.parametrize("passes", [True, False])
def test_power_may_fail_at_every_byte_of_a_trial(slots: ctypes.CDLL, passes: bool):
    """Between the marks that a trial begins and that it passed, the file before it is used from then on."""
    before = Board(slots)
    assert before.update(content(1)) == OK and before.start() == 1
    assert before.update(content(2)) == OK
    for power in range(65):
        board = before.copy()
        board.flash.power = power
        slot = board.select()
        if slot != NONE and board.file(slot) == 2 and passes:
            board.confirm(slot)
        found = board.start(passes=passes)
        assert found in (1, 2) and (found == 1 or passes), power
        assert board.start() == found, "it stays so"
        assert board.update(content(3)) == OK and board.start() == 3, power


def test_damaged_bits_are_detected(slots: ctypes.CDLL):
    before = Board(slots)
    assert before.update(content(1)) == OK and before.start() == 1
    assert before.update(content(2)) == OK and before.start() == 2
    slot = before.select()
    for at in [*range(32), *range(DATA, DATA + 90)]:
        board = before.copy()
        board.flash.cells[slot * SLOT + at] ^= 1 << at % 8
        assert board.start() == 1, at
    random = np.random.default_rng(0)
    for _ in range(500):
        board = before.copy()
        board.flash.cells[:] = random.integers(0, 256, 2 * SLOT)
        assert board.start() == NONE and board.flash.outside == 0


def test_sequence_numbers_wrap_around(slots: ctypes.CDLL):
    board = Board(slots)
    for number, sequence in ((1, 0xFFFFFFFE), (2, 0xFFFFFFFF)):
        image = slot_image(content(number), sequence)
        at = (number - 1) * SLOT
        board.flash.cells[at : at + SLOT] = 0xFF
        board.flash.cells[at : at + len(image)] = np.frombuffer(image, np.uint8)
        assert board.start() == number
    assert board.update(content(3)) == OK and board.start() == 3
    assert board.update(content(4)) == OK and board.start() == 4


def test_update_writes_the_image_of_a_slot(tmp_path: Path, slots: ctypes.CDLL):
    for seed in (1, 2):
        onnx.save(network(seed).model(), tmp_path / f"{seed}.onnx")
    options = ("-b", "host", "--name", "net", "--weights-version", "4")
    done = mcugen("compile", tmp_path / "1.onnx", *options, "--updatable", "-o", tmp_path / "net")
    assert done.code == 0, done.err
    (tmp_path / "signature").write_bytes(b"signed")
    update = ("update", tmp_path / "2.onnx", "-b", "host", "--for", tmp_path / "net")
    signed = ("--signature-file", tmp_path / "signature")
    for name, more in (("file", ()), ("image", ("--slot", "7"))):
        done = mcugen(*update, *signed, "-o", tmp_path / name, *more)
        assert done.code == 0, done.err
    file, image = ((tmp_path / name).read_bytes() for name in ("file", "image"))
    assert file.endswith(b"signed") and image == slot_image(file, 7)
    assert mcugen(*update, signed[0], tmp_path / "none", "-o", tmp_path / "image").code == 2
    flash = Flash(len(image) + 32)
    flash.cells[:] = 0xFF
    flash.cells[: len(image)] = np.frombuffer(image, np.uint8)
    assert slots.select_slot(ctypes.byref(flash.storage)) == 0


READER = """#include <stdio.h>
#include "net.h"
static unsigned char cells[2][NET_WEIGHTS_SIZE + 256u];
static int read_cells(void *c, uint32_t at, void *to, uint32_t n)
{ (void)c; memcpy(to, (unsigned char *)cells + at, n); return 0; }
static int write_cells(void *c, uint32_t at, const void *from, uint32_t n)
{ (void)c; memcpy((unsigned char *)cells + at, from, n); return 0; }
static int verify(void *c, const mcugen_reader *file, uint32_t n, uint32_t length)
{ char mark[2]; (void)c; return length == 2u && file->read(file->context, n, mark, 2) == 0 && mark[0] == 'o' ? 0 : 1; }
int main(void)
{
    const mcugen_storage storage = {read_cells, NULL, write_cells, NULL, NET_WEIGHTS_SIZE + 256u};
    const char *const signatures[2] = {"no", "ok"};
    int i;
    for (i = 0; i < 2; ++i) {
        mcugen_update update;
        mcugen_slot slot;
        mcugen_reader reader;
        int32_t chosen;
        printf("%d", mcugen_update_begin(&update, &storage));
        printf("%d", mcugen_update_write(&update, net_default_weights(), NET_WEIGHTS_SIZE));
        printf("%d", mcugen_update_write(&update, signatures[i], 2));
        slot.storage = &storage;
        slot.slot = update.slot;
        reader.read = mcugen_slot_read;
        reader.context = &slot;
        printf(" %d", net_end_update(&update, &reader, 0, verify, NULL));
        chosen = mcugen_slots_select(&storage);
        printf(" %d ", (int)chosen);
        if (chosen >= 0) {
            slot.slot = (uint32_t)chosen;
            printf("%d%d", net_selftest(net_default_arena(), &reader), mcugen_slots_confirm(&storage, chosen));
        }
    }
    return 0;
}
"""


def test_a_model_runs_from_a_slot_if_its_signature_is_right(tmp_path: Path):
    bundle = compiled(network(1), weights_reader=True).bundle
    check_compiles(bundle, tmp_path)
    sources = [name for name in bundle.files if name.endswith(".c")]
    assert build_and_run(READER, write(bundle, tmp_path), *sources) == "000 19 -1 000 0 0 00"
