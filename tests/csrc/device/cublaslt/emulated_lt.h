/*
 * emulated_lt.h - a cuBLASLt on the CPU that is stricter than the real one, for tests.
 *
 * Linked into a program it is found by ptac_lt_load(NULL). Attributes of another size,
 * leading dimensions and pointers that the real library documents against, algorithms
 * that were made for another call: all give INVALID_VALUE, and a text here. Sums are in
 * float64.
 */
#ifndef PTAC_TESTS_EMULATED_LT_H
#define PTAC_TESTS_EMULATED_LT_H

#include "device/cuda/cublaslt.h"

#include <stdbool.h>

enum {
    EMULATED_LT_WORKSPACE = 4096, /* bytes that a product fills with noise, if it may */
    EMULATED_LT_MOST_REFUSED = 16,
};

typedef struct emulated_lt_state {
    /* Of the test: epilogues that the heuristic refuses; zeros end them. */
    uint32_t refused[EMULATED_LT_MOST_REFUSED];
    bool refuses_all;
    lt_status failure; /* what cublasLtMatmul gives where it is not 0 */
    void *stream;      /* the only one that is right */
    /* Of a device that has streams: takes one, so that its memory may be touched. */
    bool (*begin)(void *stream, uint32_t epilogue, int compute);
    void (*end)(void);
    /* Of the emulation. */
    int n_heuristics, n_products, n_with_epilogue;
    int n_alive;        /* descriptions, layouts and preferences */
    const char *misuse; /* of the last INVALID_VALUE */
} emulated_lt_state;

extern emulated_lt_state emulated_lt;

/* --- between the files of the emulation --- */

struct lt_desc_opaque {
    int compute, scale_type;
    int32_t is_transposed[2]; /* A, B */
    uint32_t epilogue;
    void *bias;
    int32_t bias_type; /* -1: as D */
    void *aux;
    int64_t aux_ld;
    const float *scale[2];
    int32_t scale_mode[2];
    int8_t fast_accum;
};

struct lt_layout_opaque {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};

typedef struct lt_product {
    const struct lt_desc_opaque *desc;
    const struct lt_layout_opaque *a, *b, *d;
    const void *a_data, *b_data;
    void *d_data;
} lt_product;

/* Remembers the text; INVALID_VALUE. */
lt_status emulated_lt_misuse(const char *text);

lt_status emulated_lt_check(lt_desc desc, lt_layout a, lt_layout b, lt_layout c,
                            lt_layout d);
/* The terms of each sum. */
uint64_t emulated_lt_inner(lt_desc desc, lt_layout a);

int64_t emulated_lt_bytes(int type);
void emulated_lt_multiply(const lt_product *product);

#endif
