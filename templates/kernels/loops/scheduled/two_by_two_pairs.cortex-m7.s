{# Scheduled for cortex-m7: 17 cycles, at least 16; clean assembly 9d78bfb96592dfa1. #}
ldr.w r6, [r1], #16
sxtb16 r7, r6
ldr.w r8, [r0], #32
smlad r3, r8, r6, r3
ldr.w r9, [r0, #-20]
smlad r2, r8, r7, r2
ldr.w r10, [r0, #-24]
ldr.w r11, [r0, #-28]
smlad r5, r10, r6, r5
ldr.w r12, [r1, #-12]
smlad r4, r10, r7, r4
sxtb16 lr, r12
smlad r3, r11, r12, r3
smlad r5, r9, r12, r5
ldr.w r8, [r1, #-8]
smlad r4, r9, lr, r4
ldr.w r6, [r0, #-16]
smlad r3, r6, r8, r3
ldr.w r10, [r0, #-8]
sxtb16 r7, r8
smlad r2, r11, lr, r2
ldr.w r12, [r1, #-4]
smlad r2, r6, r7, r2
smlad r5, r10, r8, r5
ldr.w r9, [r0, #-4]
ldr.w r11, [r0, #-12]
smlad r4, r10, r7, r4
sxtb16 lr, r12
smlad r5, r9, r12, r5
smlad r2, r11, lr, r2
smlad r3, r11, r12, r3
smlad r4, r9, lr, r4
