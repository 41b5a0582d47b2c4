/*
 * attention_block_tpl.h - a block of queries, whose lanes they are: laid out term by
 * term, what is added to their scores, and results turned back.
 *
 * Queries beyond the last one are zeros, whose lanes hold anything finite.
 */
#include "ops/math/turned_tpl.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_LANES = TILE_VECTORS * LANES, /* queries of a block, at most */
};

/*
 * exp(x) of x <= 0, or 0 where that would hardly be a normal number: what leaves these
 * takes a hundred times as long, and masked keys have such weights.
 */
INLINE vec v_weight(vec x)
{
    const vec least = v_set(-87);

    return v_pick(v_less(x, least), v_zero(), v_exp_quick(v_max(least, x)));
}

/* Queries of one head, [first, first + n). */
typedef struct block {
    int64_t head, of_keys; /* by their numbers through the batch */
    int64_t first;
    int n, n_vectors;
} block;

/* The i-th block of a head: vectors of queries are shared out evenly. */
INLINE block block_at(const ptac_attention *is, int64_t head, int64_t i)
{
    const int64_t vectors = ptac_parts(is->n_queries, LANES);
    const int64_t blocks = ptac_parts(vectors, TILE_VECTORS);
    const int64_t begin = i * vectors / blocks, end = (i + 1) * vectors / blocks;
    const int64_t first = begin * LANES;

    return (block){
        .head = head,
        .of_keys = ptac_attention_key_head(is, head),
        .first = first,
        .n = (int)(ptac_least(end * LANES, is->n_queries) - first),
        .n_vectors = (int)(end - begin),
    };
}

static inline int64_t blocks_a_head(const ptac_attention *is)
{
    return ptac_parts(ptac_parts(is->n_queries, LANES), TILE_VECTORS);
}

/* Up to LANES rows of some numbers to as many terms. */
INLINE void lay_out_square(const float *from, int64_t row, int n_rows, int some, vec by,
                           float *to)
{
    vec terms[LANES];

    load_turned(from, row, n_rows, some, terms);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (i < some)
            v_store(to + i * BLOCK_LANES, v_mul(by, terms[i]));
}

/* n rows of d numbers to d terms of BLOCK_LANES, each times factor. */
TARGET static void lay_out(const float *from, int64_t row, int n, int64_t d,
                           float factor, float *to)
{
    const vec by = v_set(factor);

    for (int first = 0; first < n; first += LANES) {
        const int n_rows = n - first < LANES ? n - first : LANES;
        const float *rows = from + first * row;

        FOR_LANES(c, some, 0, d,
                  lay_out_square(rows + c, row, n_rows, some, by,
                                 to + c * BLOCK_LANES + first));
    }
}

/* Up to LANES rows of some terms, each lane times its own factor. */
INLINE void give_square(const float *from, vec by, int n_rows, int some, float *to,
                        int64_t row, vec *odd)
{
    vec part[LANES];

#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        part[i] = i < some ? v_mul(by, v_load(from + i * BLOCK_LANES)) : v_zero();
    v_transpose(part);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (i < n_rows) {
            *odd = v_fma(part[i], v_zero(), *odd);
            v_store_first(to + i * row, part[i], some);
        }
}

/*
 * The reverse: n rows from d terms, each lane times its own factor. Where a result is
 * not finite, *odd is not zero from then on.
 */
TARGET static void give_rows(const float *from, const float *factors, int n, int64_t d,
                             float *to, int64_t row, vec *odd)
{
    for (int first = 0; first < n; first += LANES) {
        const int n_rows = n - first < LANES ? n - first : LANES;
        const vec by = v_load(factors + first);
        float *rows = to + first * row;

        FOR_LANES(c, some, 0, d,
                  give_square(from + c * BLOCK_LANES + first, by, n_rows, some,
                              rows + c, row, odd));
    }
}

/*
 * Numbers of keys or values that a product reads one column at a time lie far from each
 * other, often in the same lines of the first cache. Where several blocks of queries
 * read them they are laid out strip by strip: TILE_ROWS columns of all rows.
 */
typedef struct strips {
    const float *head; /* of which these are, NULL: of none yet */
    float *laid_out;   /* NULL: columns are read where they lie */
} strips;

enum {
    STRIPS_LEAST = 1 << 14, /* floats: what is in the first cache needs none */
    STRIPS_MOST = 1 << 19,  /* more would not stay in the second cache */
};

/* Floats that strips take; 0 where they do not pay. */
static inline int64_t strips_floats(const ptac_attention *is)
{
    const int64_t n = ptac_parts(is->d, TILE_ROWS) * TILE_ROWS * is->n_keys;

    return blocks_a_head(is) > 1 && n > STRIPS_LEAST && n <= STRIPS_MOST ? n : 0;
}

/* Strips of a head with n rows of d numbers, unless they are there. */
INLINE void lay_out_strips(strips *s, const float *head, int64_t row, int64_t n,
                           int64_t d)
{
    if (!s->laid_out || s->head == head)
        return;
    s->head = head;
    for (int64_t i = 0; i < n; i++) {
        const float *from = head + i * row;
        float *to = s->laid_out + i * TILE_ROWS;
        int64_t c = 0;

        for (; c + TILE_ROWS <= d; c += TILE_ROWS)
            memcpy(to + c * n, from + c, TILE_ROWS * sizeof *to);
        for (; c < d; c++)
            to[c / TILE_ROWS * TILE_ROWS * n + c % TILE_ROWS] = from[c];
    }
}

