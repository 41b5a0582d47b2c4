/*
 * checked_source.c - commits and releases, compared with what came before.
 */
#include "checked_source.h"

#include <stdlib.h>
#include <string.h>

#define INVENTED ((uintptr_t)1 << 40)

static checked_source *checked(ptac_source *source)
{
    return (checked_source *)source;
}

static bool refuses(checked_source *w)
{
    const bool is = w->refused_percent && rng_chance(w->refuser, w->refused_percent);

    w->was_refused |= is;
    return is;
}

static uintptr_t reserve(ptac_source *source, size_t bytes)
{
    checked_source *w = checked(source);

    w->is_held = calloc(bytes / source->chunk_bytes, 1);
    w->is_huge = calloc(bytes / source->chunk_bytes, 1);
    w->bytes = bytes;
    w->base = w->is_real ? w->cpu.source.reserve(&w->cpu.source, bytes)
                         : INVENTED * (uintptr_t)(w->number + 1);
    return w->base;
}

static void unreserve(ptac_source *source, uintptr_t base, size_t bytes)
{
    checked_source *w = checked(source);

    if (base != w->base || bytes != w->bytes)
        w->trouble = "another range is ended than was reserved";
    if (w->is_real)
        w->cpu.source.unreserve(&w->cpu.source, base, bytes);
    free(w->is_held);
    free(w->is_huge);
    w->base = w->bytes = 0;
}

/* Whether all chunks of a part are so, or are not; it is a part of the range. */
static bool are_all(const checked_source *w, const uint8_t *table, uintptr_t at,
                    size_t bytes, bool are_so)
{
    const size_t chunk = w->source.chunk_bytes;

    if (at % chunk || bytes % chunk || !bytes || at < w->base ||
        bytes > w->bytes - (at - w->base))
        return false;
    for (size_t i = 0; i < bytes / chunk; i++)
        if (table[(at - w->base) / chunk + i] != are_so)
            return false;
    return true;
}

static void note(checked_source *w, uintptr_t at, size_t bytes, bool is_more)
{
    const size_t chunk = w->source.chunk_bytes;

    memset(w->is_held + (at - w->base) / chunk, is_more, bytes / chunk);
    (is_more ? ptac_stat_add : ptac_stat_sub)(&w->held, (int64_t)bytes);
    (is_more ? ptac_stat_add : ptac_stat_sub)(w->all_held, (int64_t)bytes);
}

static bool change(ptac_source *source, uintptr_t at, size_t bytes, bool is_more)
{
    checked_source *w = checked(source);
    ptac_source *real = &w->cpu.source;

    if (!are_all(w, w->is_held, at, bytes, !is_more))
        w->trouble = is_more ? "chunks are committed that are held"
                             : "chunks are released that are not held";
    if (!is_more && !are_all(w, w->is_huge, at, bytes, false))
        w->trouble = "chunks are released that huge pages are wanted for";
    if (refuses(w) ||
        (w->is_real && !(is_more ? real->commit : real->release)(real, at, bytes)))
        return false;
    note(w, at, bytes, is_more);
    return true;
}

static bool commit(ptac_source *source, uintptr_t at, size_t bytes)
{
    return change(source, at, bytes, true);
}

static bool release(ptac_source *source, uintptr_t at, size_t bytes)
{
    return change(source, at, bytes, false);
}

static bool want_huge(ptac_source *source, uintptr_t at, size_t bytes)
{
    checked_source *w = checked(source);

    if (!are_all(w, w->is_held, at, bytes, true) ||
        !are_all(w, w->is_huge, at, bytes, false))
        w->trouble = "huge pages are asked for where not all is held, or again";
    if (refuses(w))
        return false;
    memset(w->is_huge + (at - w->base) / source->chunk_bytes, true,
           bytes / source->chunk_bytes);
    w->n_huge++;
    return true;
}

static bool want_small(ptac_source *source, uintptr_t at, size_t bytes)
{
    checked_source *w = checked(source);

    if (!are_all(w, w->is_huge, at, bytes, true))
        w->trouble = "no huge pages are asked for where none were wanted";
    if (refuses(w))
        return false;
    memset(w->is_huge + (at - w->base) / source->chunk_bytes, false,
           bytes / source->chunk_bytes);
    w->n_small++;
    return true;
}

static bool is_touched(ptac_source *source, uintptr_t at, size_t bytes)
{
    (void)source;
    return at / bytes % 5 != 0;
}

static bool populate(ptac_source *source, uintptr_t at, size_t bytes)
{
    checked_source *w = checked(source);

    if (!are_all(w, w->is_held, at, bytes, true))
        w->trouble = "chunks are populated that are not held";
    return !refuses(w) &&
           (!w->is_real || w->cpu.source.populate(&w->cpu.source, at, bytes));
}

void checked_source_init(checked_source *w, int number, bool is_real, rng *refuser,
                         ptac_stat *all_held)
{
    *w = (checked_source){
        .number = number, .is_real = is_real, .refuser = refuser, .all_held = all_held};
    ptac_source_cpu_init(&w->cpu);
    w->source = (ptac_source){
        .chunk_bytes = w->cpu.source.chunk_bytes,
        .reserve = reserve,
        .unreserve = unreserve,
        .commit = commit,
        .release = release,
        .want_huge = want_huge,
        .want_small = want_small,
        .is_touched = is_touched,
        .populate = populate,
    };
}
