/*
 * descent.c - sums of gradient times direction, a block of elements at a time.
 */
#include "ops/learning_rate/descent.h"

#include "core/cpu.h"
#include "core/host.h"

#include <math.h>

#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"
#endif

enum {
    BLOCK = 16384, /* elements: 64 KiB of float32, which stays in the second cache */
};

/* A block's share: elements [at, at + n) of an item. */
#define DEFINE_PART(name, type)                                                        \
    static double name(const ptac_descent *d, int64_t at, int64_t n)                   \
    {                                                                                  \
        const type *grad = (const type *)d->grad + at;                                 \
        const type *average = d->average ? (const type *)d->average + at : NULL;       \
        const type *square = d->square ? (const type *)d->square + at : NULL;          \
        double sum = 0;                                                                \
                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                              \
            const double g = (double)grad[i] * d->scale;                               \
            const double m = average ? (double)average[i] * d->keep_average : 0;       \
            const double v = square ? (double)square[i] * d->keep_square : 0;          \
            double direction = m + g * d->add_average;                                 \
                                                                                       \
            if (d->is_scaled)                                                          \
                direction /= sqrt(v + g * g * d->add_square) + d->eps;                 \
            sum += g * direction;                                                      \
        }                                                                              \
        return sum;                                                                    \
    }

DEFINE_PART(part_f32, float)
DEFINE_PART(part_f64, double)

#if defined(__x86_64__)
INLINE vec direction_of(const ptac_descent *d, vec g, const float *average,
                        const float *square)
{
    const vec m =
        average ? v_mul(v_load(average), v_set((float)d->keep_average)) : v_zero();
    const vec v =
        square ? v_mul(v_load(square), v_set((float)d->keep_square)) : v_zero();
    const vec up = v_fma(g, v_set((float)d->add_average), m);
    const vec down = v_fma(v_mul(g, g), v_set((float)d->add_square), v);

    return v_div(up, v_add(PS(sqrt)(down), v_set((float)d->eps)));
}

TARGET static double part_f32_avx2(const ptac_descent *d, int64_t at, int64_t n)
{
    const float *grad = (const float *)d->grad + at;
    const float *average = d->average ? (const float *)d->average + at : NULL;
    const float *square = d->square ? (const float *)d->square + at : NULL;
    vec_f64 sum = {0}, other = {0};
    int64_t i = 0;

    if (!d->is_scaled && !average && d->scale == 1) {
        for (; i + 2 * LANES <= n; i += 2 * LANES) {
            const vec a = v_load(grad + i), b = v_load(grad + i + LANES);

            sum = v_dot(sum, a, a);
            other = v_dot(other, b, b);
        }
        sum = PD(mul)(PD(add)(sum, other), PD(set1)(d->add_average));
    } else if (d->is_scaled) {
        for (; i + LANES <= n; i += LANES) {
            const vec g = v_mul(v_load(grad + i), v_set((float)d->scale));

            sum = v_dot(sum, g,
                        direction_of(d, g, average ? average + i : NULL,
                                     square ? square + i : NULL));
        }
    }
    return v_total(sum) + part_f32(d, at + i, n - i);
}
#else
#define part_f32_avx2 part_f32
#endif

static int64_t n_blocks(const ptac_descent *d)
{
    return ptac_parts(d->n, BLOCK);
}

int64_t ptac_descent_blocks(const ptac_descent *items, int64_t n_items)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < n_items; i++)
        sum += n_blocks(&items[i]);
    return sum;
}

typedef struct work {
    const ptac_descent *items;
    double *partial;
} work;

static void run(int64_t begin, int64_t end, void *context)
{
    const work *w = context;
    const ptac_descent *d = w->items;
    const bool has_avx2 = ptac_cpu_features() & PTAC_CPU_AVX2;
    int64_t first = 0; /* block of the item */

    for (int64_t block = begin; block < end; block++) {
        int64_t at, n;

        while (block - first >= n_blocks(d))
            first += n_blocks(d++);
        at = (block - first) * BLOCK;
        n = ptac_least(d->n - at, BLOCK);
        w->partial[block] = d->is_double ? part_f64(d, at, n)
                            : has_avx2   ? part_f32_avx2(d, at, n)
                                         : part_f32(d, at, n);
    }
}

double ptac_descent_sum(const ptac_descent *items, int64_t n_items, double *partial)
{
    const int64_t n = ptac_descent_blocks(items, n_items);
    double sum = 0;

    if (n == 0)
        return 0;
    ptac_parallel_for(0, n, 4, run, &(work){.items = items, .partial = partial});
    for (int64_t i = 0; i < n; i++)
        sum += partial[i];
    return sum;
}
