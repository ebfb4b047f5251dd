/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of C99 that the math.h of avr-libc 2.0 lacks. */
float acoshf(float x);
float asinhf(float x);
float atanhf(float x);
float erff(float x);
float expm1f(float x);
float log1pf(float x);
float rintf(float x);
