{# Scheduled for cortex-m7: 18 cycles, at least 18; clean assembly 199fa376e5c88a3a. #}
ldr.w r6, [r1], #32
sxtb16 r7, r6
ldr.w r8, [r0], #16
smlad r3, r8, r6, r3
ldr.w r9, [r1, #-24]
smlad r2, r8, r7, r2
ldr.w r10, [r1, #-28]
ldr.w r11, [r0, #-12]
smlad r5, r8, r9, r5
smlad r3, r11, r10, r3
ldr.w r12, [r1, #-8]
ldr.w lr, [r1, #-16]
ldr.w r6, [r0, #-8]
sxtb16 r7, r9
smlad r3, r6, lr, r3
smlad r4, r8, r7, r4
ldr.w r9, [r1, #-20]
sxtb16 r8, r9
smlad r5, r11, r9, r5
sxtb16 r7, r10
smlad r4, r11, r8, r4
ldr.w r9, [r1, #-12]
smlad r5, r6, r12, r5
sxtb16 r10, r12
smlad r2, r11, r7, r2
smlad r4, r6, r10, r4
ldr.w r8, [r0, #-4]
smlad r3, r8, r9, r3
ldr.w r12, [r1, #-4]
sxtb16 r11, r12
smlad r5, r8, r12, r5
sxtb16 r7, lr
smlad r4, r8, r11, r4
sxtb16 r10, r9
smlad r2, r6, r7, r2
smlad r2, r8, r10, r2
