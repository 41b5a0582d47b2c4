/*
 * depthwise_tpl.h - depthwise convolution, and its rows.
 *
 * The includer defines
 *
 *   TARGET, INLINE, LANES, vec, v_*   by including ops/math/lanes_<isa>.h; LANES is 8
 *                                     or 16
 *   ISA                               string: the rows' names
 *   NEEDS                             PTAC_CPU_*: what the CPU must have
 *
 * A piece's scratch holds
 *
 *   packed      a strip of the image, see depthwise_plan.h; of images that are read in
 *               place a row of zeros
 *   second      transposed results or gradients, [row][column][lane]
 *   taps        of weights or of sums, [other axis][along a line][lane]; behind sums
 *               those of the gradients themselves
 *   totals      the same of sums, in double; of pixels one for each tap
 *
 * Gradients of weights add up in float over some places of each lane, and from there in
 * double.
 */
#include "ops/conv/depthwise/depthwise_pack_tpl.h"
#include "ops/conv/depthwise/depthwise_pairs_tpl.h"

#include <math.h>

enum {
    FLUSH = 128, /* terms of a lane, after which sums in float go on in double */
};

/* Where a piece works, and what it works on: some channels of an image. */
typedef struct unit {
    const ptac_depthwise_plan *plan;
    float *packed, *second, *taps;
    double *totals;
    line l;
    line_functions by;
    int64_t image;
    int channel, n_channels;
    int n_taps, n_terms;
    bool is_last; /* image and channel of the piece */
} unit;

INLINE int64_t pixel_offset(const unit *u, int h, int w, int row)
{
    const ptac_depthwise_plan *plan = u->plan;

    if (plan->channels_last)
        return ((u->image * h + row) * w) * plan->channels + u->channel;
    return ((u->image * plan->channels + u->channel) * h + row) * (int64_t)w;
}

INLINE void begin_line(unit *u)
{
    const ptac_depthwise_plan *plan = u->plan;
    const bool by_channels = plan->by_channels;
    const ptac_depthwise_axis *along = by_channels ? &plan->w : &plan->h;
    const ptac_depthwise_axis *other = by_channels ? &plan->h : &plan->w;
    line *l = &u->l;

    l->from_step = by_channels ? LANES : plan->width;
    l->to_step = !by_channels          ? plan->w.out
                 : plan->channels_last ? plan->channels
                                       : LANES;
    l->taps = along->kernel;
    l->stride = along->stride;
    l->dilation = along->dilation;
    l->n_others = other->kernel;
    for (int b = 0; b < other->kernel; b++) {
        const int64_t at = (int64_t)b * other->dilation;

        l->other_at[b] = by_channels ? at * plan->width * LANES
                         : plan->in_place
                             ? at
                             : at % other->stride * plan->part + at / other->stride;
    }
    if (plan->is_signal) {
        l->from_step = l->to_step = LANES;
        l->stride = l->dilation = 1;
    }
    l->weights = u->taps;
    l->least = v_set(ptac_act_least(plan->act));
    l->most = v_set(ptac_act_most(plan->act));
    l->n_phases = 1;
    u->by = line_functions_of(l->taps, l->stride);
    if (l->dilation > 1 && l->stride > 1)
        u->by = (line_functions){any_line, any_gradient_line};
    else if (u->by.results != any_line) {
        l->n_phases = l->dilation;
        l->dilation = 1;
        l->from_step *= l->n_phases;
        l->to_step *= l->n_phases;
    }
}

INLINE void begin(unit *u, const ptac_depthwise_plan *plan, int64_t piece)
{
    u->plan = plan;
    u->packed = plan->scratch + piece * plan->n_private;
    u->second = u->packed + plan->n_packed;
    u->taps = u->second + plan->n_second;
    u->totals = (double *)(void *)(u->taps + plan->n_taps);
    u->channel = -1;
    u->n_taps = plan->h.kernel * plan->w.kernel;
    u->n_terms = 0;
    memset(u->packed, 0, (size_t)plan->n_packed * sizeof *u->packed);
    begin_line(u);
}

INLINE void set_group(unit *u, int group)
{
    u->channel = u->plan->by_channels ? group * LANES : group;
    u->n_channels =
        u->plan->by_channels ? at_most_lanes(u->plan->channels - u->channel) : 1;
}

