/* SPDX-License-Identifier: 0BSD */
/* FreeRTOS on a Cortex-M4 at 25 MHz: nothing is allocated at run time. */
#ifndef FREERTOS_CONFIG_H
#define FREERTOS_CONFIG_H

#define configUSE_PREEMPTION 1
#define configCPU_CLOCK_HZ 25000000u
#define configTICK_RATE_HZ 1000
#define configMAX_PRIORITIES 4
#define configMINIMAL_STACK_SIZE 128
#define configMAX_TASK_NAME_LEN 12
#define configTICK_TYPE_WIDTH_IN_BITS TICK_TYPE_WIDTH_32_BITS
#define configUSE_IDLE_HOOK 0
#define configUSE_TICK_HOOK 0
#define configUSE_MUTEXES 1
#define configUSE_TASK_NOTIFICATIONS 1
#define configSUPPORT_STATIC_ALLOCATION 1
#define configSUPPORT_DYNAMIC_ALLOCATION 0
#define configUSE_TIMERS 0
#define configCHECK_FOR_STACK_OVERFLOW 2

#define configPRIO_BITS 3
#define configKERNEL_INTERRUPT_PRIORITY 0xFFu
#define configMAX_SYSCALL_INTERRUPT_PRIORITY 0xA0u

#define INCLUDE_vTaskDelay 1
#define INCLUDE_vTaskSuspend 1

#define vPortSVCHandler SVC_Handler
#define xPortPendSVHandler PendSV_Handler
#define xPortSysTickHandler SysTick_Handler

#endif /* FREERTOS_CONFIG_H */
