/*
 * isa.h - what an instruction set has to bring for int8 products.
 *
 * Everything else (blocking, threads, convolution windows, epilogue order) is common.
 * All instruction sets give the same bits: sums are exact int32 and what follows them
 * is written out operation by operation.
 */
#ifndef PTAC_OPS_INT8_ISA_H
#define PTAC_OPS_INT8_ISA_H

#include "core/kernel.h"

enum {
    PTAC_TILE_ROWS = 6, /* 6 x 4 vectors of sums fill 24 of 32 registers */
    PTAC_MOST_TILE_ROWS = 64,
    /* Sums of more products would overflow: 2^31 / (255 * 127) = 66311. */
    PTAC_INT8_MOST_TERMS = 65536,
    PTAC_INT8_GRAIN = 1 << 21, /* multiply-adds that are worth a thread */
};

/*
 * Sums of some rows of activations with one panel of weights. A row is n_segments
 * pieces of n_quads * 4 bytes, each segments[i] bytes from where the row begins: one
 * for a linear layer, one a window line for a convolution. Rows that are not there may
 * repeat others.
 */
typedef struct ptac_tile {
    const uint8_t *rows[PTAC_MOST_TILE_ROWS];
    const int64_t *segments;
    int64_t n_segments;
    int64_t n_quads; /* at least 1 */
    const int8_t *panel;
} ptac_tile;

/* What a row's values lie between; zero is always among them. Begins as zeros. */
typedef struct ptac_range {
    float lo, hi;
    float poison; /* NaN where a value is not finite, else 0 */
} ptac_range;

/* A row's activations are scale * (q - zero). */
typedef struct ptac_row_scale {
    float scale; /* NaN where a value of the row is not finite */
    int32_t zero;
    float inverse; /* 1 / scale; 0 where all is zero or nearly so */
} ptac_row_scale;

/* The scale by which a range takes all of 0..most; most is 255 or 65535. */
ptac_row_scale ptac_scale_of(const ptac_range *range, float most);

/*
 * From sums to floats: y = act(fma(float(sum - zero * column_sum), row scale * column
 * scale, bias)). Pointers are to the first of n_columns <= 64 columns.
 */
typedef struct ptac_epilogue {
    const int32_t *column_sums;
    const float *column_scales;
    const float *bias; /* NULL: 0 */
    int n_columns;
    bool relu; /* max(0, y); NaN stays */
} ptac_epilogue;

/* LayerNorm of a row. */
typedef struct ptac_int8_norm {
    const float *weight, *bias; /* NULL: 1, 0 */
    float eps;
} ptac_int8_norm;

/*
 * How a quantized image lies: pixels of pixel_bytes, lines of width pixels that begin
 * line_bytes apart. A pixel's channels are filled up to a quad with anything.
 */
typedef struct ptac_pixels {
    int64_t n_channels, width;
    int64_t pixel_bytes, line_bytes;
} ptac_pixels;

typedef struct ptac_int8_isa {
    int tile_rows; /* that sum() takes at a time, at most PTAC_MOST_TILE_ROWS */
    /*
     * Sums [n_rows][64], of which the first 16 * n_vectors columns are written, and
     * others may be.
     */
    void (*sum)(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums);
    /* Row r of y begins r * y_stride floats from y. */
    void (*finish)(const ptac_epilogue *e, const int32_t *sums, int n_rows,
                   const ptac_row_scale *rows, float *y, int64_t y_stride);
    /*
     * One row whose activations have 16 bits: sums[0] are those of the high bytes,
     * sums[1] of the low ones, and so are the zero's: y = act(fma(fma(256, float(high),
     * float(low)), row scale * column scale, bias)).
     */
    void (*finish16)(const ptac_epilogue *e, const int32_t *sums, ptac_row_scale row,
                     float *y);
    /* Widen range by n floats. */
    void (*measure)(const float *x, int64_t n, ptac_range *range);
    /*
     * q = round(fma(x, inverse, zero)) in 0..255. Up to 3 bytes more are written, to
     * fill up a quad; they hold anything.
     */
    void (*quantize)(const float *x, int64_t n, float inverse, float zero, uint8_t *q);
    /*
     * Pixels begin..end of an image whose channels are planes of floats, plane_stride
     * apart, as bytes with the channels of a pixel side by side: see ptac_pixels. q is
     * where the image's first pixel goes; all values are in the measured range.
     */
    void (*quantize_planes)(const ptac_pixels *image, const float *planes,
                            int64_t plane_stride, int64_t begin, int64_t end,
                            float inverse, float zero, uint8_t *q);
    /*
     * The way back for results: n_pixels <= 64 rows of 64 floats, of which n_columns
     * count, to planes. Up to 15 rows more are read.
     */
    void (*store_planes)(const float *rows, int n_pixels, int n_columns, float *planes,
                         int64_t plane_stride);
    /* out[i] = x[i * step], n of them. */
    void (*pick)(const float *x, int64_t step, int64_t n, float *out);
    /* The same as quantize() in 0..65535, high and low bytes apart. */
    void (*quantize16)(const float *x, int64_t n, float inverse, float zero,
                       uint8_t *high, uint8_t *low);
    /* Between products, see sublayer/: x = gelu(x); y += x; norm() may be in place. */
    void (*gelu)(float *x, int64_t n);
    void (*add)(float *y, const float *x, int64_t n);
    void (*norm)(const ptac_int8_norm *how, const float *x, int64_t n, float *y);
} ptac_int8_isa;

/* The members of which a file of an instruction set has functions by the same name. */
#define PTAC_INT8_MEMBERS                                                              \
    .tile_rows = PTAC_TILE_ROWS, .sum = sum, .finish = finish, .finish16 = finish16,   \
    .measure = measure, .quantize = quantize, .quantize16 = quantize16,                \
    .quantize_planes = quantize_planes, .store_planes = store_planes, .gelu = gelu,    \
    .add = add, .norm = norm

extern const ptac_int8_isa ptac_int8_scalar;

/* The member pick, for any step. */
void ptac_int8_pick(const float *x, int64_t step, int64_t n, float *out);

/* Whether all inputs of a product are aligned to four bytes, packed weights as well. */
bool ptac_int8_is_aligned(const ptac_call *call);

#if defined(__x86_64__)
extern const ptac_int8_isa ptac_int8_avx2, ptac_int8_avx512_vnni;

/* Sums of their own; everything else is taken over from one above, at load. */
extern ptac_int8_isa ptac_int8_avx_vnni, ptac_int8_amx;
#endif

#endif