/* to[column] (+)= sum over rows [first, first + n_terms) of b[row][column] a[row] */
INLINE void multiply_columns(const strips *s, const float *head, int64_t row,
                             int64_t first, int64_t n_rows, int64_t d, tile t,
                             int n_vectors)
{
    t.b_row = 1;
    if (!s->laid_out) {
        t.b = head + first * row;
        t.b_term = row;
        multiply(t, d, n_vectors);
        return;
    }
    t.b_term = TILE_ROWS;
    for (int64_t c = 0; c < d; c += TILE_ROWS) {
        t.b = s->laid_out + c * n_rows + first * TILE_ROWS;
        multiply(t, ptac_least(d - c, TILE_ROWS), n_vectors);
        t.out += TILE_ROWS * t.out_row;
    }
}

/*
 * Keys [first, first + n) of a block, what is added to their scores, and by what
 * dropout multiplies their weights.
 */
typedef struct keys {
    int64_t first;
    int n;
    const float *mask; /* of the first query and key here, or NULL */
    int64_t mask_query, mask_key;
    const float *laid_out; /* the mask with the block's lanes, or NULL */
    const float *kept;     /* likewise; NULL where nothing is dropped */
    bool is_cut;           /* causal, and some query does not see the last key */
    int64_t first_query;
} keys;

/* The mask of these keys, lane by lane, where it differs between queries. */
TARGET static void lay_out_mask(const block *q, keys *k, float *to)
{
    k->laid_out = NULL;
    if (!k->mask || k->mask_query == 0)
        return;
    k->laid_out = to;
    if (k->mask_key == 1) {
        lay_out(k->mask, k->mask_query, q->n, k->n, 1, to);
        return;
    }
    for (int j = 0; j < k->n; j++)
        for (int i = 0; i < q->n_vectors * LANES; i++)
            to[j * BLOCK_LANES + i] =
                i < q->n ? k->mask[i * k->mask_query + j * k->mask_key] : 0;
}

/* What is kept of these keys, lane by lane, times what it counts for. */
TARGET static void lay_out_kept(const ptac_attention_job *job, const block *q, keys *k,
                                float *to)
{
    const float *kept = ptac_attention_mask_at(&job->kept, job->is.heads, q->head);

    k->kept = NULL;
    if (!kept)
        return;
    k->kept = to;
    lay_out(kept + q->first * job->kept.query + k->first, job->kept.query, q->n, k->n,
            1 / job->is.keep, to);
}

/* One vector's numbers of these keys, BLOCK_LANES apart, times what is kept. */
INLINE void drop(const keys *k, float *numbers, int lane)
{
    for (int j = 0; k->kept && j < k->n; j++) {
        float *at = numbers + j * BLOCK_LANES;

        v_store(at, v_mul(v_load(at), v_load(k->kept + j * BLOCK_LANES + lane)));
    }
}

INLINE keys keys_at(const ptac_attention_job *job, const block *q, int64_t first,
                    int64_t most, int64_t n_seen)
{
    const float *mask = ptac_attention_mask_at(&job->mask, job->is.heads, q->head);
    keys k = {
        .first = first,
        .n = (int)ptac_least(most, n_seen - first),
        .mask_query = job->mask.query,
        .mask_key = job->mask.key,
        .first_query = q->first,
    };

    if (mask)
        k.mask = mask + q->first * job->mask.query + first * job->mask.key;
    k.is_cut = job->is.is_causal && first + k.n - 1 > q->first;
    return k;
}

/* lane numbers, from zero on */
static const float lane_numbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                       8, 9, 10, 11, 12, 13, 14, 15};

/*
 * One vector's scores of these keys, BLOCK_LANES apart, with what is added to them, and
 * -inf where causal attention hides a key from a query.
 */
INLINE void complete_scores(const keys *k, float *scores, int lane)
{
    /* Query first_query + lane + l sees keys up to its own number. */
    const int64_t own = k->first_query + lane - k->first;
    const vec lanes = v_load(lane_numbers), hidden = v_set(-INFINITY);

    if (k->laid_out)
        for (int j = 0; j < k->n; j++) {
            float *at = scores + j * BLOCK_LANES;

            v_store(at,
                    v_add(v_load(at), v_load(k->laid_out + j * BLOCK_LANES + lane)));
        }
    else if (k->mask)
        for (int j = 0; j < k->n; j++) {
            float *at = scores + j * BLOCK_LANES;

            v_store(at, v_add(v_load(at), v_set(k->mask[j * k->mask_key])));
        }
    if (!k->is_cut)
        return;
    for (int64_t j = own < 0 ? 0 : own + 1; j < k->n; j++) {
        float *at = scores + j * BLOCK_LANES;
        const vec least = v_set((float)(j - own));

        v_store(at, v_pick(v_less(lanes, least), hidden, v_load(at)));
    }
}
