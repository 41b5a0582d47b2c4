/*
 * test_division.c - quotients by multiplication, beside the processor's.
 */
#include "device/cuda/division.h"

#include "unit.h"

#include <stdint.h>

/* As kernels compute it. */
static uint32_t quotient(uint32_t n, const ptac_divisor *d)
{
    return ((uint32_t)((uint64_t)n * d->magic >> 32) + n) >> d->shift;
}

static void check(uint32_t by)
{
    const ptac_divisor d = ptac_divisor_of(by);
    const uint32_t most = INT32_MAX, whole = most / by * by;
    const uint32_t numbers[] = {0, 1, by - 1, by, by + 1, whole - 1, whole, most};

    EXPECT(d.by == by);
    for (int i = 0; i < 8; i++)
        if (numbers[i] <= most)
            EXPECT(quotient(numbers[i], &d) == numbers[i] / by);
    for (uint32_t n = 12345; n < most - 7654321; n += 7654321)
        EXPECT(quotient(n, &d) == n / by);
}

UNIT(quotients_by_multiplication)
{
    for (uint32_t by = 1; by < 3000; by++)
        check(by);
    for (int shift = 2; shift < 31; shift++)
        for (int beside = -1; beside <= 1; beside++)
            check((1u << shift) + (uint32_t)beside);
    check(INT32_MAX);
}
