/*
 * strips_tpl.h - softmax, log-softmax and their gradients over another dimension than
 * the last: strips of elements that lie side by side, a row in each lane.
 *
 * Included behind softmax_tpl.h. Leaves forward_strips, log_forward_strips,
 * backward_strips and log_backward_strips, which take pieces of the strips.
 *
 * Elements of a row lie far apart, often by powers of two, where caches keep few of
 * them at once: rows that are not too long are copied into one place first.
 */
#include "ops/math/quick_tpl.h"
#include "ops/softmax/softmax.h"

enum {
    STRIP_VECTORS = 4,
    STRIP = STRIP_VECTORS * LANES,
    KEPT_ROWS = 128,
    SUM_ROWS = 32, /* float sums that join a row's */
};

/* n vectors of a strip, of which the last has so many lanes; elements step apart. */
typedef struct strip {
    const float *from;
    float *to;
    int64_t from_step, to_step, width;
    int lanes;
} strip;

INLINE vec strip_load(const float *from, const strip *s, int v, int n)
{
    return v_load_first(from + v * LANES, v + 1 < n ? LANES : s->lanes);
}

INLINE void strip_store(float *to, const strip *s, int v, int n, vec value)
{
    v_store_first(to + v * LANES, value, v + 1 < n ? LANES : s->lanes);
}

/* The largest of each row; they are copied to kept, unless that is NULL. */
INLINE void strip_max(const strip *s, float *kept, vec *max, int n)
{
    for (int v = 0; v < n; v++)
        max[v] = v_set(-INFINITY);
    for (int64_t j = 0; j < s->width; j++)
        for (int v = 0; v < n; v++) {
            const vec x = strip_load(s->from + j * s->from_step, s, v, n);

            max[v] = v_max(max[v], x);
            if (kept)
                v_store(kept + (j * n + v) * LANES, x);
        }
}

/* Sums of exp(x - max), which take the place of x where exps say so. */
INLINE void strip_exp(const strip *s, float *exps, const vec *max, vec *sums, int n)
{
    for (int v = 0; v < n; v++)
        sums[v] = v_zero();
    for (int64_t first = 0; first < s->width; first += SUM_ROWS) {
        vec part[STRIP_VECTORS];

        for (int v = 0; v < n; v++)
            part[v] = v_zero();
        for (int64_t j = first; j < ptac_least(s->width, first + SUM_ROWS); j++)
            for (int v = 0; v < n; v++) {
                const vec x = strip_load(s->from + j * s->from_step, s, v, n);
                const vec e = v_exp_quick(v_sub(x, max[v]));

                part[v] = v_add(part[v], e);
                if (exps)
                    strip_store(exps + j * s->to_step, s, v, n, e);
            }
        for (int v = 0; v < n; v++)
            sums[v] = v_add(sums[v], part[v]);
    }
}

/* What of a strip is worked on: x itself, or its copy in kept. */
INLINE strip strip_source(const strip *s, const float *kept, int n)
{
    return (strip){kept, NULL, (int64_t)n * LANES, (int64_t)n * LANES, s->width, LANES};
}

INLINE void forward_strip(const strip *s, int n)
{
    float kept[KEPT_ROWS * STRIP];
    vec max[STRIP_VECTORS], sums[STRIP_VECTORS];
    const bool keeps = s->width <= KEPT_ROWS;
    const strip source = keeps ? strip_source(s, kept, n) : *s;
    float *exps = keeps ? kept : s->to;

    strip_max(s, keeps ? kept : NULL, max, n);
    strip_exp(&source, exps, max, sums, n);
    for (int v = 0; v < n; v++)
        sums[v] = v_div(v_set(1), sums[v]);
    for (int64_t j = 0; j < s->width; j++)
        for (int v = 0; v < n; v++) {
            const vec e = strip_load(exps + j * source.to_step, &source, v, n);

            strip_store(s->to + j * s->to_step, s, v, n, v_mul(e, sums[v]));
        }
}

INLINE void log_forward_strip(const strip *s, int n)
{
    float kept[KEPT_ROWS * STRIP];
    vec max[STRIP_VECTORS], sums[STRIP_VECTORS];
    const bool keeps = s->width <= KEPT_ROWS;
    const strip source = keeps ? strip_source(s, kept, n) : *s;

    strip_max(s, keeps ? kept : NULL, max, n);
    strip_exp(&source, NULL, max, sums, n);
    for (int v = 0; v < n; v++)
        sums[v] = v_log(sums[v]);
    for (int64_t j = 0; j < s->width; j++)
        for (int v = 0; v < n; v++) {
            const vec x = strip_load(source.from + j * source.from_step, &source, v, n);

            strip_store(s->to + j * s->to_step, s, v, n,
                        v_sub(v_sub(x, max[v]), sums[v]));
        }
}

