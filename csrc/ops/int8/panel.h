/*
 * panel.h - int8 weights in the order in which the kernels read them.
 *
 * A weight [n, c, taps] (a linear layer has one tap; a convolution has one for each
 * place of its window) is cut into groups of output channels, and these into panels of
 * 64. In a panel, for each tap and each four input channels lie the four weights of
 * every output channel, channel by channel: what one dot-product instruction takes. The
 * last panel is a multiple of 16 wide, input channels a multiple of four; zeros fill
 * up. Behind the panels are the sums over each output channel, int32, which the zero
 * points of the activations are multiplied by.
 *
 * Packed weights are aligned to the sums' four bytes; to 64, as torch's allocator does,
 * they are faster. All instruction sets read this one layout. It is made from plain
 * weights when a module meets them and never stored.
 */
#ifndef PTAC_OPS_INT8_PANEL_H
#define PTAC_OPS_INT8_PANEL_H

#include "core/base.h"

enum {
    PTAC_PANEL = 64,      /* output channels */
    PTAC_LANES = 16,      /* of them in a vector */
    PTAC_QUAD = 4,        /* input channels that are multiplied and added at once */
    PTAC_PANEL_LINE = 64, /* bytes; the sums begin at a multiple of it */
};

typedef struct ptac_packed_shape {
    int64_t n, c, taps; /* c: input channels of one group */
    int64_t groups;
} ptac_packed_shape;

/* Activations of one tap as the kernels read them: channels filled up. */
static inline int64_t ptac_quads(int64_t c)
{
    return ptac_parts(c, PTAC_QUAD);
}

static inline int64_t ptac_packed_columns(int64_t n)
{
    return ptac_parts(n, PTAC_LANES) * PTAC_LANES;
}

/* So many bytes or a few more: what begins behind them begins a cache line. */
static inline int64_t ptac_whole_lines(int64_t n_bytes)
{
    return ptac_parts(n_bytes, PTAC_PANEL_LINE) * PTAC_PANEL_LINE;
}

/* Bytes of a group's panels, of all of them, and of everything. */
static inline int64_t ptac_group_bytes(const ptac_packed_shape *s)
{
    return ptac_packed_columns(s->n / s->groups) * s->taps * ptac_quads(s->c) *
           PTAC_QUAD;
}

static inline int64_t ptac_panels_bytes(const ptac_packed_shape *s)
{
    return ptac_whole_lines(s->groups * ptac_group_bytes(s));
}

static inline int64_t ptac_packed_bytes(const ptac_packed_shape *s)
{
    return ptac_panels_bytes(s) + s->n * (int64_t)sizeof(int32_t);
}

/* No tensor has more elements; what we make of such a number stays far below 2^63. */
#define PTAC_INT8_MOST_ELEMENTS (INT64_C(1) << 45)

/* Whether a tensor of these sizes, of which none is below 1, has no more of them. */
bool ptac_int8_is_countable(const int64_t *sizes, int n_sizes);

/*
 * Whether the functions above and below may be asked about a shape: its weights are
 * countable, and its groups divide the output channels.
 */
bool ptac_packed_is_sound(const ptac_packed_shape *s);

static inline const int32_t *ptac_packed_sums(const ptac_packed_shape *s,
                                              const int8_t *packed)
{
    return (const int32_t *)(packed + ptac_panels_bytes(s));
}

/* plain is [n, c, taps]; packed has ptac_packed_bytes(). n is a multiple of groups. */
void ptac_pack(const ptac_packed_shape *s, const int8_t *plain, int8_t *packed);
void ptac_unpack(const ptac_packed_shape *s, const int8_t *packed, int8_t *plain);

#endif
