/*
 * implicit_weight_tpl.h - gradients of weights by the products of implicit.h. The
 * includer defines what implicit_tpl.h lists.
 *
 * A weight's gradient is the product of two long rows, the gradients of its outputs and
 * what its tap meets in the copy of the source. Between rows of an image the gradients'
 * copy has zeros.
 */

/* Sums of some terms of some rows over the places of a strip. */
typedef struct weighing {
    const float *grad, *source;
    int64_t grad_step; /* between rows */
    int64_t term[TERMS_OF_SUMS];
    int n_vectors, n_last; /* of places; places in the last one */
    bool is_first;
    float *sums;
    int64_t sums_step; /* between rows */
} weighing;

INLINE void weigh(int rows, int terms, const weighing *p, int v, int n,
                  vec sums[ROWS_OF_SUMS][TERMS_OF_SUMS])
{
    vec grads[ROWS_OF_SUMS];

#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
        grads[i] = v_load_first(p->grad + i * p->grad_step + v * LANES, n);
#pragma GCC unroll 6
    for (int j = 0; j < terms; j++) {
        const vec value = v_load_first(p->source + p->term[j] + v * LANES, n);

#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            sums[i][j] = v_fma(grads[i], value, sums[i][j]);
    }
}

INLINE void weigh_block(int rows, int terms, const weighing *p)
{
    vec sums[ROWS_OF_SUMS][TERMS_OF_SUMS];

#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 6
        for (int j = 0; j < terms; j++)
            sums[i][j] = v_zero();
    for (int v = 0; v < p->n_vectors - 1; v++)
        weigh(rows, terms, p, v, LANES, sums);
    weigh(rows, terms, p, p->n_vectors - 1, p->n_last, sums);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 6
        for (int j = 0; j < terms; j++) {
            float *to = p->sums + i * p->sums_step + j;

            *to = v_sum(sums[i][j]) + (p->is_first ? 0 : *to);
        }
}

#define DEFINE_WEIGH(rows, terms)                                                      \
    TARGET static                                                                      \
        __attribute__((noinline)) void weigh_##rows##x##terms(const weighing *p)       \
    {                                                                                  \
        weigh_block(rows, terms, p);                                                   \
    }
#define DEFINE_THREE_ROWS(terms)                                                       \
    DEFINE_WEIGH(1, terms)                                                             \
    DEFINE_WEIGH(2, terms)                                                             \
    DEFINE_WEIGH(3, terms)
#if ROWS_OF_SUMS == 4
#define DEFINE_ROWS(terms)                                                             \
    DEFINE_THREE_ROWS(terms)                                                           \
    DEFINE_WEIGH(4, terms)
#define ROWS_BY(terms)                                                                 \
    {                                                                                  \
        weigh_1x##terms, weigh_2x##terms, weigh_3x##terms, weigh_4x##terms             \
    }
#else
#define DEFINE_ROWS DEFINE_THREE_ROWS
#define ROWS_BY(terms)                                                                 \
    {                                                                                  \
        weigh_1x##terms, weigh_2x##terms, weigh_3x##terms                              \
    }
#endif
DEFINE_ROWS(1)
DEFINE_ROWS(2)
DEFINE_ROWS(3)
DEFINE_ROWS(4)
#if TERMS_OF_SUMS == 6
DEFINE_ROWS(5)
DEFINE_ROWS(6)
#endif

/* By terms and rows, from 1 on. */
static void (*const weigh_of[TERMS_OF_SUMS][ROWS_OF_SUMS])(const weighing *p) = {
    ROWS_BY(1), ROWS_BY(2), ROWS_BY(3), ROWS_BY(4),
#if TERMS_OF_SUMS == 6
    ROWS_BY(5), ROWS_BY(6),
#endif
};

/* Rows [first, last) of the gradients of a strip's outputs, in the rows of the copy. */
INLINE void copy_grads(const ptac_implicit *plan, const workplace *at, int first,
                       int last)
{
    const ptac_implicit_axis *axis = plan->axis;
    const int *slots = plan->slots;
    const int64_t image_size = (int64_t)slots[0] * slots[1] * slots[2];

    for (int k = first; k < last; k++) {
        float *to = at->sums + (k - first) * plan->sums_step;

        memset(to, 0, (size_t)at->n_places * sizeof *to);
        for (int i = 0; i < at->n_images; i++) {
            const float *plane =
                plan->grad +
                (((at->image + i) * plan->groups + at->group) * plan->n_rows + k) *
                    plan->result_plane;

            for (int z = 0; z < at->places[0]; z++)
                for (int y = 0; y < at->places[1]; y++)
                    memcpy(to + i * image_size + ((int64_t)z * slots[1] + y) * slots[2],
                           plane +
                               ((int64_t)(at->first[0] + z) * axis[1].n_results +
                                at->first[1] + y) *
                                   axis[2].n_results +
                               at->first[2],
                           (size_t)at->places[2] * sizeof *to);
        }
    }
}

