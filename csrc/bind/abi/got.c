/*
 * got.c - finding and writing a library's slots for imported functions.
 *
 * Sources: System V ABI, chapter 5 (dynamic section, relocations), its supplements for
 * x86-64 and AArch64, and the manual page of dlinfo(3).
 */
#define _GNU_SOURCE 1
#include "bind/abi/got.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define IMPORTS R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64
#elif defined(__aarch64__)
#define IMPORTS R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64
#else
#define IMPORTS UINT32_MAX /* none */
#endif

static bool is_import(uint64_t type)
{
    static const uint32_t imports[] = {IMPORTS};
    bool found = false;

    for (size_t i = 0; i < sizeof imports / sizeof imports[0]; i++)
        found |= type == imports[i];
    return found;
}

typedef struct table {
    const ElfW(Rela) * rows;
    size_t n;
} table;

static table table_of(uintptr_t rows, size_t bytes)
{
    return (table){(const void *)rows, rows ? bytes / sizeof(ElfW(Rela)) : 0};
}

typedef struct imports {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *names;
    size_t names_bytes;
    table calls, data;
} imports;

static bool read_dynamic(const struct link_map *map, imports *found)
{
    uintptr_t values[DT_ENCODING] = {0}; /* by tag */

    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag > 0 && d->d_tag < DT_ENCODING)
            values[d->d_tag] = d->d_un.d_val;
    *found = (imports){
        .base = map->l_addr,
        .symbols = (const void *)values[DT_SYMTAB],
        .names = (const void *)values[DT_STRTAB],
        .names_bytes = values[DT_STRSZ],
        .calls = table_of(values[DT_JMPREL], values[DT_PLTRELSZ]),
        .data = table_of(values[DT_RELA], values[DT_RELASZ]),
    };
    return found->symbols && found->names &&
           (!values[DT_PLTREL] || values[DT_PLTREL] == DT_RELA);
}

static bool collect(const imports *from, table rows, const char *function,
                    got_slots *slots)
{
    for (size_t i = 0; i < rows.n; i++) {
        const uint64_t info = rows.rows[i].r_info;
        const size_t name = from->symbols[ELF64_R_SYM(info)].st_name;

        if (!is_import(ELF64_R_TYPE(info)) || name >= from->names_bytes ||
            rows.rows[i].r_addend != 0 || strcmp(from->names + name, function) != 0)
            continue;
        if (slots->n == GOT_MAX_SLOTS)
            return false;
        slots->at[slots->n++] = (uintptr_t *)(from->base + rows.rows[i].r_offset);
    }
    return true;
}

bool got_find(void *library, const char *function, got_slots *slots)
{
    struct link_map *map;
    imports found;

    *slots = (got_slots){0};
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !read_dynamic(map, &found) ||
        !collect(&found, found.calls, function, slots) ||
        !collect(&found, found.data, function, slots) || slots->n == 0)
        return false;
    for (int i = 0; i < slots->n; i++)
        slots->found[i] = __atomic_load_n(slots->at[i], __ATOMIC_RELAXED);
    return true;
}

/* The protection of the mapping that holds this address; -1 when there is none. */
static int protection_of(uintptr_t address)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char access[5], line[512];
    int found = -1;

    while (maps && found < 0 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && from <= address &&
            address < to)
            found = (access[0] == 'r' ? PROT_READ : 0) |
                    (access[1] == 'w' ? PROT_WRITE : 0) |
                    (access[2] == 'x' ? PROT_EXEC : 0);
    if (maps)
        fclose(maps);
    return found;
}

static bool protect(uintptr_t address, int protection)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    return mprotect((void *)(address & ~(page - 1)), page, protection) == 0;
}

/* One word, in memory that may be read-only but for this moment. */
static bool write_word(uintptr_t *at, uintptr_t value)
{
    const int protection = protection_of((uintptr_t)at);
    const bool is_closed = protection >= 0 && !(protection & PROT_WRITE);

    if (protection < 0 || protection & PROT_EXEC ||
        (is_closed && !protect((uintptr_t)at, protection | PROT_WRITE)))
        return false;
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
    if (is_closed)
        protect((uintptr_t)at, protection);
    return true;
}

bool got_write(const got_slots *slots, uintptr_t function)
{
    for (int i = 0; i < slots->n; i++) {
        if (write_word(slots->at[i], function))
            continue;
        while (i-- > 0)
            write_word(slots->at[i], slots->found[i]);
        return false;
    }
    return true;
}

bool got_restore(const got_slots *slots, uintptr_t function)
{
    bool is_all = true;

    for (int i = 0; i < slots->n; i++) {
        const uintptr_t now = __atomic_load_n(slots->at[i], __ATOMIC_RELAXED);

        if (now == function)
            is_all = write_word(slots->at[i], slots->found[i]) && is_all;
        else if (now != slots->found[i])
            is_all = false;
    }
    return is_all;
}

uintptr_t got_function(void *library, const char *function, const got_slots *slots)
{
    const struct link_map *map;
    Dl_info info;

    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 &&
        dladdr((void *)slots->found[0], &info) && info.dli_fbase == (void *)map->l_addr)
        return (uintptr_t)dlsym(RTLD_DEFAULT, function);
    return slots->found[0];
}
