/*
 * attention_backward_tpl.h - gradients, a head of keys at a time.
 *
 * With w a weight and g the gradient of y,
 *
 *   of a score    s = w (g v - g y)
 *   of q          scale * sum over keys of s k
 *   of k and v    scale * sum over queries of s q, sum over queries of w g
 */
enum {
    BACKWARD_KEYS = 64, /* of a block */
};

/* Where a thread works; width is d rounded up to whole vectors. */
typedef struct backward_space {
    int64_t width;
    float *of_k, *of_v;     /* [n_keys, width]: what gradients have summed up to */
    float *q, *grad;        /* [d, BLOCK_LANES]; q times scale */
    float *q_rows, *g_rows; /* [BLOCK_LANES, width] */
    float *weights, *slopes, *mask, *kept; /* [BACKWARD_KEYS, BLOCK_LANES] */
    float *of_q;                           /* [d, BLOCK_LANES] */
    strips keys;
    float *log_sums, *shifts, *scale; /* [BLOCK_LANES] */
} backward_space;

static int64_t backward_width(const ptac_attention *is)
{
    return ptac_parts(is->d, LANES) * LANES;
}

static size_t backward_floats(const ptac_attention *is)
{
    return (size_t)(2 * is->n_keys * backward_width(is) +
                    BLOCK_LANES *
                        (3 * is->d + 2 * backward_width(is) + 4 * BACKWARD_KEYS + 3) +
                    strips_floats(is));
}

static backward_space backward_space_in(float *memory, const ptac_attention *is)
{
    const int64_t width = backward_width(is), terms = is->d * BLOCK_LANES;
    const int64_t keys = is->n_keys * width, rows = BLOCK_LANES * width;
    const int64_t some_keys = BACKWARD_KEYS * BLOCK_LANES;
    backward_space s = {.width = width, .of_k = memory};

    s.of_v = s.of_k + keys;
    s.q = s.of_v + keys;
    s.grad = s.q + terms;
    s.of_q = s.grad + terms;
    s.q_rows = s.of_q + terms;
    s.g_rows = s.q_rows + rows;
    s.weights = s.g_rows + rows;
    s.slopes = s.weights + some_keys;
    s.mask = s.slopes + some_keys;
    s.kept = s.mask + some_keys;
    s.log_sums = s.kept + some_keys;
    s.shifts = s.log_sums + BLOCK_LANES;
    s.scale = s.shifts + BLOCK_LANES;
    if (strips_floats(is))
        s.keys.laid_out = s.scale + BLOCK_LANES;
    return s;
}

/* Rows with zeros behind them. */
INLINE void copy_rows(const float *from, int64_t row, int n, int64_t d, float *to,
                      int64_t width)
{
    for (int i = 0; i < n; i++)
        FOR_LANES(c, some, 0, d,
                  v_store(to + i * width + c, v_load_first(from + i * row + c, some)));
}

/*
 * Of each query g y, whose terms are added in the order in which those of g v are. A
 * query that sees but one key then gets a gradient of zero, not what rounding leaves.
 */
INLINE void shift_queries(const backward_space *s, const block *b, int64_t d)
{
    const int64_t parts = ptac_parts(d, TILE_TERMS);

    for (int lane = 0; lane < b->n_vectors * LANES; lane += LANES) {
        const float *y = s->of_q + lane, *grad = s->grad + lane;
        vec total = v_zero();

        for (int64_t i = 0; i < parts; i++) {
            vec sum = v_zero();

            for (int64_t c = i * d / parts; c < (i + 1) * d / parts; c++)
                sum = v_fma(v_load(y + c * BLOCK_LANES), v_load(grad + c * BLOCK_LANES),
                            sum);
            total = i == 0 ? sum : v_add(total, sum);
        }
        v_store(s->shifts + lane, total);
    }
}

