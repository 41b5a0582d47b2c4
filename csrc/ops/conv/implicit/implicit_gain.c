/*
 * implicit_gain.c - how many times as fast as stock a convolution is expected to be.
 */
#include "ops/conv/implicit/implicit_gain.h"

#include "core/host.h"

/* Nanoseconds, by amounts. */
typedef struct prices {
    double ours[PTAC_N_OURS], blocked[PTAC_N_STOCK], lowered[PTAC_N_STOCK];
} prices;

/*
 * Of results, for vectors of 16 and of 8 floats, on one thread and on two. What is
 * scattered has been fitted again to 168 and 270 convolutions since stores go by
 * vectors, with 16 floats; of 8 it was lowered as much, by hand. Since short rows go by
 * whole vectors, prices of every second element, and of runs of elements and results,
 * are 0.3, 0.35 to 0.45 and 0.5 of what they were. A fit to some hundred convolutions
 * on a Zen 4 would have lowered them by more.
 */
/* clang-format off */
static const prices prices_of[3][2][2] = {
    [PTAC_CONV_FORWARD] = {
        {
            {{5990, 0.57, 125, 0.19, 0.279, 1.86, 3.01, 2.99, 0.194, 0.0736, 0, 0},
             {103000, 0.0203, 0.845, 0.918, 1.03, 0, 0},
             {100000, 0.0178, 0.272, 1.05, 0.272, 0, 1.48}},
            {{21900, 0.607, 104, 0.395, 0.435, 1.94, 2.56, 3.07, 0.281, 0.101, 0, 0},
             {193000, 0.0204, 1.03, 0.942, 1.48, 0, 0},
             {132000, 0.06, 0, 1, 8.45, 0, 1.32}},
        },
        {
            {{7020, 0.615, 46, 0.249, 0.257, 1.9, 3.38, 3.46, 0, 0.123, 0, 0},
             {95000, 0.0424, 0.926, 0.825, 0.729, 0, 0},
             {95800, 0.0361, 0.289, 0.508, 0, 0, 1.26}},
            {{27800, 0.709, 57.7, 0.777, 0.441, 2.59, 1, 1.57, 0.414, 0.0857, 0, 0},
             {225000, 0.041, 1.43, 0.724, 1.2, 0, 0},
             {140000, 0.0494, 0.262, 0.796, 0, 0, 1.88}},
        },
    },
    [PTAC_CONV_DATA] = {
        {
            {{20200, 0.641, 81.1, 0.431, 0, 0, 3.05, 2.46, 0.401, 0.0804, 0.36, 1.55},
             {118000, 0.0195, 2.22, 0.362, 1.61, 2.47, 0},
             {129000, 0, 3.16, 3.78, 4.66, 0, 1.63}},
            {{45400, 0.697, 121, 0.803, 0, 0, 2.85, 3.48, 0.857, 0.254, 0.4, 1.87},
             {240000, 0.0272, 1.44, 1.25, 2.01, 4.38, 0},
             {225000, 0.00789, 1.97, 0.965, 4.29, 0, 2.44}},
        },
        {
            {{21200, 0.643, 17.6, 0.418, 0, 0, 4.58, 3.29, 0.695, 0.266, 0.4, 1.87},
             {138000, 0.0372, 1.54, 1.19, 1.04, 3.77, 0},
             {118000, 0.0749, 1.9, 0.281, 1.24, 0, 1.52}},
            {{53100, 0.758, 54.4, 0.536, 0, 0, 3.67, 3.56, 0.51, 0.111, 0.36, 1.96},
             {219000, 0.0517, 3.64, 0.869, 2.07, 1.31, 0},
             {204000, 0.0685, 2.74, 0, 0.731, 0, 1.91}},
        },
    },
    [PTAC_CONV_WEIGHT] = {
        {
            {{22800, 0.771, 3.8, 0.32, 0.298, 1.33, 4.95, 7.37, 0, 0.0506, 0, 0},
             {126000, 0.0284, 1.17, 0.358, 1.74, 0, 0},
             {126000, 0.0186, 0.185, 1.15, 3.05, 0, 1.96}},
            {{33800, 0.857, 3.96, 0.464, 0.381, 2.08, 4.81, 19.2, 0, 0.255, 0, 0},
             {234000, 0.03, 1.25, 1.03, 2.68, 0, 0},
             {191000, 0.0292, 1.02, 0.818, 2.01, 0, 2.4}},
        },
        {
            {{19700, 0.652, 2.96, 0.728, 0.36, 1.93, 3.31, 8.22, 0, 0.195, 0, 0},
             {110000, 0.045, 0.919, 1.06, 1.58, 0, 0},
             {107000, 0.0474, 0.363, 0.0904, 1.69, 0, 2.33}},
            {{38500, 0.729, 3.83, 0.356, 0.393, 2.02, 3.66, 14.5, 0, 0.159, 0, 0},
             {219000, 0.0569, 1.01, 1.66, 2.61, 0, 0},
             {169000, 0.0467, 3.01, 0.915, 1.93, 0, 2.1}},
        },
    },
};
/* clang-format on */