INLINE void pack(const unit *u, int row, int n_rows)
{
    const ptac_depthwise_plan *plan = u->plan;
    const float *image = plan->image + pixel_offset(u, plan->h.size, plan->w.size, 0);
    const int64_t first = (int64_t)row * plan->h.stride;
    const int n = ptac_depthwise_reach(&plan->h, n_rows);
    const ptac_depthwise_span rows = ptac_depthwise_span_of(&plan->h, first, n);
    const int64_t row_step = (int64_t)plan->width * (plan->by_channels ? LANES : 1);

    if (plan->strips > 1)
        clear_rows(plan, rows, first, n, row_step, u->packed);
    if (!plan->by_channels)
        pack_rows(plan, image, rows, first, u->packed);
    else if (plan->channels_last)
        pack_pixels(plan, image, u->n_channels, rows, first, u->packed);
    else
        pack_planes(plan, image, u->n_channels, rows, first, u->packed);
}

TARGET static void load_weights(unit *u)
{
    const ptac_depthwise_plan *plan = u->plan;
    const int n = u->n_taps, c = u->channel;
    const int h = plan->h.kernel, w = plan->w.kernel;
    const float *weight = plan->weight + (int64_t)c * n;
    float *to = u->taps;

    if (!plan->by_channels) {
        for (int b = 0; b < w; b++)
            for (int a = 0; a < h; a++, to += LANES)
                v_store(to, v_set(plan->is_reversed ? weight[n - 1 - (a * w + b)]
                                                    : weight[a * w + b]));
        u->l.scale = v_set(plan->scale ? plan->scale[c] : 1);
        u->l.bias = v_set(plan->bias ? plan->bias[c] : 0);
        return;
    }
    transpose_planes(weight, n, u->n_channels, n, u->taps);
    for (int i = 0; plan->is_reversed && i < n / 2; i++) {
        float *a = u->taps + i * LANES, *b = u->taps + (n - 1 - i) * LANES;
        const vec v = v_load(a);

        v_store(a, v_load(b));
        v_store(b, v);
    }
    u->l.scale = plan->scale ? v_load_first(plan->scale + c, u->n_channels) : v_set(1);
    u->l.bias = plan->bias ? v_load_first(plan->bias + c, u->n_channels) : v_zero();
}

/* A line of n results in each of its phases. */
INLINE void convolve_line(const unit *u, const float *from, int n, float *to,
                          int n_lanes, int n_last)
{
    const line *l = &u->l;
    const int n_phases = l->n_phases;

    if (n_phases == 1) {
        u->by.results(l, from, n, to, n_lanes, n_last);
        return;
    }
    for (int phase = 0; phase < n_phases && phase < n; phase++)
        u->by.results(l, from + phase * (l->from_step / n_phases),
                      (int)ptac_parts(n - phase, n_phases),
                      to + phase * (l->to_step / n_phases), n_lanes, n_lanes);
}

/*
 * Planes from the one at hand to what follows it in this piece: another channel, or of
 * the gradients of weights another image.
 */
INLINE int64_t planes_ahead(const unit *u)
{
    if (u->is_last)
        return 0;
    if (!u->plan->grad)
        return 1;
    return u->image + 1 < u->plan->n ? u->plan->channels
                                     : 1 - u->image * u->plan->channels;
}

/* n neighbouring pixels of a row of size, from column on. */
INLINE mask inside_of(int64_t column, int64_t n, int size)
{
    const int64_t begin = column < 0 ? -column : 0, end = ptac_least(n, size - column);

    return begin < end ? v_between((int)begin, (int)end) : v_first(0);
}

/* The taps of a strip's lines, n_lanes of them, that begin at (row, column j). */
INLINE void find_window(const unit *u, int row, int j, int n_lanes, window *at)
{
    const ptac_depthwise_plan *plan = u->plan;
    const ptac_depthwise_axis *h = &plan->h, *w = &plan->w;
    const int strip_row = row - row % plan->strip;
    const int64_t planes = planes_ahead(u), first = (int64_t)j * w->stride - w->pad;
    const int64_t n = (int64_t)n_lanes * w->stride;

    at->image = plan->image + pixel_offset(u, h->size, w->size, 0) + first;
    at->zeros = u->packed;
    at->row_step = w->size;
    at->first = row * h->stride - h->pad;
    at->size = h->size;
    if (strip_row + plan->strip < h->out) {
        at->ahead = (int64_t)plan->strip * h->stride * w->size;
        at->ahead_beside = (int64_t)plan->strip * w->out;
    } else {
        at->ahead = (planes * h->size - (int64_t)strip_row * h->stride) * w->size;
        at->ahead_beside = (planes * h->out - strip_row) * w->out;
    }
    for (int b = 0; b < w->kernel; b++) {
        const int64_t column = first + (int64_t)b * w->dilation;

        at->inside[0][b] = inside_of(column, ptac_least(n, LANES), w->size);
        if (w->stride > 1)
            at->inside[1][b] = inside_of(column + LANES, n - LANES, w->size);
    }
}

