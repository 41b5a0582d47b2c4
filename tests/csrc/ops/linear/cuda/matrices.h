/*
 * matrices.h - matrices of the emulated device, and what products of them should give.
 */
#ifndef PTAC_TESTS_MATRICES_H
#define PTAC_TESTS_MATRICES_H

#include "ops/linear/act.h"
#include "ops/linear/cuda/lt_step.h"
#include "random.h"
#include "trial.h"

/* Rows ld elements apart; sanitizers see what lies behind the last. */
typedef struct matrix {
    ptac_dtype dtype;
    int64_t n_rows, n_cols, ld;
    void *data, *block;
} matrix;

enum {
    NOISE = 0x5b, /* the bytes of a matrix that nobody wrote */
};

/* Begins so many elements behind an address that 256 divides. */
matrix matrix_new(ptac_dtype dtype, int64_t n_rows, int64_t n_cols, int64_t ld,
                  int64_t offset);
void matrix_drop(matrix *m);
/* Multiples of step, from -2 to 2 of them: small products of such are exact. */
void matrix_fill(rng *r, matrix *m, double step);

double matrix_at(const matrix *m, int64_t i, int64_t j);
void matrix_put(matrix *m, int64_t i, int64_t j, double value);
bool matrix_is_noise(const matrix *m);
/* Whether what lies between rows is as it was. */
bool matrix_has_clean_gaps(const matrix *m);

static inline ptac_lt_matrix lt_of(const matrix *m)
{
    return (ptac_lt_matrix){m->data, m->ld};
}

/* A view of two dimensions, or of one where the matrix has a row. */
ptac_view view_of(const matrix *m, int n_dims, int64_t sizes[2], int64_t strides[2]);

/* Of doubles, dense: products of exact operands, by their definitions. */
typedef struct exact {
    int64_t n_rows, n_cols;
    double *at;
} exact;

exact exact_new(int64_t n_rows, int64_t n_cols);
exact exact_of(const matrix *m);
/* op(a) op(b), where sums of magnitudes are asked for instead with is_size. */
exact exact_product(const exact *a, bool a_is_transposed, const exact *b,
                    bool b_is_transposed, bool is_size);
void exact_drop(exact *e);

double exact_act(double z, ptac_act act);
double exact_slope(double z, ptac_act act);

/* The unit roundoff of a dtype. */
double roundoff(ptac_dtype dtype);

/*
 * Whether all of m lie within roundings * roundoff * size of expected, where size is
 * a matrix of magnitudes, at least 1 each. Prints the first that does not.
 */
bool matrix_is_near(const matrix *m, const exact *expected, const exact *size,
                    double roundings, const char *name);

/* --- the device --- */

/* Makes the emulation the device of this program, once. */
void device_begin(void);

/* A workspace with nothing in it that a product could rely on. */
extern ptac_lt_workspace the_workspace;

/* Refuse these epilogues from now on; a 0 ends them. All plans are forgotten. */
void refuse(const uint32_t *epilogues);
void refuse_all(bool all);

/* Products and launches since the last call of forget_work(). */
typedef struct work {
    int n_products, n_fused;
    int64_t n_launches;
} work;
void forget_work(void);
work work_done(void);

#endif