static __thread ptac_implicit_amounts last;

const ptac_implicit_amounts *ptac_implicit_last_amounts(void)
{
    return &last;
}

/* --- ours ------------------------------------------------------------------------- */

/*
 * Cycles a term of a block, of as many rows and vectors: two products a cycle, or two
 * loads of a vector or a weight, or as long as a product takes.
 */
static double cycles_of_term(double rows, double vectors)
{
    enum { LATENCY = 4 };
    const double products = rows * vectors / 2, loads = (rows + vectors) / 2;
    const double most = products > loads ? products : loads;

    return most > LATENCY ? most : LATENCY;
}

/* The same of all rows of a group, some vectors at once. */
static double cycles_of_rows(int n_rows, int at_once, int vectors)
{
    const int rest = n_rows % at_once;

    return n_rows / at_once * cycles_of_term(at_once, vectors) +
           (rest ? cycles_of_term(rest, vectors) : 0);
}

/* A strip's vectors go by threes, of which the last four are two and two. */
static double cycles_of_strip(const ptac_implicit *plan, int n_vectors)
{
    const int rest = n_vectors % 3;
    const int by_one = n_vectors == 1, by_two = by_one ? 0 : rest == 1 ? 2 : rest / 2;
    const int by_three = (n_vectors - 2 * by_two - by_one) / 3;

    return by_three * cycles_of_rows(plan->n_rows, plan->rows, 3) +
           by_two * cycles_of_rows(plan->n_rows, plan->rows, 2) +
           by_one * cycles_of_rows(plan->n_rows, plan->rows, 1);
}

/*
 * Of a thread: strips that it copies, and as many as it computes. Neighbouring parts of
 * one strip share its copy; parts of a weight's gradient have all strips each.
 */
typedef struct share {
    double copied, computed;
} share;

static share share_of(const ptac_implicit *plan, int n_threads)
{
    const int64_t items = ptac_parts(plan->n_items, n_threads);
    double copied;

    if (!plan->grad)
        return (share){(double)ptac_parts(items, plan->n_parts),
                       (double)items / plan->n_parts};
    if (plan->n_parts > 1)
        copied = (double)plan->n_all * plan->groups;
    else
        copied = (double)ptac_parts(plan->n_all, plan->n_pieces) * plan->groups;
    return (share){copied, copied / plan->n_parts};
}

static void count_products(const ptac_implicit *plan,
                           const ptac_implicit_stages *stages, double *n)
{
    const int n_vectors = (int)ptac_parts(ptac_implicit_places(plan), stages->lanes);
    const double terms = (double)plan->n_channels * plan->n_taps;
    const int taps = (int)ptac_parts(plan->n_taps, plan->n_classes);
    const int chunks =
        (int)ptac_parts(plan->n_channels, ptac_implicit_chunk(plan, taps));

    if (plan->grad) {
        n[PTAC_OURS_CYCLES] =
            n_vectors * terms / stages->sum_terms *
            cycles_of_rows(plan->n_rows, stages->sum_rows, stages->sum_terms);
        n[PTAC_OURS_BLOCKS] = plan->n_rows * terms;
        return;
    }
    n[PTAC_OURS_CYCLES] = terms * cycles_of_strip(plan, n_vectors);
    n[PTAC_OURS_BLOCKS] = (double)ptac_parts(n_vectors, 3) *
                          (double)ptac_parts(plan->n_rows, plan->rows) * chunks *
                          plan->n_classes;
    n[PTAC_OURS_WEIGHTS] = plan->n_rows * terms;
}