/* The taps of a strip of pairs, and where they go, from (row, column j) of pairs on. */
INLINE void find_pairs(const unit *u, int row, int j, window *at, pairs_to *to)
{
    const ptac_depthwise_plan *plan = u->plan;
    const ptac_depthwise_axis *h = &plan->h, *w = &plan->w;
    const int odd = w->pad & 1;
    const int64_t first = j - (w->pad - odd) / 2, column = 2 * (int64_t)j;
    const int64_t planes = planes_ahead(u);

    at->image = plan->image + pixel_offset(u, h->size, w->size, 0) + first;
    at->zeros = u->packed;
    at->row_step = w->size;
    at->first = row - (h->pad - odd) / 2;
    at->size = h->size;
    for (int b = 0; b < w->kernel; b++)
        at->inside[0][b] = inside_of(first + (b + 1 - odd) / 2, LANES, w->size);
    to->image = plan->result + pixel_offset(u, h->out, w->out, 0) + column;
    to->first = 2 * row;
    to->size = h->out;
    to->n = (int)ptac_least(2 * LANES, w->out - column);
    if (to->first + 2 * plan->strip < h->out) {
        at->ahead = (int64_t)plan->strip * w->size;
        at->ahead_beside = 2 * (int64_t)plan->strip * w->out;
    } else {
        at->ahead = (planes * h->size - row) * w->size;
        at->ahead_beside = (planes * h->out - to->first) * w->out;
    }
}

INLINE void convolve_pairs(const unit *u)
{
    const ptac_depthwise_plan *plan = u->plan;
    const int rows = (int)ptac_parts(plan->h.out, 2);
    pairs_fn *line_of = pairs_of_lines[plan->h.kernel / 2 - 1][plan->h.pad & 1];

    for (int row = 0; row < rows; row += plan->strip) {
        const int n = (int)ptac_least(plan->strip, rows - row);

        for (int j = 0; 2 * j < plan->w.out; j += LANES) {
            window at;
            pairs_to to;

            find_pairs(u, row, j, &at, &to);
            line_of(&u->l, &at, n, &to);
        }
    }
}

/*
 * Where a row is shorter than a vector, the next one's first pixels are stored behind
 * it and written again when it is that row's turn; where vectors do not divide it, the
 * last one begins earlier.
 */
INLINE void convolve_in_place(const unit *u, int row, int n_rows, float *to)
{
    const int n = u->plan->w.out, n_last = at_most_lanes(n);
    line_in_place_fn *line_of =
        lines_in_place[u->plan->h.kernel / 2 - 1][u->plan->h.stride - 1];

    for (int j = 0; j < n; j += LANES) {
        window at;

        if (n >= LANES && j + LANES > n)
            j = n - LANES;
        find_window(u, row, j, LANES, &at);
        line_of(&u->l, &at, n_rows, to + j, LANES, n_last);
    }
}

/*
 * Rows of n_columns pixels. Where a row is shorter than a vector, the next one's first
 * pixels are stored behind it and written again when it is that row's turn.
 */
INLINE void convolve_columns(const unit *u, int n_rows, float *to)
{
    const int n = u->plan->w.out, n_last = at_most_lanes(n);
    const bool may_overlap = u->l.n_phases == 1 && 2 * n >= LANES;

    if (u->plan->is_signal) {
        convolve_line(u, u->packed + u->plan->lead, (int)ptac_parts(n, LANES), to,
                      LANES, (n - 1) % LANES + 1);
        return;
    }
    for (int j = 0; j < n; j += LANES) {
        if (n >= LANES && j + LANES > n)
            j = n - LANES;
        convolve_line(u, u->packed + u->plan->lead + j, n_rows, to + j,
                      may_overlap ? LANES : n_last, n_last);
    }
}

