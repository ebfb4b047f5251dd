{# Scheduled for cortex-m7: 17 cycles, at least 16; clean assembly 12c5ef9bfd08fe26. #}
ldr.w r6, [r1, #4]
ldr.w r7, [r0, #8]
ldr.w r8, [r1], #16
sxtb16 r9, r8
smlad r5, r7, r8, r3
smlad r4, r7, r9, r2
ldr.w r10, [r0], #32
ldr.w r11, [r0, #-28]
smlad r2, r10, r9, r2
ldr.w r12, [r0, #-16]
smlad r3, r10, r8, r3
sxtb16 lr, r6
smlad r3, r11, r6, r3
ldr.w r7, [r0, #-20]
smlad r2, r11, lr, r2
ldr.w r9, [r1, #-8]
smlad r4, r7, lr, r4
ldr.w r10, [r0, #-8]
smlad r5, r7, r6, r5
smlad r3, r12, r9, r3
ldr.w r8, [r0, #-4]
sxtb16 r11, r9
smlad r5, r10, r9, r5
ldr.w lr, [r1, #-4]
smlad r4, r10, r11, r4
smlad r5, r8, lr, r5
smlad r2, r12, r11, r2
ldr.w r7, [r0, #-12]
sxtb16 r6, lr
smlad r3, r7, lr, r3
smlad r4, r8, r6, r4
smlad r2, r7, r6, r2
