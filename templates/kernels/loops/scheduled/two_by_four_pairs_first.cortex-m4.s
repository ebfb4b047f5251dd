{# Scheduled for cortex-m4: 30 cycles, at least 28; clean assembly 8c8a4504e5bd5585. #}
ldr.w r10, [r0], #16
ldr.w r11, [r1], #16
ldr.w r12, [r0, #-12]
ldr.w lr, [r1, #-12]
smlad r9, r12, lr, r5
smlad r5, r10, lr, r5
sxtb16 lr, lr
smlad r8, r12, lr, r4
smlad r7, r12, r11, r3
smlad r3, r10, r11, r3
sxtb16 r11, r11
smlad r4, r10, lr, r4
smlad r6, r12, r11, r2
smlad r2, r10, r11, r2
ldr.w lr, [r1, #-4]
ldr.w r12, [r0, #-8]
ldr.w r10, [r0, #-4]
ldr.w r11, [r1, #-8]
smlad r7, r10, r11, r7
smlad r3, r12, r11, r3
smlad r5, r12, lr, r5
sxtb16 r11, r11
smlad r2, r12, r11, r2
smlad r9, r10, lr, r9
sxtb16 lr, lr
smlad r4, r12, lr, r4
smlad r8, r10, lr, r8
smlad r6, r10, r11, r6
