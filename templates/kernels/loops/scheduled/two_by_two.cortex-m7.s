{# Scheduled for cortex-m7: 9 cycles, at least 8; clean assembly 4ca343e81ba63203. #}
ldr.w r6, [r0], #16
ldr.w r7, [r1, #8]
ldr.w r8, [r1], #16
smlad r2, r6, r8, r2
ldr.w r9, [r0, #-8]
ldr.w r10, [r1, #-4]
smlad r5, r9, r7, r5
ldr.w r11, [r1, #-12]
smlad r4, r9, r8, r4
ldr.w r12, [r0, #-4]
smlad r3, r6, r7, r3
smlad r4, r12, r11, r4
smlad r5, r12, r10, r5
ldr.w lr, [r0, #-12]
smlad r2, lr, r11, r2
smlad r3, lr, r10, r3