/*
 * What a result counts by the step to the next of its class: pairs are stored by
 * vectors, others one by one, which takes about twice as long.
 */
static double scattered(int step)
{
    return step == 1 ? 0 : step == 2 ? 1 : 2;
}

static void count_ours(const ptac_implicit *plan, const ptac_implicit_stages *stages,
                       int n_threads, double *n)
{
    const ptac_implicit_axis *axis = &plan->axis[2];
    const share share = share_of(plan, n_threads);
    const double runs = (double)plan->images * plan->strip[0] * plan->strip[1];
    const double results =
        (double)plan->n * plan->groups * plan->n_rows * plan->result_plane / n_threads;

    count_products(plan, stages, n);
    if (plan->is_whole) {
        n[PTAC_OURS_AGAIN] = (double)ptac_implicit_places(plan) * plan->n_channels *
                             (double)ptac_parts(plan->n_rows, stages->rows);
    } else {
        n[PTAC_OURS_GIVEN] = plan->n_rows * runs * plan->n_classes;
        n[PTAC_OURS_SCATTERED] =
            scattered(axis->result_step) * results / share.computed;
    }
    for (int i = 0; i < PTAC_N_OURS; i++)
        n[i] *= share.computed;
    if (!plan->is_whole) {
        const double copied =
            share.copied * plan->n_channels * (double)plan->plane_size;
        const int step = axis->source_step;

        n[PTAC_OURS_COPIED + (step < 3 ? step - 1 : 2)] = copied;
        n[PTAC_OURS_RUNS] = copied / plan->slots[2];
    }
    if (plan->is_packed)
        n[PTAC_OURS_PACKED] = (double)plan->n_blocks * plan->rows * plan->n_channels *
                              plan->n_taps / n_threads;
    n[PTAC_OURS_CALL] = 1;
}

/* --- stock ------------------------------------------------------------------------ */

static int in_blocks(int channels, int block)
{
    return (int)ptac_parts(channels, block) * block;
}

/*
 * The largest block, up to a vector, that divides a group's channels on both sides; 1:
 * there is none. With AVX-512 oneDNN has blocks of eight and four, too.
 */
static int block_of(int in, int out, int lanes)
{
    const int least = lanes == 16 ? 4 : lanes;

    for (int block = lanes; block >= least; block /= 2)
        if (in % block == 0 && out % block == 0)
            return block;
    return 1;
}

/* ATen convolves itself: see use_mkldnn() in its Convolution.cpp. */
static bool is_atens(const ptac_conv2d *p, int n_threads)
{
    enum { MOST_OF_ATEN = 20480, LEAST_IMAGES = 16, LARGE = 3 };
    const bool is_strided = p->stride_h != 1 || p->stride_w != 1;
    const bool is_dilated = p->dilation_h != 1 || p->dilation_w != 1;
    const bool is_1x1 = p->kernel_h == 1 && p->kernel_w == 1;

    if (!is_strided && !is_dilated && p->n < LEAST_IMAGES && is_1x1 && n_threads == 1)
        return true;
    return p->groups == 1 && (p->kernel_h <= LARGE || p->kernel_w <= LARGE) &&
           p->n == 1 && (int64_t)p->in_channels * p->h * p->w <= MOST_OF_ATEN;
}

/* Taps along an axis that meet pixels, of those of all places. */
static double share_met(int in, int out, int kernel, int stride, int dilation, int pad)
{
    int64_t n = 0;

    for (int tap = 0; tap < kernel; tap++) {
        /* Places whose pixel, place * stride + at, is in [0, in). */
        const int at = tap * dilation - pad;
        const int first = at < 0 ? (int)ptac_parts(-at, stride) : 0;
        const int end = at < in ? (int)ptac_parts(in - at, stride) : 0;

        n += (end < out ? end : out) > first ? (end < out ? end : out) - first : 0;
    }
    return (double)n / ((double)out * kernel);
}

