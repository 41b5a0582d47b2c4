/*
 * pack_tpl.h - two-valued elements of one width.
 *
 * Expects, and undefines:
 *
 *   T           the element's type: uint8_t, uint16_t, uint32_t or uint64_t
 *   NAME(f)     the function's name for this type, f_1, f_2, f_4 or f_8
 *
 * Leaves what a coder consists of, see bitmask.c.
 */
static void NAME(find_values)(const void *elements, int64_t n, uint64_t values[2])
{
    const T *x = elements;
    int64_t i = 1;

    values[0] = values[1] = n ? x[0] : 0;
    while (i < n && x[i] == x[0])
        i++;
    if (i < n)
        values[1] = x[i];
}

static bool NAME(pack_word)(const void *elements, int64_t at, int n,
                            const uint64_t values[2], uint64_t *word)
{
    const T *x = (const T *)elements + at, low = (T)values[0], high = (T)values[1];
    uint64_t found = 0;
    T strange = 0;

    for (int i = 0; i < n; i++) {
        found |= (uint64_t)(x[i] == high) << i;
        strange |= (T)((x[i] ^ low) && (x[i] ^ high));
    }
    *word = found;
    return strange == 0;
}

static void NAME(unpack)(const uint64_t *bits, const uint64_t values[2], int64_t begin,
                         int64_t end, void *elements)
{
    const T low = (T)values[0], difference = (T)(values[0] ^ values[1]);
    T *x = elements;

    for (int64_t i = begin; i < end; i++)
        x[i] = (T)(low ^ (difference & (T) - (T)(bits[i / 64] >> (i % 64) & 1)));
}
#undef T
#undef NAME
