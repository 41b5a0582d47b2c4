/*
 * winograd_points_tpl.h - the transforms of one dimension. The includer defines the
 * lanes, see winograd_rows_tpl.h, and MAX_POINTS (6, of a tile's side).
 *
 * For n points p, distinct, the last of them infinity, a tile of n inputs, a kernel of
 * r taps and m = n - r + 1 outputs follow Toom and Cook: outputs = A^T [(G g) * (B^T
 * d)]. Row p of G evaluates the kernel at p and divides by the product of p's distances
 * from the others; column p of A^T has the powers of p; row p of B^T has the
 * coefficients of the polynomial with zeros at all other points.
 *
 *   n = 4: 0, 1, -1, infinity         n = 6: 0, a, -a, b, -b, infinity
 *
 * a = 5/8 and b = 3/2 in place of the usual 1 and 2: all constants of B and A are exact
 * in float, powers grow less, and the error of 4x4 tiles falls from 6.4 to 2.9 times
 * that of the direct sum. The search and its figures: B. Barabasz et al., Error
 * Analysis and Improving the Accuracy of Winograd Convolution, 2018, found points of
 * this kind; these two were measured best for us.
 */
#define POINT_A 0.625f
#define POINT_B 1.5f
#define A_2     (POINT_A * POINT_A)
#define B_2     (POINT_B * POINT_B)
#define A_3     (A_2 * POINT_A)
#define B_3     (B_2 * POINT_B)

/* out = B^T in, of n inputs. */
INLINE void transform_input(int n, const vec *in, vec *out)
{
    if (n == 4) {
        out[0] = v_sub(in[0], in[2]);
        out[1] = v_add(in[1], in[2]);
        out[2] = v_sub(in[2], in[1]);
        out[3] = v_sub(in[3], in[1]);
    } else {
        const vec even_a = v_fnma(v_set(B_2), in[2], in[4]);
        const vec even_b = v_fnma(v_set(A_2), in[2], in[4]);
        const vec odd_a = v_fnma(v_set(B_2), in[1], in[3]);
        const vec odd_b = v_fnma(v_set(A_2), in[1], in[3]);

        out[0] = v_fma(v_set(A_2 * B_2), in[0], v_fnma(v_set(A_2 + B_2), in[2], in[4]));
        out[1] = v_fma(v_set(POINT_A), odd_a, even_a);
        out[2] = v_fnma(v_set(POINT_A), odd_a, even_a);
        out[3] = v_fma(v_set(POINT_B), odd_b, even_b);
        out[4] = v_fnma(v_set(POINT_B), odd_b, even_b);
        out[5] = v_fma(v_set(A_2 * B_2), in[1], v_fnma(v_set(A_2 + B_2), in[3], in[5]));
    }
}

/* out = G in, of r taps. */
INLINE void transform_taps(int n, int r, const vec *in, vec *out)
{
    if (n == 4) {
        const vec even = r == 3 ? v_add(in[0], in[2]) : in[0];

        out[0] = in[0];
        out[1] = v_mul(v_set(0.5f), v_add(even, in[1]));
        out[2] = v_mul(v_set(0.5f), v_sub(even, in[1]));
        out[3] = in[r - 1];
    } else {
        const vec scale_a = v_set(1 / (2 * A_2 * (A_2 - B_2)));
        const vec scale_b = v_set(1 / (2 * B_2 * (B_2 - A_2)));
        vec even_a = in[0], even_b = in[0], odd_a = in[1], odd_b = in[1];

        if (r >= 3) {
            const vec twos_a = r >= 5 ? v_fma(v_set(A_2), in[4], in[2]) : in[2];
            const vec twos_b = r >= 5 ? v_fma(v_set(B_2), in[4], in[2]) : in[2];

            even_a = v_fma(v_set(A_2), twos_a, even_a);
            even_b = v_fma(v_set(B_2), twos_b, even_b);
        }
        if (r >= 4) {
            odd_a = v_fma(v_set(A_2), in[3], odd_a);
            odd_b = v_fma(v_set(B_2), in[3], odd_b);
        }
        odd_a = v_mul(v_set(POINT_A), odd_a);
        odd_b = v_mul(v_set(POINT_B), odd_b);
        out[0] = v_mul(v_set(1 / (A_2 * B_2)), in[0]);
        out[1] = v_mul(scale_a, v_add(even_a, odd_a));
        out[2] = v_mul(scale_a, v_sub(even_a, odd_a));
        out[3] = v_mul(scale_b, v_add(even_b, odd_b));
        out[4] = v_mul(scale_b, v_sub(even_b, odd_b));
        out[5] = in[r - 1];
    }
}

/* out = A^T in, m outputs of n points. */
INLINE void transform_products(int n, int m, const vec *in, vec *out)
{
    const vec sum_a = v_add(in[1], in[2]), odd_a = v_sub(in[1], in[2]);

    if (n == 4) {
        out[0] = v_add(in[0], sum_a);
        out[1] = m == 2 ? v_add(odd_a, in[3]) : odd_a;
        if (m == 3)
            out[2] = v_add(sum_a, in[3]);
    } else {
        const vec sum_b = v_add(in[3], in[4]), odd_b = v_sub(in[3], in[4]);

        out[0] = v_add(in[0], v_add(sum_a, sum_b));
        out[1] = v_fma(v_set(POINT_A), odd_a, v_mul(v_set(POINT_B), odd_b));
        if (m >= 3)
            out[2] = v_fma(v_set(A_2), sum_a, v_mul(v_set(B_2), sum_b));
        if (m >= 4)
            out[3] = v_fma(v_set(A_3), odd_a, v_mul(v_set(B_3), odd_b));
        if (m >= 5)
            out[4] = v_fma(v_set(A_2 * A_2), sum_a, v_mul(v_set(B_2 * B_2), sum_b));
        out[m - 1] = v_add(out[m - 1], in[5]);
    }
}

/* Which of them. */
typedef enum matrix { OF_INPUT, OF_TAPS, OF_PRODUCTS } matrix;

/* out = a matrix times in, from n elements to m. */
INLINE void transform(matrix of, int n, int m, const vec *in, vec *out)
{
    if (of == OF_INPUT)
        transform_input(n, in, out);
    else if (of == OF_TAPS)
        transform_taps(m, n, in, out);
    else
        transform_products(n, m, in, out);
}

/* A column of a tile in memory, whose elements are step floats apart. */
INLINE void transform_column(matrix of, int n, int m, const float *column, int64_t step,
                             vec *out)
{
    vec in[MAX_POINTS];

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
        in[i] = v_load(column + i * step);
    transform(of, n, m, in, out);
}

/* Row i of a tile that is there in columns. */
INLINE void transform_row(matrix of, int n, int m, vec columns[][MAX_POINTS], int i,
                          vec *out)
{
    vec in[MAX_POINTS];

#pragma GCC unroll 6
    for (int j = 0; j < n; j++)
        in[j] = columns[j][i];
    transform(of, n, m, in, out);
}

INLINE void store_row(int n, const vec *out, float *row, int64_t step)
{
#pragma GCC unroll 6
    for (int j = 0; j < n; j++)
        v_store(row + j * step, out[j]);
}
