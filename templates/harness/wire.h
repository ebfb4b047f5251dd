/* SPDX-License-Identifier: 0BSD */
/* A serial line: the machine's, or standard input and output. */
#ifndef WIRE_H
#define WIRE_H

void wire_start(void);

/* -1 if nothing has come. */
int wire_getc(void);
void wire_putc(unsigned char byte);

#endif
