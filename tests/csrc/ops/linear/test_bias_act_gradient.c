/*
 * test_bias_act_gradient.c - the gradient of bias and activation, and column sums.
 */
#include "act_bounds.h"
#include "arena.h"
#include "ops/linear/bias_act.h"
#include "threads.h"
#include "unit.h"

#include <math.h>
#include <string.h>

enum {
    SLOT_G,
    SLOT_SAVED,
    SLOT_GZ,
    SLOT_GB,
    MOST_FLOATS = 1 << 17,
};

/* The formulas of act_bounds.c against each other: slopes are those of the values. */
UNIT(slopes_are_differences_of_values)
{
    const double h = 0x1p-18;

    for (int act = 0; act < PTAC_N_ACTS; act++) {
        const ptac_act a = (ptac_act)act;

        for (double z = -10.03125; z < 10; z += 0.0625) { /* not at ReLU's corner */
            const double slope =
                (act_value(a, z + h).value - act_value(a, z - h).value) / (2 * h);
            const double saved = ptac_act_saves_z(a) ? z : act_value(a, z).value;

            EXPECT(fabs(act_gradient(a, 1, saved).value - slope) < 1e-9);
        }
    }
}

static float saved_of(ptac_act act, float z)
{
    return ptac_act_saves_z(act) ? z : (float)act_value(act, z).value;
}

UNIT(gradients_on_a_grid)
{
    enum { N = 1 << 16 };
    static float saved[N], g[N], gz[N];

    for (int act = 0; act < PTAC_N_ACTS; act++) {
        for (int i = 0; i < N; i++) {
            g[i] = i % 3 == 0 ? 1 : -0.7f;
            saved[i] = saved_of((ptac_act)act, ldexpf((float)(i - N / 2), -11));
        }
        for (int k = 0; k < N_ACT_TABLES; k++) {
            const ptac_act_backward job = {.g = g,
                                           .saved = saved,
                                           .gz = gz,
                                           .n_rows = 1,
                                           .n_cols = N,
                                           .act = (ptac_act)act};
            bool fine = act_table(k) != NULL;

            if (fine)
                ptac_bias_act_backward(act_table(k), &job);
            for (int i = 0; i < N && fine; i++)
                fine = act_is_near(gz[i], act_gradient(job.act, g[i], saved[i]),
                                   act_table(k)->name, job.act, saved[i]);
            EXPECT(fine || !act_table(k));
        }
    }
}

typedef struct random_backward {
    ptac_act_backward job;
    bool in_place, has_gz, has_gb;
    int64_t n;
    float *g, *saved, *kept_gz, *kept_gb;
} random_backward;

static void random_job(rng *r, void *made)
{
    random_backward *f = made;
    ptac_act_backward *job = &f->job;

    memset(job, 0, sizeof *job);
    job->act = (ptac_act)rng_below(r, PTAC_N_ACTS);
    switch (rng_below(r, 10)) {
    case 0: /* groups of rows, and panels of columns */
        job->n_cols = rng_length(r, 2500);
        job->n_rows = rng_between(r, 1, MOST_FLOATS / job->n_cols);
        break;
    case 1: /* more columns than there is room for in groups */
        job->n_cols = rng_between(r, 8000, 9000);
        job->n_rows = rng_between(r, 1, 14);
        break;
    default:
        job->n_cols = rng_length(r, 70);
        job->n_rows = rng_between(r, 0, 80);
    }
    f->n = job->n_rows * job->n_cols;
    f->in_place = rng_chance(r, 30);
    f->has_gb = rng_chance(r, 70);
    f->has_gz = job->act != PTAC_ACT_NONE || rng_chance(r, 50);
    fill_smooth(r, PTAC_F32, f->g, f->n, 2);
    fill_arguments(r, f->saved, f->n);
    for (int64_t i = 0; i < f->n; i++) {
        /* Beyond it squares leave float, and stock's slope is NaN as well. */
        if (job->act == PTAC_ACT_GELU_TANH && fabsf(f->saved[i]) > 0x1p60f)
            f->saved[i] = 0x1p60f;
        f->saved[i] = saved_of(job->act, f->saved[i]);
    }
}

static float *place(rng *r, int slot, const float *content, int64_t n)
{
    const size_t bytes = (size_t)n * sizeof(float);
    float *data = arena_place(r, slot, bytes, sizeof(float));

    if (content)
        memcpy(data, content, bytes);
    else
        memset(data, 0x6f, bytes);
    return data;
}

static void place_job(rng *r, random_backward *f)
{
    ptac_act_backward *job = &f->job;
    float *g = place(r, SLOT_G, f->g, f->n);

    job->g = g;
    job->saved = NULL; /* which none does not read */
    if (job->act != PTAC_ACT_NONE)
        job->saved = place(r, SLOT_SAVED, f->saved, f->n);
    job->gz = NULL;
    if (f->has_gz)
        job->gz = f->in_place ? g : place(r, SLOT_GZ, NULL, f->n);
    job->gb = f->has_gb ? place(r, SLOT_GB, NULL, job->n_cols) : NULL;
}

static bool nothing_else_was_touched(const random_backward *f)
{
    const ptac_act_backward *job = &f->job;
    const size_t bytes = (size_t)f->n * sizeof(float);

    return !arena_damage(SLOT_G) && (!job->saved || !arena_damage(SLOT_SAVED)) &&
           (!job->gz || f->in_place || !arena_damage(SLOT_GZ)) &&
           (!job->gb || !arena_damage(SLOT_GB)) &&
           (job->gz == job->g || memcmp(job->g, f->g, bytes) == 0) &&
           (!job->saved || memcmp(job->saved, f->saved, bytes) == 0);
}

