{# Scheduled for cortex-m7: 9 cycles, at least 8; clean assembly 6ba90e608e370568. #}
ldr.w r6, [r1], #16
ldr.w r7, [r0, #8]
ldr.w r8, [r1, #-8]
smlad r5, r7, r8, r3
ldr.w r9, [r1, #-12]
smlad r4, r7, r6, r2
ldr.w r10, [r0], #16
ldr.w r11, [r0, #-4]
smlad r3, r10, r8, r3
ldr.w r12, [r1, #-4]
smlad r2, r10, r6, r2
ldr.w lr, [r0, #-12]
smlad r5, r11, r12, r5
smlad r2, lr, r9, r2
smlad r3, lr, r12, r3
smlad r4, r11, r9, r4
