/*
 * rows.c - rows of tables, gathered into a batch.
 */
#include "data/rows.h"

#include "data/threads.h"

#include <string.h>

enum {
    AHEAD = 4,              /* rows that are asked from memory before their turn */
    LINE = 64,              /* bytes of a line of the cache */
    MOST_LINES = 16,        /* behind these the processor goes on by itself */
    THREAD_BYTES = 1 << 20, /* so many are worth another thread's time ... */
    THREAD_VALUES = 1 << 17 /* ... and so many that are looked up */
};

typedef struct gathering {
    const ptac_table *table;
    const int64_t *index;
    int64_t n;
    char *out;
    const float *values; /* of bytes that are looked up */
} gathering;

bool ptac_rows_resolve(const ptac_table *tables, int n_tables, int64_t *index,
                       int64_t n)
{
    bool any_negative = false;

    for (int t = 0; t < n_tables; t++) {
        const int64_t n_rows = tables[t].n_rows;

        for (int64_t i = 0; i < n; i++) {
            any_negative |= index[i] < 0;
            if (index[i] < -n_rows || index[i] >= n_rows)
                return false;
        }
        if (any_negative && n_rows != tables[0].n_rows)
            return false;
    }
    for (int64_t i = 0; any_negative && i < n; i++)
        if (index[i] < 0)
            index[i] += tables[0].n_rows;
    return true;
}

static const char *row_at(const gathering *g, int64_t i)
{
    return g->table->data + g->index[i] * g->table->stride;
}

static void ask_for(const char *row, int64_t bytes)
{
    for (int64_t at = 0; at < bytes && at < MOST_LINES * LINE; at += LINE)
        __builtin_prefetch(row + at);
}

/* Rows of a size that the compiler knows are single moves. */
#define COPY_ROWS(bytes)                                                               \
    for (int64_t i = begin; i < end; i++)                                              \
    memcpy(g->out + i * (bytes), row_at(g, i), (bytes))

static void gather(int64_t begin, int64_t end, void *context)
{
    const gathering *g = context;
    const int64_t bytes = g->table->row_bytes;

    if (bytes == 1) {
        COPY_ROWS(1);
    } else if (bytes == 4) {
        COPY_ROWS(4);
    } else if (bytes == 8) {
        COPY_ROWS(8);
    } else {
        for (int64_t i = begin; i < end; i++) {
            if (i + AHEAD < g->n)
                ask_for(row_at(g, i + AHEAD), bytes);
            memcpy(g->out + i * bytes, row_at(g, i), (size_t)bytes);
        }
    }
}

void ptac_rows_gather(const ptac_table *table, const int64_t *index, int64_t n,
                      char *out)
{
    gathering g = {.table = table, .index = index, .n = n, .out = out};
    const int64_t bytes = table->row_bytes;

    if (bytes > 0)
        ptac_data_parallel_for(0, n, ptac_parts(THREAD_BYTES, bytes), gather, &g);
}

static void look_up(int64_t begin, int64_t end, void *context)
{
    const gathering *g = context;
    const int64_t bytes = g->table->row_bytes;

    for (int64_t i = begin; i < end; i++) {
        const uint8_t *row = (const uint8_t *)row_at(g, i);
        float *out = (float *)g->out + i * bytes;

        if (i + AHEAD < g->n)
            ask_for(row_at(g, i + AHEAD), bytes);
        for (int64_t j = 0; j < bytes; j++)
            out[j] = g->values[row[j]];
    }
}

void ptac_rows_look_up(const ptac_table *table, const int64_t *index, int64_t n,
                       const float *values, float *out)
{
    gathering g = {
        .table = table, .index = index, .n = n, .out = (char *)out, .values = values};

    ptac_data_parallel_for(0, n, ptac_parts(THREAD_VALUES, table->row_bytes), look_up,
                           &g);
}
