/*
 * test_pack.c - lossless packing: there and back, what is refused, odd lengths.
 */
#include "core/cpu.h"
#include "ops/pack/pack.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST = 3 * PTAC_PACK_CHUNK + 77,
    N_LENGTHS = 12,
};

static const int64_t lengths[N_LENGTHS] = {
    0, 1, 2, 63, 64, 65, 127, PTAC_PACK_CHUNK - 1, PTAC_PACK_CHUNK, 5000, 8255, MOST,
};
static const ptac_isa isas[] = {PTAC_ISA_SCALAR, PTAC_ISA_AVX512};

static uint64_t state = 1;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Check n elements by both instruction sets, for each length. */
static void at_all_lengths(void (*check)(int64_t n, int how), int how)
{
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        ptac_cpu_limit(isas[k]);
        for (int i = 0; i < N_LENGTHS; i++)
            check(lengths[i], how);
    }
    ptac_cpu_limit(PTAC_ISA_AVX512);
}

static void pack_bitmask(int64_t n, int width)
{
    uint8_t *x = malloc((size_t)MOST * 8), *again = malloc((size_t)MOST * 8);
    uint64_t *bits = malloc((size_t)(MOST + 63) / 64 * 8), values[2];
    const uint64_t low = next() % 200, high = next() % 200;

    for (int64_t i = 0; i < n; i++) {
        const uint64_t element = next() & 1 ? high : low;

        memcpy(x + i * width, &element, (size_t)width);
    }
    EXPECT(ptac_pack_bitmask(x, n, width, values, bits));
    memset(again, 0xee, (size_t)MOST * 8);
    ptac_unpack_bitmask(bits, values, n, width, again);
    EXPECT(memcmp(x, again, (size_t)(n * width)) == 0);
    EXPECT(n == MOST || again[n * width] == 0xee);
    if (n > 2 && low != high) {
        const uint64_t third = 201;

        memcpy(x, &low, (size_t)width);
        memcpy(x + width, &high, (size_t)width);
        memcpy(x + (n - 1) * width, &third, (size_t)width);
        EXPECT(!ptac_pack_bitmask(x, n, width, values, bits));
    }
    free(x);
    free(again);
    free(bits);
}

UNIT(bitmasks_come_back)
{
    for (int width = 1; width <= 8; width *= 2)
        at_all_lengths(pack_bitmask, width);
}

static void pack_nonzero(int64_t n, int one_in)
{
    uint32_t *x = malloc((size_t)(MOST + 1) * 4),
             *again = malloc((size_t)(MOST + 1) * 4);
    int64_t *starts = malloc((size_t)(ptac_pack_chunks(MOST) + 1) * 8), count = 0;
    uint64_t *bits = malloc((size_t)(MOST + 63) / 64 * 8);
    uint32_t *values;

    for (int64_t i = 0; i < n; i++) {
        x[i] = next() % (uint32_t)one_in
                   ? 0
                   : next() | 0x80000000u; /* minus zero is not zero */
        count += x[i] != 0;
    }
    EXPECT(ptac_pack_count(x, n, starts) == count);
    values = malloc((size_t)count * 4 + 1); /* as much as there are, for sanitizers */
    EXPECT(ptac_pack_nonzero(x, n, starts, bits, values));
    memset(again, 0xee, (size_t)(MOST + 1) * 4);
    ptac_unpack_nonzero(bits, values, starts, n, again);
    EXPECT(memcmp(x, again, (size_t)n * 4) == 0);
    EXPECT(again[n] == 0xeeeeeeee);
    if (n && count < n) {
        memset(x, 0xff, (size_t)n * 4);
        EXPECT(!ptac_pack_nonzero(x, n, starts, bits, values));
    }
    if (count) {
        memset(x, 0, (size_t)n * 4);
        EXPECT(!ptac_pack_nonzero(x, n, starts, bits, values));
    }
    free(x);
    free(again);
    free(starts);
    free(bits);
    free(values);
}

UNIT(nonzero_elements_come_back)
{
    for (int one_in = 1; one_in <= 5; one_in += 2)
        at_all_lengths(pack_nonzero, one_in);
}

UNIT(indices_take_the_least_width)
{
    static const struct {
        int64_t largest;
        int width;
    } cases[] = {{0, 1},     {255, 1},        {256, 2},        {65535, 2},
                 {65536, 4}, {4294967295, 4}, {4294967296, 8}, {-1, 8}};
    int64_t x[100], again[100];
    char narrow[100 * 4];

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int i = 0; i < 100; i++)
            x[i] = i % 50;
        x[99] = cases[k].largest;

        const int width = ptac_pack_index_width(x, 100);

        EXPECT(width == (cases[k].largest ? cases[k].width : 1));
        if (width == 8)
            continue;
        ptac_pack_indices(x, 100, width, narrow);
        ptac_unpack_indices(narrow, 100, width, again);
        EXPECT(memcmp(x, again, sizeof x) == 0);
    }
}

UNIT(a_probe_tells_what_is_worth_a_try)
{
    enum { ROWS = 64, COLUMNS = 512 };
    float *x = calloc(ROWS * COLUMNS, sizeof *x);

    EXPECT(ptac_pack_probe(x, 0, 4) == PTAC_PACK_NOTHING);
    EXPECT(ptac_pack_probe(x, ROWS * COLUMNS, 4) == PTAC_PACK_TWO_VALUES);
    for (int i = 0; i < ROWS; i++) /* zeros in half of the columns */
        for (int j = 0; j < COLUMNS / 2; j++)
            x[i * COLUMNS + j] = (float)(1 + next() % 1000);
    EXPECT(ptac_pack_probe(x, ROWS * COLUMNS, 4) == PTAC_PACK_ZEROS);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = (float)(1 + next() % 1000);
    EXPECT(ptac_pack_probe(x, ROWS * COLUMNS, 4) == PTAC_PACK_NOTHING);
    free(x);
}
