# SPDX-License-Identifier: Apache-2.0
"""Models of the chips of kits: which registers exist, which clock each needs, when oscillators are ready, and a UART.

The models are written from the reference manuals, without the files in boards/kits, so that an address or a bit that is
wrong there is found. A firmware image runs on unicorn's CPU; each access to a register goes through the model, which
records what real hardware would not forgive.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import unicorn
from unicorn import arm_const, riscv_const

IDLE_READS = 4
"""Reads of an empty UART after which the model waits for bytes from the host."""

Bits = tuple[int, int]
"""A register's address, and the bits in it that must be set."""


@dataclass
class Chip:
    """A chip's registers, and how they depend on each other.

    Attributes:
        registers: Values after reset by address: all registers that the firmware may touch.
        gates: For a range of addresses, the clock that its registers need.
        follows: For a register, the bits that become set once other bits are: ready flags.
        received: The UART's bytes that the firmware has not read.
        sent: The bytes that the firmware sent.
        faults: What real hardware would not forgive, in order.
        writes: Addresses and values of all writes to registers, in order.
    """

    registers: dict[int, int]
    gates: Mapping[tuple[int, int], Bits]
    follows: Mapping[int, tuple[tuple[int, Callable[[Chip], bool]], ...]]
    uart: Uart
    received: deque[int] = field(default_factory=deque)
    sent: bytearray = field(default_factory=bytearray)
    faults: list[str] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    idle: int = 0
    time: int = 0
    hooks: Mapping[int, Callable[[Chip, int], None]] = field(default_factory=dict)

    def has(self, address: int, bits: int) -> bool:
        """Return whether bits of a register are set."""
        return self.registers[address] & bits == bits

    def read(self, address: int) -> int:
        """Return what the CPU reads at an address."""
        self._check(address, "read")
        self.time += 1
        value = self.registers.get(address, 0)
        for bits, condition in self.follows.get(address, ()):
            value = value | bits if condition(self) else value & ~bits
        return self.uart.read(self, address, value)

    def write(self, address: int, value: int) -> None:
        """Let the CPU write to an address."""
        self._check(address, "written")
        self.writes.append((address, value))
        self.registers[address] = value
        if address in self.hooks:
            self.hooks[address](self, value)
        self.uart.write(self, address, value)

    def _check(self, address: int, done: str) -> None:
        if address not in self.registers:
            self.faults.append(f"{address:#x} is {done}, and is no register of the model")
        for (first, end), (clock, bits) in self.gates.items():
            if first <= address < end and not self.has(clock, bits):
                self.faults.append(f"{address:#x} is {done} before its clock or reset in {clock:#x}")


@dataclass
class Uart:
    """A UART by its registers.

    Attributes:
        status: Address of the register that shows whether bytes have come.
        has_bytes: Its bits if they have; 0 in `inverted` form: the bits are set if none have.
        data: Address that bytes are read from.
        send: Address that bytes are written to.
        expected: Values that registers must have when the first byte is sent.
    """

    status: int
    has_bytes: int
    data: int
    send: int
    expected: Mapping[int, int]
    is_inverted: bool = False

    def read(self, chip: Chip, address: int, value: int) -> int:
        """Return the value of a register, with the UART's part in it."""
        if address == self.status:
            chip.idle = 0 if chip.received else chip.idle + 1
            value &= ~self.has_bytes
            is_set = bool(chip.received) != self.is_inverted
            return value | (self.has_bytes & -self.has_bytes if is_set else 0)
        if address == self.data:
            if not chip.received:
                chip.faults.append("the UART is read although no byte has come")
                return 0
            return chip.received.popleft()
        return value

    def check(self, chip: Chip) -> None:
        """Add a fault for each register that has another value than the UART needs."""
        for register, wanted in self.expected.items():
            if chip.registers[register] != wanted:
                seen = chip.registers[register]
                chip.faults.append(f"the UART is used while {register:#x} is {seen:#x}, not {wanted:#x}")

    def write(self, chip: Chip, address: int, value: int) -> None:
        """Send a byte if the UART's data register was written."""
        if address != self.send:
            return
        if not chip.sent:
            self.check(chip)
        chip.idle = 0
        chip.sent.append(value & 0xFF)


