/*
 * turn_tpl.h - planes turned by blocks of N x N elements.
 *
 *   BYTES   of an element
 *   N       rows and columns of a block
 *   BLOCK   turns one, see turn_avx2.h
 *   TURN    the name of the function that is made: stripes [begin, end) of all planes
 *   BIG, BIG_BLOCK   a larger block, of full size only: a cache line each way
 *   TARGET, INLINE   as in turn_avx2.h; these stay
 *
 * Rows are what the input has apart, columns what the output has apart. Large planes
 * are turned in stripes of few columns, so that the lines of both sides stay in the
 * first cache until they are whole. Where a side ends within a block, the block begins
 * earlier and writes some elements once more. All are undefined at the end.
 */
#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define AT(name)     PASTE(PASTE(name, _), BYTES)

typedef struct AT(plane) {
    const char *from;
    char *to;
    int64_t from_stride, to_stride; /* of rows, of columns */
    int64_t rows, columns;          /* of the whole plane */
} AT(plane);

/* The elements of rows [r, r_end) and columns [c, c_end), one by one. */
INLINE void AT(turn_each)(const AT(plane) * p, int64_t r_begin, int64_t r_end,
                          int64_t c_begin, int64_t c_end)
{
    for (int64_t c = c_begin; c < c_end; c++)
        for (int64_t r = r_begin; r < r_end; r++)
            memcpy(p->to + c * p->to_stride + r * BYTES,
                   p->from + r * p->from_stride + c * BYTES, BYTES);
}

INLINE void AT(turn_block)(const AT(plane) * p, int64_t r, int n_rows, int64_t c,
                           int n_columns)
{
    BLOCK(p->from + r * p->from_stride + c * BYTES, p->from_stride, n_rows,
          p->to + c * p->to_stride + r * BYTES, p->to_stride, n_columns);
}

/* Some rows and some columns, of each at least N. */
INLINE void AT(turn_small)(const AT(plane) * p, int64_t r_begin, int64_t r_end,
                           int64_t c_begin, int64_t c_end)
{
    for (int64_t r = r_begin; r < r_end; r += N) {
        const int64_t r_here = ptac_least(r, r_end - N);

        for (int64_t c = c_begin; c < c_end; c += N)
            AT(turn_block)(p, r_here, N, ptac_least(c, c_end - N), N);
    }
}

/* Ask for the lines of the block that begins there, of both sides. */
INLINE void AT(turn_ask)(const AT(plane) * p, int64_t r, int64_t c)
{
#pragma GCC unroll 8
    for (int i = 0; i < BIG; i++) {
        __builtin_prefetch(p->from + (r + i) * p->from_stride + c * BYTES);
        __builtin_prefetch(p->to + (c + i) * p->to_stride + r * BYTES, 1);
    }
}

/*
 * A stripe of columns, all rows; BIG of each or more. By rows of blocks, so that the
 * lines which one leaves unfinished are soon written again. The hardware does not
 * foresee so many streams: what comes next, below or in the stripe beside, is asked for
 * a row of blocks ahead.
 */
INLINE void AT(turn_wide)(const AT(plane) * p, int64_t c_begin, int64_t c_end)
{
    for (int64_t r = 0; r < p->rows; r += BIG) {
        const bool is_last = r + BIG >= p->rows;
        const int64_t next_r = is_last ? 0 : r + BIG;
        const int64_t beside = is_last ? c_end - c_begin : 0;
        const int64_t r_here = ptac_least(r, p->rows - BIG);

        for (int64_t c = c_begin; c < c_end; c += BIG) {
            const int64_t c_here = ptac_least(c, c_end - BIG);

            if (c + beside < p->columns)
                AT(turn_ask)(p, next_r, c + beside);
            BIG_BLOCK(p->from + r_here * p->from_stride + c_here * BYTES,
                      p->from_stride, p->to + c_here * p->to_stride + r_here * BYTES,
                      p->to_stride);
        }
    }
}