INLINE void convolve_strip(const unit *u, int row, int n_rows)
{
    const ptac_depthwise_plan *plan = u->plan;
    float *to = plan->result + pixel_offset(u, plan->h.out, plan->w.out, row);
    const int64_t from_step = (int64_t)plan->h.stride * plan->width * LANES;
    const bool is_last = plan->channels_last;
    const int n_lanes = is_last ? u->n_channels : LANES;
    const int64_t row_step = (int64_t)plan->w.out * (is_last ? plan->channels : LANES);

    if (plan->in_place) {
        convolve_in_place(u, row, n_rows, to);
        return;
    }
    pack(u, row, n_rows);
    if (!plan->by_channels) {
        convolve_columns(u, n_rows, to);
        return;
    }
    for (int i = 0; i < n_rows; i++)
        convolve_line(u, u->packed + i * from_step, plan->w.out,
                      (is_last ? to : u->second) + i * row_step, n_lanes, n_lanes);
    if (!is_last)
        transpose_back(u->second, u->n_channels, (int64_t)n_rows * plan->w.out, to,
                       (int64_t)plan->h.out * plan->w.out);
}

TARGET static void convolve_piece(const ptac_depthwise_plan *plan, int64_t piece)
{
    const int64_t last = plan->n_units * (piece + 1) / plan->n_pieces;
    int loaded = -1;
    unit u;

    begin(&u, plan, piece);
    for (int64_t i = plan->n_units * piece / plan->n_pieces; i < last; i++) {
        /* Channels of an image one after the other, or images of a group. */
        const int group = (int)(plan->by_channels ? i / plan->n : i % plan->groups);

        u.image = plan->by_channels ? i % plan->n : i / plan->groups;
        set_group(&u, group);
        u.is_last = i + 1 == last;
        if (group != loaded)
            load_weights(&u);
        loaded = group;
        if (plan->in_pairs) {
            convolve_pairs(&u);
            continue;
        }
        for (int row = 0; row < plan->h.out; row += plan->strip)
            convolve_strip(&u, row, (int)ptac_least(plan->strip, plan->h.out - row));
    }
}

/* Sums in float go on in double. */
TARGET static void flush(unit *u)
{
    for (int i = 0; i <= u->n_taps; i++) {
        if (u->plan->by_channels)
            v_add_to_f64(u->totals + i * LANES, v_load(u->taps + i * LANES));
        else
            u->totals[i] += v_sum_f64(v_load(u->taps + i * LANES));
    }
    memset(u->taps, 0, (size_t)(u->n_taps + 1) * LANES * sizeof *u->taps);
    u->n_terms = 0;
}

/* n gradients of one phase of a line. */
INLINE void multiply_phase(unit *u, const float *from, int n, const float *grad,
                           int n_lanes)
{
    const line *l = &u->l;

    for (int i = 0; i < n; i += FLUSH) {
        const int count = (int)ptac_least(FLUSH, n - i);
        const float *grads = grad + i * l->to_step;

        u->by.products(l, from + i * l->stride * l->from_step, count, grads, n_lanes,
                       u->taps);
        if (u->plan->grad_bias)
            add_gradients(l, grads, count, n_lanes, u->taps + u->n_taps * LANES);
        u->n_terms += count;
        if (u->n_terms >= FLUSH)
            flush(u);
    }
}

/* A line of n gradients, in each of its phases. */
INLINE void multiply_line(unit *u, const float *from, int n, const float *grad,
                          int n_lanes)
{
    const line *l = &u->l;

    for (int phase = 0; phase < l->n_phases && phase < n; phase++)
        multiply_phase(u, from + phase * (l->from_step / l->n_phases),
                       (int)ptac_parts(n - phase, l->n_phases),
                       grad + phase * (l->to_step / l->n_phases), n_lanes);
}

INLINE void multiply_in_place(unit *u, int row, int n_rows, const float *grad)
{
    const ptac_depthwise_plan *plan = u->plan;
    const line *l = &u->l;
    gradient_line_in_place_fn *line_of =
        gradient_lines_in_place[plan->h.kernel / 2 - 1][plan->h.stride - 1];

    FOR_LANES(j, m, 0, plan->w.out, {
        for (int i = 0; i < n_rows; i += FLUSH) {
            const int count = (int)ptac_least(FLUSH, n_rows - i);
            const float *grads = grad + j + i * l->to_step;
            window at;

            find_window(u, row + i, (int)j, m, &at);
            line_of(l, &at, count, grads, m, u->taps);
            if (plan->grad_bias)
                add_gradients(l, grads, count, m, u->taps + u->n_taps * LANES);
            u->n_terms += count;
            if (u->n_terms >= FLUSH)
                flush(u);
        }
    });
}