/* Terms [first, last) of rows [k, k + n), whose gradients begin at grad. */
INLINE void weigh_terms(const ptac_implicit *plan, const workplace *at, int n,
                        int64_t first, int64_t last, weighing p)
{
    const int64_t plane = plan->is_whole ? plan->source_plane : plan->plane_size;
    const int n_taps = plan->classes[0].n;
    float *sums = p.sums;

    p.n_vectors = (at->n_places + LANES - 1) / LANES;
    p.n_last = at->n_places - (p.n_vectors - 1) * LANES;
    for (int64_t term = first; term < last; term += TERMS_OF_SUMS) {
        const int m = at_most(TERMS_OF_SUMS, last - term);

        for (int j = 0; j < m; j++)
            p.term[j] =
                (term + j) / n_taps * plane + plan->taps[(term + j) % n_taps].at;
        p.sums = sums + term;
        weigh_of[m - 1][n - 1](&p);
    }
}

/* Rows [first, last) of a strip's gradients into sums, which begin with the first. */
INLINE void weigh_rows(const ptac_implicit *plan, const workplace *at, int first,
                       int last, bool is_first, float *sums)
{
    const int64_t image = at->image * plan->groups + at->group;
    const int n_taps = plan->classes[0].n;
    weighing p = {
        .source = plan->is_whole
                      ? plan->source + image * plan->n_channels * plan->source_plane +
                            at->first[2]
                      : at->copy,
        .grad_step = plan->is_whole ? plan->result_plane : plan->sums_step,
        .is_first = is_first,
        .sums_step = (int64_t)plan->n_channels * n_taps,
    };
    const float *grad = plan->is_whole
                            ? plan->grad +
                                  (image * plan->n_rows + first) * plan->result_plane +
                                  at->first[2]
                            : at->sums;

    for (int c = 0; c < plan->n_channels; c += plan->n_near) {
        const int end = at_most(c + plan->n_near, plan->n_channels);

        for (int k = first; k < last; k += ROWS_OF_SUMS) {
            p.grad = grad + (k - first) * p.grad_step;
            p.sums = sums + (k - first) * p.sums_step;
            weigh_terms(plan, at, at_most(ROWS_OF_SUMS, last - k), c * (int64_t)n_taps,
                        end * (int64_t)n_taps, p);
        }
    }
}

/*
 * A piece has strips of its own, and sums; or, where those would be large, rows of its
 * own: then sums are the gradient itself.
 */
INLINE void weigh_piece(const ptac_implicit *plan, int64_t i)
{
    const int64_t parts = plan->n_pieces / plan->n_parts;
    const int64_t part = i % plan->n_parts, piece = i / plan->n_parts;
    const int64_t row_size = plan->n_channels * (int64_t)plan->classes[0].n;
    const int first = (int)(plan->n_rows * part / plan->n_parts);
    const int last = (int)(plan->n_rows * (part + 1) / plan->n_parts);
    float *scratch = plan->scratch + i * plan->n_private;
    workplace at = {.copy = scratch, .sums = scratch + plan->copy_size};
    float *sums = parts > 1 ? plan->partial + piece * plan->n_weights : plan->result;

    for (int64_t strip = plan->n_all * piece / parts;
         strip < plan->n_all * (piece + 1) / parts; strip++)
        for (int64_t group = 0; group < plan->groups; group++) {
            enter_strip(plan, strip, group, &at);
            for (int k = first, next; k < last; k = next) {
                next = at_most(k + plan->most_rows, last);
                if (!plan->is_whole)
                    copy_grads(plan, &at, k, next);
                weigh_rows(plan, &at, k, next, strip == plan->n_all * piece / parts,
                           sums + (group * plan->n_rows + k) * row_size);
            }
        }
}

TARGET static void weigh_pieces(int64_t begin, int64_t end, void *context)
{
    for (int64_t i = begin; i < end; i++)
        weigh_piece(context, i);
}

/* A gradient's channel is the sum of its plane in all images, in double. */
TARGET static void sum_biases(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_conv2d *p = call->params;
    const int64_t plane = (int64_t)p->out_d * p->out_h * p->out_w;
    const float *grad = call->inputs[1].data;

    for (int64_t k = begin; k < end; k++) {
        vec_f64 low = PD(setzero)(), high = low, low2 = low, high2 = low;

        for (int64_t n = 0; n < p->n; n++) {
            const float *at = grad + (n * p->out_channels + k) * plane;
            int64_t first = 0;

            for (; first + 2 * LANES <= plane; first += 2 * LANES) {
                const vec one = v_load(at + first), other = v_load(at + first + LANES);

                low = PD(add)(low, v_low_f64(one));
                high = PD(add)(high, v_high_f64(one));
                low2 = PD(add)(low2, v_low_f64(other));
                high2 = PD(add)(high2, v_high_f64(other));
            }
            FOR_LANES(i, m, first, plane, {
                const vec rest = v_load_first(at + i, m);

                low = PD(add)(low, v_low_f64(rest));
                high = PD(add)(high, v_high_f64(rest));
            });
        }
        low = PD(add)(PD(add)(low, high), PD(add)(low2, high2));
        ((float *)call->outputs[1].data)[k] = (float)v_total(low);
    }
}