/*
 * oneDNN fills up channels to whole blocks, but not those of first layers: up to four
 * it reads as they lie, up to eight it multiplies no more than there are, as fits say;
 * for the gradient of a weight four take as long as sixteen, where it has AVX-512.
 */
static void count_stock(const ptac_conv2d *p, int lanes, int n_threads, double *n)
{
    enum { MOST_UNPADDED = 8, MOST_FIRST = 4 };
    const int in = p->in_channels / p->groups, out = p->out_channels / p->groups;
    const bool is_data = p->result == PTAC_CONV_DATA, is_one = p->groups == 1;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    const int block = is_one ? lanes : block_of(in, out, lanes);
    const bool is_four = is_weight && in == 4 && lanes == 16;
    const bool is_padded = is_one && (in > MOST_UNPADDED || is_data || is_four);
    const int summed = is_padded ? in_blocks(in, lanes) : in;
    const int made = is_one ? in_blocks(out, lanes) : out;
    const double taps = (double)p->kernel_h * p->kernel_w;
    const double places = (double)p->n * p->out_h * p->out_w;
    const double met =
        share_met(p->h, p->out_h, p->kernel_h, p->stride_h, p->dilation_h, p->pad_h) *
        share_met(p->w, p->out_w, p->kernel_w, p->stride_w, p->dilation_w, p->pad_w);
    const double weights = (double)p->groups * summed * made * taps;
    const double images = (double)p->n * p->in_channels * p->h * p->w;
    const bool is_first = is_one && in <= MOST_FIRST && !is_data && !is_four;
    const bool is_spread = is_data && is_one && (p->stride_h > 1 || p->stride_w > 1);

    n[PTAC_STOCK_CALL] = 1;
    n[PTAC_STOCK_PRODUCTS] = places * weights * met * (block > 1 ? lanes / block : 1);
    n[PTAC_STOCK_IN] = is_first ? 0 : images;
    n[PTAC_STOCK_OUT] = places * p->groups * made;
    n[PTAC_STOCK_WEIGHTS] = weights;
    n[PTAC_STOCK_SPREAD] = is_spread ? images : 0;
    n[PTAC_STOCK_COLUMNS] = block > 1 ? 0 : places * p->in_channels * taps;
    for (int i = PTAC_STOCK_CALL + 1; i < PTAC_N_STOCK; i++)
        n[i] /= n_threads;
}

/* --- both ------------------------------------------------------------------------- */

static double sum(const double *amounts, const double *prices, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += amounts[i] * prices[i];
    return sum;
}

double ptac_implicit_gain(const ptac_call *call, const ptac_implicit_stages *stages)
{
    enum { MOST_THREADS = 2 }; /* that prices were fitted to */
    const ptac_conv2d *p = call->params;
    const int n_threads = (int)ptac_least(call->n_threads, MOST_THREADS);
    const prices *at = &prices_of[p->result][stages->lanes == 8][n_threads - 1];
    ptac_implicit_amounts *n = &last;
    ptac_call as = *call;
    ptac_implicit plan;

    *n = (ptac_implicit_amounts){.gain = 0};
    if (is_atens(p, call->n_threads))
        return 0;
    as.n_threads = n_threads;
    plan = ptac_implicit_plan_of(&as, stages);
    count_ours(&plan, stages, n_threads, n->ours);
    count_stock(p, stages->lanes, n_threads, n->stock);
    n->is_lowered = n->stock[PTAC_STOCK_COLUMNS] > 0;
    n->gain = (sum(n->stock, n->is_lowered ? at->lowered : at->blocked, PTAC_N_STOCK) +
               ptac_conv2d_spared_ns(call) / n_threads) /
              sum(n->ours, at->ours, PTAC_N_OURS);
    return n->gain;
}
