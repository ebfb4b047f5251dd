{# Scheduled for cortex-m7: 17 cycles, at least 16; clean assembly 8c8a4504e5bd5585. #}
ldr.w r10, [r0, #4]
ldr.w r11, [r0], #16
ldr.w r12, [r1], #16
sxtb16 lr, r12
smlad r7, r10, r12, r3
smlad r6, r10, lr, r2
smlad r2, r11, lr, r2
smlad r3, r11, r12, r3
ldr.w lr, [r1, #-12]
smlad r9, r10, lr, r5
sxtb16 r12, lr
smlad r5, r11, lr, r5
ldr.w lr, [r0, #-4]
smlad r8, r10, r12, r4
smlad r4, r11, r12, r4
ldr.w r10, [r1, #-8]
sxtb16 r11, r10
smlad r7, lr, r10, r7
smlad r6, lr, r11, r6
ldr.w r12, [r0, #-8]
smlad r2, r12, r11, r2
smlad r3, r12, r10, r3
ldr.w r11, [r1, #-4]
sxtb16 r10, r11
smlad r5, r12, r11, r5
smlad r9, lr, r11, r9
smlad r4, r12, r10, r4
smlad r8, lr, r10, r8
