/*
 * turned_tpl.h - rows of memory as columns: what lies side by side goes to one lane of
 * as many vectors.
 *
 * Needs lanes_<isa>.h.
 */
#ifndef PTAC_OPS_MATH_TURNED_TPL_H
#define PTAC_OPS_MATH_TURNED_TPL_H

/*
 * Vector k has number k of each of n_rows rows, which are row apart and have count
 * numbers; zeros behind the last row. From count on vectors are of no use.
 */
INLINE void load_turned(const float *from, int64_t row, int n_rows, int count,
                        vec vectors[LANES])
{
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        vectors[i] = i < n_rows ? v_load_first(from + i * row, count) : v_zero();
    v_transpose(vectors);
}

#endif
