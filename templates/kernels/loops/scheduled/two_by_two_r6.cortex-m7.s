{# Scheduled for cortex-m7: 9 cycles, at least 8; clean assembly 6a65d92987471317. #}
ldr.w r2, [r0], #16
ldr.w r3, [r1, #8]
ldr.w r4, [r1], #16
smlad r6, r2, r4, r6
ldr.w r5, [r0, #-8]
ldr.w r10, [r1, #-4]
smlad r9, r5, r3, r9
ldr.w r11, [r1, #-12]
smlad r8, r5, r4, r8
ldr.w r12, [r0, #-4]
smlad r7, r2, r3, r7
smlad r8, r12, r11, r8
smlad r9, r12, r10, r9
ldr.w lr, [r0, #-12]
smlad r6, lr, r11, r6
smlad r7, lr, r10, r7
