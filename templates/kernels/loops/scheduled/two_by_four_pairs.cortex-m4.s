{# Scheduled for cortex-m4: 30 cycles, at least 28; clean assembly a9a05e9fc6616357. #}
ldr.w r10, [r0, #4]
ldr.w r11, [r1], #16
ldr.w r12, [r0], #16
ldr.w lr, [r1, #-12]
smlad r3, r12, r11, r3
smlad r7, r10, r11, r7
smlad r5, r12, lr, r5
sxtb16 r11, r11
smlad r9, r10, lr, r9
sxtb16 lr, lr
smlad r4, r12, lr, r4
smlad r2, r12, r11, r2
smlad r6, r10, r11, r6
smlad r8, r10, lr, r8
ldr.w r12, [r0, #-8]
ldr.w r11, [r1, #-4]
ldr.w r10, [r1, #-8]
ldr.w lr, [r0, #-4]
smlad r3, r12, r10, r3
smlad r7, lr, r10, r7
smlad r9, lr, r11, r9
sxtb16 r10, r10
smlad r2, r12, r10, r2
smlad r6, lr, r10, r6
sxtb16 r10, r11
smlad r4, r12, r10, r4
smlad r5, r12, r11, r5
smlad r8, lr, r10, r8
