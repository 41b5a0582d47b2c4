/*
 * implicit_tpl.h - convolutions by the products of implicit.h.
 *
 * The includer defines the lanes (ops/math/lanes_<isa>.h), ISA, NEEDS, and
 *
 *   ROWS_OF_FEW, ROWS_OF_FOUR     int, at most 8: results whose sums for up to three,
 *                                 and for four vectors of places fill the registers;
 *                                 0: none
 *   ROWS_OF_SUMS, TERMS_OF_SUMS   4 and 6, or 3 and 4: rows and terms of weights'
 *                                 gradients whose sums do
 */
#include "ops/conv/implicit/implicit_blocks_tpl.h"
#include "ops/conv/implicit/implicit_strips_tpl.h"

/*
 * The weights of a row, the first of a block, for channels from channel on. As they are
 * packed: [class][group][block][channel][tap][row].
 */
INLINE const float *weights_of(const ptac_implicit *plan,
                               const ptac_implicit_class *class, int64_t group, int row,
                               int channel)
{
    const int64_t blocks = (plan->n_rows + plan->rows - 1) / plan->rows;

    if (!plan->is_packed)
        return plan->weight + group * plan->group_step + row * plan->row_step +
               channel * plan->channel_step;
    return plan->packed +
           (((int64_t) class->first * plan->groups + group * class->n) * blocks *
                plan->n_channels +
            (int64_t)(row / plan->rows * plan->n_channels + channel) * class->n) *
               plan->rows;
}

/* Where nothing meets a class of results they are what becomes of zero. */
INLINE void fill_sums(const products *p, int rows, int n)
{
    for (int i = 0; i < rows; i++) {
        const vec sum = bounded(p, v_set(p->shift ? p->shift[i] : 0));

        for (int j = 0; j < n; j += LANES)
            v_store(p->sums + i * p->sums_step + j, sum);
    }
}

/* Vectors that are multiplied together when so many are left. */
INLINE int vectors_of(int left, int most)
{
    return left <= most ? left : left == most + 1 && most == 3 ? 2 : most;
}

/* What sum_rows() goes through: rows of a class, at places of a strip. */
typedef struct span {
    const ptac_implicit *plan;
    const workplace *at;
    const ptac_implicit_class *class;
    int first, last; /* rows, in blocks of */
    int step;
    int n_vectors, most; /* of places; that are multiplied together */
} span;

/* Channels [c, end) of a block from row k and vector v on; p is of each's first. */
INLINE void sum_block(const span *s, int c, int end, int k, int v, products p)
{
    const int n = vectors_of(s->n_vectors - v, s->most);
    const int rest = s->at->n_places - (v + n - 1) * LANES;
    const block_fn block =
        block_of[n - 1][(s->last - k < s->step ? s->last - k : s->step) - 1];

    p.weight = weights_of(s->plan, s->class, s->at->group, k, c);
    p.source += c * p.plane + v * LANES;
    p.sums += (k - s->first) * p.sums_step + v * LANES;
    p.scale = p.scale ? p.scale + k - s->first : NULL;
    p.shift = p.shift ? p.shift + k - s->first : NULL;
    p.n_last = rest < LANES ? rest : LANES;
    for (; c < end; c += p.n_channels) {
        p.n_channels = at_most(s->class->chunk, end - c);
        p.is_first = c == 0;
        p.is_last = c + p.n_channels == s->plan->n_channels;
        block(&p);
        p.source += p.n_channels * p.plane;
        p.weight += p.n_channels * p.channel_step;
    }
}

/*
 * The source of near channels at a block's places stays in the first cache while all
 * rows pass over it. One tap meets it once for each row only; then results, which are
 * written where they belong, go along their rows.
 */
INLINE void sum_rows(const span *s, products p)
{
    const ptac_implicit *plan = s->plan;
    const int chunk = s->class->chunk;
    const int n_near = plan->n_near > chunk ? plan->n_near / chunk * chunk : chunk;

    for (int c = 0, end; c < plan->n_channels; c = end) {
        end = at_most(c + n_near, plan->n_channels);
        if (plan->is_whole) {
            for (int k = s->first; k < s->last; k += s->step)
                for (int v = 0; v < s->n_vectors;
                     v += vectors_of(s->n_vectors - v, s->most))
                    sum_block(s, c, end, k, v, p);
        } else {
            for (int v = 0; v < s->n_vectors;
                 v += vectors_of(s->n_vectors - v, s->most))
                for (int k = s->first; k < s->last; k += s->step)
                    sum_block(s, c, end, k, v, p);
        }
    }
}