/* What a block of queries needs of them before it meets keys. */
INLINE void prepare_queries(const ptac_attention_job *job, const block *b,
                            const backward_space *s)
{
    const ptac_attention *is = &job->is;
    const float *q =
        ptac_attention_at(&job->q, is->heads, b->head) + b->first * job->q.row;
    const float *grad =
        ptac_attention_at(&job->grad, is->heads, b->head) + b->first * job->grad.row;
    const float *y =
        ptac_attention_at(&job->y, is->heads, b->head) + b->first * job->y.row;
    const float *log_sums = ptac_attention_at(&job->log_sums, is->heads, b->head) +
                            b->first * job->log_sums.row;

    lay_out(q, job->q.row, b->n, is->d, is->scale, s->q);
    lay_out(grad, job->grad.row, b->n, is->d, 1, s->grad);
    copy_rows(q, job->q.row, b->n, is->d, s->q_rows, s->width);
    copy_rows(grad, job->grad.row, b->n, is->d, s->g_rows, s->width);
    for (int i = 0; i < BLOCK_LANES; i++) { /* weights of no query are zeros */
        s->log_sums[i] = i < b->n ? log_sums[i * job->log_sums.row] : INFINITY;
        s->scale[i] = is->scale;
    }
    lay_out(y, job->y.row, b->n, is->d, 1, s->of_q);
    shift_queries(s, b, is->d);
}

/* Scores become weights, and gradients of weights those of scores. */
INLINE void slope(const backward_space *s, const block *b, const keys *k)
{
    for (int lane = 0; lane < b->n_vectors * LANES; lane += LANES) {
        const vec log_sum = v_load(s->log_sums + lane);
        const vec shift = v_load(s->shifts + lane);

        complete_scores(k, s->weights + lane, lane);
        drop(k, s->slopes + lane, lane);
        for (int j = 0; j < k->n; j++) {
            float *weights = s->weights + (int64_t)j * BLOCK_LANES + lane;
            float *slopes = s->slopes + (int64_t)j * BLOCK_LANES + lane;
            const vec weight = v_weight(v_sub(v_load(weights), log_sum));

            v_store(weights, weight);
            v_store(slopes, v_mul(weight, v_sub(v_load(slopes), shift)));
        }
        drop(k, s->weights + lane, lane);
    }
}

/* to[key] += sum over the block's queries of by[key][query] rows[query] */
INLINE void add_to_keys(const float *by, const float *rows, const block *b, int n_keys,
                        int64_t width, bool adds, float *to)
{
    const int64_t vectors = width / LANES;
    const int64_t groups = ptac_parts(vectors, TILE_VECTORS);

    for (int64_t i = 0; i < groups; i++) {
        const int64_t begin = i * vectors / groups, end = (i + 1) * vectors / groups;
        const tile t = {
            .a = rows + begin * LANES,
            .a_term = width,
            .b = by,
            .b_row = BLOCK_LANES,
            .b_term = 1,
            .out = to + begin * LANES,
            .out_row = width,
            .n_terms = b->n,
            .adds = adds,
        };

        multiply(t, n_keys, (int)(end - begin));
    }
}

/* Products of keys, or values, with the block's queries, or gradients. */
INLINE void meet(const ptac_attention_heads *of, const float *head, const keys *k,
                 const float *columns, int64_t d, const block *b, float *out)
{
    const tile t = {
        .a = columns,
        .a_term = BLOCK_LANES,
        .b = head + k->first * of->row,
        .b_row = of->row,
        .b_term = 1,
        .out = out,
        .out_row = BLOCK_LANES,
        .n_terms = d,
    };

    multiply(t, k->n, b->n_vectors);
}