def _registers(base: int, offsets: str, **reset: int) -> dict[int, int]:
    """Return registers at hexadecimal offsets from a base; `reset` has values other than 0, named x and the offset."""
    return {base + int(offset, 16): reset.get(f"x{offset}", 0) for offset in offsets.split()}


def always(_chip: Chip) -> bool:
    """Return True: a flag that is set at once."""
    return True


def needs(address: int, bits: int) -> Callable[[Chip], bool]:
    """Return a condition: bits of a register are set."""
    return lambda chip: chip.has(address, bits)


def stm32f446() -> Chip:
    """Return the STM32F446 by RM0390."""
    rcc, pwr, flash, gpioa, usart2 = 0x40023800, 0x40007000, 0x40023C00, 0x40020000, 0x40004400
    registers = {
        **_registers(rcc, "0 4 8 30 40", x0=0x83, x4=0x24003010),
        **_registers(pwr, "0 4", x0=0xC000),
        **_registers(flash, "0"),
        **_registers(gpioa, "0 c 20", x0=0xA8000000, xc=0x64000000),
        **_registers(usart2, "0 4 8 c", x0=0xC0),
    }

    def switch(chip: Chip, value: int) -> None:
        is_fast = value & 3 == 2
        pll = chip.registers[rcc + 4]
        vco = 16_000_000 // (pll & 63) * (pll >> 6 & 511)
        if is_fast and (vco // (2 * (pll >> 16 & 3) + 2) != 180_000_000 or not 100e6 <= vco <= 432e6):
            chip.faults.append("the PLL does not give 180 MHz")
        if is_fast and chip.registers[flash] & 15 < 5:
            chip.faults.append("180 MHz without wait states of the flash")
        if is_fast and not chip.has(pwr, 1 << 17):
            chip.faults.append("180 MHz without over-drive")
        if is_fast and (value >> 10 & 7, value >> 13 & 7) != (5, 4):
            chip.faults.append("APB1 must stay below 45 MHz, APB2 below 90 MHz")

    return Chip(
        registers,
        {
            (pwr, pwr + 8): (rcc + 0x40, 1 << 28),
            (gpioa, gpioa + 0x400): (rcc + 0x30, 1),
            (usart2, usart2 + 0x400): (rcc + 0x40, 1 << 17),
        },
        {
            rcc: ((1 << 25, needs(rcc, 1 << 24)),),
            rcc + 8: ((2 << 2, needs(rcc + 8, 2)),),
            pwr + 4: ((1 << 16, needs(pwr, 1 << 16)), (1 << 17, needs(pwr, 3 << 16))),
            usart2: ((1 << 7, needs(usart2 + 0xC, 1 << 3)),),
        },
        Uart(
            usart2,
            1 << 5,
            usart2 + 4,
            usart2 + 4,
            {
                usart2 + 8: 391,  # 45 MHz / 115,200
                usart2 + 0xC: 0x200C,
                gpioa: 0xA80000A0,
                gpioa + 0x20: 0x7700,
            },
        ),
        hooks={rcc + 8: switch},
    )


def rp2350() -> Chip:
    """Return the RP2350 by its datasheet."""
    resets, xosc, clocks, pll, io, pads, uart0 = (
        0x40020000, 0x40048000, 0x40010000, 0x40050000, 0x40028000, 0x40038000, 0x40070000,
    )  # fmt: skip
    clear = 0x3000
    registers = {
        **_registers(resets, "0 8 3000", x0=0x1FFFFFFF),
        **_registers(xosc, "0 4 c"),
        **_registers(clocks, "30 38 3c 44 48"),
        **_registers(pll, "0 4 8 c 3004", x0=1, x4=0x2D),
        **_registers(io, "4 c", x4=0x1F, xc=0x1F),
        **_registers(pads, "4 8", x4=0x116, x8=0x116),
        **_registers(uart0, "0 18 24 28 2c 30"),
    }

    def clear_bits(chip: Chip, value: int) -> None:
        chip.registers[resets] &= ~value

    def power(chip: Chip, value: int) -> None:
        chip.registers[pll + 4] &= ~value

    def switch(chip: Chip, value: int) -> None:
        divider = chip.registers[pll + 0xC]
        rate = 12 * chip.registers[pll + 8] / max((divider >> 16 & 7) * (divider >> 12 & 7), 1)
        if value == 1 and (rate != 150 or chip.registers[pll + 4] & 0x29 or not chip.has(clocks + 0x30, 2)):
            chip.faults.append("the PLL does not give 150 MHz")

    def done(bit: int) -> tuple[int, Callable[[Chip], bool]]:
        return 1 << bit, lambda chip: not chip.registers[resets] >> bit & 1

    # A reset gate is a bit that is clear; the model keeps done flags in RESET_DONE for the gates.
    def refresh(chip: Chip, value: int) -> None:
        clear_bits(chip, value)
        chip.registers[resets + 8] = ~chip.registers[resets] & 0x1FFFFFFF

    return Chip(
        registers,
        {
            (pll, pll + 0x4000): (resets + 8, 1 << 14),
            (io, io + 0x1000): (resets + 8, 1 << 6),
            (pads, pads + 0x1000): (resets + 8, 1 << 9),
            (uart0, uart0 + 0x1000): (resets + 8, 1 << 26),
        },
        {
            resets + 8: tuple(done(bit) for bit in (6, 9, 14, 26)),
            xosc + 4: ((1 << 31, lambda chip: chip.registers[xosc] == 0xFABAA0),),
            clocks + 0x38: ((4, needs(clocks + 0x30, 2)), (1, lambda chip: not chip.registers[clocks + 0x30] & 3)),
            clocks + 0x44: ((2, needs(clocks + 0x3C, 1)), (1, lambda chip: not chip.registers[clocks + 0x3C] & 1)),
            pll: ((1 << 31, lambda chip: not chip.registers[pll + 4] & 0x21 and chip.registers[pll + 8] == 125),),
        },
        Uart(
            uart0 + 0x18,
            1 << 4,
            uart0,
            uart0,
            {
                clocks + 0x48: 0x880,
                uart0 + 0x24: 6,
                uart0 + 0x28: 33,
                uart0 + 0x2C: 0x70,
                uart0 + 0x30: 0x301,
                io + 4: 2,
                io + 0xC: 2,
                pads + 4: 0x10,
                pads + 8: 0x5A,
            },
            is_inverted=True,
        ),
        hooks={resets + clear: refresh, pll + clear + 4: power, clocks + 0x3C: switch},
    )


def nrf52840() -> Chip:
    """Return the nRF52840 by its product specification; its peripherals request their clocks themselves."""
    clock, nvmc, p0, uart0 = 0x40000000, 0x4001E000, 0x50000000, 0x40002000
    registers = {
        **_registers(clock, "0 100"),
        **_registers(nvmc, "540"),
        **_registers(p0, "508 518 720", x720=2),
        **_registers(uart0, "0 8 108 11c 500 50c 514 518 51c 524", x50c=0xFFFFFFFF, x514=0xFFFFFFFF),
    }

    def sent(chip: Chip, _value: int) -> None:
        chip.registers[uart0 + 0x11C] = 1

    def locked(chip: Chip, _value: int) -> None:
        if chip.registers[uart0 + 0x500]:
            chip.faults.append("a pin of the UART is chosen while it is on")

    return Chip(
        registers,
        {},
        {clock + 0x100: ((1, needs(clock, 1)),)},
        Uart(
            uart0 + 0x108,
            1,
            uart0 + 0x518,
            uart0 + 0x51C,
            {
                uart0 + 0x500: 4,
                uart0 + 0x50C: 6,
                uart0 + 0x514: 8,
                uart0 + 0x524: 0x01D7E000,
                uart0: 1,
                uart0 + 8: 1,
                p0 + 0x518: 1 << 6,
                p0 + 0x720: 0xC,
                nvmc + 0x540: 1,
            },
        ),
        hooks={uart0 + 0x51C: sent, uart0 + 0x50C: locked, uart0 + 0x514: locked},
    )


def esp32c3() -> Chip:
    """Return the ESP32-C3 by its technical reference manual."""
    system, rtc, timg0, systimer, uart0 = 0x600C0000, 0x60008000, 0x6001F000, 0x60023000, 0x60000000
    registers = {
        **_registers(system, "8 10 18 58", x8=0xC, x10=0xF9C1E06F, x58=1),
        **_registers(rtc, "0 90 a8 ac b0", x0=0x1C00A000, x90=0x13214, xac=0x4B00000),
        **_registers(timg0, "48 64", x48=0x4C000, x64=0x50D83AA1),
        **_registers(systimer, "4 44"),
        **_registers(uart0, "0 14 1c 20 78 80", x14=0x2B6, x20=0x1000001C, x78=0x03701000, x80=0x40000500),
    }

    def guarded(key_register: int, key: int) -> Callable[[Chip, int], None]:
        def check(chip: Chip, _value: int) -> None:
            if chip.registers[key_register] != key:
                chip.faults.append(f"a watchdog is set while {key_register:#x} locks it")

        return check

    def update(chip: Chip, value: int) -> None:
        chip.registers[uart0 + 0x80] = value & 0x7FFFFFFF

    def tick(chip: Chip, _value: int) -> None:
        chip.time += 4000
        chip.registers[systimer + 0x44] = chip.time // 10  # 16 MHz

    return Chip(
        registers,
        {
            (uart0, uart0 + 0x1000): (system + 0x10, 1 << 2 | 1 << 24),
            (systimer, systimer + 0x1000): (system + 0x10, 1 << 29),
        },
        {systimer + 4: ((1 << 29, always),)},
        Uart(
            uart0 + 0x1C,
            0x3FF,
            uart0,
            uart0,
            {
                uart0 + 0x14: 347 | 4 << 20,
                uart0 + 0x20: 0x1C,
                uart0 + 0x78: 0x03700000,
                rtc + 0x90: 0,
                timg0 + 0x48: 0,
                rtc + 0xAC: 0x84B00000,
                system + 8: 0xD,
                system + 0x58: 0x400,
            },
        ),
        hooks={
            rtc + 0x90: guarded(rtc + 0xA8, 0x50D83AA1),
            rtc + 0xAC: guarded(rtc + 0xB0, 0x8F1D312A),
            timg0 + 0x48: guarded(timg0 + 0x64, 0x50D83AA1),
            uart0 + 0x80: update,
            systimer + 4: tick,
        },
    )


def rt1062() -> Chip:
    """Return the i.MX RT1062 by its reference manual."""
    ccm, pll, dcdc, iomuxc, lpuart1 = 0x400FC000, 0x400D8000, 0x40080000, 0x401F8000, 0x40184000
    wdog1, wdog2, rtwdog = 0x400B8000, 0x400D0000, 0x400BC000
    registers = {
        **_registers(ccm, "10 14 18 24 48 78 7c", x14=0xA8200, x18=0x2DAC0324, x24=0x6490B03),
        **_registers(pll, "0", x0=0x13063),
        **_registers(dcdc, "0 c", xc=0x10E),
        **_registers(iomuxc, "ec f0 2dc 2e0", xec=5, xf0=5),
        **_registers(lpuart1, "10 14 18 1c", x14=0xC00000),
        **_registers(wdog1, "8", x8=1),
        **_registers(wdog2, "8", x8=1),
        **_registers(rtwdog, "0 4 8", x0=0x2980),
    }

    def muxed(chip: Chip, value: int) -> None:
        cbcmr, arm = chip.registers[ccm + 0x18], chip.registers[pll]
        if value >> 25 & 1:
            if cbcmr >> 12 & 3 != 1:
                chip.faults.append("PERIPH_CLK2 must be the crystal")
            return
        is_fast = cbcmr >> 18 & 3 == 3
        if is_fast and (arm & 0x7F != 100 or arm & (1 << 16 | 1 << 12) or not arm & 1 << 13):
            chip.faults.append("PLL_ARM does not give 1,200 MHz")
        if is_fast and chip.registers[ccm + 0x10] != 1:
            chip.faults.append("PLL_ARM must be divided by 2")
        if is_fast and (value >> 10 & 7, value >> 8 & 3) != (0, 3):
            chip.faults.append("the peripherals' clock must be a quarter of 600 MHz")
        if is_fast and chip.registers[dcdc + 0xC] & 0x1F < 0x13:
            chip.faults.append("600 MHz needs 1.275 V")

    def stopped(chip: Chip, _value: int) -> None:
        if chip.registers[rtwdog + 4] != 0xD928C520:
            chip.faults.append("RTWDOG is set while it is locked")

    return Chip(
        registers,
        {
            (lpuart1, lpuart1 + 0x4000): (ccm + 0x7C, 3 << 24),
            (iomuxc, iomuxc + 0x4000): (ccm + 0x78, 3 << 2),
        },
        {
            pll: ((1 << 31, lambda chip: chip.registers[pll] & (1 << 13 | 1 << 12) == 1 << 13),),
            dcdc: ((1 << 31, always),),
        },
        Uart(
            lpuart1 + 0x14,
            1 << 21,
            lpuart1 + 0x1C,
            lpuart1 + 0x1C,
            {
                lpuart1 + 0x10: 15 << 24 | 13,
                lpuart1 + 0x18: 3 << 18,
                ccm + 0x24: 0x6490B40,
                iomuxc + 0xEC: 2,
                iomuxc + 0xF0: 2,
                wdog1 + 8: 0,
                wdog2 + 8: 0,
                rtwdog: 0x2920,
            },
        ),
        hooks={ccm + 0x14: muxed, rtwdog: stopped, rtwdog + 8: stopped},
    )


@dataclass(frozen=True)
class Machine:
    """A chip and how unicorn runs it.

    Attributes:
        chip: Returns the chip after reset.
        cpu: Unicorn's number of the CPU.
        flash: Addresses at which the flash is seen.
        ram: First address and size of each RAM.
        peripherals: First address and size of each range of registers.
        clock_hz: Clock that the firmware must report.
    """

    chip: Callable[[], Chip]
    cpu: int
    flash: tuple[int, ...]
    ram: tuple[tuple[int, int], ...]
    peripherals: tuple[tuple[int, int], ...]
    clock_hz: int
    is_arm: bool = True
    vectors: int = 0


_CORTEX_M = 0xE0000000, 0x100000

MACHINES = {
    "nucleo-f446re": Machine(
        stm32f446, arm_const.UC_CPU_ARM_CORTEX_M4, (0x08000000,), ((0x20000000, 0x20000),), ((0x40000000, 0x30000),),
        180_000_000,
    ),
    "pico2": Machine(
        rp2350, arm_const.UC_CPU_ARM_CORTEX_M33, (0x10000000,), ((0x20000000, 0x82000),), ((0x40000000, 0x200000),),
        150_000_000,
    ),
    "nrf52840dk": Machine(
        nrf52840, arm_const.UC_CPU_ARM_CORTEX_M4, (0x00000000,), ((0x20000000, 0x40000),),
        ((0x40000000, 0x30000), (0x50000000, 0x1000)), 64_000_000,
    ),
    "esp32-c3-devkitm-1": Machine(
        esp32c3, riscv_const.UC_CPU_RISCV32_ANY, (0x42000000, 0x3C000000), ((0x3FC80000, 0x60000),),
        ((0x60000000, 0x100000),), 160_000_000, is_arm=False, vectors=8,
    ),
    "mimxrt1060-evk": Machine(
        rt1062, arm_const.UC_CPU_ARM_CORTEX_M7, (0x60000000,),
        ((0x00000000, 0x20000), (0x20000000, 0x20000), (0x20200000, 0x100000)), ((0x40000000, 0x400000),),
        600_000_000, vectors=0x2000,
    ),
}  # fmt: skip
"""Machine of each kit."""


class EmulatedKit:
    """A kit whose firmware image runs on unicorn's CPU beside the model of its chip."""

    def __init__(self, kit: str, image: Path) -> None:
        self.idles: Callable[[], bool] = lambda: False
        """Function that is called while the firmware waits for a byte; False stops the CPU."""
        self.machine = MACHINES[kit]
        self.chip = self.machine.chip()
        self.core: dict[int, int] = {0xE000ED88: 0, 0xE000ED08: 0, 0xE000EDFC: 0, 0xE0001000: 0}
        self.csr: dict[int, int] = {}
        arm = self.machine.is_arm
        mode = unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS if arm else unicorn.UC_MODE_RISCV32
        self.cpu = unicorn.Uc(unicorn.UC_ARCH_ARM if arm else unicorn.UC_ARCH_RISCV, mode)
        self.cpu.ctl_set_cpu_model(self.machine.cpu)
        data = image.read_bytes()
        for base in self.machine.flash:
            self.cpu.mem_map(base, 0x100000, unicorn.UC_PROT_READ | unicorn.UC_PROT_EXEC)
            self.cpu.mem_write(base, data)
        for base, size in self.machine.ram:
            self.cpu.mem_map(base, size)
            self.cpu.mem_write(base, b"\xa5" * size)
        for base, size in self.machine.peripherals:
            self.cpu.mmio_map(base, size, self._read, base, self._write, base)
        self.cpu.hook_add(unicorn.UC_HOOK_BLOCK, self._count)
        if arm:
            self.cpu.mmio_map(*_CORTEX_M, self._read_core, None, self._write_core, None)
            table = self.machine.flash[0] + self.machine.vectors
            stack, reset = (int.from_bytes(self.cpu.mem_read(table + 4 * n, 4), "little") for n in range(2))
            self.cpu.reg_write(arm_const.UC_ARM_REG_SP, stack)
            self.pc = reset
        else:
            self.cpu.hook_add(unicorn.UC_HOOK_INTR, self._trap)
            self.pc = self.machine.flash[0] + self.machine.vectors

    def run(self) -> None:
        """Run the firmware until `idles` returns False."""
        self.cpu.emu_start(self.pc, 0xFFFFFFF0, timeout=120_000_000)

    def _count(self, _uc: unicorn.Uc, _address: int, size: int, _data: object) -> None:
        """Count a cycle for each two bytes of instructions."""
        self.chip.time += size // 2

    def _read(self, _uc: unicorn.Uc, offset: int, _size: int, base: int) -> int:
        value = self.chip.read(base + offset)
        if self.chip.idle >= IDLE_READS and not self.idles():
            self.cpu.emu_stop()
        return value

    def _write(self, _uc: unicorn.Uc, offset: int, _size: int, value: int, base: int) -> None:
        self.chip.write(base + offset, value)

    def _read_core(self, _uc: unicorn.Uc, offset: int, _size: int, _data: object) -> int:
        address = _CORTEX_M[0] + offset
        if address == 0xE0001004:
            self.chip.time += 2
            return self.chip.time & 0xFFFFFFFF
        return self.core.get(address, 0)

    def _write_core(self, _uc: unicorn.Uc, offset: int, _size: int, value: int, _data: object) -> None:
        self.core[_CORTEX_M[0] + offset] = value

    def _trap(self, _uc: unicorn.Uc, number: int, _data: object) -> None:
        if number == 2 and self._own_csr():
            return
        self.chip.faults.append(f"exception {number} at {self.cpu.reg_read(riscv_const.UC_RISCV_REG_PC):#x}")
        self.cpu.emu_stop()

    def _own_csr(self) -> bool:
        """Execute an access to the chip's own counters, mpcer, mpcmr and mpccr; return False for any other one."""
        following = self.cpu.reg_read(riscv_const.UC_RISCV_REG_PC)  # unicorn has moved on
        word = int.from_bytes(self.cpu.mem_read(following - 4, 4), "little")
        number, source, kind, target = word >> 20, word >> 15 & 31, word >> 12 & 7, word >> 7 & 31
        if word & 0x7F != 0x73 or number not in (0x7E0, 0x7E1, 0x7E2) or kind not in (2, 5):
            return False
        value = self.chip.time if number == 0x7E2 else self.csr.get(number, 0)
        if number == 0x7E2 and (self.csr.get(0x7E0), self.csr.get(0x7E1)) != (1, 1):
            self.chip.faults.append("the counter of cycles is read before it is on")
        if kind == 5:
            self.csr[number] = source
        if target:
            self.cpu.reg_write(riscv_const.UC_RISCV_REG_X0 + target, value & 0xFFFFFFFF)
        return True


@contextmanager
def serve_kit(kit: EmulatedKit) -> Iterator[str]:
    """Yield the port of an emulated kit behind a socket."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            server.settimeout(30)
            peer, _ = server.accept()
            with peer:
                passed = 0

                def exchange() -> bool:
                    nonlocal passed
                    peer.sendall(kit.chip.sent[passed:])
                    passed = len(kit.chip.sent)
                    if not select.select([peer], [], [], 0.05)[0]:
                        return not ends.is_set()
                    data = peer.recv(4096)
                    kit.chip.received.extend(data)
                    return bool(data)

                kit.idles = exchange
                kit.run()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"socket://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ends.set()
            thread.join(30)
