/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what a model's self-test returns, on an ATmega: 0 is right. */
#include <avr/io.h>

#include MODEL_HEADER

static void put(char c)
{
    while ((UCSR0A & (1 << UDRE0)) == 0) {
    }
    UDR0 = (uint8_t)c;
}

int main(void)
{
    UCSR0B = 1 << TXEN0;
    put((char)('0' + SELFTEST(ARENA())));
    put('\n');
    for (;;) {
    }
}