/* Rows [first, last), as many as there is room for sums of, of a class. */
INLINE void run_rows(const ptac_implicit *plan, const workplace *at,
                     const ptac_implicit_class *class, int first, int last, int step,
                     int most)
{
    const bool is_direct = plan->is_whole;
    const int64_t row = at->group * plan->n_rows + first;
    const int64_t image = at->image * plan->groups + at->group;
    const products p = {
        .source = is_direct
                      ? plan->source + image * plan->n_channels * plan->source_plane +
                            at->first[2]
                      : at->copy,
        .plane = is_direct ? plan->source_plane : plan->plane_size,
        .row_step = plan->is_packed ? 1 : plan->row_step,
        .channel_step =
            plan->is_packed ? class->n * (int64_t)plan->rows : plan->channel_step,
        .n_taps = class->n,
        .taps = plan->taps + class->first,
        .scale = plan->scale ? plan->scale + row : NULL,
        .shift = plan->shift ? plan->shift + row : NULL,
        .least = ptac_act_least(plan->act),
        .most = ptac_act_most(plan->act),
        .is_bounded = plan->act != PTAC_ACT_NONE,
        .sums = is_direct ? plan->result +
                                (image * plan->n_rows + first) * plan->result_plane +
                                at->first[2]
                          : at->sums,
        .sums_step = is_direct ? plan->result_plane : plan->sums_step,
    };

    if (class->n == 0)
        fill_sums(&p, last - first, at->n_places);
    else
        sum_rows(&(span){plan, at, class, first, last, step,
                         (at->n_places + LANES - 1) / LANES, most},
                 p);
    if (is_direct)
        return;

    const given_places given = results_of(plan, at, class);

    for (int k = first; k < last; k++)
        give_results(plan, at, &given, k, p.sums + (k - first) * p.sums_step);
}

INLINE void enter_strip(const ptac_implicit *plan, int64_t strip, int64_t group,
                        workplace *at)
{
    int64_t rest = strip;

    at->strip = strip;
    at->group = group;
    for (int i = PTAC_N_AXES - 1; i >= 0; i--) {
        at->first[i] = (int)(rest % plan->n_strips[i]) * plan->strip[i];
        rest /= plan->n_strips[i];
        at->places[i] = plan->axis[i].n_places - at->first[i] < plan->strip[i]
                            ? plan->axis[i].n_places - at->first[i]
                            : plan->strip[i];
    }
    at->image = rest * plan->images;
    at->n_images =
        plan->n - at->image < plan->images ? (int)(plan->n - at->image) : plan->images;
    at->n_places =
        (((at->n_images - 1) * plan->slots[0] + at->places[0] - 1) * plan->slots[1] +
         at->places[1] - 1) *
            plan->slots[2] +
        at->places[2];
    if (!plan->is_whole)
        copy_strip(plan, at);
}

/*
 * Whether results of a class are the zeros that the class before it left between its
 * own: every second one of a row, which no tap meets.
 */
INLINE bool are_given(const ptac_implicit *plan, const ptac_implicit_class *class)
{
    const ptac_implicit_axis *along = &plan->axis[PTAC_N_AXES - 1];

    return class->n == 0 && !plan->shift && along->result_step == 2 &&
           along->start == 0 && class->of[PTAC_N_AXES - 1] == 1;
}

