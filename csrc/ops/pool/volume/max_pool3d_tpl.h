/*
 * max_pool3d_tpl.h - 3-d max pooling, a vector at a time.
 *
 * NCDHW: the rows that a row of outputs touches are compared with each other first, so
 * that all lanes work whatever the window's width; then neighbouring columns. As the
 * columns' order is not that of positions, each carries the position of its maximum:
 * among equal taps the lowest position wins, and the highest among NaNs. Cubes of
 * 2x2x2 side by side keep no columns: rows are read as pairs. NDHWC: as images, with
 * more taps.
 *
 * pool_tpl.h has the words. Leaves OF(max_volumes) and OF(max_volume_rows), each a
 * ptac_range_fn of a ptac_call.
 */
#include "ops/pool/volume/max_pool3d.h"
#include "ops/pool/volume/max_pool3d_rows.h"

/* Rows of columns' maxima and of their positions, those outside the volume too. */
struct OF(columns) {
    REAL best[PTAC_VOLUME_REALS];
    int32_t at[PTAC_VOLUME_REALS];
};

/* The maxima of n_vectors vectors of rows, from column i on; n lanes of the last. */
INLINE void OF(max_of_rows)(const ELEM *x, const int32_t *rows, int n_rows, int64_t i,
                            int n_vectors, int n, REAL *best, int32_t *at)
{
    VEC v[2];
    IVEC from[2];

    FOR_VECTORS(j, n_vectors)
    {
        v[j] = LOAD(x + rows[0] + i + j * N_LANES, n);
        from[j] = ISET(rows[0]);
    }
    for (int k = 1; k < n_rows; k++) {
        const ELEM *row = x + rows[k] + i;
        const IVEC here = ISET(rows[k]);

        FOR_VECTORS(j, n_vectors)
        {
            const VEC tap = LOAD(row + j * N_LANES, n);
            const MASK beats = OF(beats)(tap, v[j]);

            v[j] = PICK(beats, v[j], tap);
            from[j] = IPICK(beats, from[j], here);
        }
    }
    FOR_VECTORS(j, n_vectors)
    {
        from[j] = IADD(from[j], IADD(IRAMP(1), ISET((int32_t)i + j * N_LANES)));
        if (n < N_LANES) {
            v[j] = PICK(RANGE(0, n), SET(-INFINITY), v[j]);
            from[j] = IPICK(RANGE(0, n), ISET(INT32_MAX), from[j]);
        }
        STORE_REAL(best + i + j * N_LANES, v[j]);
        ISTORE(at + i + j * N_LANES, from[j]);
    }
}

/* The maxima of n_rows rows of w elements, which begin at these offsets in x. */
TARGET static inline void OF(max_columns)(const ELEM *x, const int32_t *rows,
                                          int n_rows, int64_t w, REAL *best,
                                          int32_t *at)
{
    int64_t i = 0;

    for (; i + 2 * N_LANES <= w; i += 2 * N_LANES)
        OF(max_of_rows)(x, rows, n_rows, i, 2, N_LANES, best, at);
    for (; i + N_LANES <= w; i += N_LANES)
        OF(max_of_rows)(x, rows, n_rows, i, 1, N_LANES, best, at);
    if (i < w)
        OF(max_of_rows)(x, rows, n_rows, i, 1, (int)(w - i), best, at);
}

/* Every stride-th of the first columns, n of them. */
INLINE void OF(load_columns)(const REAL *best, const int32_t *at, int64_t stride, int n,
                             VEC *values, IVEC *positions)
{
    if (stride == 1) {
        *values = LOAD_REAL(best);
        *positions = ILOAD(at);
    } else if (stride == 2) {
        *values = LOAD2_REAL(best);
        *positions = ILOAD2(at);
    } else {
        REAL some[N_LANES] = {0};
        int32_t theirs[N_LANES] = {0};

        for (int i = 0; i < n; i++) {
            some[i] = best[i * stride];
            theirs[i] = at[i * stride];
        }
        *values = LOAD_REAL(some);
        *positions = ILOAD(theirs);
    }
}

/* Lanes where v, at a position, wins over best, at another. */
INLINE MASK OF(beats_at)(VEC v, IVEC position, VEC best, IVEC at)
{
    const MASK equal = AND(COMPARE(v, best, _CMP_EQ_OQ), ILESS(position, at));
    const MASK beats = OR(GREATER(v, best), equal);

    if (__builtin_expect(IS_NONE(UNORDERED(v, v)), 1))
        return beats;
    return OR(beats, AND(UNORDERED(v, v),
                         OR(COMPARE(best, best, _CMP_ORD_Q), ILESS(at, position))));
}

