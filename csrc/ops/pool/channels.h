/*
 * channels.h - walks over the channels of an NHWC pixel, several vectors at a time.
 *
 * Included after typed_<isa>.h, whose N_LANES it uses.
 */
#ifndef PTAC_OPS_POOL_CHANNELS_H
#define PTAC_OPS_POOL_CHANNELS_H

/*
 * STEP(c, n_vectors, n) over all channels of a pixel, n of them in the last vector, and
 * as many vectors at a time as the registers hold.
 */
#define OVER_CHANNELS(channels, STEP)                                                  \
    do {                                                                               \
        int64_t c = 0;                                                                 \
                                                                                       \
        for (; c + MOST_VECTORS * N_LANES <= (channels); c += MOST_VECTORS * N_LANES)  \
            STEP(c, MOST_VECTORS, N_LANES);                                            \
        for (; c + 2 * N_LANES <= (channels); c += 2 * N_LANES)                        \
            STEP(c, 2, N_LANES);                                                       \
        for (; c + N_LANES <= (channels); c += N_LANES)                                \
            STEP(c, 1, N_LANES);                                                       \
        if (c < (channels))                                                            \
            STEP(c, 1, (int)((channels)-c));                                           \
    } while (0)

enum {
    MOST_VECTORS = 4,
};

/* Where n_vectors is a constant up to MOST_VECTORS. */
#define FOR_VECTORS(i, n_vectors)                                                      \
    _Pragma("GCC unroll 4") for (int i = 0; i < (n_vectors); i++)

#endif
