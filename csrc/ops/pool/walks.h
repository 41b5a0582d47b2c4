/*
 * walks.h - the order in which vectors go over images.
 *
 * Included after typed_<isa>.h, whose N_LANES it uses.
 */
#ifndef PTAC_OPS_POOL_WALKS_H
#define PTAC_OPS_POOL_WALKS_H

/*
 * NHWC: step(..., c, n_vectors, n) over all channels of a pixel, n of them in the last
 * vector, and as many vectors at a time as the registers hold.
 */
#define OVER_CHANNELS(channels, step, ...)                                             \
    do {                                                                               \
        int64_t c = 0;                                                                 \
                                                                                       \
        for (; c + MOST_VECTORS * N_LANES <= (channels); c += MOST_VECTORS * N_LANES)  \
            step(__VA_ARGS__, c, MOST_VECTORS, N_LANES);                               \
        for (; c + 2 * N_LANES <= (channels); c += 2 * N_LANES)                        \
            step(__VA_ARGS__, c, 2, N_LANES);                                          \
        for (; c + N_LANES <= (channels); c += N_LANES)                                \
            step(__VA_ARGS__, c, 1, N_LANES);                                          \
        if (c < (channels))                                                            \
            step(__VA_ARGS__, c, 1, (int)((channels)-c));                              \
    } while (0)

enum {
    MOST_VECTORS = 4,
};

/* Where n_vectors is a constant up to MOST_VECTORS. */
#define FOR_VECTORS(i, n_vectors)                                                      \
    _Pragma("GCC unroll 4") for (int i = 0; i < (n_vectors); i++)

/*
 * NCHW: the ptac_range_fn name, which goes over planes, a few at a time: cut() for each
 * N_LANES outputs of a row, from ow on, and column() for these in each of the planes.
 * So the pieces of a row find it in the cache. planar is what cut() takes: *p, or a
 * member of the params p.
 */
#define OVER_PIECES(name, params_type, planar, piece_type, cut, column)                \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const params_type *p = call->params;                                           \
        piece_type piece;                                                              \
                                                                                       \
        for (int64_t i = begin; i < end; i += 4) {                                     \
            const int64_t stop = end - i < 4 ? end : i + 4;                            \
                                                                                       \
            for (int64_t ow = 0; ow < (planar).image.out_w; ow += N_LANES) {           \
                cut(&(planar), ow, &piece);                                            \
                for (int64_t plane = i; plane < stop; plane++)                         \
                    column(call, plane, &piece);                                       \
            }                                                                          \
        }                                                                              \
    }

#endif
