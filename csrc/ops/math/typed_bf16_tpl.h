/*
 * typed_bf16_tpl.h - bfloat16 lanes, those words that read the same for each
 * instruction set. Undefines OF. Included once, in typed_<isa>.h, which defines
 *
 *   vec_f32, ivec_f32       the vectors of floats and of 32-bit integers
 *   load_halves(p, n)       the first n of a vector of pairs of bfloat16
 *   store_halves(p, v, n)
 */

/* The upper half of each 32-bit lane. */
INLINE ivec_f32 upper_halves(ivec_f32 pairs)
{
    return pairs & BITS(set1)((int)0xffff0000);
}

INLINE void load_pairs_bf16(const uint16_t *p, int n, vec_f32 *even, vec_f32 *odd)
{
    const ivec_f32 pairs = load_halves(p, n);

    *even = (vec_f32)BITS(slli)(pairs, 16);
    *odd = (vec_f32)upper_halves(pairs);
}

INLINE void store_pairs_bf16(uint16_t *p, vec_f32 even, vec_f32 odd, int n)
{
    store_halves(p, BITS(srli)((ivec_f32)even, 16) | (ivec_f32)odd, n);
}

/* To nearest, ties to even; NaN becomes the quiet NaN that c10 uses. */
INLINE vec_f32 round_bf16(vec_f32 v)
{
    const ivec_f32 bits = (ivec_f32)v;
    const ivec_f32 odd = BITS(srli)(bits, 16) & BITS(set1)(1);
    const ivec_f32 near = BITS(add)(bits, BITS(add)(odd, BITS(set1)(0x7fff)));
    const ivec_f32 nan = BITS(set1)(0x7fc00000);

    return PICK(UNORDERED(v, v), (vec_f32)upper_halves(near), (vec_f32)nan);
}
#undef OF
