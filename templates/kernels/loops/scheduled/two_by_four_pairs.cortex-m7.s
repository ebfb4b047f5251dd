{# Scheduled for cortex-m7: 17 cycles, at least 16; clean assembly a9a05e9fc6616357. #}
ldr.w r10, [r0], #16
ldr.w r11, [r0, #-12]
ldr.w r12, [r1], #16
sxtb16 lr, r12
smlad r3, r10, r12, r3
smlad r6, r11, lr, r6
smlad r2, r10, lr, r2
ldr.w lr, [r1, #-12]
smlad r5, r10, lr, r5
smlad r9, r11, lr, r9
sxtb16 lr, lr
smlad r7, r11, r12, r7
ldr.w r12, [r1, #-8]
smlad r8, r11, lr, r8
smlad r4, r10, lr, r4
ldr.w r11, [r0, #-8]
smlad r3, r11, r12, r3
ldr.w r10, [r0, #-4]
smlad r7, r10, r12, r7
ldr.w lr, [r1, #-4]
sxtb16 r12, r12
smlad r5, r11, lr, r5
smlad r9, r10, lr, r9
sxtb16 lr, lr
smlad r6, r10, r12, r6
smlad r4, r11, lr, r4
smlad r8, r10, lr, r8
smlad r2, r11, r12, r2
