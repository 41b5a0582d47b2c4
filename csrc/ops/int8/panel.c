/*
 * panel.c - from plain weights to panels and back.
 */
#include "ops/int8/panel.h"

#include "core/host.h"

#include <string.h>

typedef struct panel_job {
    const ptac_packed_shape *shape;
    const int8_t *from;
    int8_t *to;
    int32_t *sums; /* NULL: unpack */
} panel_job;

/* Where one output channel's weights lie in its panel. */
typedef struct column {
    int64_t first;  /* byte */
    int64_t stride; /* from one four of input channels to the next */
} column;

static column column_of(const ptac_packed_shape *s, int64_t n)
{
    const int64_t per_group = s->n / s->groups;
    const int64_t group = n / per_group, in_group = n % per_group;
    const int64_t panel = in_group / PTAC_PANEL * PTAC_PANEL;
    const int64_t width =
        ptac_least(ptac_packed_columns(per_group) - panel, PTAC_PANEL);
    const int64_t depth = s->taps * ptac_quads(s->c) * PTAC_QUAD;

    return (column){
        .first = group * ptac_group_bytes(s) + panel * depth +
                 (in_group - panel) * PTAC_QUAD,
        .stride = width * PTAC_QUAD,
    };
}

static int32_t sum_of(const int8_t *w, int64_t n)
{
    int32_t sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += w[i];
    return sum;
}

/* Four input channels of one tap. */
static void pack_quad(const ptac_packed_shape *s, const int8_t *plain, int64_t c,
                      int8_t *to)
{
    if (s->taps == 1 && c + PTAC_QUAD <= s->c) {
        memcpy(to, plain + c, PTAC_QUAD);
        return;
    }
    for (int64_t i = 0; i < PTAC_QUAD; i++)
        to[i] = c + i < s->c ? plain[(c + i) * s->taps] : 0;
}

static void pack_columns(int64_t begin, int64_t end, void *context)
{
    const panel_job *job = context;
    const ptac_packed_shape *s = job->shape;

    for (int64_t n = begin; n < end; n++) {
        const column at = column_of(s, n);
        const int8_t *plain = job->from + n * s->c * s->taps;
        int8_t *to = job->to + at.first;

        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t c = 0; c < s->c; c += PTAC_QUAD, to += at.stride)
                pack_quad(s, plain + tap, c, to);
        job->sums[n] = sum_of(plain, s->c * s->taps);
    }
}

static void unpack_columns(int64_t begin, int64_t end, void *context)
{
    const panel_job *job = context;
    const ptac_packed_shape *s = job->shape;

    for (int64_t n = begin; n < end; n++) {
        const column at = column_of(s, n);
        const int8_t *from = job->from + at.first;
        int8_t *plain = job->to + n * s->c * s->taps;

        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t c = 0; c < s->c; c += PTAC_QUAD, from += at.stride)
                for (int64_t i = 0; i < PTAC_QUAD && c + i < s->c; i++)
                    plain[(c + i) * s->taps + tap] = from[i];
    }
}

enum {
    GRAIN_BYTES = 1 << 16, /* of weights, that are worth a thread */
};

static int64_t columns_per_piece(const ptac_packed_shape *s)
{
    return 1 + GRAIN_BYTES / (1 + s->c * s->taps);
}

bool ptac_int8_is_countable(const int64_t *sizes, int n_sizes)
{
    int64_t n = 1;

    for (int i = 0; i < n_sizes; i++)
        if (sizes[i] < 1 || __builtin_mul_overflow(n, sizes[i], &n) ||
            n > PTAC_INT8_MOST_ELEMENTS)
            return false;
    return true;
}

bool ptac_packed_is_sound(const ptac_packed_shape *s)
{
    const int64_t sizes[] = {s->n, s->c, s->taps};

    return ptac_int8_is_countable(sizes, 3) && s->groups >= 1 && s->n % s->groups == 0;
}

void ptac_pack(const ptac_packed_shape *s, const int8_t *plain, int8_t *packed)
{
    panel_job job = {s, plain, packed, (int32_t *)(packed + ptac_panels_bytes(s))};

    memset(packed, 0, (size_t)ptac_panels_bytes(s)); /* columns that fill up */
    ptac_parallel_for(0, s->n, columns_per_piece(s), pack_columns, &job);
}

void ptac_unpack(const ptac_packed_shape *s, const int8_t *packed, int8_t *plain)
{
    panel_job job = {s, packed, plain, NULL};

    ptac_parallel_for(0, s->n, columns_per_piece(s), unpack_columns, &job);
}
