/*
 * test_layer_norm.c - layer norms once more: against their definition, odd widths.
 */
#include "core/cpu.h"
#include "ops/pack/layer_norm.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 5,
    MOST = 67, /* columns */
};

static float numbers[ROWS * MOST + 2 * ROWS + 2 * MOST];

static float definition(const ptac_layer_norm *norm, int64_t row, int64_t c)
{
    const float x = norm->x[row * norm->n_columns + c];
    const float normal = (x - norm->mean[row]) * norm->rstd[row];

    return fmaf(normal, norm->weight[c], norm->bias[c]);
}

static void of_width(int64_t n)
{
    const ptac_layer_norm norm = {
        .x = numbers,
        .mean = numbers + ROWS * MOST,
        .rstd = numbers + ROWS * MOST + ROWS,
        .weight = numbers + ROWS * MOST + 2 * ROWS,
        .bias = numbers + ROWS * MOST + 2 * ROWS + MOST,
        .n_rows = ROWS,
        .n_columns = n,
    };
    float *y = malloc((ROWS * (size_t)n + 1) * sizeof *y);

    y[ROWS * n] = -1;
    ptac_layer_norm_apply(&norm, y);
    EXPECT(y[ROWS * n] == -1);
    for (int64_t i = 0; i < ROWS * n; i++)
        EXPECT(y[i] == definition(&norm, i / n, i % n));
    EXPECT(ptac_layer_norm_matches(&norm, y));
    for (int64_t i = 0; i < ROWS * n; i++) {
        uint32_t bits;

        memcpy(&bits, &y[i], sizeof bits);
        for (int times = 0; times < 2; times++) { /* a bit to and fro */
            bits ^= 1;
            memcpy(&y[i], &bits, sizeof bits);
            EXPECT(ptac_layer_norm_matches(&norm, y) == (times == 1));
        }
    }
    free(y);
}

UNIT(layer_norms_are_computed_again)
{
    if (!ptac_layer_norm_is_there()) {
        unit_skip("this CPU has no AVX-512");
        return;
    }
    srand(1);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        numbers[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
    for (int64_t n = 0; n <= MOST; n++)
        of_width(n);
    ptac_cpu_limit(PTAC_ISA_AVX2);
    EXPECT(!ptac_layer_norm_is_there());
    ptac_cpu_limit(PTAC_ISA_AVX512);
}
