/*
 * float_mode.h - how this thread rounds, and whether subnormal numbers are zeros to it.
 *
 * What torch.set_flush_denormal() and fesetround() change; 0 where it is not known.
 */
#ifndef PTAC_CORE_FLOAT_MODE_H
#define PTAC_CORE_FLOAT_MODE_H

#include <stdint.h>

#ifdef __x86_64__
#include <xmmintrin.h>

enum {
    PTAC_FLOAT_STATUS = 0x3f, /* exceptions that have been, which are no mode */
};

static inline uint32_t ptac_float_mode(void)
{
    return _mm_getcsr() & ~(uint32_t)PTAC_FLOAT_STATUS;
}

static inline void ptac_set_float_mode(uint32_t mode)
{
    _mm_setcsr(mode | (_mm_getcsr() & PTAC_FLOAT_STATUS));
}
#elif defined(__aarch64__)
static inline uint32_t ptac_float_mode(void)
{
    uint64_t mode;

    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
}

static inline void ptac_set_float_mode(uint32_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
static inline uint32_t ptac_float_mode(void)
{
    return 0;
}

static inline void ptac_set_float_mode(uint32_t mode)
{
    (void)mode;
}
#endif

#endif
