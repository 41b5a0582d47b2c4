/*
 * panels.h - products of rows of weights, which are read where they lie, and of a
 * matrix of columns, for who has one: convolutions of few places, layers of few rows.
 *
 * The order of terms in a sum is the same for each place, but for those that are
 * computed alone; it depends neither on threads nor on other places.
 */
#ifndef PTAC_OPS_PRODUCT_PANELS_H
#define PTAC_OPS_PRODUCT_PANELS_H

#include <stdint.h>

enum {
    PTAC_MOST_ODD = 4,
};

/* y = min(max(weight columns scale + shift, least), most) */
typedef struct ptac_panels {
    int64_t n_rows, n_terms, n_places;
    const float *weight;  /* [rows, terms] */
    int64_t weight_row;   /* from row to row */
    const float *columns; /* [terms, places] */
    int most_odd; /* places that are computed alone where they fill no vector: at most
                     PTAC_MOST_ODD */
    const float *scale, *shift; /* of rows, or NULL */
    float least, most;
    float *y; /* [rows, places] */
} ptac_panels;

/* A matrix [rows, columns] to where its columns are rows. */
typedef struct ptac_turned {
    const float *from;
    int64_t from_row, n_rows, n_columns;
    float *to;
    int64_t to_row;
} ptac_turned;

/* For each level of instructions. */
typedef struct ptac_panels_way {
    void (*multiply)(const ptac_panels *product);
    void (*turn)(const ptac_turned *matrix);
} ptac_panels_way;

#if defined(__x86_64__)
extern const ptac_panels_way ptac_panels_avx2, ptac_panels_avx512;
#endif

#endif
