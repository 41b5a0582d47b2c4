/*
 * test_rows.c - rows gathered into batches, and slots that go round.
 */
#include "arena.h"
#include "data/ring.h"
#include "data/rows.h"
#include "unit.h"

#include <string.h>

enum {
    MOST_ROWS = 50,
    MOST_BYTES = 3000,
};

UNIT(rows_are_copied_and_nothing_else)
{
    rng r = {41};

    arena_prepare();
    for (uint64_t trial = 0; trial < unit_amount(300, 5000); trial++) {
        const int64_t n_rows = rng_between(&r, 1, MOST_ROWS);
        const int64_t bytes =
            rng_chance(&r, 50) ? RNG_PICK(&r, 1, 4, 8) : rng_length(&r, MOST_BYTES);
        const int64_t gap = rng_chance(&r, 50) ? 0 : rng_below(&r, 40);
        const int64_t n = rng_between(&r, 1, MOST_ROWS), stride = bytes + gap;
        char *rows = arena_place(&r, 0, (size_t)(n_rows * stride - gap), 1);
        char *out = arena_place(&r, 1, (size_t)(n * bytes), 1);
        const bool is_backwards = rng_chance(&r, 25);
        const ptac_table table = {.data = is_backwards ? rows + (n_rows - 1) * stride
                                                       : rows,
                                  .n_rows = n_rows,
                                  .row_bytes = bytes,
                                  .stride = is_backwards ? -stride : stride};
        int64_t index[MOST_ROWS], meant[MOST_ROWS];

        for (int64_t i = 0; i < n_rows * stride - gap; i++)
            rows[i] = (char)rng_next(&r);
        for (int64_t i = 0; i < n; i++) {
            meant[i] = rng_below(&r, n_rows);
            index[i] = rng_chance(&r, 50) ? meant[i] : meant[i] - n_rows;
        }
        EXPECT(ptac_rows_resolve(&table, 1, index, n));
        EXPECT(memcmp(index, meant, (size_t)n * sizeof(*index)) == 0);
        ptac_rows_gather(&table, index, n, out);
        for (int64_t i = 0; i < n; i++)
            EXPECT(memcmp(out + i * bytes, table.data + meant[i] * table.stride,
                          (size_t)bytes) == 0);
        EXPECT(arena_damage(0) == NULL);
        EXPECT(arena_damage(1) == NULL);
    }
}

UNIT(bytes_of_rows_are_looked_up)
{
    enum { FEW_BYTES = 300 };
    rng r = {42};
    float values[256];

    arena_prepare();
    for (int b = 0; b < 256; b++)
        values[b] = (float)(1000 - b);
    for (uint64_t trial = 0; trial < unit_amount(100, 1000); trial++) {
        const int64_t n_rows = rng_between(&r, 1, MOST_ROWS);
        const int64_t bytes = rng_between(&r, 1, FEW_BYTES), gap = rng_below(&r, 9);
        const int64_t n = rng_between(&r, 1, MOST_ROWS), stride = bytes + gap;
        uint8_t *rows = arena_place(&r, 0, (size_t)(n_rows * stride - gap), 1);
        float *out = arena_place(&r, 1, (size_t)(n * bytes) * sizeof(*out), 4);
        const ptac_table table = {.data = (const char *)rows,
                                  .n_rows = n_rows,
                                  .row_bytes = bytes,
                                  .stride = stride};
        int64_t index[MOST_ROWS];

        for (int64_t i = 0; i < n_rows * stride - gap; i++)
            rows[i] = (uint8_t)rng_next(&r);
        for (int64_t i = 0; i < n; i++)
            index[i] = rng_below(&r, n_rows);
        ptac_rows_look_up(&table, index, n, values, out);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < bytes; j++)
                EXPECT(out[i * bytes + j] ==
                       (float)(1000 - rows[index[i] * stride + j]));
        EXPECT(arena_damage(0) == NULL);
        EXPECT(arena_damage(1) == NULL);
    }
}

UNIT(an_index_that_is_no_row_changes_nothing)
{
    const ptac_table tables[] = {{"", 10, 1, 1}, {"", 7, 1, 1}, {"", 10, 1, 1}};
    int64_t index[] = {3, -7, 6};

    EXPECT(ptac_rows_resolve(tables, 1, index, 3));
    EXPECT(index[1] == 3);
    for (int k = 0; k < 2; k++) {
        const int64_t wrong[] = {10, -11};

        index[1] = -1;
        index[2] = wrong[k];
        EXPECT(!ptac_rows_resolve(tables, 1, index, 3));
        EXPECT(index[1] == -1);
    }
    index[1] = 6;
    index[2] = 5;
    EXPECT(ptac_rows_resolve(tables, 3, index, 3));
    index[1] = -1; /* row 9 of one table, row 6 of the next */
    EXPECT(!ptac_rows_resolve(tables, 3, index, 3));
    EXPECT(index[1] == -1);
    index[1] = INT64_MIN;
    EXPECT(!ptac_rows_resolve(tables, 1, index, 3));
    index[1] = INT64_MAX;
    EXPECT(!ptac_rows_resolve(tables, 1, index, 3));
}

UNIT(slots_are_taken_once_and_given_back)
{
    uint8_t states[8] = {0};

    for (int64_t slot = 2; slot < 5; slot++)
        EXPECT(ptac_ring_take(states, 2, 3) == slot);
    EXPECT(ptac_ring_take(states, 2, 3) == -1);
    EXPECT(ptac_ring_take(states, 0, 2) == 0);
    ptac_ring_give(states, 3);
    EXPECT(ptac_ring_take(states, 2, 3) == 3);
    EXPECT(ptac_ring_take(states, 5, 0) == -1);
}
