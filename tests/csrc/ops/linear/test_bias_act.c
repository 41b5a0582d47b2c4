/*
 * test_bias_act.c - bias and activation behind a product: values, memory, threads.
 */
#include "act_bounds.h"
#include "arena.h"
#include "core/cpu.h"
#include "threads.h"
#include "unit.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    SLOT_Z,
    SLOT_Y,
    SLOT_BIAS,
};

UNIT(the_best_bias_act_follows_the_cpu_limit)
{
    const ptac_bias_act *last = NULL;

    ptac_cpu_limit(PTAC_ISA_SCALAR);
    EXPECT(ptac_bias_act_best() == act_table(0));
    ptac_cpu_limit(PTAC_ISA_AVX2);
    EXPECT(ptac_bias_act_best() == (act_table(1) ? act_table(1) : act_table(0)));
    ptac_cpu_limit(PTAC_ISA_AVX512);
    for (int i = 0; i < N_ACT_TABLES; i++)
        if (act_table(i))
            last = act_table(i);
    EXPECT(ptac_bias_act_best() == last);
    EXPECT_TEXT(ptac_bias_act_best()->name, ptac_isa_name(ptac_cpu_isa()));
}

static bool is_right(const ptac_bias_act *table, ptac_act act, const float *z,
                     const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!act_is_near(y[i], act_value(act, z[i]), table->name, act, z[i]))
            return false;
    return true;
}

/* Steps of 2^-11 over [-16, 16], where all of them have saturated. */
UNIT(activations_on_a_grid)
{
    enum { N = 1 << 16 };
    static float z[N], y[N];

    for (int i = 0; i < N; i++)
        z[i] = ldexpf((float)(i - N / 2), -11);
    for (int k = 0; k < N_ACT_TABLES; k++) {
        for (int act = 0; act < PTAC_N_ACTS && act_table(k); act++) {
            const ptac_act_forward job = {.z = z,
                                          .ldz = N,
                                          .y = y,
                                          .ldy = N,
                                          .n_rows = 1,
                                          .n_cols = N,
                                          .act = (ptac_act)act};

            ptac_bias_act_forward(act_table(k), &job);
            EXPECT(is_right(act_table(k), (ptac_act)act, z, y, N));
        }
    }
}

/* A forward job in the arena, what lay there before, and what must lie there then. */
typedef struct random_forward {
    ptac_act_forward job;
    int64_t z_bytes, y_bytes, bias_bytes;
    float *z, *y, *bias, *kept; /* contents; kept is the y of another run */
} random_forward;

enum {
    MOST_FLOATS = 1 << 17,
};

static int64_t matrix_bytes(int64_t n_rows, int64_t n_cols, int64_t ld)
{
    return (int64_t)sizeof(float) * (n_rows > 0 ? (n_rows - 1) * ld + n_cols : 0);
}

static void random_job(rng *r, void *made)
{
    random_forward *f = made;
    ptac_act_forward *job = &f->job;
    const bool is_large = rng_chance(r, 8); /* worth sharing out */
    const bool in_place = rng_chance(r, 30);

    memset(job, 0, sizeof *job);
    job->act = (ptac_act)rng_below(r, PTAC_N_ACTS);
    job->n_cols = rng_length(r, is_large ? 3000 : 70);
    job->n_rows = is_large ? MOST_FLOATS / 2 / job->n_cols : rng_between(r, 0, 9);
    job->ldz = job->n_cols + (rng_chance(r, 50) ? rng_between(r, 1, 9) : 0);
    job->ldy = in_place            ? job->ldz
               : rng_chance(r, 50) ? job->n_cols + rng_between(r, 1, 9)
                                   : job->n_cols;
    if (job->n_rows * (job->ldz > job->ldy ? job->ldz : job->ldy) > MOST_FLOATS)
        job->n_rows = MOST_FLOATS / (job->n_cols + 9);
    job->keep_z = !in_place && rng_chance(r, 50);
    f->z_bytes = matrix_bytes(job->n_rows, job->n_cols, job->ldz);
    f->y_bytes = in_place ? -1 : matrix_bytes(job->n_rows, job->n_cols, job->ldy);
    f->bias_bytes = rng_chance(r, 50) ? job->n_cols * (int64_t)sizeof(float) : -1;
    fill_arguments(r, f->z, job->n_rows * job->ldz);
    fill_arguments(r, f->bias, job->n_cols);
    memset(f->y, 0x71, (size_t)(job->n_rows * job->ldy) * sizeof(float));
}

static void place_job(rng *r, random_forward *f)
{
    ptac_act_forward *job = &f->job;

    job->z = arena_place(r, SLOT_Z, (size_t)f->z_bytes, sizeof(float));
    memcpy(job->z, f->z, (size_t)f->z_bytes);
    job->y = job->z;
    if (f->y_bytes >= 0) {
        job->y = arena_place(r, SLOT_Y, (size_t)f->y_bytes, sizeof(float));
        memcpy(job->y, f->y, (size_t)f->y_bytes);
    }
    job->bias = NULL;
    if (f->bias_bytes >= 0) {
        float *bias = arena_place(r, SLOT_BIAS, (size_t)f->bias_bytes, sizeof(float));

        memcpy(bias, f->bias, (size_t)f->bias_bytes);
        job->bias = bias;
    }
}