/* Keys that no earlier block has met begin their sums. False: not all are finite. */
INLINE bool backward_block(const ptac_attention_job *job, const block *b,
                           backward_space *s, int64_t *n_met)
{
    const ptac_attention *is = &job->is;
    const float *of_k = ptac_attention_at(&job->k, is->key_heads, b->of_keys);
    const float *of_v = ptac_attention_at(&job->v, is->key_heads, b->of_keys);
    const int64_t n_seen = ptac_attention_n_seen(is, b->first + b->n - 1);
    vec odd = v_zero();

    lay_out_strips(&s->keys, of_k, job->k.row, is->n_keys, is->d);
    prepare_queries(job, b, s);
    for (int64_t first = 0; first < n_seen; first += BACKWARD_KEYS) {
        /* A block of keys is met as a whole, so that all its sums have begun. */
        keys k = keys_at(job, b, first, BACKWARD_KEYS,
                         ptac_least(is->n_keys, first + BACKWARD_KEYS));
        const bool adds = first < *n_met;
        const tile of_q = {
            .a = s->slopes,
            .a_term = BLOCK_LANES,
            .out = s->of_q,
            .out_row = BLOCK_LANES,
            .n_terms = k.n,
            .adds = first > 0,
        };

        lay_out_mask(b, &k, s->mask);
        lay_out_kept(job, b, &k, s->kept);
        meet(&job->k, of_k, &k, s->q, is->d, b, s->weights);
        meet(&job->v, of_v, &k, s->grad, is->d, b, s->slopes);
        slope(s, b, &k);
        add_to_keys(s->weights, s->g_rows, b, k.n, s->width, adds,
                    s->of_v + first * s->width);
        add_to_keys(s->slopes, s->q_rows, b, k.n, s->width, adds,
                    s->of_k + first * s->width);
        multiply_columns(&s->keys, of_k, job->k.row, first, is->n_keys, is->d, of_q,
                         b->n_vectors);
        if (!adds)
            *n_met = first + k.n;
    }
    give_rows(s->of_q, s->scale, b->n, is->d,
              ptac_attention_at(&job->grad_q, is->heads, b->head) +
                  b->first * job->grad_q.row,
              job->grad_q.row, &odd);
    return v_sum(odd) == 0;
}

/* Sums of a head of keys, times factor; zeros of keys that no query has met. */
INLINE bool give_keys(const backward_space *s, const float *from, float factor,
                      const ptac_attention *is, int64_t n_met, float *to, int64_t row)
{
    vec odd = v_zero();

    for (int64_t j = 0; j < is->n_keys; j++)
        FOR_LANES(c, some, 0, is->d, {
            vec sum = v_zero();

            if (j < n_met)
                sum = v_mul(v_set(factor), v_load(from + j * s->width + c));
            odd = v_fma(sum, v_zero(), odd);
            v_store_first(to + j * row + c, sum, some);
        });
    return v_sum(odd) == 0;
}

TARGET static void backward_some(int64_t begin, int64_t end, void *context)
{
    ptac_attention_job *job = context;
    const ptac_attention *is = &job->is;
    const int64_t shared = is->heads / is->key_heads, blocks = blocks_a_head(is);
    float *memory = ptac_scratch_take(backward_floats(is) * sizeof *memory);

    if (!memory) {
        ptac_attention_fail(job, PTAC_NO_MEMORY);
        return;
    }

    backward_space s = backward_space_in(memory, is);

    for (int64_t of_keys = begin; of_keys < end; of_keys++) {
        int64_t n_met = 0;
        bool fine = true;

        for (int64_t i = 0; i < shared * blocks; i++) {
            const block b = block_at(is, of_keys * shared + i / blocks, i % blocks);

            fine &= backward_block(job, &b, &s, &n_met);
        }
        fine &= give_keys(&s, s.of_k, is->scale, is, n_met,
                          ptac_attention_at(&job->grad_k, is->key_heads, of_keys),
                          job->grad_k.row);
        fine &= give_keys(&s, s.of_v, 1, is, n_met,
                          ptac_attention_at(&job->grad_v, is->key_heads, of_keys),
                          job->grad_v.row);
        if (!fine)
            ptac_attention_fail(job, PTAC_UNSUITED);
    }
    ptac_scratch_give(memory);
}