static bool elements_are_right(const random_backward *f, const char *table)
{
    const ptac_act_backward *job = &f->job;

    for (int64_t i = 0; job->gz && i < f->n; i++) {
        const float saved = job->saved ? f->saved[i] : 0;

        if (!act_is_near(job->gz[i], act_gradient(job->act, f->g[i], saved), table,
                         job->act, saved))
            return false;
    }
    return true;
}

/* Against double sums of the elements: 32 float additions each, and one rounding. */
static bool sums_are_right(const random_backward *f)
{
    const ptac_act_backward *job = &f->job;
    const float *gz = job->gz ? job->gz : job->g;

    for (int64_t j = 0; job->gb && j < job->n_cols; j++) {
        double sum = 0, size = 0;

        for (int64_t i = 0; i < job->n_rows; i++) {
            sum += gz[i * job->n_cols + j];
            size += fabs(gz[i * job->n_cols + j]);
        }
        if (!(fabs(job->gb[j] - sum) <=
              0x1p-24 * (PTAC_ACT_ROW_BLOCK * size + fabs(sum))))
            return false;
    }
    return true;
}

static void check_table(rng *r, void *made, const ptac_bias_act *table)
{
    random_backward *f = made;
    const ptac_act_backward *job = &f->job;
    const size_t of_gz = (size_t)f->n * sizeof(float);
    const size_t of_gb = (size_t)job->n_cols * sizeof(float);

    for (int n_threads = 0; n_threads <= MAX_THREADS; n_threads++) {
        place_job(r, f);
        threads_install(n_threads, r);
        ptac_bias_act_backward(table, job);
        threads_install(0, r);
        EXPECT(nothing_else_was_touched(f));
        if (n_threads == 0) {
            EXPECT(elements_are_right(f, table->name));
            EXPECT(sums_are_right(f));
            if (job->gz)
                memcpy(f->kept_gz, job->gz, of_gz);
            if (job->gb)
                memcpy(f->kept_gb, job->gb, of_gb);
        }
        EXPECT(!job->gz || memcmp(f->kept_gz, job->gz, of_gz) == 0);
        EXPECT(!job->gb || memcmp(f->kept_gb, job->gb, of_gb) == 0);
    }
}

UNIT(bias_act_gradients_on_random_matrices)
{
    static float memory[4][MOST_FLOATS];
    static random_backward f = {
        .g = memory[0], .saved = memory[1], .kept_gz = memory[2], .kept_gb = memory[3]};

    check_act_tables(2, &f, random_job, check_table);
}

UNIT(column_sums_of_nothing)
{
    float g = 1, gb[2] = {3, 4};
    ptac_act_backward job = {.g = &g, .gz = &g, .gb = gb, .n_rows = 5};

    for (int k = 0; k < N_ACT_TABLES; k++) {
        if (!act_table(k))
            continue;
        job.n_rows = 5;
        job.n_cols = 0;
        gb[0] = 3;
        ptac_bias_act_backward(act_table(k), &job);
        EXPECT(g == 1 && gb[0] == 3);
        job.n_rows = 0;
        job.n_cols = 1;
        ptac_bias_act_backward(act_table(k), &job);
        EXPECT(g == 1 && gb[0] == 0 && gb[1] == 4);
    }
}

static void expect_gradient(ptac_act act, float g, float saved, float expected)
{
    for (int k = 0; k < N_ACT_TABLES; k++) {
        float gz = 0;
        const ptac_act_backward job = {
            .g = &g, .saved = &saved, .gz = &gz, .n_rows = 1, .n_cols = 1, .act = act};

        if (!act_table(k))
            continue;
        ptac_bias_act_backward(act_table(k), &job);
        expect_act(gz, expected, k, saved, act);
    }
}

UNIT(gradients_of_what_is_not_finite)
{
    static const ptac_act saving_z[] = {PTAC_ACT_GELU, PTAC_ACT_GELU_TANH,
                                        PTAC_ACT_SILU};

    for (int act = PTAC_ACT_GELU; act < PTAC_N_ACTS; act++) {
        expect_gradient((ptac_act)act, 1, NAN, NAN);
        expect_gradient((ptac_act)act, NAN, 0.5f, NAN);
        expect_gradient((ptac_act)act, INFINITY, 0.5f, INFINITY);
    }
    for (size_t i = 0; i < sizeof saving_z / sizeof *saving_z; i++) {
        expect_gradient(saving_z[i], 1, INFINITY, NAN); /* 0 times infinity */
        expect_gradient(saving_z[i], 1, -INFINITY, NAN);
    }
    /* As threshold_backward has it. */
    expect_gradient(PTAC_ACT_RELU, 1, NAN, 1);
    expect_gradient(PTAC_ACT_RELU, NAN, 1, NAN);
    expect_gradient(PTAC_ACT_RELU, NAN, 0, 0);
    expect_gradient(PTAC_ACT_RELU, INFINITY, 0, 0);
    expect_gradient(PTAC_ACT_RELU, INFINITY, INFINITY, INFINITY);
    /* Far out slopes vanish, but not by underflow alone. */
    expect_gradient(PTAC_ACT_GELU, INFINITY, -6, -INFINITY);
    expect_gradient(PTAC_ACT_SILU, INFINITY, -80, -INFINITY);
    expect_gradient(PTAC_ACT_GELU, INFINITY, 6, INFINITY);
    expect_gradient(PTAC_ACT_SILU, INFINITY, 80, INFINITY);
    expect_gradient(PTAC_ACT_TANH, INFINITY, 1, NAN);
    expect_gradient(PTAC_ACT_SIGMOID, INFINITY, 1, NAN);
    expect_gradient(PTAC_ACT_SIGMOID, INFINITY, 0, NAN);
}