/*
 * Columns lie one behind the other in the output: what a block writes behind a short
 * one is overwritten by the next. Where there is no next, elements go one by one.
 */
INLINE void AT(turn_few_rows)(const AT(plane) * p, int n_rows, int64_t c, int64_t c_end)
{
    const int64_t behind = (N - 1) / n_rows;

    for (; c + N + behind <= c_end; c += N)
        AT(turn_block)(p, 0, n_rows, c, N);
    AT(turn_each)(p, 0, n_rows, c, c_end);
}

/* Rows that end within N elements behind the last one of the plane go one by one. */
INLINE void AT(turn_few_columns)(const AT(plane) * p, int n_columns, int64_t r,
                                 int64_t r_end)
{
    const int64_t size = (p->rows - 1) * p->from_stride + n_columns * BYTES;

    for (; r + N <= r_end && (r + N - 1) * p->from_stride + N * BYTES <= size; r += N)
        AT(turn_block)(p, r, N, 0, n_columns);
    AT(turn_each)(p, r, r_end, 0, n_columns);
}

/* One stripe; few rows or columns are constants where they are usual. */
INLINE void AT(turn_stripe)(const AT(plane) * p, bool of_columns, int64_t begin,
                            int64_t end)
{
    const int64_t few = of_columns ? p->rows : p->columns;

    if (of_columns && p->rows >= 2 * BIG && end - begin >= 2 * BIG)
        AT(turn_wide)(p, begin, end);
    else if (of_columns && p->rows >= N && p->columns >= N)
        AT(turn_small)(p, 0, p->rows, begin, end);
    else if (p->rows >= N && p->columns >= N)
        AT(turn_small)(p, begin, end, 0, p->columns);
    else if (of_columns && p->to_stride != few * BYTES)
        AT(turn_each)(p, 0, few, begin, end);
    else if (of_columns)
        switch (few) {
        case 2:
            AT(turn_few_rows)(p, 2, begin, end);
            break;
        case 3:
            AT(turn_few_rows)(p, 3, begin, end);
            break;
        case 4:
            AT(turn_few_rows)(p, 4, begin, end);
            break;
        default:
            AT(turn_few_rows)(p, (int)few, begin, end);
        }
    else
        switch (few) {
        case 2:
            AT(turn_few_columns)(p, 2, begin, end);
            break;
        case 3:
            AT(turn_few_columns)(p, 3, begin, end);
            break;
        case 4:
            AT(turn_few_columns)(p, 4, begin, end);
            break;
        default:
            AT(turn_few_columns)(p, (int)few, begin, end);
        }
}

TARGET static void TURN(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_copy *p = call->params;
    const int columns = p->n_dims - 2, rows = columns + 1;
    const ptac_copy_stripes cut = ptac_copy_cut(p);
    const int64_t wide = cut.of_columns ? p->sizes[columns] : p->sizes[rows];
    ptac_copy_place place = ptac_copy_seek(p, 2, begin / cut.n);
    int64_t stripe = begin % cut.n;

    for (int64_t i = begin; i < end; i++) {
        const AT(plane) plane = {
            .from = (const char *)call->inputs[0].data + place.from,
            .to = (char *)call->outputs[0].data + place.to,
            .from_stride = p->from[rows],
            .to_stride = p->to[columns],
            .rows = p->sizes[rows],
            .columns = p->sizes[columns],
        };

        AT(turn_stripe)
        (&plane, cut.of_columns, stripe * cut.width,
         stripe == cut.n - 1 ? wide : (stripe + 1) * cut.width);
        if (++stripe == cut.n) {
            ptac_copy_step(p, &place);
            stripe = 0;
        }
    }
}

#undef BYTES
#undef N
#undef BLOCK
#undef TURN
#undef BIG
#undef BIG_BLOCK
#undef AT
#undef PASTE
#undef PASTE_