static bool is_same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool nothing_else_was_touched(const random_forward *f)
{
    const ptac_act_forward *job = &f->job;
    const bool in_place = f->y_bytes < 0;

    if (arena_damage(SLOT_Z) || (!in_place && arena_damage(SLOT_Y)) ||
        (job->bias && (arena_damage(SLOT_BIAS) ||
                       memcmp(job->bias, f->bias, (size_t)f->bias_bytes) != 0)))
        return false;
    for (int64_t i = 0; i + 1 < job->n_rows; i++) {
        for (int64_t j = job->n_cols; j < job->ldz; j++)
            if (!is_same(job->z[i * job->ldz + j], f->z[i * job->ldz + j]))
                return false;
        for (int64_t j = job->n_cols; !in_place && j < job->ldy; j++)
            if (!is_same(job->y[i * job->ldy + j], f->y[i * job->ldy + j]))
                return false;
    }
    return true;
}

/* Each y near what it should be, each z as it was or with its bias. */
static bool all_are_right(const random_forward *f, const ptac_bias_act *table)
{
    const ptac_act_forward *job = &f->job;

    for (int64_t i = 0; i < job->n_rows; i++) {
        for (int64_t j = 0; j < job->n_cols; j++) {
            const float z = f->z[i * job->ldz + j];
            const float sum = job->bias ? z + job->bias[j] : z;
            const float y = job->y[i * job->ldy + j];

            if (!act_is_near(y, act_value(job->act, sum), table->name, job->act, sum))
                return false;
            if (f->y_bytes >= 0 &&
                !is_same(job->z[i * job->ldz + j], job->keep_z ? sum : z))
                return false;
        }
    }
    return true;
}

static void check_table(rng *r, void *made, const ptac_bias_act *table)
{
    random_forward *f = made;
    const ptac_act_forward *job = &f->job;
    const size_t bytes =
        (size_t)matrix_bytes(job->n_rows, job->n_cols, job->ldy); /* of y */

    for (int n_threads = 0; n_threads <= MAX_THREADS; n_threads++) {
        place_job(r, f);
        threads_install(n_threads, r);
        ptac_bias_act_forward(table, job);
        threads_install(0, r);
        EXPECT(nothing_else_was_touched(f));
        if (n_threads == 0) {
            EXPECT(all_are_right(f, table));
            memcpy(f->kept, job->y, bytes);
        }
        EXPECT(memcmp(f->kept, job->y, bytes) == 0);
    }
}

UNIT(bias_act_on_random_matrices)
{
    static float memory[4][MOST_FLOATS + 16];
    static random_forward f = {
        .z = memory[0], .y = memory[1], .bias = memory[2], .kept = memory[3]};

    check_act_tables(1, &f, random_job, check_table);
}

UNIT(bias_act_of_no_columns)
{
    float z = 1, y = 2;
    const ptac_act_forward job = {
        .z = &z, .ldz = 1, .y = &y, .ldy = 1, .n_rows = 3, .n_cols = 0};

    for (int k = 0; k < N_ACT_TABLES; k++)
        if (act_table(k))
            ptac_bias_act_forward(act_table(k), &job);
    EXPECT(z == 1 && y == 2);
}

static void expect_value(ptac_act act, float z, float expected)
{
    for (int k = 0; k < N_ACT_TABLES; k++) {
        float y = 0;
        const ptac_act_forward job = {
            .z = &z, .ldz = 1, .y = &y, .ldy = 1, .n_rows = 1, .n_cols = 1, .act = act};

        if (!act_table(k))
            continue;
        ptac_bias_act_forward(act_table(k), &job);
        expect_act(y, expected, k, z, act);
    }
}

UNIT(activations_of_what_is_not_finite)
{
    static const struct {
        ptac_act act;
        float at_plus, at_minus; /* infinity */
    } rows[] = {
        {PTAC_ACT_NONE, INFINITY, -INFINITY},
        {PTAC_ACT_RELU, INFINITY, 0},
        {PTAC_ACT_GELU, INFINITY, NAN},
        {PTAC_ACT_GELU_TANH, INFINITY, NAN},
        {PTAC_ACT_SILU, INFINITY, NAN},
        {PTAC_ACT_TANH, 1, -1},
        {PTAC_ACT_SIGMOID, 1, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect_value(rows[i].act, INFINITY, rows[i].at_plus);
        expect_value(rows[i].act, -INFINITY, rows[i].at_minus);
        expect_value(rows[i].act, NAN, NAN);
    }
    /* Finite, where oneDNN's GELU is not. */
    for (int act = PTAC_ACT_RELU; act <= PTAC_ACT_SILU; act++) {
        expect_value((ptac_act)act, FLT_MAX, FLT_MAX);
        expect_value((ptac_act)act, -FLT_MAX, 0);
    }
}
