/*
 * pack.h - lossless packing of what autograd saves.
 *
 * Each function says by its result whether the contents allow it; nothing is lost
 * where it does. Elements are compared by their bits, so that -0.0 and the NaNs are
 * values of their own. Inputs and outputs do not overlap, elements are aligned to
 * their size, bits lie lowest first and are filled up with zeros. n may be 0. The work
 * is shared out among the host's threads.
 */
#ifndef PTAC_OPS_PACK_PACK_H
#define PTAC_OPS_PACK_PACK_H

#include "core/base.h"

enum {
    PTAC_PACK_CHUNK = 4096, /* elements that are packed together; a multiple of 64 */
};

/* How many chunks n elements are. */
int64_t ptac_pack_chunks(int64_t n);

/* What a sample of the elements promises. */
typedef enum ptac_pack_promise {
    PTAC_PACK_NOTHING = 0,
    PTAC_PACK_TWO_VALUES,
    PTAC_PACK_ZEROS, /* two of five at least */
} ptac_pack_promise;

/* Look at some elements, of 2, 4 or 8 bytes. Zeros are looked for in 4 bytes only. */
ptac_pack_promise ptac_pack_probe(const void *x, int64_t n, int width);

/*
 * Elements of width 1, 2, 4 or 8 bytes with at most two values: bits gets a set bit
 * for each element that is values[1], (n + 63) / 64 words. False, with bits undefined,
 * where there is a third value.
 */
bool ptac_pack_bitmask(const void *x, int64_t n, int width, uint64_t values[2],
                       uint64_t *bits);
void ptac_unpack_bitmask(const uint64_t *bits, const uint64_t values[2], int64_t n,
                         int width, void *x);

/*
 * Elements of 4 bytes many of which are 0: count the others, in each chunk and in all;
 * starts gets ptac_pack_chunks(n) + 1 numbers, the last of which is the total that is
 * returned. Packing puts a bit for each element that is not 0 into (n + 63) / 64 words
 * and the elements themselves, in their order, into values; false, with both undefined,
 * where somebody has changed x since it was counted.
 */
int64_t ptac_pack_count(const uint32_t *x, int64_t n, int64_t *starts);
bool ptac_pack_nonzero(const uint32_t *x, int64_t n, const int64_t *starts,
                       uint64_t *bits, uint32_t *values);
void ptac_unpack_nonzero(const uint64_t *bits, const uint32_t *values,
                         const int64_t *starts, int64_t n, uint32_t *x);

/* int64: the least width (1, 2, 4, else 8) that holds all unsigned; there and back. */
int ptac_pack_index_width(const int64_t *x, int64_t n);
void ptac_pack_indices(const int64_t *x, int64_t n, int width, void *narrow);
void ptac_unpack_indices(const void *narrow, int64_t n, int width, int64_t *x);

#endif