/* A row of outputs from its columns; the padding's come before the volume's. */
INLINE void OF(max_along)(const REAL *best, const int32_t *at, const ptac_window *w,
                          int64_t stride, int64_t n_outputs, ELEM *y, int64_t *index)
{
    for (int64_t ow = 0; ow < n_outputs; ow += N_LANES) {
        const int n = n_outputs - ow < N_LANES ? (int)(n_outputs - ow) : N_LANES;
        VEC v, tap;
        IVEC from, position;

        OF(load_columns)(best + ow * stride, at + ow * stride, stride, n, &v, &from);
        for (int64_t kw = 1; kw < w->kernel; kw++) {
            const int64_t column = ow * stride + kw * w->dilation;
            MASK beats;

            OF(load_columns)(best + column, at + column, stride, n, &tap, &position);
            beats = OF(beats_at)(tap, position, v, from);
            v = PICK(beats, v, tap);
            from = IPICK(beats, from, position);
        }
        STORE(y + ow, v, n);
        STORE_INDEX(index + ow, from, n);
    }
}

TARGET static inline void OF(max_row_along)(const REAL *best, const int32_t *at,
                                            const ptac_window *w, int64_t n_outputs,
                                            ELEM *y, int64_t *index)
{
    if (w->stride == 1)
        OF(max_along)(best, at, w, 1, n_outputs, y, index);
    else if (w->stride == 2)
        OF(max_along)(best, at, w, 2, n_outputs, y, index);
    else
        OF(max_along)(best, at, w, w->stride, n_outputs, y, index);
}

/* n outputs of cubes side by side, whose first one's four rows begin here. */
INLINE void OF(max_of_cubes)(const ELEM *const rows[4], const int32_t offsets[4],
                             int32_t position, int n, ELEM *y, int64_t *index)
{
    VEC v[8], best;
    IVEC from = ISET(position);
    MASK is_nan;

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        LOAD_PAIRS(rows[k], n, &v[2 * k], &v[2 * k + 1]);
    is_nan = OR(OR(UNORDERED(v[0], v[1]), UNORDERED(v[2], v[3])),
                OR(UNORDERED(v[4], v[5]), UNORDERED(v[6], v[7])));
    best = v[0];
#pragma GCC unroll 8
    for (int k = 1; k < 8; k++) {
        const IVEC here = ISET(position + offsets[k / 2] + k % 2);
        MASK beats = GREATER(v[k], best);

        if (__builtin_expect(!IS_NONE(is_nan), 0))
            beats = OF(beats)(v[k], best);
        best = PICK(beats, best, v[k]);
        from = IPICK(beats, from, here);
    }
    STORE(y, best, n);
    STORE_INDEX(index, IADD(from, IRAMP(2)), n);
}

/* Planes [begin, end) of windows of 2x2x2 side by side: each row is read once. */
TARGET static void OF(max_tiled_volumes)(int64_t begin, int64_t end,
                                         const ptac_call *call)
{
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const int64_t w = slab->w, out_w = slab->out_w, n_in = slab->h * w;
    const int32_t offsets[] = {0, (int32_t)w, (int32_t)n_in, (int32_t)(n_in + w)};
    const int64_t n_rows = p->depth.outputs * slab->out_h;
    ELEM *y = (ELEM *)call->outputs[0].data + begin * n_rows * out_w;
    int64_t *index = (int64_t *)call->outputs[1].data + begin * n_rows * out_w;
    ptac_volume_row next = {.plane = begin};

    for (int64_t i = begin * n_rows; i < end * n_rows; i++) {
        const ptac_volume_row here = ptac_volume_row_step(p, &next);
        const int64_t at = 2 * (here.od * slab->h + here.oh) * w;
        const ELEM *x = (const ELEM *)call->inputs[0].data + at;

        x += here.plane * p->depth.size * n_in;
        for (int64_t ow = 0; ow < out_w; ow += N_LANES) {
            const ELEM *row = x + 2 * ow;
            const ELEM *const rows[] = {row, row + w, row + n_in, row + n_in + w};
            const int32_t position = (int32_t)(at + 2 * ow);

            /* A number of lanes that is known asks for no masks. */
            if (ow + N_LANES <= out_w)
                OF(max_of_cubes)(rows, offsets, position, N_LANES, y + ow, index + ow);
            else
                OF(max_of_cubes)
            (rows, offsets, position, (int)(out_w - ow), y + ow, index + ow);
        }
        y += out_w;
        index += out_w;
    }
}