/* Items are the strips of each group, in parts of its rows. */
INLINE void run_item(const ptac_implicit *plan, int64_t item, workplace *at)
{
    const int64_t part = item % plan->n_parts, rest = item / plan->n_parts;
    const int64_t strip = rest / plan->groups, group = rest % plan->groups;

    if (strip != at->strip || group != at->group)
        enter_strip(plan, strip, group, at);

    const int n_vectors = (at->n_places + LANES - 1) / LANES;
    const bool by_four = ROWS_OF_FOUR > 0 && !plan->is_packed && n_vectors % 4 == 0 &&
                         n_vectors % 3 != 0;
    const int most = by_four ? 4 : 3, step = by_four ? ROWS_OF_FOUR : ROWS_OF_FEW;
    const int n_steps = (plan->n_rows + step - 1) / step;
    const int first = (int)(n_steps * part / plan->n_parts) * step;
    const int last = (int)(n_steps * (part + 1) / plan->n_parts) * step;
    const int end = last < plan->n_rows ? last : plan->n_rows;

    for (int i = 0; i < plan->n_classes; i++) {
        if (are_given(plan, &plan->classes[i]))
            continue;
        for (int k = first, next; k < end; k = next) {
            next = end - k < plan->most_rows ? end : k + plan->most_rows / step * step;
            run_rows(plan, at, &plan->classes[i], k, next, step, most);
        }
    }
}

/* Blocks of rows, of all groups, into the order in which they are multiplied. */
TARGET static void pack_weights(int64_t begin, int64_t end, void *context)
{
    const ptac_implicit *plan = context;
    const int64_t blocks = (plan->n_rows + plan->rows - 1) / plan->rows;

    for (int64_t i = begin; i < end; i++) {
        const int64_t group = i / blocks;
        const int row = (int)(i % blocks) * plan->rows;
        const int n = plan->n_rows - row < plan->rows ? plan->n_rows - row : plan->rows;
        const float *from =
            plan->weight + group * plan->group_step + row * plan->row_step;

        for (int j = 0; j < plan->n_classes; j++) {
            const ptac_implicit_class *class = &plan->classes[j];
            float *to = (float *)weights_of(plan, class, group, row, 0);

            for (int c = 0; c < plan->n_channels; c++)
                for (int t = 0; t < class->n; t++, to += plan->rows) {
                    const float *at = from + c * plan->channel_step +
                                      plan->taps[class->first + t].weight;

                    if (plan->row_step == 1 && n == ROWS_OF_FEW)
                        memcpy(to, at, ROWS_OF_FEW * sizeof *to);
                    else
                        for (int k = 0; k < n; k++)
                            to[k] = at[k * plan->row_step];
                }
        }
    }
}

TARGET static void run_pieces_of_strips(int64_t begin, int64_t end, void *context)
{
    const ptac_implicit *plan = context;

    for (int64_t i = begin; i < end; i++) {
        float *scratch = plan->scratch + i * plan->n_private;
        workplace at = {
            .copy = scratch, .sums = scratch + plan->copy_size, .strip = -1};
        const int64_t last = plan->n_items * (i + 1) / plan->n_pieces;

        for (int64_t item = plan->n_items * i / plan->n_pieces; item < last; item++)
            run_item(plan, item, &at);
    }
}

#include "ops/conv/implicit/implicit_weight_tpl.h"

static const ptac_implicit_stages implicit_stages = {
    .lanes = LANES,
    .rows = ROWS_OF_FEW,
    .sum_rows = ROWS_OF_SUMS,
    .sum_terms = TERMS_OF_SUMS,
    .pack = pack_weights,
    .run = run_pieces_of_strips,
    .weigh = weigh_pieces,
    .sum_biases = sum_biases,
};

static ptac_status run_implicit(const ptac_call *call)
{
    return ptac_implicit_run(call, &implicit_stages);
}

static bool implicit_pays(const ptac_call *call)
{
    return ptac_implicit_pays(call, &implicit_stages);
}

static bool implicit_pays_in_any(const ptac_call *call)
{
    return ptac_implicit_pays_in_any(call, &implicit_stages);
}

PTAC_CONV_ROW(CONV2D, "implicit", 0, PTAC_CLOSE, ptac_implicit_accepts, run_implicit,
              .pays = implicit_pays, .pays_in_any = implicit_pays_in_any)
PTAC_CONV_ROW(CONV2D_BACKWARD, "implicit", 0, PTAC_CLOSE, ptac_implicit_accepts,
              run_implicit, .pays = implicit_pays, .pays_in_any = implicit_pays_in_any)