INLINE void multiply_strip(unit *u, int row, int n_rows)
{
    const ptac_depthwise_plan *plan = u->plan;
    const float *grad = plan->grad + pixel_offset(u, plan->h.out, plan->w.out, row);
    const int64_t from_step = (int64_t)plan->h.stride * plan->width * LANES;
    const int n_lanes = plan->channels_last ? u->n_channels : LANES;

    if (plan->in_place) {
        multiply_in_place(u, row, n_rows, grad);
        return;
    }
    pack(u, row, n_rows);
    if (plan->is_signal) {
        const int whole = plan->w.out / LANES, rest = plan->w.out % LANES;
        const float *from = u->packed + plan->lead;

        multiply_line(u, from, whole, grad, LANES);
        if (rest > 0)
            multiply_line(u, from + whole * LANES, 1, grad + whole * LANES, rest);
        return;
    }
    if (!plan->by_channels) {
        FOR_LANES(j, m, 0, plan->w.out, {
            multiply_line(u, u->packed + plan->lead + j, n_rows, grad + j, m);
        });
        return;
    }
    if (!plan->channels_last) {
        transpose_planes(grad, (int64_t)plan->h.out * plan->w.out, u->n_channels,
                         (int64_t)n_rows * plan->w.out, u->second);
        grad = u->second;
    }
    for (int i = 0; i < n_rows; i++) {
        multiply_line(u, u->packed + i * from_step, plan->w.out, grad, n_lanes);
        grad += (int64_t)plan->w.out * (plan->channels_last ? plan->channels : LANES);
    }
}

INLINE void store_weights(const unit *u)
{
    const ptac_depthwise_plan *plan = u->plan;
    const int n = u->n_taps, h = plan->h.kernel, w = plan->w.kernel;
    float *to = plan->result + (int64_t)u->channel * n;

    if (!plan->by_channels) {
        for (int a = 0; a < h; a++)
            for (int b = 0; b < w; b++)
                *to++ = (float)u->totals[b * h + a];
        if (plan->grad_bias)
            plan->grad_bias[u->channel] = (float)u->totals[n];
        return;
    }
    for (int i = 0; i < u->n_channels; i++, to += n) {
        for (int tap = 0; tap < n; tap++)
            to[tap] = (float)u->totals[tap * LANES + i];
        if (plan->grad_bias)
            plan->grad_bias[u->channel + i] = (float)u->totals[n * LANES + i];
    }
}

TARGET static void sum_piece(const ptac_depthwise_plan *plan, int64_t piece)
{
    const int64_t last = plan->n_units * (piece + 1) / plan->n_pieces;
    unit u;

    begin(&u, plan, piece);
    for (int64_t i = plan->n_units * piece / plan->n_pieces; i < last; i++) {
        memset(u.taps, 0, (size_t)plan->n_taps * sizeof *u.taps);
        memset(u.totals, 0, (size_t)plan->n_taps * sizeof *u.totals);
        set_group(&u, (int)i);
        for (u.image = 0; u.image < plan->n; u.image++) {
            u.is_last = i + 1 == last && u.image + 1 == plan->n;
            for (int row = 0; row < plan->h.out; row += plan->strip)
                multiply_strip(&u, row,
                               (int)ptac_least(plan->strip, plan->h.out - row));
        }
        flush(&u);
        store_weights(&u);
    }
}

#define DEFINE_STAGE(stage, one)                                                       \
    static void stage(int64_t begin, int64_t end, void *context)                       \
    {                                                                                  \
        for (int64_t i = begin; i < end; i++)                                          \
            one(context, i);                                                           \
    }
DEFINE_STAGE(convolve, convolve_piece)
DEFINE_STAGE(sum_weights, sum_piece)

static ptac_reason accepts(const ptac_call *call)
{
    return ptac_depthwise_accepts(call, LANES);
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_depthwise_stages stages = {LANES, convolve, sum_weights};

    return ptac_depthwise_run(call, &stages);
}

PTAC_ROW(DEPTHWISE_CONV2D, ISA, PTAC_CLOSE, NEEDS, accepts, run, .spreads = true)
PTAC_ROW(DEPTHWISE_CONV2D_BACKWARD, ISA, PTAC_CLOSE, NEEDS, accepts, run,
         .spreads = true)