/*
 * Planes [begin, end). A few rows of outputs at a time: their columns first, then along
 * them, for stores are slow to load at once from another offset.
 */
TARGET static void OF(max_volumes)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const ptac_window *w = &p->slab.window.w;
    const int64_t n_in = ptac_volume_positions(slab, &p->depth);
    const int64_t n_rows = p->depth.outputs * slab->out_h;
    const int64_t row = ptac_max_pool3d_row(p);
    const int64_t most = ptac_max_pool3d_rows_at_once(p);
    struct OF(columns) columns;
    ptac_volume_row next = {.plane = begin};
    int32_t rows[PTAC_MAX_TAPS];

    /* Of shorter rows too many lanes idle: columns join them. */
    if (ptac_max_pool3d_is_tiled(p) && 4 * slab->out_w > 3 * N_LANES) {
        OF(max_tiled_volumes)(begin, end, call);
        return;
    }
    for (int64_t i = 0; i < PTAC_VOLUME_REALS; i++) {
        columns.best[i] = (REAL)-INFINITY;
        columns.at[i] = INT32_MAX;
    }
    for (int64_t i = begin * n_rows; i < end * n_rows;) {
        const int64_t n = ptac_least(most, end * n_rows - i);
        const int64_t at_once = ptac_max_pool3d_is_line(p) ? n : 1;

        for (int64_t k = 0; k < n; k++) {
            const ptac_volume_row here = ptac_volume_row_step(p, &next);
            const int n_taps = ptac_max_pool3d_rows(p, &here, rows);
            const ELEM *x = (const ELEM *)call->inputs[0].data + here.plane * n_in;

            OF(max_columns)
            (x, rows, n_taps, slab->w, columns.best + k * row + w->padding,
             columns.at + k * row + w->padding);
        }
        for (int64_t k = 0; k < n; k += at_once)
            OF(max_row_along)
        (columns.best + k * row, columns.at + k * row, w, at_once * slab->out_w,
         (ELEM *)call->outputs[0].data + (i + k) * slab->out_w,
         (int64_t *)call->outputs[1].data + (i + k) * slab->out_w);
        i += n;
    }
}

/* NDHWC: rows [begin, end) of the output. */
TARGET static void OF(max_volume_rows)(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const ptac_window *d = &p->depth.window, *h = &p->slab.window.h,
                      *w = &p->slab.window.w;
    const int64_t channels = slab->channels, n_rows = p->depth.outputs * slab->out_h;

    for (int64_t i = begin; i < end; i++) {
        const int64_t id = i % n_rows / slab->out_h * d->stride - d->padding;
        const int64_t ih = i % slab->out_h * h->stride - h->padding;
        const int64_t out = i * slab->out_w * channels;
        struct OF(taps) taps = {
            .x = (const ELEM *)call->inputs[0].data +
                 i / n_rows * ptac_volume_positions(slab, &p->depth) * channels,
            .y = (ELEM *)call->outputs[0].data + out,
            .index = (int64_t *)call->outputs[1].data + out,
            .slab = d->dilation * slab->h * slab->w,
        };
        int64_t d0, d1, h0, h1, w0, w1;

        ptac_window_clip(d, id, p->depth.size, &d0, &d1);
        ptac_window_clip(h, ih, slab->h, &h0, &h1);
        taps.n_slabs = d1 - d0;
        taps.n_rows = h1 - h0;
        for (int64_t ow = 0; ow < slab->out_w; ow++) {
            const int64_t iw = ow * w->stride - w->padding;

            ptac_window_clip(w, iw, slab->w, &w0, &w1);
            taps.n_columns = w1 - w0;
            taps.at =
                ((id + d0 * d->dilation) * slab->h + ih + h0 * h->dilation) * slab->w +
                iw + w0 * w->dilation;
            OVER_CHANNELS(channels, OF(max_pixel), &p->slab, &taps);
            taps.y += channels;
            taps.index += channels;
        }
    }
}
