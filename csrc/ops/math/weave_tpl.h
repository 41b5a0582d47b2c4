/*
 * weave_tpl.h - a few vectors as one sequence that takes an element of each in turn,
 * and such a sequence as vectors.
 *
 * Expects the words of ops/math/lanes.h.
 */
enum {
    MOST_WOVEN = 4,
};

/* Which lane of which vector goes to each lane of the k-th of them. */
typedef struct weave {
    int32_t lane[MOST_WOVEN][LANES];
    float of[MOST_WOVEN][LANES];
} weave;

static weave weave_of(int n, bool is_back)
{
    weave w;

    for (int k = 0; k < n; k++) {
        for (int i = 0; i < LANES; i++) {
            const int place = is_back ? i * n + k : k * LANES + i;

            w.lane[k][i] = is_back ? place % LANES : place / n;
            w.of[k][i] = (float)(is_back ? place / LANES : place % n);
        }
    }
    return w;
}

/* The k-th vector of n others. */
INLINE vec woven(const weave *w, const vec *parts, int n, int k)
{
    const ints lane = (ints)v_load((const float *)w->lane[k]);
    const vec of = v_load(w->of[k]);
    vec v = v_permute(parts[0], lane);

#pragma GCC unroll 4
    for (int i = 1; i < n; i++)
        v = v_pick(v_less(v_set((float)i - 0.5f), of), v_permute(parts[i], lane), v);
    return v;
}

/* The lanes of the k-th vector of a sequence of so many elements. */
INLINE int part_of(int n, int k)
{
    n -= k * LANES;
    return n < 0 ? 0 : n < LANES ? n : LANES;
}
