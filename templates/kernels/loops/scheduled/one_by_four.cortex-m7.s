{# Scheduled for cortex-m7: 18 cycles, at least 18; clean assembly 571d68151d040780. #}
ldr.w r6, [r0], #16
ldr.w r7, [r1, #8]
ldr.w r8, [r1], #64
smlad r2, r6, r8, r2
ldr.w r9, [r0, #-12]
smlad r3, r6, r7, r3
ldr.w r10, [r1, #-48]
smlad r4, r6, r10, r4
ldr.w r11, [r1, #-40]
smlad r5, r6, r11, r5
ldr.w r12, [r1, #-60]
ldr.w lr, [r1, #-52]
smlad r2, r9, r12, r2
smlad r3, r9, lr, r3
ldr.w r8, [r1, #-44]
smlad r4, r9, r8, r4
ldr.w r7, [r1, #-36]
smlad r5, r9, r7, r5
ldr.w r10, [r0, #-8]
ldr.w r6, [r1, #-32]
ldr.w r11, [r1, #-20]
smlad r2, r10, r6, r2
ldr.w r12, [r1, #-24]
smlad r3, r10, r12, r3
ldr.w lr, [r1, #-16]
smlad r4, r10, lr, r4
ldr.w r8, [r1, #-8]
smlad r5, r10, r8, r5
ldr.w r9, [r0, #-4]
ldr.w r7, [r1, #-28]
smlad r3, r9, r11, r3
ldr.w r6, [r1, #-12]
smlad r2, r9, r7, r2
smlad r4, r9, r6, r4
ldr.w r12, [r1, #-4]
smlad r5, r9, r12, r5