/* Of log-softmax grad - exp(y) * sum(grad), else y * (grad - sum(grad * y)). */
INLINE void backward_strip(const strip *grads, const strip *ys, bool is_log, int n)
{
    vec sums[STRIP_VECTORS];

    for (int v = 0; v < n; v++)
        sums[v] = v_zero();
    for (int64_t first = 0; first < ys->width; first += SUM_ROWS) {
        vec part[STRIP_VECTORS];

        for (int v = 0; v < n; v++)
            part[v] = v_zero();
        for (int64_t j = first; j < ptac_least(ys->width, first + SUM_ROWS); j++)
            for (int v = 0; v < n; v++) {
                const vec g = strip_load(grads->from + j * grads->from_step, ys, v, n);

                part[v] =
                    is_log
                        ? v_add(part[v], g)
                        : v_fma(g, strip_load(ys->from + j * ys->from_step, ys, v, n),
                                part[v]);
            }
        for (int v = 0; v < n; v++)
            sums[v] = v_add(sums[v], part[v]);
    }
    for (int64_t j = 0; j < ys->width; j++)
        for (int v = 0; v < n; v++) {
            const vec g = strip_load(grads->from + j * grads->from_step, ys, v, n);
            const vec y = strip_load(ys->from + j * ys->from_step, ys, v, n);

            strip_store(ys->to + j * ys->to_step, ys, v, n,
                        is_log ? v_fnma(v_exp_quick(v_min(v_set(89), y)), sums[v], g)
                               : v_mul(y, v_sub(g, sums[v])));
        }
}

/* Where a strip of a call begins in its tensors. */
INLINE int64_t strip_place(const ptac_call *call, int64_t number, int64_t *left)
{
    const ptac_softmax *p = call->params;
    const int64_t of_each = ptac_strips(call), column = number % of_each * PTAC_STRIP;

    *left = ptac_least(PTAC_STRIP, p->inner - column);
    return number / of_each * p->width * p->inner + column;
}

INLINE strip strip_of(const ptac_call *call, int input, int64_t at)
{
    const ptac_softmax *p = call->params;

    return (strip){(const float *)call->inputs[input].data + at,
                   (float *)call->outputs[0].data + at,
                   p->inner,
                   p->inner,
                   p->width,
                   LANES};
}

/* A strip's whole STRIPs, then what is left of them, a vector at a time. */
#define STRIPS(name, of_vectors)                                                       \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        const ptac_call *call = context;                                               \
                                                                                       \
        for (int64_t number = begin; number < end; number++) {                         \
            int64_t left, at = strip_place(call, number, &left);                       \
                                                                                       \
            for (; left >= STRIP; left -= STRIP, at += STRIP)                          \
                of_vectors(call, at, STRIP_VECTORS, LANES);                            \
            for (; left > 0; left -= LANES, at += LANES)                               \
                of_vectors(call, at, 1, at_most_lanes(left));                          \
        }                                                                              \
    }

INLINE void forward_at(const ptac_call *call, int64_t at, int n, int lanes)
{
    strip s = strip_of(call, 0, at);

    s.lanes = lanes;
    forward_strip(&s, n);
}

INLINE void log_forward_at(const ptac_call *call, int64_t at, int n, int lanes)
{
    strip s = strip_of(call, 0, at);

    s.lanes = lanes;
    log_forward_strip(&s, n);
}

INLINE void backward_at(const ptac_call *call, int64_t at, int n, int lanes)
{
    const strip grads = strip_of(call, 0, at);
    strip ys = strip_of(call, 1, at);

    ys.lanes = lanes;
    backward_strip(&grads, &ys, false, n);
}

INLINE void log_backward_at(const ptac_call *call, int64_t at, int n, int lanes)
{
    const strip grads = strip_of(call, 0, at);
    strip ys = strip_of(call, 1, at);

    ys.lanes = lanes;
    backward_strip(&grads, &ys, true, n);
}

STRIPS(forward_strips, forward_at)
STRIPS(log_forward_strips, log_forward_at)
STRIPS(backward_strips, backward_at)
STRIPS(log_backward_strips, log_backward_at)
