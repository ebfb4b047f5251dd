/* SPDX-License-Identifier: Apache-2.0 */
/* The console of QEMU's machine `sim`, by calls of its own instruction. */
#include <stdint.h>

#include "wire.h"

enum { READ = 3, WRITE = 4 };

__asm__(
    ".section .reset, \"ax\"\n"
    "j begin\n"
    ".text\n"
    ".align 4\n"
    "begin:\n"
    "movi a1, stack_top\n"
    "movi a0, main\n"
    "callx0 a0\n");

static int call(int operation, int file, int third, int fourth) {
    register int a2 __asm__("a2") = operation;
    register int a3 __asm__("a3") = file;
    register int a4 __asm__("a4") = third;
    register int a5 __asm__("a5") = fourth;
    __asm__ volatile("simcall" : "+r"(a2), "+r"(a3) : "r"(a4), "r"(a5) : "memory");
    return a2;
}

void wire_start(void) {
}

int wire_getc(void) {
    unsigned char byte;
    return call(READ, 0, (int)(intptr_t)&byte, 1) == 1 ? byte : -1;
}

void wire_putc(unsigned char byte) {
    (void)call(WRITE, 1, (int)(intptr_t)&byte, 1);
}

/* An ESP8266 has these in ROM, so that the library of Debian's compiler leaves them out. */
uint32_t __udivsi3(uint32_t, uint32_t);
uint32_t __umodsi3(uint32_t, uint32_t);
int32_t __divsi3(int32_t, int32_t);
int64_t __muldi3(int64_t, int64_t);

uint32_t __udivsi3(uint32_t dividend, uint32_t divisor) {
    uint32_t quotient = 0, rest = 0;
    for (int bit = 31; bit >= 0; bit--) {
        rest = rest << 1 | (dividend >> bit & 1u);
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1u;
        }
    }
    return quotient;
}

uint32_t __umodsi3(uint32_t dividend, uint32_t divisor) {
    return dividend - __udivsi3(dividend, divisor) * divisor;
}

int32_t __divsi3(int32_t dividend, int32_t divisor) {
    const uint32_t quotient = __udivsi3(
        dividend < 0 ? 0u - (uint32_t)dividend : (uint32_t)dividend,
        divisor < 0 ? 0u - (uint32_t)divisor : (uint32_t)divisor);
    return (int32_t)((dividend < 0) != (divisor < 0) ? 0u - quotient : quotient);
}

int64_t __muldi3(int64_t first, int64_t second) {
    uint64_t product = 0, shifted = (uint64_t)first;
    for (uint64_t left = (uint64_t)second; left != 0; left >>= 1, shifted <<= 1) {
        product += left & 1u ? shifted : 0u;
    }
    return (int64_t)product;
}
