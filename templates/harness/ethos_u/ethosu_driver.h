/* SPDX-License-Identifier: 0BSD */
/* The functions of Arm's Ethos-U core driver that generated code calls, as the driver's manual describes them. Test
 * firmware is compiled with this header and linked with driver.c. */
#ifndef ETHOSU_DRIVER_H
#define ETHOSU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

struct ethosu_driver;

struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *driver);
int ethosu_invoke_v3(struct ethosu_driver *driver, const void *commands, int command_bytes, uint64_t *addresses,
                     const size_t *sizes, int count, void *user_argument);


/* Kernels maintain the data cache by these functions instead of registers; the stand-in checks their order and ranges. */
void harness_clean_dcache(const void *data, uint32_t nbytes);
void harness_invalidate_dcache(const void *data, uint32_t nbytes);
#define MCUGEN_DCACHE_CLEAN(data, nbytes) harness_clean_dcache((data), (nbytes))
#define MCUGEN_DCACHE_INVALIDATE(data, nbytes) harness_invalidate_dcache((data), (nbytes))

#endif
